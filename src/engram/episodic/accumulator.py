"""Entries that wait for their return before they are written (Algorithm 1's chunk buffer)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree


class PendingReturns(NamedTuple):
    """A ring buffer of C entries per environment.

    Open entries accumulate rewards. Closed ones have their return and are written a few per step:
    to write a whole episode at its end would make every step as slow as the last one, since all
    runs share one program.
    """

    entry: Any
    """arrays [E C ...]: a key and whatever else is written with it"""
    returns: Float[Array, "E C"]
    discounts: Float[Array, "E C"]
    """weight of the next reward"""
    num_rewards: Int[Array, "E C"]
    is_open: Bool[Array, "E C"]
    head: Int[Array, "E"]
    """slot of the oldest entry"""
    count: Int[Array, "E"]


class ClosedReturns(NamedTuple):
    """The n oldest entries of each environment, and which of them are closed."""

    entry: Any
    returns: Float[Array, "E n"]
    mask: Bool[Array, "E n"]


def init_pending(entry: PyTree, capacity: int) -> PendingReturns:
    """An empty ring for entries like `entry` (leaves with leading axis E)."""
    num_envs = jax.tree.leaves(entry)[0].shape[0]
    shape = (num_envs, capacity)
    return PendingReturns(
        entry=jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape[1:]), x.dtype), entry),
        returns=jnp.zeros(shape),
        discounts=jnp.zeros(shape),
        num_rewards=jnp.zeros(shape, jnp.int32),
        is_open=jnp.zeros(shape, bool),
        head=jnp.zeros(num_envs, jnp.int32),
        count=jnp.zeros(num_envs, jnp.int32),
    )


def capacity_for(max_episode_steps: int | None, period: int = 1) -> int:
    """Ring size for one entry every `period` steps of an episode.

    Without a time limit 1,000 steps suffice: by then a discount of 0.99 has left nothing.
    """
    return min(max_episode_steps or 1_000, 100_000) // period + 4


def add_reward(pending: PendingReturns, reward: Float[Array, "E"], gamma: float) -> PendingReturns:
    """Adds the discounted reward to all open entries."""
    discounted = pending.discounts * reward[:, None]
    return pending._replace(
        returns=pending.returns + jnp.where(pending.is_open, discounted, 0.0),
        discounts=pending.discounts * gamma,
        num_rewards=pending.num_rewards + 1,
    )


def append(
    pending: PendingReturns, entry: PyTree, mask: Bool[Array, "E"] | bool = True
) -> PendingReturns:
    """Appends an open entry in the masked environments."""
    num_envs, capacity = pending.returns.shape
    mask = jnp.broadcast_to(mask, pending.head.shape)
    slot = jnp.where(mask, (pending.head + pending.count) % capacity, capacity)  # masked: dropped
    is_slot = jnp.arange(capacity) == slot[:, None]
    env = jnp.arange(num_envs)
    return pending._replace(
        entry=jax.tree.map(
            lambda x, new: x.at[env, slot].set(new, mode="drop"), pending.entry, entry
        ),
        returns=jnp.where(is_slot, 0.0, pending.returns),
        discounts=jnp.where(is_slot, 1.0, pending.discounts),
        num_rewards=jnp.where(is_slot, 0, pending.num_rewards),
        is_open=pending.is_open | is_slot,
        count=pending.count + mask,
    )


def close(
    pending: PendingReturns,
    done: Bool[Array, "E"],
    bootstrap: Float[Array, "E"],
    n_step: int | None = None,
) -> PendingReturns:
    """Closes the entries of finished episodes with their return and a discounted bootstrap.

    An entry with `n_step` rewards is closed before that, and so is the oldest of a ring that is
    nearly full.
    """
    capacity = pending.returns.shape[1]
    is_full = pending.count >= capacity - 1
    is_oldest = jnp.arange(capacity) == pending.head[:, None]
    closing = done[:, None] | (is_full[:, None] & is_oldest)
    if n_step is not None:
        closing |= pending.num_rewards >= n_step
    closing &= pending.is_open
    rest = pending.discounts * bootstrap[:, None]
    return pending._replace(
        returns=pending.returns + jnp.where(closing, rest, 0.0),
        is_open=pending.is_open & ~closing,
    )


def peek(pending: PendingReturns, n: int) -> ClosedReturns:
    """The n oldest entries of each environment; those that are closed can be written."""
    num_envs, capacity = pending.returns.shape
    slots = (pending.head[:, None] + jnp.arange(n)) % capacity
    env = jnp.arange(num_envs)[:, None]
    mask = (jnp.arange(n) < pending.count[:, None]) & ~pending.is_open[env, slots]
    entry = jax.tree.map(lambda x: x[env, slots], pending.entry)
    return ClosedReturns(entry, pending.returns[env, slots], mask)


def drop(pending: PendingReturns, number: Int[Array, "E"]) -> PendingReturns:
    """Removes the oldest entries of each environment."""
    head = (pending.head + number) % pending.returns.shape[1]
    return pending._replace(head=head, count=pending.count - number)
