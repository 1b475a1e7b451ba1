"""Experience replay: a ring buffer on the device. Row i holds what the run's environments did in iteration i, so the place to write
is the same number for all runs and the buffer is updated in place."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree


class Transition(NamedTuple):
    """One step of one environment (or of several, with leading axes)."""

    state: Float[Array, "S"]
    action: Int[Array, ""]
    reward: Float[Array, ""]
    next_state: Float[Array, "S"]
    end: Float[Array, ""]
    """1 where nothing follows, else 0"""


def empty(row: PyTree, capacity: int, iterations: int) -> PyTree:
    """A buffer for `capacity` transitions shaped like `row` (leaves with leading axis E), or for fewer if the run is shorter."""
    envs = jax.tree.leaves(row)[0].shape[0]
    length = max(1, min(capacity // envs, iterations))
    return jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), row)


def store(replay: PyTree, row: PyTree, iteration: Int[Array, ""]) -> PyTree:
    """Writes the row of an iteration over the oldest one."""
    return jax.tree.map(lambda x, new: x.at[iteration % x.shape[0]].set(new), replay, row)


def sample(replay: PyTree, iterations: Int[Array, ""], lots: Float[Array, "B"]) -> PyTree:
    """Transitions drawn evenly, with replacement, from the `iterations` rows written so far, by even numbers from 0 to 1."""
    length, envs = jax.tree.leaves(replay)[0].shape[:2]
    stored = jnp.clip(iterations, 1, length) * envs
    drawn = jnp.minimum((lots * stored).astype(jnp.int32), stored - 1)
    return jax.tree.map(lambda x: x[drawn // envs, drawn % envs], replay)


def sequences(replay: PyTree, iterations: Int[Array, ""], length: int, lots: Float[Array, "B"]) -> PyTree:
    """Stretches of `length` rows of one environment each, drawn evenly from those that lie whole in the rows written so far; leaves
    have leading axes T and B."""
    rows, envs = jax.tree.leaves(replay)[0].shape[:2]
    stored = jnp.clip(iterations, length, rows)
    begins = (stored - length + 1) * envs
    drawn = jnp.minimum((lots * begins).astype(jnp.int32), begins - 1)
    row = (iterations - stored + drawn // envs + jnp.arange(length)[:, None]) % rows
    return jax.tree.map(lambda x: x[row, drawn % envs], replay)
