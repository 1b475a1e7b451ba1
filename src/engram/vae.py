"""A variational auto-encoder of images, whose mean codes are keys for a memory (MFEC, Section 3.2; the paper's "VAE-CNN")."""

import math
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from engram.errors import EngramError

FILTERS = (16, 32, 64, 128, 128)
SMALLEST = 2 ** len(FILTERS)
"""pixels that an image must have each way, since every layer halves it"""


class VAE(eqx.Module):
    """Five convolutions of 4x4 with stride 2 to the mean and log-variance of a code, and as many back to the image."""

    encoder: tuple[eqx.nn.Conv2d, ...]
    to_code: eqx.nn.Linear
    from_code: eqx.nn.Linear
    decoder: tuple[eqx.nn.ConvTranspose2d, ...]
    shape: tuple[int, int, int] = eqx.field(static=True)
    """channels, height and width that the decoder begins with"""

    def __init__(self, image: tuple[int, int, int], code: int, key: Key[Array, ""]):
        channels, *size = image
        if min(size) < SMALLEST:
            raise EngramError(f"A VAE needs images of at least {SMALLEST} by {SMALLEST} pixels, not {size[0]} by {size[1]}.")
        keys = iter(jax.random.split(key, 2 * len(FILTERS) + 2))
        widths = (channels, *FILTERS)
        sizes = [tuple(side >> layer for side in size) for layer in range(len(widths))]
        self.encoder = tuple(eqx.nn.Conv2d(a, b, 4, 2, 1, key=next(keys)) for a, b in pairwise(widths))
        self.shape = (FILTERS[-1], sizes[-1][0], sizes[-1][1])
        flat = math.prod(self.shape)
        self.to_code = eqx.nn.Linear(flat, 2 * code, key=next(keys))
        self.from_code = eqx.nn.Linear(code, flat, key=next(keys))
        up = zip(widths[:0:-1], widths[-2::-1], sizes[-2::-1], strict=True)
        # An odd side was rounded down on the way in, and wants one more pixel on the way out.
        self.decoder = tuple(
            eqx.nn.ConvTranspose2d(a, b, 4, 2, output_padding=[side % 2 for side in sides], padding=1, key=next(keys)) for a, b, sides in up
        )

    def encode(self, image: Float[Array, "C H W"]) -> tuple[Float[Array, "D"], Float[Array, "D"]]:
        """Mean and log-variance of the image's code."""
        for layer in self.encoder:
            image = jax.nn.relu(layer(image))
        mean, log_variance = jnp.split(self.to_code(image.ravel()), 2)
        return mean, log_variance

    def decode(self, code: Float[Array, "D"]) -> Float[Array, "C H W"]:
        image = jax.nn.relu(self.from_code(code)).reshape(self.shape)
        for layer in self.decoder[:-1]:
            image = jax.nn.relu(layer(image))
        return self.decoder[-1](image)


def loss(vae: VAE, images: Float[Array, "B C H W"], noise: Float[Array, "B D"]) -> Float[Array, ""]:
    """Squared error of the reconstruction and divergence of the code from a standard normal, a mean over the batch."""

    def one(image, noise):
        mean, log_variance = vae.encode(image)
        rebuilt = vae.decode(mean + noise * jnp.exp(log_variance / 2))
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance)
        return jnp.sum((rebuilt - image) ** 2) + divergence

    return jnp.mean(jax.vmap(one)(images, noise))


def channels_first(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """The shape of an image with its channels, the shortest axis, in front, and the axes in that order."""
    if len(shape) == 2:
        return (1, *shape), (0, 1)  # pyright: ignore
    if len(shape) != 3:
        raise EngramError(
            f"A VAE needs images, arrays of two or three axes, but an observation has shape {shape}: use encoder='projection'."
        )
    axes = (0, 1, 2) if shape[0] <= shape[2] else (2, 0, 1)
    return tuple(shape[axis] for axis in axes), axes  # pyright: ignore
