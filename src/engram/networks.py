"""Feed-forward networks, how observations enter them, and the gradient step by which they learn."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from engram.types import Spec


class MLP(eqx.Module):
    """Linear layers with ReLU between them."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, sizes: tuple[int, ...], key: Key[Array, ""]):
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))

    def __call__(self, x: Float[Array, "S"]) -> Float[Array, "O"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def draw(build: Callable[[Key[Array, ""]], PyTree], key: Key[Array, ""]) -> PyTree:
    """What `build(key)` gives, layers even within 1 / sqrt(inputs), but from one draw: a draw for each layer takes seconds to compile."""
    shapes, tree = jax.tree.flatten(jax.eval_shape(build, key))
    numbers = jax.random.uniform(key, (sum(math.prod(x.shape) for x in shapes),), minval=-1.0, maxval=1.0)
    parts = jnp.split(numbers, np.cumsum([math.prod(x.shape) for x in shapes])[:-1])
    module = jax.tree.unflatten(tree, [part.reshape(x.shape) for part, x in zip(parts, shapes, strict=True)])

    def scale(layer):
        inputs = layer.weight.shape[1] if isinstance(layer, eqx.nn.Linear) else layer.hidden_size
        return jax.tree.map(lambda x: x / math.sqrt(inputs), layer)

    return jax.tree.map(scale, module, is_leaf=lambda x: isinstance(x, eqx.nn.Linear | eqx.nn.LSTMCell))


def width(spec: Spec) -> int:
    """How many numbers an observation has."""
    return math.prod(spec.shape)


def encode(spec: Spec, observation: Float[Array, "E ..."], scaled: bool) -> Float[Array, "E S"]:
    """Observations as vectors; if `scaled`, each number with finite bounds is mapped from them to [-1, 1]. Bytes always become [0, 1]."""
    x = jnp.asarray(observation).reshape(observation.shape[0], -1)
    if spec.dtype == "uint8":
        return x.astype(jnp.float32) / 255
    x = x.astype(jnp.float32)
    if not scaled or not spec.low:
        return x
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    known = np.isfinite(low) & np.isfinite(high) & (high > low)
    low, high = np.where(known, low, -1), np.where(known, high, 1)
    return (2 * x - (low + high)) / (high - low)


def optimiser(rate: float, clip: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate))


def descend(
    optimiser: optax.GradientTransformation, loss: Callable[..., Any], params: PyTree, state: PyTree, *data: Any
) -> tuple[PyTree, PyTree, Float[Array, ""]]:
    """One gradient step on `loss(params, *data)`: new parameters, new state of the optimiser, the loss before it."""
    value, gradient = jax.value_and_grad(loss)(params, *data)
    updates, state = optimiser.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value
