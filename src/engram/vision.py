"""Images: what is one, and the convolutions that see it."""

import math
from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from engram.types import Spec

Convolutions = Literal["paper", "nature"]

CONVOLUTIONS = {"paper": ((32, 8, 4), (64, 4, 2), (64, 3, 1), (1024, 3, 1)), "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1))}
"""filters, kernel and stride of each layer"""
SMALLER = ((32, 4, 2), (64, 4, 2)), ((32, 3, 1), (64, 3, 1))
"""the same for images that are too small for these, and for still smaller ones"""
LEFT = 3
"""places that layers must leave each way: where everything comes together in one, it is hard to learn what was where"""
LEAST = 5
"""pixels of either side; what is smaller is no image"""


def is_image(spec: Spec) -> bool:
    """Whether observations are images: bytes, of at least so many pixels each way, with or without channels, alone or in a stack."""
    return spec.dtype == "uint8" and len(spec.shape) in (2, 3, 4) and min(channels_first(spec.shape)[0][1:]) >= LEAST


def channels_first(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """The shape of an image with its channels in front, and the axes in that order. Height and width are equal neighbours or, where there
    are none, the channels the shorter one of the first and the last axis. Of four axes the first is that of a stack, whose images have
    channels of their own."""
    if len(shape) == 2:
        return (1, *shape), (0, 1)  # pyright: ignore
    stack, (first, middle, last) = len(shape) - 3, shape[-3:]
    is_last = first == middle if (first == middle) != (middle == last) else last < first
    axes = (*range(stack), *(stack + axis for axis in ((2, 0, 1) if is_last else (0, 1, 2))))
    *channels, height, width = (shape[axis] for axis in axes)
    return (math.prod(channels), height, width), axes


class Convolution(eqx.Module):
    """A convolution with ReLU, as one matrix product over patches: over many runs at once it stays one, where `lax.conv` becomes many."""

    linear: eqx.nn.Linear
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, channels: int, filters: int, kernel: int, stride: int, key: Key[Array, ""]):
        self.linear = eqx.nn.Linear(kernel * kernel * channels, filters, key=key)
        self.kernel, self.stride = kernel, stride

    def __call__(self, x: Shaped[Array, "H W C"]) -> Float[Array, "h w O"]:
        assert self.linear.bias is not None
        seen = numbers(patches(x, self.kernel, self.stride))  # bytes are put together four times as fast
        return jax.nn.relu(seen @ self.linear.weight.T + self.linear.bias)


def numbers(x: Shaped[Array, "..."], brightest: int = 255) -> Float[Array, "..."]:
    """Bytes become [0, 1]."""
    return x.astype(jnp.float32) / brightest if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def patches(x: Shaped[Array, "H W C"], kernel: int, stride: int) -> Shaped[Array, "h w X"]:
    """The squares of `kernel` pixels that a convolution sees, each in a row; edges that it does not reach are left out. They are put
    together from blocks of `stride` pixels, of which `kernel` must be a multiple."""
    blocks = kernel // stride
    height, width = shrunk((*x.shape[:2],), kernel, stride)
    high, wide = height + blocks - 1, width + blocks - 1
    x = x[: high * stride, : wide * stride].reshape(high, stride, wide, stride, -1).transpose(0, 2, 1, 3, 4).reshape(high, wide, -1)
    return jnp.concatenate([x[i : i + height, j : j + width] for i in range(blocks) for j in range(blocks)], axis=-1)


def shrunk(sides: tuple[int, ...], kernel: int, stride: int) -> tuple[int, ...]:
    """The sides of what a convolution makes of an image; not above 0 where it is too small."""
    return tuple((side - kernel) // stride + 1 for side in sides)


def places(shape: tuple[int, ...], layers: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    """What layers leave of the height and the width of an image."""
    sides = channels_first(shape)[0][1:]
    for _, kernel, stride in layers:
        sides = shrunk(sides, kernel, stride)
    return sides


def fitting(shape: tuple[int, ...], wanted: Convolutions) -> Sequence[tuple[int, int, int]]:
    """The layers wanted or, where an image is too small for them, the first that it is not too small for."""
    choices = CONVOLUTIONS[wanted], CONVOLUTIONS["nature"], *SMALLER
    return next((layers for layers in choices if min(places(shape, layers)) >= LEFT), SMALLER[-1])


class Vision(eqx.Module):
    """Convolutions over an image or a stack of frames, in bytes or numbers."""

    layers: tuple[Convolution, ...]
    shape: tuple[int, ...] = eqx.field(static=True)
    brightest: int = eqx.field(static=True)

    def __init__(self, shape: tuple[int, ...], layers: Sequence[tuple[int, int, int]], key: Key[Array, ""], brightest: int = 255):
        channels = [channels_first(shape)[0][0], *(filters for filters, _, _ in layers)]
        keys = jax.random.split(key, len(layers))
        self.layers = tuple(Convolution(c, *layer, key=k) for c, layer, k in zip(channels, layers, keys, strict=False))
        self.shape, self.brightest = shape, brightest

    def __call__(self, x: Shaped[Array, "S"]) -> Float[Array, "F"]:
        x = upright(self.shape, x).transpose(1, 2, 0)
        if self.brightest != 255:
            x = numbers(x, self.brightest)
        for layer in self.layers:
            x = layer(x)
        return x.ravel()


def upright(shape: tuple[int, ...], x: Shaped[Array, "S"]) -> Shaped[Array, "C H W"]:
    """An image with its channels in front."""
    first, axes = channels_first(shape)
    return x.reshape(shape).transpose(axes).reshape(first)


def small(shape: tuple[int, ...], x: Shaped[Array, "S"]) -> Float[Array, "F"]:
    """An image in means of squares, 21 or a little more to its shorter side; edges that these do not reach are left out. Of a stack, which
    more than three channels in front are, too, the first image and the last."""
    (channels, *sides), axes = channels_first(shape)
    square = max(1, min(sides) // 21)
    height, width = (side // square for side in sides)
    frames = upright(shape, x)[:, : square * height, : square * width]
    if len(shape) == 4 or (channels > 3 and axes == (0, 1, 2)):
        each = channels // shape[0]
        frames = jnp.concatenate([frames[:each], frames[-each:]])
    frames = numbers(frames)
    return frames.reshape(-1, height, square, width, square).mean(axis=(2, 4)).ravel()


def features(vision: Vision) -> int:
    """How many numbers the convolutions find in an image."""
    filters = int(vision.layers[-1].linear.out_features)
    return filters * math.prod(places(vision.shape, [(filters, layer.kernel, layer.stride) for layer in vision.layers]))
