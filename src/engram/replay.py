"""Experience replay: a ring buffer on the device. Row i holds what the run's environments did in iteration i, so the place to write
is the same number for all runs and the buffer is updated in place."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8


class Film(NamedTuple):
    """Observations that are stacks of C frames, each frame stored once: stacks are built when they are drawn. Row i holds what was seen
    before the action of iteration i, and so, after that of the iteration before."""

    frames: UInt8[Array, "N E P"]
    shown: Bool[Array, "N E C"]
    """whether the frame so many rows earlier is in the stack; what lies before the beginning of a game is black"""


class Transition(NamedTuple):
    """One step of one environment (or of several, with leading axes). In a replay of images `state` may be a `Film`, which has what
    followed too, and `next_state` None."""

    state: Any  # Float[Array, "S"], or a Film
    action: Int[Array, ""]
    reward: Float[Array, ""]
    next_state: Any
    end: Float[Array, ""]
    """1 where nothing follows, else 0"""
    over: Float[Array, ""]
    """1 where the episode is over, be it ended or cut, else 0"""


def empty(row: PyTree, capacity: int, iterations: int) -> PyTree:
    """A buffer for `capacity` transitions shaped like `row` (leaves with leading axis E), or for fewer if the run is shorter."""
    envs = jax.tree.leaves(row)[0].shape[0]
    length = max(1, min(capacity // envs, iterations))
    return jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), row)


def film(stack: int, shape: tuple[int, ...], rows: int, envs: int) -> Film:
    """A blank film for stacks of so many frames, seen by E environments; for a replay of so many rows."""
    pixels = math.prod(shape[1:])
    return Film(jnp.zeros((rows, envs, pixels), jnp.uint8), jnp.zeros((rows, envs, stack), bool))


def shoot(film: Film, observation: UInt8[Array, "E C *P"], iteration: Int[Array, ""]) -> Film:
    """Takes in what is seen at an iteration: its newest frame, and which earlier ones are not black."""
    stack = observation.reshape(*observation.shape[:2], -1)[:, ::-1]
    row = iteration % film.frames.shape[0]
    return Film(film.frames.at[row].set(stack[:, 0]), film.shown.at[row].set(jnp.any(stack != 0, axis=-1)))


def stacks(film: Film, place: tuple[Int[Array, "B"], Int[Array, "B"]]) -> UInt8[Array, "B C*P"]:
    """What was seen there, oldest frame first, in one row of bytes."""
    rows, count = film.frames.shape[0], film.shown.shape[-1]
    row, env = place[0][:, None], place[1][:, None]
    back = jnp.arange(count - 1, -1, -1)
    shown = film.shown[row, env, back]
    return jnp.where(shown[..., None], film.frames[(row - back) % rows, env], 0).reshape(len(place[0]), -1)


def is_filmed(replay: Any) -> bool:
    return isinstance(getattr(replay, "state", None), Film)


def store(replay: PyTree, row: PyTree, iteration: Int[Array, ""]) -> PyTree:
    """Writes the row of an iteration over the oldest one."""
    return jax.tree.map(lambda x, new: x.at[iteration % x.shape[0]].set(new), replay, row)


def sample(replay: PyTree, iterations: Int[Array, ""], lots: Float[Array, "B"]) -> PyTree:
    """Transitions drawn evenly, with replacement, from the `iterations` rows written so far, by even numbers from 0 to 1."""
    stored, age, env = _drawn(replay, iterations, lots)
    if is_filmed(replay):
        return at(replay, ((iterations - stored + age) % len(replay.state.frames), env))
    return jax.tree.map(lambda x: x[age, env], replay)


def _drawn(replay: PyTree, iterations: Int[Array, ""], lots: Float[Array, "B"]) -> tuple[Int[Array, ""], Int[Array, "B"], Int[Array, "B"]]:
    """How many rows may be drawn, and steps drawn evenly from them: how many rows after the oldest, and of which environment. Of a film
    the oldest rows are left out: earlier frames of their stacks are overwritten already."""
    rows, envs = jax.tree.leaves(replay)[0].shape[:2]
    stored = jnp.clip(iterations, 1, rows - replay.state.shown.shape[-1] if is_filmed(replay) else rows)
    drawn = jnp.minimum((lots * (stored * envs)).astype(jnp.int32), stored * envs - 1)
    return stored, drawn // envs, drawn % envs


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
    rows = replay.reward.shape[0]
    stored, age, env = _drawn(replay, iterations, lots)
    ages = age[:, None] + jnp.arange(steps)  # counted from the oldest row on
    row = (iterations - stored + ages) % rows
    goes_on = (replay.over[row, env[:, None]] == 0) & (ages < stored - 1)
    is_part = jnp.cumprod(jnp.pad(goes_on[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1)  # the first always is
    length = jnp.sum(is_part, axis=1)
    weights = is_part * gamma ** jnp.arange(steps, dtype=jnp.float32)
    reward = jnp.sum(weights * replay.reward[row, env[:, None]], axis=1)
    last = row[:, 0] if steps == 1 else row[jnp.arange(len(lots)), length - 1]
    return Ahead((row[:, 0], env), (last, env), reward, gamma ** length.astype(jnp.float32))


def after(replay: Transition, place: tuple[Int[Array, "B"], Int[Array, "B"]]) -> tuple[Int[Array, "B"], Int[Array, "B"]]:
    """The places that follow."""
    row, env = place
    return (row + 1) % replay.reward.shape[0], env


def at(replay: PyTree, place: tuple[Int[Array, "B"], Int[Array, "B"]]) -> PyTree:
    """What is stored there."""

    def one(x):
        if not is_filmed(x):
            return x[place]
        rest = jax.tree.map(lambda x: x[place], x._replace(state=None))._replace(state=stacks(x.state, place))
        return rest._replace(next_state=stacks(x.state, after(x, place))) if isinstance(x, Transition) else rest

    return jax.tree.map(one, replay, is_leaf=is_filmed)


def sequences(replay: PyTree, iterations: Int[Array, ""], length: int, lots: Float[Array, "B"]) -> PyTree:
    """Stretches of `length` rows of one environment each, drawn evenly from those that lie whole in the rows written so far; leaves
    have leading axes T and B."""
    rows, envs = jax.tree.leaves(replay)[0].shape[:2]
    stored = jnp.clip(iterations, length, rows)
    begins = (stored - length + 1) * envs
    drawn = jnp.minimum((lots * begins).astype(jnp.int32), begins - 1)
    row = (iterations - stored + drawn // envs + jnp.arange(length)[:, None]) % rows
    return jax.tree.map(lambda x: x[row, drawn % envs], replay)
