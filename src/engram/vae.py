"""A variational auto-encoder of images; its mean codes are keys of MFEC (the "VAE-CNN")."""

import math
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from engram.errors import EngramError

FILTERS = (16, 32, 64, 128, 128)
KERNEL = 4
MIN_PIXELS = 2 ** len(FILTERS)
"""smallest height and width of an image, since every layer halves it"""


class HalvingConvolution(eqx.Module):
    """A 4 x 4 convolution of stride 2 that halves each side or, transposed, doubles it.

    Written as slices and one matrix product: XLA's convolutions of several runs at once are many
    times slower on a CPU.
    """

    weight: Float[Array, "narrow 16*wide"]
    bias: Float[Array, "out"]

    def __init__(self, wide: int, narrow: int, outputs: int, key: Key[Array, ""]):
        bound = 1 / math.sqrt(KERNEL**2 * (wide + narrow - outputs))
        self.weight = jax.random.uniform(
            key, (narrow, KERNEL**2 * wide), minval=-bound, maxval=bound
        )
        self.bias = jnp.zeros(outputs)

    def down(self, image: Float[Array, "wide H W"]) -> Float[Array, "narrow H/2 W/2"]:
        height, width = image.shape[1] // 2, image.shape[2] // 2
        image = jnp.pad(image, ((0, 0), (1, 1), (1, 1)))
        parts = [
            image[:, i : i + 2 * height : 2, j : j + 2 * width : 2]
            for i in range(KERNEL)
            for j in range(KERNEL)
        ]
        patches = jnp.concatenate(parts).reshape(-1, height * width)
        return (self.weight @ patches + self.bias[:, None]).reshape(-1, height, width)

    def up(
        self, image: Float[Array, "narrow h w"], size: tuple[int, int]
    ) -> Float[Array, "wide H W"]:
        """The transposed convolution, to twice the size or one pixel more."""
        height, width = image.shape[1:]
        parts = (self.weight.T @ image.reshape(image.shape[0], -1)).reshape(
            KERNEL, KERNEL, -1, height, width
        )
        scattered = [
            lax.pad(
                parts[i, j], 0.0, ((0, 0, 0), (i, 3 - i, 1), (j, 3 - j, 1))
            )  # every second pixel, from i and j on
            for i in range(KERNEL)
            for j in range(KERNEL)
        ]
        total = sum(scattered[1:], start=scattered[0])
        return total[:, 1 : 1 + size[0], 1 : 1 + size[1]] + self.bias[:, None, None]


class VAE(eqx.Module):
    """Five convolutions to the mean and log-variance of a code, and five back to the image."""

    encoder: tuple[HalvingConvolution, ...]
    to_code: eqx.nn.Linear
    from_code: eqx.nn.Linear
    decoder: tuple[HalvingConvolution, ...]
    sizes: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """height and width after each convolution"""

    def __init__(self, image: tuple[int, int, int], code: int, key: Key[Array, ""]):
        channels, height, width = image
        if min(height, width) < MIN_PIXELS:
            raise EngramError(
                f"A VAE needs images of at least {MIN_PIXELS} by {MIN_PIXELS} pixels, not {height} "
                f"by {width}: use key_encoder='projection'."
            )
        keys = iter(jax.random.split(key, 2 * len(FILTERS) + 2))
        layers = list(pairwise((channels, *FILTERS)))
        self.sizes = tuple((height >> layer, width >> layer) for layer in range(len(FILTERS) + 1))
        self.encoder = tuple(
            HalvingConvolution(wide, narrow, narrow, next(keys)) for wide, narrow in layers
        )
        flat = FILTERS[-1] * math.prod(self.sizes[-1])
        self.to_code = eqx.nn.Linear(flat, 2 * code, key=next(keys))
        self.from_code = eqx.nn.Linear(code, flat, key=next(keys))
        self.decoder = tuple(
            HalvingConvolution(wide, narrow, wide, next(keys)) for wide, narrow in reversed(layers)
        )

    def encode(self, image: Float[Array, "C H W"]) -> tuple[Float[Array, "D"], Float[Array, "D"]]:
        """Mean and log-variance of the image's code."""
        for layer in self.encoder:
            image = jax.nn.relu(layer.down(image))
        mean, log_variance = jnp.split(self.to_code(image.ravel()), 2)
        return mean, log_variance

    def decode(self, code: Float[Array, "D"]) -> Float[Array, "C H W"]:
        image = self.from_code(code).reshape(FILTERS[-1], *self.sizes[-1])
        for layer, size in zip(self.decoder, self.sizes[-2::-1], strict=True):
            image = layer.up(jax.nn.relu(image), size)
        return image


def encode_key(vae: VAE, image: Float[Array, "C H W"]) -> Float[Array, "D"]:
    """The mean code, rounded: an image must have the same key in all programs."""
    return jnp.round(vae.encode(image)[0], 3)


def vae_loss(
    vae: VAE, images: Float[Array, "B C H W"], noise: Float[Array, "B D"]
) -> Float[Array, ""]:
    """Mean over the batch of squared reconstruction error and KL divergence."""

    def one(image, noise):
        mean, log_variance = vae.encode(image)
        reconstruction = vae.decode(mean + noise * jnp.exp(log_variance / 2))
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance)
        return jnp.sum((reconstruction - image) ** 2) + divergence

    return jnp.mean(jax.vmap(one)(images, noise))
