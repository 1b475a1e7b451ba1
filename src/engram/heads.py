"""Heads of Q-networks: plain, dueling, and quantile; each returns one value per action."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

Activation = Callable[[Array], Array]
HeadName = Literal["q", "dueling", "quantile"]
NUM_COSINES = 64
"""in the embedding of a quantile level"""
LEVELS = np.float32((np.arange(32) + 0.5) / 32)
"""quantile levels whose mean is the value of an action"""


class MLP(eqx.Module):
    """Linear layers with an activation between them."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self, sizes: tuple[int, ...], key: Key[Array, ""], activation: Activation = jax.nn.relu
    ):
        self.activation = activation
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(
            eqx.nn.Linear(inputs, outputs, key=k)
            for inputs, outputs, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )

    def __call__(self, x: Float[Array, "S"]) -> Float[Array, "O"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class DuelingHead(eqx.Module):
    """Value of the state plus advantages of the actions less their mean (Wang et al. 2016)."""

    value: MLP
    advantage: MLP

    def __init__(self, sizes: tuple[int, ...], key: Key[Array, ""]):
        keys = jax.random.split(key)
        self.value = MLP((*sizes[:-1], 1), keys[0])
        self.advantage = MLP(sizes, keys[1])

    def __call__(self, x: Float[Array, "S"]) -> Float[Array, "A"]:
        advantage = self.advantage(x)
        return self.value(x) + advantage - jnp.mean(advantage)


class QuantileHead(eqx.Module):
    """Quantiles of the return at any levels (implicit quantile network, Dabney et al. 2018).

    An embedding of the level gates the features of an image; of another observation, what the first
    hidden layer makes of it.
    """

    first: eqx.nn.Linear | None
    gate: eqx.nn.Linear
    mlp: MLP

    def __init__(self, sizes: tuple[int, ...], key: Key[Array, ""], gates_inputs: bool):
        keys = jax.random.split(key, 3)
        self.first = None if gates_inputs else eqx.nn.Linear(sizes[0], sizes[1], key=keys[0])
        sizes = sizes if gates_inputs else sizes[1:]
        self.gate = eqx.nn.Linear(NUM_COSINES, sizes[0], key=keys[1])
        self.mlp = MLP(sizes, keys[2])

    def quantiles(self, x: Float[Array, "S"], levels: Float[Array, "N"]) -> Float[Array, "N A"]:
        """Values of all actions at these quantile levels."""
        if self.first is not None:
            x = jax.nn.relu(self.first(x))
        cosines = jnp.cos(jnp.pi * jnp.arange(1, NUM_COSINES + 1) * levels[:, None])
        gates = jax.nn.relu(jax.vmap(self.gate)(cosines))
        # Inputs beyond the gates (tau) are not gated.
        others = jnp.ones((len(levels), x.shape[0] - gates.shape[1]))
        return jax.vmap(self.mlp)(x * jnp.concatenate([gates, others], axis=1))

    def __call__(self, x: Float[Array, "S"]) -> Float[Array, "A"]:
        return jnp.mean(self.quantiles(x, jnp.asarray(LEVELS)), axis=0)


Head = MLP | DuelingHead | QuantileHead


def make_head(
    name: HeadName,
    sizes: tuple[int, ...],
    key: Key[Array, ""],
    activation: Activation = jax.nn.relu,
    has_encoder: bool = False,
) -> Head:
    """The head of this name, with layers of these sizes."""
    match name:
        case "dueling":
            return DuelingHead(sizes, key)
        case "quantile":
            return QuantileHead(sizes, key, gates_inputs=has_encoder)
        case _:
            return MLP(sizes, key, activation)


def input_layers(head: Head) -> list[eqx.nn.Linear]:
    """The layers that receive the head's inputs."""
    match head:
        case DuelingHead():
            return [head.value.layers[0], head.advantage.layers[0]]
        case QuantileHead():
            return [head.first or head.mlp.layers[0]]
        case _:
            return [head.layers[0]]
