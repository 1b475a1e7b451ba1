"""Memories on their way into the episodic memory: they wait for their return, then for their turn to be written (Algorithm 1)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree


class Waiting(NamedTuple):
    """A ring of memories for each environment: open ones still gather their return, closed ones wait to be written, a few a step.

    Writing them all when the episode ends would make every step as slow as the rare last one, since runs share one program.
    """

    what: Any
    """arrays [E C ...]: keys, and what else belongs to a memory"""
    returns: Float[Array, "E C"]
    discounts: Float[Array, "E C"]
    """what the next reward counts for"""
    age: Int[Array, "E C"]
    """rewards gathered"""
    is_open: Bool[Array, "E C"]
    head: Int[Array, "E"]
    count: Int[Array, "E"]


def empty(what: PyTree, size: int) -> Waiting:
    """A ring of `size` places for memories like `what` (leaves with leading axis E)."""
    envs = jax.tree.leaves(what)[0].shape[0]
    return Waiting(
        what=jax.tree.map(lambda x: jnp.zeros((envs, size, *x.shape[1:]), x.dtype), what),
        returns=jnp.zeros((envs, size)),
        discounts=jnp.zeros((envs, size)),
        age=jnp.zeros((envs, size), jnp.int32),
        is_open=jnp.zeros((envs, size), bool),
        head=jnp.zeros(envs, jnp.int32),
        count=jnp.zeros(envs, jnp.int32),
    )


def places(limit: int | None, period: int = 1) -> int:
    """How long a ring must be for a memory every `period` steps of an episode. Where no limit is known, 1,000 steps are waited for: by
    then a discount of 0.99 has left nothing."""
    return min(limit or 1_000, 100_000) // period + 4


def accumulate(waiting: Waiting, reward: Float[Array, "E"], gamma: float) -> Waiting:
    return waiting._replace(
        returns=waiting.returns + jnp.where(waiting.is_open, waiting.discounts * reward[:, None], 0.0),
        discounts=waiting.discounts * gamma,
        age=waiting.age + 1,
    )


def append(waiting: Waiting, what: PyTree, when: Bool[Array, "E"] | bool = True) -> Waiting:
    size = waiting.returns.shape[1]
    when = jnp.broadcast_to(when, waiting.head.shape)
    slot = jnp.where(when, (waiting.head + waiting.count) % size, size)  # out of bounds: dropped
    here = jnp.arange(size) == slot[:, None]
    each = jnp.arange(slot.shape[0])
    return waiting._replace(
        what=jax.tree.map(lambda x, new: x.at[each, slot].set(new, mode="drop"), waiting.what, what),
        returns=jnp.where(here, 0.0, waiting.returns),
        discounts=jnp.where(here, 1.0, waiting.discounts),
        age=jnp.where(here, 0, waiting.age),
        is_open=waiting.is_open | here,
        count=waiting.count + when,
    )


def close(waiting: Waiting, done: Bool[Array, "E"], rest: Float[Array, "E"], horizon: int | None = None) -> Waiting:
    """Where the episode is done, its memories have their return: what was gathered and the discounted rest. One that has gathered
    `horizon` rewards is closed before that, with the same estimate, and so is the oldest in a ring that is nearly full."""
    size = waiting.returns.shape[1]
    is_full = waiting.count >= size - 1
    closing = done[:, None] | (is_full[:, None] & (jnp.arange(size) == waiting.head[:, None]))
    if horizon is not None:
        closing |= waiting.age >= horizon
    closing &= waiting.is_open
    return waiting._replace(
        returns=waiting.returns + jnp.where(closing, waiting.discounts * rest[:, None], 0.0),
        is_open=waiting.is_open & ~closing,
    )


class Ready(NamedTuple):
    """The oldest memories of each environment, and whether they can be written."""

    what: Any
    returns: Float[Array, "E n"]
    when: Bool[Array, "E n"]


def oldest(waiting: Waiting, n: int) -> Ready:
    size = waiting.returns.shape[1]
    slots = (waiting.head[:, None] + jnp.arange(n)) % size
    each = jnp.arange(slots.shape[0])[:, None]
    when = (jnp.arange(n) < waiting.count[:, None]) & ~waiting.is_open[each, slots]
    return Ready(jax.tree.map(lambda x: x[each, slots], waiting.what), waiting.returns[each, slots], when)


def drop(waiting: Waiting, number: Int[Array, "E"]) -> Waiting:
    """Lets go of the oldest memories."""
    return waiting._replace(head=(waiting.head + number) % waiting.returns.shape[1], count=waiting.count - number)
