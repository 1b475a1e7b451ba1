"""A memory for each action: keys are states, values are what the action was worth there (MFEC, NEC).

All functions take and give one `Memory` whose arrays have a leading axis of actions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from engram import memory as mem
from engram.memory import Memory, Neighbours
from engram.types import Spec
from engram.waiting import Ready

WRITES = 2
"""memories that each environment writes in a step: they come one a step, so none waits longer than its episode lasted"""


class Entry(NamedTuple):
    """What an environment's last action left to be remembered."""

    key: Float[Array, "*E D"]
    action: Int[Array, "*E"]


class Writing(NamedTuple):
    """W entries with their returns, on their way into the tables."""

    key: Float[Array, "W D"]
    value: Float[Array, "W"]
    into: Bool[Array, "A W"]
    """which table each belongs to; none if it must not be written"""


def empty(actions: int, slots: int, dim: int) -> Memory:
    return jax.vmap(lambda _: mem.empty(slots, dim))(jnp.arange(actions))


def size(slots: int, spec: Spec) -> tuple[int, str]:
    """How many slots a table needs in a run, and what it forgets. A table that cannot be full forgets nothing, and need not look for
    what was used longest ago."""
    steps = spec.iterations * spec.envs
    return (steps, "earliest") if slots >= steps else (slots, "unused")


def writing(ready: Ready, actions: int) -> Writing:
    """What is ready to be written, all environments together."""
    entry: Entry = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), ready.what)
    into = (entry.action == jnp.arange(actions)[:, None]) & ready.when.ravel()
    return Writing(entry.key, ready.returns.ravel(), into)


def recall(tables: Memory, keys: Float[Array, "Q D"], k: int, eps: float = 1e-3, only: Bool[Array, "A Q"] | None = None) -> Neighbours:
    """In each table the K nearest of each key, weighed by 1 / (d^2 + eps); arrays have leading axes A and Q. With `only`, just in those
    tables that it names for a key: to search them all would take longer."""
    actions = tables.values.shape[0]
    wanted = jnp.broadcast_to(keys, (actions, *keys.shape)) if only is None else jnp.where(only[..., None], keys, jnp.nan)
    return jax.vmap(lambda table, keys: mem.recall(table, keys, k, squared=True, eps=eps))(tables, wanted)


def read_mean(tables: Memory, near: Neighbours) -> Float[Array, "Q A"]:
    """The value stored where a key is known, else the mean of its neighbours; 0 in an empty table (MFEC, Eq. 2)."""

    def one(table, near):
        values, there = table.values[near.slots], near.weights > 0
        mean = jnp.sum(values * there, axis=-1) / jnp.maximum(jnp.sum(there, axis=-1), 1)
        return jnp.where(near.exact, values[:, 0], mean)

    return jax.vmap(one, out_axes=1)(tables, near)


def read_weighted(tables: Memory, near: Neighbours) -> Float[Array, "Q A"]:
    """The mean of the neighbours by their weights (NEC, Eq. 1)."""
    return jax.vmap(mem.read, out_axes=1)(tables, near)


def write(tables: Memory, near: Neighbours, new: Writing, step: Int[Array, ""], forget: str, rate: float | None = None) -> Memory:
    """Inserts new keys. The value of a key that is known becomes the greater of both (MFEC, Eq. 1) or, with a `rate`, moves towards the
    new one (NEC, Eq. 4). Equal keys written at once count as one, with the greatest or the mean of their values."""

    def one(table, near, into):
        equal = mem.equal(new.key, into)
        if rate is None:
            value = jnp.max(jnp.where(equal, new.value, -jnp.inf), axis=-1)
        else:
            value = jnp.sum(equal * new.value, axis=-1) / jnp.maximum(jnp.sum(equal, axis=-1), 1)
        into &= mem.is_first(new.key, into)
        slot = near.slots[:, 0]
        old = table.values[slot]
        moved = jnp.maximum(old, value) if rate is None else old + rate * (value - old)
        known = jnp.where(into & near.exact, slot, table.values.shape[0])  # out of bounds: dropped
        table = table._replace(
            values=table.values.at[known].set(moved, mode="drop"),
            used=table.used.at[known].set(step, mode="drop"),
        )
        return mem.insert(table, new.key, value, into & ~near.exact, step, forget)

    return jax.vmap(one)(tables, near, new.into)


def touch(tables: Memory, near: Neighbours, step: Int[Array, ""]) -> Memory:
    """Marks the neighbours as used now."""
    return jax.vmap(lambda table, near: mem.touch(table, near, step))(tables, near)


def settled(tables: Memory, *read: Any) -> tuple[Any, ...]:
    """The same, but what was read is ready before the tables change: else they would be copied to be read later."""
    return lax.optimization_barrier((tables, *read))


def split(near: Neighbours, sizes: Sequence[int]) -> list[Neighbours]:
    """The neighbours of keys that were searched together, apart again."""
    return jax.vmap(lambda near: mem.split(near, sizes))(near)
