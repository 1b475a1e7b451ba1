"""Dynamic consolidation: the episodic and the semantic value joined by a learned weight (Eq. 7)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from engram import networks
from engram.heads import MLP
from engram.networks import Network

BETA_HIDDEN = 16
"""hidden units of f_beta"""


class Params(NamedTuple):
    """What learns from TD errors: Q_theta and f_beta."""

    q: Network
    beta: MLP


def init(
    config: Any, make_q_network: Callable[[Key[Array, ""]], Network], key: Key[Array, ""]
) -> Params:
    """New networks; weights of tau in the Q-network start at 0."""

    def build(key):
        return Params(make_q_network(key), MLP((config.trajectory_dim, BETA_HIDDEN, 1), key))

    params = networks.init_params(build, key)
    if config.q_uses_tau:
        params = params._replace(q=networks.add_inputs(params.q, config.trajectory_dim))
    return params


def encode(params: Params, obs: Shaped[Array, "B S"]) -> Float[Array, "B F"]:
    """The Q-network's encoding of observations: features of images, else the observations.

    It is not to be differentiated.
    """
    return networks.apply_sequentially(networks.encode_batch, params.q, obs)


def q_values(
    config: Any, params: Params, encoded: Float[Array, "B F"], tau: Float[Array, "B H"]
) -> Float[Array, "B A"]:
    """Q_theta, the semantic value."""
    return jax.vmap(networks.head(params.q))(_head_inputs(config, encoded, tau))


def quantiles(
    config: Any,
    params: Params,
    encoded: Float[Array, "B F"],
    tau: Float[Array, "B H"],
    levels: Float[Array, "B N"],
) -> Float[Array, "B N A"]:
    """Quantiles of the semantic value."""
    head: Any = networks.head(params.q)
    return jax.vmap(head.quantiles)(_head_inputs(config, encoded, tau), levels)


def _head_inputs(
    config: Any, encoded: Float[Array, "B F"], tau: Float[Array, "B H"]
) -> Float[Array, "B X"]:
    return jnp.concatenate([encoded, tau], axis=-1) if config.q_uses_tau else encoded


def beta(config: Any, params: Params, tau: Float[Array, "B H"]) -> Float[Array, "B"]:
    """f_beta(tau), the weight of the episodic value."""
    if config.fixed_beta is not None:
        return jnp.full(tau.shape[0], config.fixed_beta)
    return jax.nn.sigmoid(jax.vmap(params.beta)(tau)[:, 0])
