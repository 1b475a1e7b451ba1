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
    over: Float[Array, ""]
    """1 where the episode is over, be it ended or cut, else 0"""


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


class Ahead(NamedTuple):
    """Where B stretches of at most n steps begin and end in replay, and what they bring."""

    first: tuple[Int[Array, "B"], Int[Array, "B"]]
    last: tuple[Int[Array, "B"], Int[Array, "B"]]
    reward: Float[Array, "B"]
    """the discounted sum"""
    discount: Float[Array, "B"]
    """of what follows"""


def look_ahead(replay: Transition, iterations: Int[Array, ""], steps: int, gamma: float, lots: Float[Array, "B"]) -> Ahead:
    """Stretches of n steps whose first is drawn as by `sample`. They are shorter where the episode is over, or nothing newer is stored."""
    rows, envs = replay.reward.shape
    stored = jnp.clip(iterations, 1, rows)
    drawn = jnp.minimum((lots * (stored * envs)).astype(jnp.int32), stored * envs - 1)
    env, age = drawn % envs, drawn // envs
    ages = age[:, None] + jnp.arange(steps)  # counted from the oldest row on
    row = (iterations - stored + ages) % rows
    goes_on = (replay.over[row, env[:, None]] == 0) & (ages < stored - 1)
    is_part = jnp.cumprod(jnp.pad(goes_on[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1)  # the first always is
    length = jnp.sum(is_part, axis=1)
    weights = is_part * gamma ** jnp.arange(steps, dtype=jnp.float32)
    reward = jnp.sum(weights * replay.reward[row, env[:, None]], axis=1)
    last = row[:, 0] if steps == 1 else row[jnp.arange(len(lots)), length - 1]
    return Ahead((row[:, 0], env), (last, env), reward, gamma ** length.astype(jnp.float32))


def at(replay: PyTree, place: tuple[Int[Array, "B"], Int[Array, "B"]]) -> PyTree:
    """What is stored there."""
    return jax.tree.map(lambda x: x[place], replay)


def sequences(replay: PyTree, iterations: Int[Array, ""], length: int, lots: Float[Array, "B"]) -> PyTree:
    """Stretches of `length` rows of one environment each, drawn evenly from those that lie whole in the rows written so far; leaves
    have leading axes T and B."""
    rows, envs = jax.tree.leaves(replay)[0].shape[:2]
    stored = jnp.clip(iterations, length, rows)
    begins = (stored - length + 1) * envs
    drawn = jnp.minimum((lots * begins).astype(jnp.int32), begins - 1)
    row = (iterations - stored + drawn // envs + jnp.arange(length)[:, None]) % rows
    return jax.tree.map(lambda x: x[row, drawn % envs], replay)
