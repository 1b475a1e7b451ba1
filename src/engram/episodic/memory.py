"""Episodic memory: keys are trajectory vectors tau, values are returns (Section 3.2).

The search for neighbours is the cost, so it stands apart: one `lookup` serves any number of reads,
refinements and writes.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from engram.episodic.knn import blockwise_topk, nearest_neighbours

Eviction = Literal["fifo", "lru"]


class Memory(NamedTuple):
    """N slots, filled from the first on."""

    keys: Float[Array, "N H"]
    values: Float[Array, "N"]
    last_used: Int[Array, "N"]
    """iteration in which a slot was last written or read by a decision"""
    num_inserted: Int[Array, ""]
    """insertions so far; the next slot of a FIFO memory is num_inserted % N"""
    source: Int[Array, "N"] | None = None
    """number of the step whose trajectory is the key, in memories whose keys are re-encoded"""

    @property
    def size(self) -> Int[Array, ""]:
        """Number of filled slots."""
        return jnp.minimum(self.num_inserted, self.values.shape[-1])


class Neighbours(NamedTuple):
    """The K nearest memories of each of Q queries."""

    slots: Int[Array, "Q K"]
    weights: Float[Array, "Q K"]
    """normalized kernel; 0 for missing neighbours, all 0 in an empty memory"""
    exact: Bool[Array, "Q"]
    """whether the query itself is stored, in the first of the slots"""


def init_memory(memory_size: int, key_size: int, has_source: bool = False) -> Memory:
    """An empty memory."""
    return Memory(
        keys=jnp.zeros((memory_size, key_size)),
        values=jnp.zeros(memory_size),
        last_used=jnp.zeros(memory_size, jnp.int32),
        num_inserted=jnp.zeros((), jnp.int32),
        source=jnp.zeros(memory_size, jnp.int32) if has_source else None,
    )


def lookup(
    memory: Memory, tau: Float[Array, "Q H"], k: int, squared: bool = False, eps: float = 1e-3
) -> Neighbours:
    """The K nearest memories of each `tau`, weighted by the kernel 1 / (d + eps) (appendix)."""
    distances, slots = nearest_neighbours(memory.keys, memory.size, tau, k)
    # A missing neighbour has distance infinity, so weight 0.
    kernel = 1 / ((distances**2 if squared else distances) + eps)
    return Neighbours(slots, _normalize(kernel), exact=distances[:, 0] == 0)


def nearest(near: Neighbours, k: int) -> Neighbours:
    """The nearest `k` of the neighbours, with their weights normalized again."""
    return Neighbours(near.slots[:, :k], _normalize(near.weights[:, :k]), near.exact)


def _normalize(weights: Float[Array, "Q K"]) -> Float[Array, "Q K"]:
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def split(near: Neighbours, sizes: Sequence[int]) -> list[Neighbours]:
    """The neighbours of groups of queries that were searched together."""
    ends = accumulate(sizes)
    return [
        Neighbours(*(x[end - n : end] for x in near)) for n, end in zip(sizes, ends, strict=True)
    ]


def read(
    memory: Memory, near: Neighbours, use_max: Bool[Array, "#Q"] | bool = False
) -> Float[Array, "Q"]:
    """The kernel-weighted mean of the neighbours' values, or their maximum (Section 3.2, a and b).

    0 from an empty memory.
    """
    values = memory.values[near.slots]
    mean = jnp.sum(near.weights * values, axis=-1)
    best = jnp.max(values, axis=-1, where=near.weights > 0, initial=-jnp.inf)
    return jnp.where(use_max & jnp.isfinite(best), best, mean)


def mean_value(memory: Memory) -> Float[Array, ""]:
    """Mean of the stored values; 0 of an empty memory."""
    is_filled = jnp.arange(memory.values.shape[0]) < memory.size
    return jnp.sum(jnp.where(is_filled, memory.values, 0.0)) / jnp.maximum(memory.size, 1)


def refine(
    memory: Memory,
    near: Neighbours,
    value: Float[Array, "Q"],
    write_lr: float | Float[Array, ""],
    mask: Bool[Array, "Q"] | bool = True,
) -> Memory:
    """Moves the neighbours' values towards `value` by alpha_w times their weight (Eq. 2 and 4).

    Inserts nothing. Queries are applied in order: two that move one slot at once would overshoot.
    """

    def one_query(values, query):
        slots, weights, value, mask = query
        change = jnp.where(mask, write_lr, 0.0) * weights * (value - values[slots])
        return values.at[slots].add(change, mode="promise_in_bounds"), None

    queries = (near.slots, near.weights, value, jnp.broadcast_to(mask, value.shape))
    values, _ = jax.lax.scan(one_query, memory.values, queries, unroll=True)
    return memory._replace(values=values)


def write(
    memory: Memory,
    near: Neighbours,
    tau: Float[Array, "Q H"],
    value: Float[Array, "Q"],
    write_lr: float,
    mask: Bool[Array, "Q"] | bool = True,
    step: Int[Array, ""] | int = 0,
    eviction: Eviction = "fifo",
    source: Int[Array, "Q"] | None = None,
) -> Memory:
    """Moves the neighbours towards `value` (Eq. 2), then inserts each new `tau` with its value."""
    mask = jnp.broadcast_to(mask, value.shape)
    memory = refine(memory, near, value, write_lr, mask)
    is_new = mask & ~near.exact & is_first(tau, mask)
    return insert(memory, tau, value, is_new, step, eviction, source)


def insert(
    memory: Memory,
    tau: Float[Array, "Q H"],
    value: Float[Array, "Q"],
    mask: Bool[Array, "Q"],
    step: Int[Array, ""] | int = 0,
    eviction: Eviction = "fifo",
    source: Int[Array, "Q"] | None = None,
) -> Memory:
    """Inserts new keys; in a full memory they replace the earliest or least recently used slots."""
    order = jnp.cumsum(mask) - 1
    capacity = memory.values.shape[0]
    slots = (memory.num_inserted + order) % capacity
    if eviction == "lru":
        _, oldest = blockwise_topk(memory.last_used[None], min(value.shape[0], capacity))
        is_free = memory.num_inserted + order < capacity
        slots = jnp.where(is_free, slots, oldest[0, order % oldest.shape[1]])
    # Masked by an index out of bounds: `cond` under `vmap` would copy the table.
    slots = jnp.where(mask, slots, capacity)
    sources = memory.source
    if sources is not None:
        sources = sources.at[slots].set(source, mode="drop")
    return Memory(
        keys=memory.keys.at[slots].set(tau, mode="drop"),
        values=memory.values.at[slots].set(value, mode="drop"),
        last_used=memory.last_used.at[slots].set(step, mode="drop"),
        num_inserted=memory.num_inserted + jnp.sum(mask, dtype=jnp.int32),
        source=sources,
    )


def equal_keys(tau: Float[Array, "Q H"], mask: Bool[Array, "Q"]) -> Bool[Array, "Q Q"]:
    """Which of the masked keys are equal."""
    return jnp.all(tau[:, None] == tau[None], axis=-1) & mask[None]


def is_first(tau: Float[Array, "Q H"], mask: Bool[Array, "Q"]) -> Bool[Array, "Q"]:
    """Which keys have no equal masked key before them."""
    return ~jnp.any(jnp.tril(equal_keys(tau, mask), -1), axis=-1)


def touch(memory: Memory, near: Neighbours, step: Int[Array, ""]) -> Memory:
    """Marks the neighbours as used in this iteration, for LRU eviction."""
    slots = jnp.where(near.weights > 0, near.slots, memory.last_used.shape[0])
    return memory._replace(last_used=memory.last_used.at[slots].set(step, mode="drop"))
