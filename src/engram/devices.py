"""The device that programs are compiled for."""

from typing import Any

import jax


def named_device() -> Any:
    """The device or platform that `jax.default_device` names; None if JAX chooses."""
    return jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]


def platform() -> str:
    """The platform of the device that programs are compiled for, such as "cpu" or "gpu"."""
    device = named_device()
    return device.platform if isinstance(device, jax.Device) else device or jax.default_backend()
