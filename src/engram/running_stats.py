"""Running mean and variance, to bring features to mean 0 and standard deviation 1."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

WINDOW = 1_000
"""batches that count: the first ones equally, later ones by an exponential average"""
MAX_DEVIATIONS = 5.0
"""clipping range of normalized numbers"""


class RunningStats(NamedTuple):
    """Mean and variance of each of G numbers."""

    num_batches: Float[Array, ""]
    """at most `WINDOW`, after which it does not matter"""
    mean: Float[Array, "G"]
    variance: Float[Array, "G"]


def init(size: int) -> RunningStats:
    """Statistics of no batch."""
    return RunningStats(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))


def update(stats: RunningStats, batch: Float[Array, "B G"]) -> RunningStats:
    """Statistics with one batch more."""
    num_batches = jnp.minimum(stats.num_batches + 1, WINDOW)
    rate = 1 / num_batches
    delta = jnp.mean(batch, axis=0) - stats.mean
    within = (1 - rate) * stats.variance + rate * jnp.var(batch, axis=0)
    variance = within + rate * (1 - rate) * delta**2
    return RunningStats(num_batches, stats.mean + rate * delta, variance)


def normalize(stats: RunningStats, x: Float[Array, "B G"]) -> Float[Array, "B G"]:
    """Distances from the mean in standard deviations; 0 for numbers that never varied."""
    std = jnp.sqrt(stats.variance)
    varies = std > 1e-6 * jnp.abs(stats.mean)  # less is rounding
    deviations = jnp.where(varies, (x - stats.mean) / jnp.where(varies, std, 1), 0)
    return jnp.clip(deviations, -MAX_DEVIATIONS, MAX_DEVIATIONS)
