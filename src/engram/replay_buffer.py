"""Experience replay: a ring buffer on the device.

Row i holds the transitions of all environments of a run in iteration i. The row to write is thus
the same for all runs, and the buffer is updated in place.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8

from engram.networks import LSTMState

Index = tuple[Int[Array, "B"], Int[Array, "B"]]
"""row and environment of B transitions"""


class FrameBuffer(NamedTuple):
    """Observations that are stacks of C frames, each frame stored once.

    Row i holds the observation before the action of iteration i. Stacks are built when sampled.
    """

    frames: UInt8[Array, "N E P"]
    in_stack: Bool[Array, "N E C"]
    """whether the frame 0, 1, ... rows earlier is in the stack; frames before a game are black"""


class Transition(NamedTuple):
    """One step of one environment, or of several with leading axes.

    In a buffer of frame stacks `obs` is a `FrameBuffer` and `next_obs` is None.
    """

    obs: Any  # Float[Array, "S"] or FrameBuffer
    action: Int[Array, ""]
    reward: Float[Array, ""]
    next_obs: Any
    terminal: Float[Array, ""]
    """1 if nothing is bootstrapped after it, else 0"""
    done: Float[Array, ""]
    """1 if the episode ended with it, by termination or truncation, else 0"""
    tau: LSTMState | None = None
    """trajectory before the step, for agents with a trajectory model"""
    next_tau: LSTMState | None = None
    features: Float[Array, "G"] | None = None
    """of an image, for agents with a trajectory model; other observations are their own features"""
    next_features: Float[Array, "G"] | None = None
    mc_return: Float[Array, ""] | None = None
    """discounted rewards until the episode's end; minus infinity where they are not known yet"""

    @property
    def model_input(self) -> Float[Array, "G"]:
        """What the trajectory model receives of `obs`."""
        return self.obs if self.features is None else self.features

    @property
    def next_model_input(self) -> Float[Array, "G"]:
        """What the trajectory model receives of `next_obs`."""
        return self.next_obs if self.next_features is None else self.next_features


def init_buffer(row: PyTree, buffer_size: int, num_iterations: int) -> PyTree:
    """A buffer for `buffer_size` transitions like `row` (leaves with leading axis E).

    It is smaller if the run is shorter.
    """
    num_envs = jax.tree.leaves(row)[0].shape[0]
    rows = max(1, min(buffer_size // num_envs, num_iterations))
    return jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), row)


def init_frames(frame_stack: int, shape: tuple[int, ...], rows: int, num_envs: int) -> FrameBuffer:
    """An empty buffer of frame stacks."""
    pixels = math.prod(shape[1:])
    frames = jnp.zeros((rows, num_envs, pixels), jnp.uint8)
    return FrameBuffer(frames, jnp.zeros((rows, num_envs, frame_stack), bool))


def add_frame(
    buffer: FrameBuffer, observation: UInt8[Array, "E C *P"], iteration: Int[Array, ""]
) -> FrameBuffer:
    """Stores the newest frame of each stack, and which earlier frames are in it."""
    newest_first = observation.reshape(*observation.shape[:2], -1)[:, ::-1]
    row = iteration % buffer.frames.shape[0]
    return FrameBuffer(
        frames=buffer.frames.at[row].set(newest_first[:, 0]),
        in_stack=buffer.in_stack.at[row].set(jnp.any(newest_first != 0, axis=-1)),
    )


def frame_stacks(buffer: FrameBuffer, index: Index) -> UInt8[Array, "B C*P"]:
    """The observations at these places, oldest frame first, flattened."""
    rows, frame_stack = buffer.frames.shape[0], buffer.in_stack.shape[-1]
    row, env = index[0][:, None], index[1][:, None]
    offset = jnp.arange(frame_stack - 1, -1, -1)
    in_stack = buffer.in_stack[row, env, offset]
    frames = buffer.frames[(row - offset) % rows, env]
    return jnp.where(in_stack[..., None], frames, 0).reshape(len(index[0]), -1)


def has_frames(buffer: Any) -> bool:
    """Whether observations are stored as single frames."""
    return isinstance(getattr(buffer, "obs", None), FrameBuffer)


def add(buffer: PyTree, row: PyTree, iteration: Int[Array, ""]) -> PyTree:
    """Writes the row of an iteration over the oldest one."""
    return jax.tree.map(lambda x, new: x.at[iteration % x.shape[0]].set(new), buffer, row)


def sample(buffer: PyTree, iterations: Int[Array, ""], uniforms: Float[Array, "B"]) -> PyTree:
    """Transitions drawn uniformly, with replacement, from the rows of all `iterations` so far."""
    stored, age, env = _draw(buffer, iterations, uniforms)
    if has_frames(buffer):
        return gather(buffer, ((iterations - stored + age) % len(buffer.obs.frames), env))
    return jax.tree.map(lambda x: x[age, env], buffer)


def _draw(
    buffer: PyTree, iterations: Int[Array, ""], uniforms: Float[Array, "B"]
) -> tuple[Int[Array, ""], Int[Array, "B"], Int[Array, "B"]]:
    """The number of rows to draw from; for each draw its row after the oldest, and environment."""
    _, num_envs, usable = _size(buffer)
    stored = jnp.clip(iterations, 1, usable)
    drawn = jnp.minimum((uniforms * (stored * num_envs)).astype(jnp.int32), stored * num_envs - 1)
    return stored, drawn // num_envs, drawn % num_envs


def _size(buffer: PyTree) -> tuple[int, int, int]:
    """The numbers of rows, of environments, and of rows to draw from.

    The oldest frames are left out, since earlier frames of their stacks are overwritten.
    """
    rows, num_envs = jax.tree.leaves(buffer)[0].shape[:2]
    frame_stack = buffer.obs.in_stack.shape[-1] if has_frames(buffer) else 0
    return rows, num_envs, rows - frame_stack


class NStepIndices(NamedTuple):
    """First and last transition of B n-step returns, with their rewards and discount."""

    first: Index
    last: Index
    n_step_return: Float[Array, "B"]
    """discounted sum of the rewards"""
    discount: Float[Array, "B"]
    """of the bootstrap after the last transition"""


def n_step(
    buffer: Transition,
    iterations: Int[Array, ""],
    n: int,
    gamma: float | Float[Array, ""],
    uniforms: Float[Array, "B"],
    shorter: Int[Array, ""] | None = None,
) -> NStepIndices:
    """n-step returns whose first transition is drawn as by `sample`.

    They are shorter at an episode's end and at the newest transition, and with `shorter`, which
    need not be known when the program is compiled.
    """
    rows = buffer.reward.shape[0]
    stored, age, env = _draw(buffer, iterations, uniforms)
    ages = age[:, None] + jnp.arange(n)  # counted from the oldest row
    row = (iterations - stored + ages) % rows
    continues = (buffer.done[row, env[:, None]] == 0) & (ages < stored - 1)
    previous_continues = jnp.pad(continues[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    is_part = jnp.cumprod(previous_continues, axis=1)
    if shorter is not None:
        is_part *= jnp.arange(n) < shorter
    length = jnp.sum(is_part, axis=1)
    weights = is_part * gamma ** jnp.arange(n, dtype=jnp.float32)
    n_step_return = jnp.sum(weights * buffer.reward[row, env[:, None]], axis=1)
    last = row[:, 0] if n == 1 else row[jnp.arange(len(uniforms)), length - 1]
    discount = gamma ** length.astype(jnp.float32)
    return NStepIndices((row[:, 0], env), (last, env), n_step_return, discount)


def monte_carlo_returns(
    buffer: Transition, iterations: Int[Array, ""], gamma: float | Float[Array, ""]
) -> Float[Array, "N E"]:
    """The `mc_return` of all rows; minus infinity in episodes without a terminal end, so far."""
    rows = buffer.reward.shape[0]
    in_time = (jnp.maximum(iterations - rows, 0) + jnp.arange(rows)) % rows
    done = (buffer.done[in_time] > 0) & (jnp.arange(rows) < iterations)[:, None]

    def compose(later, earlier):
        """R_t = r_t + decay_t R_(t+1) over several steps, and whether their first end is known."""
        decay, reward, done, is_known = earlier
        later_decay, later_reward, later_done, later_is_known = later
        return (
            decay * later_decay,
            reward + decay * later_reward,
            done | later_done,
            jnp.where(done, is_known, later_is_known),
        )

    steps = (
        gamma * (1.0 - done),
        buffer.reward[in_time],
        done,
        done & (buffer.terminal[in_time] > 0),
    )
    _, returns, _, is_known = lax.associative_scan(compose, steps, reverse=True)
    return jnp.zeros_like(returns).at[in_time].set(jnp.where(is_known, returns, -jnp.inf))


def gather(buffer: PyTree, index: Index) -> PyTree:
    """The transitions at these places."""
    if not has_frames(buffer):
        return jax.tree.map(lambda x: x[index], buffer)
    batch = jax.tree.map(lambda x: x[index], buffer._replace(obs=None))
    batch = batch._replace(obs=frame_stacks(buffer.obs, index))
    if not isinstance(buffer, Transition):
        return batch
    row, env = index
    next_index = (row + 1) % buffer.reward.shape[0], env
    return batch._replace(next_obs=frame_stacks(buffer.obs, next_index))


def sample_sequences(
    buffer: PyTree, iterations: Int[Array, ""], length: int, uniforms: Float[Array, "B"]
) -> PyTree:
    """Sequences of `length` rows of one environment each, drawn uniformly; axes T and B lead."""
    rows, num_envs, usable = _size(buffer)
    stored = jnp.clip(iterations, length, usable)
    starts = (stored - length + 1) * num_envs
    drawn = jnp.minimum((uniforms * starts).astype(jnp.int32), starts - 1)
    row = (iterations - stored + drawn // num_envs + jnp.arange(length)[:, None]) % rows
    env = jnp.broadcast_to(drawn % num_envs, row.shape)
    flat = gather(buffer, (row.ravel(), env.ravel()))
    return jax.tree.map(lambda x: x.reshape(*row.shape, *x.shape[1:]), flat)
