"""One memory per action: NEC's differentiable neural dictionary, and MFEC's tables.

Every function takes and returns one `Memory` whose arrays have a leading axis of actions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from engram.episodic import memory as mem
from engram.episodic.accumulator import ClosedReturns
from engram.episodic.memory import Eviction, Memory, Neighbours
from engram.types import Spec

WRITES_PER_STEP = 2
"""per environment: one entry is added per step, so the queue empties within an episode's length"""


class Entry(NamedTuple):
    """State key and action of one step, waiting for its return."""

    key: Float[Array, "*E D"]
    action: Int[Array, "*E"]


class Writes(NamedTuple):
    """W entries with their returns."""

    key: Float[Array, "W D"]
    value: Float[Array, "W"]
    mask: Bool[Array, "A W"]
    """the action whose memory an entry belongs to; none if it must not be written"""


def init_dnd(num_actions: int, memory_size: int, key_size: int) -> Memory:
    """An empty memory for each action."""
    return jax.vmap(lambda _: mem.init_memory(memory_size, key_size))(jnp.arange(num_actions))


def capacity(memory_size: int, spec: Spec) -> tuple[int, Eviction]:
    """Slots that a memory needs in a run, and its eviction.

    One that cannot be full needs no search for the least recently used slot.
    """
    num_steps = spec.num_iterations * spec.num_envs
    return (num_steps, "fifo") if memory_size >= num_steps else (memory_size, "lru")


def make_writes(closed: ClosedReturns, num_actions: int) -> Writes:
    """The entries whose return is known, of all environments together."""
    entry: Entry = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), closed.entry)
    mask = (entry.action == jnp.arange(num_actions)[:, None]) & closed.mask.ravel()
    return Writes(entry.key, closed.returns.ravel(), mask)


def lookup(
    dnd: Memory,
    keys: Float[Array, "Q D"],
    k: int,
    eps: float = 1e-3,
    mask: Bool[Array, "A Q"] | None = None,
) -> Neighbours:
    """The K nearest of each key in each memory, weighted by 1 / (d^2 + eps); axes A, Q lead.

    With `mask` only the named memories are searched, which is faster.
    """
    shape = (dnd.values.shape[0], *keys.shape)
    # The search skips queries that are NaN.
    queries = jnp.broadcast_to(keys, shape)
    if mask is not None:
        queries = jnp.where(mask[..., None], keys, jnp.nan)
    search = lambda memory, keys: mem.lookup(memory, keys, k, squared=True, eps=eps)  # noqa: E731
    return jax.vmap(search)(dnd, queries)


def read_mean(dnd: Memory, near: Neighbours) -> Float[Array, "Q A"]:
    """The stored value of a known key, else the mean of its neighbours (MFEC, Eq. 2)."""

    def one_action(memory, near):
        values = memory.values[near.slots]
        is_present = near.weights > 0
        count = jnp.maximum(jnp.sum(is_present, axis=-1), 1)
        mean = jnp.sum(values * is_present, axis=-1) / count
        return jnp.where(near.exact, values[:, 0], mean)

    return jax.vmap(one_action, out_axes=1)(dnd, near)


def read_weighted(dnd: Memory, near: Neighbours) -> Float[Array, "Q A"]:
    """The kernel-weighted mean of the neighbours' values (NEC, Eq. 1)."""
    return jax.vmap(mem.read, out_axes=1)(dnd, near)


def write(
    dnd: Memory,
    near: Neighbours,
    writes: Writes,
    step: Int[Array, ""],
    eviction: Eviction,
    write_lr: float | None = None,
) -> Memory:
    """Inserts new keys and updates known ones.

    A known key's value becomes the maximum of both (MFEC, Eq. 1) or, with `write_lr`, moves towards
    the new one (NEC, Eq. 4). Equal keys of one call count once, by their maximum or mean.
    """

    def one_action(memory, near, mask):
        equal = mem.equal_keys(writes.key, mask)
        if write_lr is None:
            value = jnp.max(jnp.where(equal, writes.value, -jnp.inf), axis=-1)
        else:
            count = jnp.maximum(jnp.sum(equal, axis=-1), 1)
            value = jnp.sum(equal * writes.value, axis=-1) / count
        mask &= mem.is_first(writes.key, mask)
        slot = near.slots[:, 0]
        old = memory.values[slot]
        if write_lr is None:
            updated = jnp.maximum(old, value)
        else:
            updated = old + write_lr * (value - old)
        known = jnp.where(mask & near.exact, slot, memory.values.shape[0])  # out of bounds: dropped
        memory = memory._replace(
            values=memory.values.at[known].set(updated, mode="drop"),
            last_used=memory.last_used.at[known].set(step, mode="drop"),
        )
        return mem.insert(memory, writes.key, value, mask & ~near.exact, step, eviction)

    return jax.vmap(one_action)(dnd, near, writes.mask)


def touch(dnd: Memory, near: Neighbours, step: Int[Array, ""]) -> Memory:
    """Marks the neighbours as used in this iteration."""
    return jax.vmap(lambda memory, near: mem.touch(memory, near, step))(dnd, near)


def read_before_write(dnd: Memory, *values: Any) -> tuple[Any, ...]:
    """The same arrays, with a barrier: values are read before the memory is updated in place.

    Without it XLA copies the memory to read it later.
    """
    return lax.optimization_barrier((dnd, *values))


def split(near: Neighbours, sizes: Sequence[int]) -> list[Neighbours]:
    """The neighbours of groups of keys that were searched together."""
    return jax.vmap(lambda near: mem.split(near, sizes))(near)
