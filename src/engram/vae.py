"""A variational auto-encoder of images, whose mean codes are keys for a memory (MFEC, Section 3.2; the paper's "VAE-CNN")."""

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
SMALLEST = 2 ** len(FILTERS)
"""pixels that an image must have each way, since every layer halves it"""


class Halving(eqx.Module):
    """A convolution of 4x4 with stride 2 that halves each side, or, transposed, doubles it. Written as slices and one matrix product: XLA's
    convolutions of several runs at once are many times slower on a CPU."""

    weight: Float[Array, "narrow 16*wide"]
    bias: Float[Array, "out"]

    def __init__(self, wide: int, narrow: int, outputs: int, key: Key[Array, ""]):
        bound = 1 / math.sqrt(KERNEL**2 * (wide + narrow - outputs))
        self.weight = jax.random.uniform(key, (narrow, KERNEL**2 * wide), minval=-bound, maxval=bound)
        self.bias = jnp.zeros(outputs)

    def down(self, image: Float[Array, "wide H W"]) -> Float[Array, "narrow H/2 W/2"]:
        height, width = image.shape[1] // 2, image.shape[2] // 2
        image = jnp.pad(image, ((0, 0), (1, 1), (1, 1)))
        parts = [image[:, i : i + 2 * height : 2, j : j + 2 * width : 2] for i in range(KERNEL) for j in range(KERNEL)]
        patches = jnp.concatenate(parts).reshape(-1, height * width)
        return (self.weight @ patches + self.bias[:, None]).reshape(-1, height, width)

    def up(self, image: Float[Array, "narrow h w"], size: tuple[int, int]) -> Float[Array, "wide H W"]:
        """The reverse, to a side of twice as many pixels or one more."""
        height, width = image.shape[1:]
        parts = (self.weight.T @ image.reshape(image.shape[0], -1)).reshape(KERNEL, KERNEL, -1, height, width)
        spread = [
            lax.pad(parts[i, j], 0.0, ((0, 0, 0), (i, 3 - i, 1), (j, 3 - j, 1)))  # every second pixel, from i and j on
            for i in range(KERNEL)
            for j in range(KERNEL)
        ]
        total = sum(spread[1:], start=spread[0])
        return total[:, 1 : 1 + size[0], 1 : 1 + size[1]] + self.bias[:, None, None]


class VAE(eqx.Module):
    """Five convolutions to the mean and log-variance of a code, and as many back to the image."""

    encoder: tuple[Halving, ...]
    to_code: eqx.nn.Linear
    from_code: eqx.nn.Linear
    decoder: tuple[Halving, ...]
    sizes: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """height and width after each convolution"""

    def __init__(self, image: tuple[int, int, int], code: int, key: Key[Array, ""]):
        channels, height, width = image
        if min(height, width) < SMALLEST:
            raise EngramError(f"A VAE needs images of at least {SMALLEST} by {SMALLEST} pixels, not {height} by {width}.")
        keys = iter(jax.random.split(key, 2 * len(FILTERS) + 2))
        layers = list(pairwise((channels, *FILTERS)))
        self.sizes = tuple((height >> layer, width >> layer) for layer in range(len(FILTERS) + 1))
        self.encoder = tuple(Halving(wide, narrow, narrow, next(keys)) for wide, narrow in layers)
        flat = FILTERS[-1] * math.prod(self.sizes[-1])
        self.to_code = eqx.nn.Linear(flat, 2 * code, key=next(keys))
        self.from_code = eqx.nn.Linear(code, flat, key=next(keys))
        self.decoder = tuple(Halving(wide, narrow, wide, next(keys)) for wide, narrow in reversed(layers))

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


def key_of(vae: VAE, image: Float[Array, "C H W"]) -> Float[Array, "D"]:
    """The mean code, in thousandths: two programs differ in its last bits, and the same image must have the same key in both."""
    return jnp.round(vae.encode(image)[0], 3)


def loss(vae: VAE, images: Float[Array, "B C H W"], noise: Float[Array, "B D"]) -> Float[Array, ""]:
    """Squared error of the reconstruction and divergence of the code from a standard normal, a mean over the batch."""

    def one(image, noise):
        mean, log_variance = vae.encode(image)
        rebuilt = vae.decode(mean + noise * jnp.exp(log_variance / 2))
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance)
        return jnp.sum((rebuilt - image) ** 2) + divergence

    return jnp.mean(jax.vmap(one)(images, noise))
