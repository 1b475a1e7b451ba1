"""What programs are compiled for."""

from typing import Any

import jax


def named_device() -> Any:
    """The device or platform that was named, if any; programs are then compiled for it."""
    return jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]


def platform() -> str:
    """Of the device that programs are compiled for."""
    device = named_device()
    return device.platform if isinstance(device, jax.Device) else device or jax.default_backend()
