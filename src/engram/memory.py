"""Episodic memory of trajectories: keys are trajectory vectors, values are returns (Sections 3.1 and 3.2).

The search for neighbours is what costs, so it stands apart: one `recall` serves any number of reads, refinements and writes.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from engram.nearest import nearest, smallest


class Memory(NamedTuple):
    """N slots; empty at first, then filled from the first slot on."""

    keys: Float[Array, "N H"]
    values: Float[Array, "N"]
    used: Int[Array, "N"]
    """when each slot was last written or read by a decision"""
    written: Int[Array, ""]
    """how many keys were ever inserted"""

    @property
    def filled(self) -> Int[Array, ""]:
        return jnp.minimum(self.written, self.values.shape[-1])


class Neighbours(NamedTuple):
    """What a search found for each of Q queries."""

    slots: Int[Array, "Q K"]
    weights: Float[Array, "Q K"]
    """the kernel, normalised over the neighbours; 0 where there are fewer than K, all 0 in an empty memory"""
    exact: Bool[Array, "Q"]
    """whether the query itself is stored, in the first of the slots"""


def empty(slots: int, dim: int) -> Memory:
    return Memory(
        keys=jnp.zeros((slots, dim)),
        values=jnp.zeros(slots),
        used=jnp.zeros(slots, jnp.int32),
        written=jnp.zeros((), jnp.int32),
    )


def recall(memory: Memory, tau: Float[Array, "Q H"], k: int, squared: bool = False, eps: float = 1e-3) -> Neighbours:
    """The K nearest memories of each `tau`, weighed by the kernel 1 / (d + eps) (appendix, "Implemented baseline description")."""
    distances, slots = nearest(memory.keys, memory.filled, tau, k)
    kernel = 1 / ((distances**2 if squared else distances) + eps)  # 1 / inf = 0: a missing neighbour weighs nothing
    total = jnp.sum(kernel, axis=-1, keepdims=True)
    return Neighbours(slots, kernel / jnp.where(total > 0, total, 1), exact=distances[:, 0] == 0)


def first(near: Neighbours, k: int) -> Neighbours:
    """The nearest `k` of the neighbours, their weights normalised again."""
    weights = near.weights[:, :k]
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return Neighbours(near.slots[:, :k], weights / jnp.where(total > 0, total, 1), near.exact)


def split(near: Neighbours, sizes: Sequence[int]) -> list[Neighbours]:
    """The neighbours of queries that were searched together, apart again."""
    return [Neighbours(*(x[end - size : end] for x in near)) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def read(memory: Memory, near: Neighbours, optimistic: Bool[Array, "#Q"] | bool = False) -> Float[Array, "Q"]:
    """The neighbours' weighted mean or, if optimistic, the best of them; 0 from an empty memory (Section 3.2, rules a and b)."""
    values = memory.values[near.slots]
    mean = jnp.sum(near.weights * values, axis=-1)
    best = jnp.max(values, axis=-1, where=near.weights > 0, initial=-jnp.inf)
    return jnp.where(optimistic & jnp.isfinite(best), best, mean)


def mean(memory: Memory) -> Float[Array, ""]:
    """Of the values stored; 0 of none."""
    is_there = jnp.arange(memory.values.shape[0]) < memory.filled
    return jnp.sum(jnp.where(is_there, memory.values, 0.0)) / jnp.maximum(memory.filled, 1)


def refine(
    memory: Memory, near: Neighbours, value: Float[Array, "Q"], rate: float | Float[Array, ""], when: Bool[Array, "Q"] | bool = True
) -> Memory:
    """Moves the neighbours' values towards `value`, the nearer the faster, and inserts nothing (Eq. 2, and Eq. 4 with a fixed key set).

    Queries take their turn: two of them moving one slot at once would overshoot.
    """

    def nudge(values, query):
        slots, weights, value, when = query
        step = jnp.where(when, rate, 0.0) * weights * (value - values[slots])
        return values.at[slots].add(step, mode="promise_in_bounds"), None

    queries = (near.slots, near.weights, value, jnp.broadcast_to(when, value.shape))
    values, _ = jax.lax.scan(nudge, memory.values, queries, unroll=True)
    return memory._replace(values=values)


def write(
    memory: Memory,
    near: Neighbours,
    tau: Float[Array, "Q H"],
    value: Float[Array, "Q"],
    rate: float,
    when: Bool[Array, "Q"] | bool = True,
    step: Int[Array, ""] | int = 0,
    forget: str = "earliest",
) -> Memory:
    """Moves the neighbours towards `value` (Eq. 2), then inserts each `tau` with its value, unless it is stored already.

    In a full memory a new key takes the place of the earliest one, or of the one used longest ago (`forget="unused"`).
    """
    when = jnp.broadcast_to(when, value.shape)
    memory = refine(memory, near, value, rate, when)
    return insert(memory, tau, value, when & ~near.exact & is_first(tau, when), step, forget)


def insert(
    memory: Memory,
    tau: Float[Array, "Q H"],
    value: Float[Array, "Q"],
    when: Bool[Array, "Q"],
    step: Int[Array, ""] | int = 0,
    forget: str = "earliest",
) -> Memory:
    """Puts keys that are not stored yet into free slots or, in a full memory, into those of others."""
    order = jnp.cumsum(when) - 1  # among the new ones
    size = memory.values.shape[0]
    slots = (memory.written + order) % size
    if forget == "unused":
        _, oldest = smallest(memory.used[None], min(value.shape[0], size))
        slots = jnp.where(memory.written + order < size, slots, oldest[0, order % oldest.shape[1]])
    slots = jnp.where(when, slots, size)  # out of bounds: dropped. A `cond` under `vmap` would copy the table.
    return Memory(
        keys=memory.keys.at[slots].set(tau, mode="drop"),
        values=memory.values.at[slots].set(value, mode="drop"),
        used=memory.used.at[slots].set(step, mode="drop"),
        written=memory.written + jnp.sum(when, dtype=jnp.int32),
    )


def equal(tau: Float[Array, "Q H"], when: Bool[Array, "Q"]) -> Bool[Array, "Q Q"]:
    """Which of the keys that are written together are the same."""
    return jnp.all(tau[:, None] == tau[None], axis=-1) & when[None]


def is_first(tau: Float[Array, "Q H"], when: Bool[Array, "Q"]) -> Bool[Array, "Q"]:
    """Which of the keys that are written together have no equal before them."""
    return ~jnp.any(jnp.tril(equal(tau, when), -1), axis=-1)


def touch(memory: Memory, near: Neighbours, step: Int[Array, ""]) -> Memory:
    """Marks the neighbours as used now, for forgetting what was used longest ago."""
    slots = jnp.where(near.weights > 0, near.slots, memory.used.shape[0])
    return memory._replace(used=memory.used.at[slots].set(step, mode="drop"))
