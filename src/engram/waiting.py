"""Memories on their way into the episodic memory: they wait for their return, then for their turn to be written (Algorithm 1)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Waiting(NamedTuple):
    """A ring of memories for each environment: open ones still gather their return, closed ones wait to be written, one a step.

    Writing them all when the episode ends would make every step as slow as the rare last one, since runs share one program.
    """

    keys: Float[Array, "E C D"]
    returns: Float[Array, "E C"]
    discounts: Float[Array, "E C"]
    """what the next reward counts for"""
    is_open: Bool[Array, "E C"]
    head: Int[Array, "E"]
    count: Int[Array, "E"]


def empty(envs: int, size: int, dim: int) -> Waiting:
    return Waiting(
        keys=jnp.zeros((envs, size, dim)),
        returns=jnp.zeros((envs, size)),
        discounts=jnp.zeros((envs, size)),
        is_open=jnp.zeros((envs, size), bool),
        head=jnp.zeros(envs, jnp.int32),
        count=jnp.zeros(envs, jnp.int32),
    )


def accumulate(waiting: Waiting, reward: Float[Array, "E"], gamma: float) -> Waiting:
    return waiting._replace(
        returns=waiting.returns + jnp.where(waiting.is_open, waiting.discounts * reward[:, None], 0.0),
        discounts=waiting.discounts * gamma,
    )


def append(waiting: Waiting, key: Float[Array, "E D"], when: Bool[Array, "E"]) -> Waiting:
    size = waiting.returns.shape[1]
    slot = (waiting.head + waiting.count) % size
    here = (jnp.arange(size) == slot[:, None]) & when[:, None]
    return waiting._replace(
        keys=jnp.where(here[..., None], key[:, None], waiting.keys),
        returns=jnp.where(here, 0.0, waiting.returns),
        discounts=jnp.where(here, 1.0, waiting.discounts),
        is_open=waiting.is_open | here,
        count=waiting.count + when,
    )


def close(waiting: Waiting, done: Bool[Array, "E"], rest: Float[Array, "E"]) -> Waiting:
    """Where the episode is done, its memories have their return: what was gathered and the discounted rest. A ring that is nearly
    full closes its oldest memory early, with the same estimate."""
    size = waiting.returns.shape[1]
    is_full = waiting.count >= size - 1
    closing = waiting.is_open & (done[:, None] | (is_full[:, None] & (jnp.arange(size) == waiting.head[:, None])))
    return waiting._replace(
        returns=waiting.returns + jnp.where(closing, waiting.discounts * rest[:, None], 0.0),
        is_open=waiting.is_open & ~closing,
    )


def drop(waiting: Waiting, when: Bool[Array, "E"]) -> Waiting:
    """Lets go of the oldest memory."""
    return waiting._replace(head=(waiting.head + when) % waiting.returns.shape[1], count=waiting.count - when)
