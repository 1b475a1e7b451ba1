"""Image encoders: which observations are images, and the convolutions that encode them."""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, Shaped, UInt8

from engram.devices import platform
from engram.types import Spec

EncoderName = Literal["paper", "nature", "impala", "impala2", "impala4"]
Layer = tuple[int, int, int]
"""filters, kernel size and stride"""

LAYERS: dict[str, tuple[Layer, ...]] = {
    "paper": ((32, 8, 4), (64, 4, 2), (64, 3, 1), (1024, 3, 1)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}
IMPALA_WIDTHS = {"impala": 1, "impala2": 2, "impala4": 4}
IMPALA_CHANNELS = 16, 32, 32
"""of the three stacks, to be multiplied by the width"""
SMALL_IMAGE_LAYERS = ((32, 4, 2), (64, 4, 2)), ((32, 3, 1), (64, 3, 1))
"""for images too small for the layers above, and for still smaller ones"""
MIN_FEATURE_MAP = 3
"""smallest height and width that convolutions may leave: on 1 x 1 a DQN does not learn positions"""
MIN_PIXELS = 5
"""smallest height and width of an image"""


def is_image(spec: Spec) -> bool:
    """Whether observations are images: uint8, at least 5 x 5, with or without channels or stack."""
    if spec.dtype != "uint8" or len(spec.shape) not in (2, 3, 4):
        return False
    return min(channels_first(spec.shape)[0][1:]) >= MIN_PIXELS


def channels_first(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """The shape (channels, height, width) of an image, and the axes in that order.

    Height and width are the equal neighbouring axes; if there are none, the shorter of the first
    and the last axis holds the channels. Of four axes the first is a stack of images, whose
    channels are joined.
    """
    if len(shape) == 2:
        return (1, *shape), (0, 1)  # pyright: ignore
    stack_axes, (first, middle, last) = len(shape) - 3, shape[-3:]
    is_one_pair = (first == middle) != (middle == last)
    channels_last = first == middle if is_one_pair else last < first
    image_axes = (2, 0, 1) if channels_last else (0, 1, 2)
    axes = (*range(stack_axes), *(stack_axes + axis for axis in image_axes))
    *channels, height, width = (shape[axis] for axis in axes)
    return (math.prod(channels), height, width), axes


class Convolution(eqx.Module):
    """A convolution with ReLU, as one matrix product over patches; on a GPU in bfloat16.

    Over many runs it stays one product, where `lax.conv` becomes many.
    """

    linear: eqx.nn.Linear
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, channels: int, filters: int, kernel: int, stride: int, key: Key[Array, ""]):
        self.linear = eqx.nn.Linear(kernel * kernel * channels, filters, key=key)
        self.kernel, self.stride = kernel, stride

    def __call__(self, x: Shaped[Array, "H W C"]) -> Float[Array, "h w O"]:
        assert self.linear.bias is not None
        weight = self.linear.weight.T
        if platform() == "gpu":
            if x.dtype == jnp.uint8:
                inputs, weight = patches_of_bytes(x, self.kernel, self.stride), weight / 255
            else:
                inputs = patches(x.astype(jnp.bfloat16), self.kernel, self.stride)
            outputs = (inputs @ weight.astype(jnp.bfloat16)).astype(jnp.float32)
        else:
            # Patches of bytes are gathered four times as fast as patches of floats.
            outputs = to_float(patches(x, self.kernel, self.stride)) @ weight
        return jax.nn.relu(outputs + self.linear.bias)


def patches_of_bytes(x: UInt8[Array, "H W C"], kernel: int, stride: int) -> Float[Array, "h w X"]:
    """The windows of a convolution in bfloat16, stored as bytes until they are multiplied.

    XLA would store twice as much. A GPU converts bytes within a matrix product, but signed ones
    only.
    """
    signed = lax.bitcast_convert_type(x ^ 128, jnp.int8)
    stored = lax.optimization_barrier(patches(signed, kernel, stride))
    return stored.astype(jnp.bfloat16) + 128


def to_float(x: Shaped[Array, "..."], pixel_max: int = 255) -> Float[Array, "..."]:
    """Floats; bytes are scaled to [0, 1]."""
    return x.astype(jnp.float32) / pixel_max if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def patches(x: Shaped[Array, "H W C"], kernel: int, stride: int) -> Shaped[Array, "h w X"]:
    """The windows of a convolution, each as one row; edges that it does not reach are dropped.

    They are gathered from blocks of `stride` pixels, of which `kernel` must be a multiple.
    """
    blocks = kernel // stride
    height, width = output_size((*x.shape[:2],), kernel, stride)
    rows, columns = height + blocks - 1, width + blocks - 1
    x = x[: rows * stride, : columns * stride].reshape(rows, stride, columns, stride, -1)
    x = x.transpose(0, 2, 1, 3, 4).reshape(rows, columns, -1)
    windows = [x[i : i + height, j : j + width] for i in range(blocks) for j in range(blocks)]
    return jnp.concatenate(windows, axis=-1)


def output_size(size: tuple[int, ...], kernel: int, stride: int) -> tuple[int, ...]:
    """Height and width after a convolution; not above 0 if the image is too small for it."""
    return tuple((side - kernel) // stride + 1 for side in size)


def feature_map_size(shape: tuple[int, ...], layers: Sequence[Layer]) -> tuple[int, ...]:
    """Height and width after all layers."""
    size = channels_first(shape)[0][1:]
    for _, kernel, stride in layers:
        size = output_size(size, kernel, stride)
    return size


def layers_for(shape: tuple[int, ...], name: EncoderName) -> Sequence[Layer]:
    """The named layers, or smaller ones if the image is too small for them."""
    choices = LAYERS[name], LAYERS["nature"], *SMALL_IMAGE_LAYERS
    fitting = (
        layers for layers in choices if min(feature_map_size(shape, layers)) >= MIN_FEATURE_MAP
    )
    return next(fitting, SMALL_IMAGE_LAYERS[-1])


class CNN(eqx.Module):
    """Convolutions over an image or a stack of frames."""

    layers: tuple[Convolution, ...]
    shape: tuple[int, ...] = eqx.field(static=True)
    pixel_max: int = eqx.field(static=True)

    def __init__(
        self,
        shape: tuple[int, ...],
        layers: Sequence[Layer],
        key: Key[Array, ""],
        pixel_max: int = 255,
    ):
        channels = [channels_first(shape)[0][0], *(filters for filters, _, _ in layers)]
        keys = jax.random.split(key, len(layers))
        self.layers = tuple(
            Convolution(c, *layer, key=k)
            for c, layer, k in zip(channels, layers, keys, strict=False)
        )
        self.shape, self.pixel_max = shape, pixel_max

    def __call__(self, x: Shaped[Array, "S"]) -> Float[Array, "F"]:
        x = channels_last(x, self.shape)
        if self.pixel_max != 255:
            x = to_float(x, self.pixel_max)
        for layer in self.layers:
            x = layer(x)
        return x.ravel()

    @property
    def num_features(self) -> int:
        """Length of the output."""
        layers = [(0, layer.kernel, layer.stride) for layer in self.layers]
        filters = int(self.layers[-1].linear.out_features)
        return filters * math.prod(feature_map_size(self.shape, layers))


class SameConvolution(eqx.Module):
    """A 3 x 3 convolution whose output has the size of its input.

    On a GPU it is XLA's own, since patches would take nine times the image's memory. On a CPU it is
    a product over patches, many times as fast in a loop.
    """

    linear: eqx.nn.Linear

    def __init__(self, channels: int, filters: int, key: Key[Array, ""]):
        self.linear = eqx.nn.Linear(9 * channels, filters, key=key)

    def __call__(self, x: Float[Array, "H W C"]) -> Float[Array, "H W O"]:
        assert self.linear.bias is not None
        weight = self.linear.weight.T.astype(x.dtype)
        convolve = convolve_by_xla if platform() == "gpu" else convolve_by_patches
        return convolve(x, weight) + self.linear.bias.astype(x.dtype)


def convolve_by_xla(x: Float[Array, "H W C"], weight: Float[Array, "X O"]) -> Array:
    """A 3 x 3 convolution with zeros around the image."""
    kernel, layout = weight.reshape(3, 3, x.shape[-1], -1), ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=layout)[0]


def convolve_by_patches(x: Float[Array, "H W C"], weight: Float[Array, "X O"]) -> Array:
    """The same as a product over patches."""
    height, width, _ = x.shape
    padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
    windows = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(windows, axis=-1) @ weight


def max_pool(x: Float[Array, "H W C"]) -> Float[Array, "h w C"]:
    """Maxima over 3 x 3 windows at every second place, beyond the edges as often as fits."""
    height, width, _ = x.shape
    h, w = -(-height // 2), -(-width // 2)
    top, left = (2 * h + 1 - height) // 2, (2 * w + 1 - width) // 2
    pads = (top, 2 * h + 1 - height - top), (left, 2 * w + 1 - width - left), (0, 0)
    padded = jnp.pad(x, pads, constant_values=-jnp.inf)
    windows = [padded[i : i + 2 * h : 2, j : j + 2 * w : 2] for i in range(3) for j in range(3)]
    return functools.reduce(jnp.maximum, windows)


class ImpalaStack(eqx.Module):
    """A convolution, a pooling that halves the image, and two residual blocks."""

    first: SameConvolution
    blocks: tuple[tuple[SameConvolution, SameConvolution], ...]

    def __init__(self, channels: int, filters: int, key: Key[Array, ""]):
        keys = jax.random.split(key, 5)
        self.first = SameConvolution(channels, filters, keys[0])
        self.blocks = tuple(
            (SameConvolution(filters, filters, one), SameConvolution(filters, filters, other))
            for one, other in (keys[1:3], keys[3:5])
        )

    def __call__(self, x: Float[Array, "H W C"]) -> Float[Array, "h w O"]:
        x = max_pool(self.first(x))
        for first, second in self.blocks:
            x = x + second(jax.nn.relu(first(jax.nn.relu(x))))
        return x


class Impala(eqx.Module):
    """The residual network of IMPALA (Espeholt et al. 2018), its channels times a width."""

    stacks: tuple[ImpalaStack, ...]
    shape: tuple[int, ...] = eqx.field(static=True)
    pixel_max: int = eqx.field(static=True)

    def __init__(
        self, shape: tuple[int, ...], width: int, key: Key[Array, ""], pixel_max: int = 255
    ):
        filters = [width * channels for channels in IMPALA_CHANNELS]
        channels = [channels_first(shape)[0][0], *filters]
        keys = jax.random.split(key, len(filters))
        self.stacks = tuple(
            ImpalaStack(*pair, key=k) for *pair, k in zip(channels, filters, keys, strict=False)
        )
        self.shape, self.pixel_max = shape, pixel_max

    def __call__(self, x: Shaped[Array, "S"]) -> Float[Array, "F"]:
        dtype = jnp.bfloat16 if platform() == "gpu" else jnp.float32
        x = to_float(channels_last(x, self.shape), self.pixel_max).astype(dtype)
        for stack in self.stacks:
            x = stack(x)
        return jax.nn.relu(x).ravel().astype(jnp.float32)

    @property
    def num_features(self) -> int:
        """Length of the output."""
        height, width = channels_first(self.shape)[0][1:]
        for _ in self.stacks:
            height, width = -(-height // 2), -(-width // 2)
        return height * width * int(self.stacks[-1].first.linear.out_features)


Encoder = CNN | Impala


def channels_last(x: Shaped[Array, "S"], shape: tuple[int, ...]) -> Shaped[Array, "H W C"]:
    """A flattened observation as an image whose last axis has the channels of all frames."""
    image_shape, axes = channels_first(shape)
    return x.reshape(shape).transpose(axes).reshape(image_shape).transpose(1, 2, 0)


def shift_image(
    shape: tuple[int, ...], x: Shaped[Array, "S"], pixels: Int[Array, "2"]
) -> Shaped[Array, "S"]:
    """A flattened observation moved down and right by so many pixels, its edges repeated."""
    axes = channels_first(shape)[1][-2:]
    images = x.reshape(shape)
    for axis, shift in zip(axes, pixels, strict=True):
        places = jnp.clip(jnp.arange(shape[axis]) - shift, 0, shape[axis] - 1)
        images = jnp.take(images, places, axis=axis)
    return images.ravel()


def make_encoder(spec: Spec, name: EncoderName, key: Key[Array, ""]) -> Encoder | None:
    """The encoder of image observations; None for observations that are vectors."""
    if not is_image(spec):
        return None
    if name in IMPALA_WIDTHS:
        return Impala(spec.shape, IMPALA_WIDTHS[name], key, spec.pixel_max)
    return CNN(spec.shape, layers_for(spec.shape, name), key, spec.pixel_max)
