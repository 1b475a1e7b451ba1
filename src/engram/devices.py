"""The device that programs are compiled for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax


def named_device() -> Any:
    """The device or platform that `jax.default_device` names; None if JAX chooses."""
    return jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]


def platform() -> str:
    """What programs are made for: a device such as "cpu" or "gpu", or "onnx"."""
    if _is_onnx.get():
        return "onnx"
    device = named_device()
    return device.platform if isinstance(device, jax.Device) else device or jax.default_backend()


_is_onnx: ContextVar[bool] = ContextVar("is_onnx", default=False)


@contextmanager
def tracing_for_onnx() -> Iterator[None]:
    """Within it functions are traced for an ONNX graph: by XLA's plain operations alone."""
    token = _is_onnx.set(True)
    try:
        yield
    finally:
        _is_onnx.reset(token)
