"""Numbers brought to mean 0 and deviation 1 by what was met of them so far."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

HORIZON = 1_000
"""batches that count: all of the first ones equally, older ones less and less"""
FARTHEST = 5.0
"""deviations from the mean, so that one rare picture does not drown all others"""


class Norm(NamedTuple):
    """Mean and variance of each of G numbers."""

    batches: Float[Array, ""]
    mean: Float[Array, "G"]
    variance: Float[Array, "G"]


def unmet(size: int) -> Norm:
    """Before the first batch."""
    return Norm(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))


def meet(norm: Norm, batch: Float[Array, "B G"]) -> Norm:
    """One batch more."""
    share = 1 / jnp.minimum(norm.batches + 1, HORIZON)
    apart = jnp.mean(batch, axis=0) - norm.mean
    within = (1 - share) * norm.variance + share * jnp.var(batch, axis=0)
    return Norm(norm.batches + 1, norm.mean + share * apart, within + share * (1 - share) * apart**2)


def in_deviations(norm: Norm, numbers: Float[Array, "B G"]) -> Float[Array, "B G"]:
    """How far they are from the mean; 0 for what has always been the same."""
    deviation = jnp.sqrt(norm.variance)
    varies = deviation > 1e-6 * jnp.abs(norm.mean)  # less is rounding
    return jnp.clip(jnp.where(varies, (numbers - norm.mean) / jnp.where(varies, deviation, 1), 0), -FARTHEST, FARTHEST)
