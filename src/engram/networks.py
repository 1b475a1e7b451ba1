"""Feed-forward networks, how observations enter them, and the gradient step by which they learn."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import eval_jaxpr
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from engram.devices import platform
from engram.types import Spec
from engram.vision import Vision, features, numbers


class MLP(eqx.Module):
    """Linear layers with ReLU, or another function, between them."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, sizes: tuple[int, ...], key: Key[Array, ""], activation: Callable[[Array], Array] = jax.nn.relu):
        self.activation = activation
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))

    def __call__(self, x: Float[Array, "S"]) -> Float[Array, "O"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class Seeing(eqx.Module):
    """Convolutions, and linear layers on what they find."""

    vision: Vision
    head: MLP

    def __init__(self, vision: Vision, sizes: tuple[int, ...], key: Key[Array, ""], activation: Callable[[Array], Array] = jax.nn.relu):
        self.vision = vision
        self.head = MLP((features(vision), *sizes), key, activation)

    def __call__(self, x: Shaped[Array, "S"]) -> Float[Array, "O"]:
        return self.head(self.vision(x))


def trunk(network: MLP | Seeing, x: Shaped[Array, "S"]) -> Float[Array, "F"]:
    """What the convolutions find; what is seen itself where there are none."""
    return network.vision(x) if isinstance(network, Seeing) else x


def head(network: MLP | Seeing) -> MLP:
    """The linear layers."""
    return network.head if isinstance(network, Seeing) else network


def widened(network: MLP | Seeing, more: int) -> MLP | Seeing:
    """A network whose linear layers have further inputs, which have no effect before it learns."""
    weight = head(network).layers[0].weight
    wide = jnp.concatenate([weight, jnp.zeros((weight.shape[0], more))], axis=1)
    return eqx.tree_at(lambda network: head(network).layers[0].weight, network, wide)


class Carried(NamedTuple):
    """What an LSTM carries from step to step."""

    h: Float[Array, "*B H"]
    c: Float[Array, "*B H"]


def fresh(*batch: int) -> Carried:
    """An LSTM that has seen nothing."""
    return Carried(jnp.zeros(batch), jnp.zeros(batch))


def lived(carried: PyTree, first: Bool[Array, "E"]) -> PyTree:
    """What the LSTMs of E environments carry, nothing where an episode begins; for another number of environments than before, nothing."""

    def one(x):
        known = x if x.shape[0] == first.shape[0] else jnp.zeros((first.shape[0], *x.shape[1:]))
        return jnp.where(first[:, None], 0.0, known)

    return jax.tree.map(one, carried)


def unroll(cell: eqx.nn.LSTMCell, carried: Carried, inputs: Float[Array, "T B X"], first: Bool[Array, "T B"]) -> Carried:
    """What B LSTMs carry after each of T inputs; where an episode begins they forget what came before. The same as calling the cell T
    times, but the part that needs no waiting is one product."""
    assert cell.bias is not None
    lifted = inputs @ cell.weight_ih.T + cell.bias

    def one(carried, now):
        lifted, first = now
        h, c = lived(carried, first)
        i, f, g, o = jnp.split(lifted + h @ cell.weight_hh.T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        carried = Carried(jax.nn.sigmoid(o) * jnp.tanh(c), c)
        return carried, carried

    return lax.scan(one, carried, (lifted, first))[1]


class Recurrent(eqx.Module):
    """Convolutions where there are images, a layer with ReLU, or another function, an LSTM, and a linear layer."""

    vision: Vision | None
    enter: eqx.nn.Linear
    cell: eqx.nn.LSTMCell
    head: eqx.nn.Linear
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        key: Key[Array, ""],
        activation: Callable[[Array], Array] = jax.nn.relu,
        vision: Vision | None = None,
    ):
        inputs, hidden, lstm, outputs = sizes
        if vision is not None:
            inputs = features(vision)
        keys = jax.random.split(key, 3)
        self.vision = vision
        self.enter = eqx.nn.Linear(inputs, hidden, key=keys[0])
        self.cell = eqx.nn.LSTMCell(hidden, lstm, key=keys[1])
        self.head = eqx.nn.Linear(lstm, outputs, key=keys[2])
        self.activation = activation

    def __call__(
        self, carried: Carried, states: Shaped[Array, "T B S"], first: Bool[Array, "T B"]
    ) -> tuple[Carried, Float[Array, "T B O"]]:
        """What B LSTMs carry after each of T states, and what comes out there."""
        see, enter, head = (jax.vmap(jax.vmap(layer)) for layer in (self.vision or (lambda x: x), self.enter, self.head))
        carried = unroll(self.cell, carried, self.activation(enter(see(states))), first)
        return carried, head(carried.h)


def draw(build: Callable[[Key[Array, ""]], PyTree], key: Key[Array, ""], he: bool = False) -> PyTree:
    """What `build(key)` gives, layers even within 1 / sqrt(inputs), or by `he` normal with variance 2 / inputs and without a bias (He et
    al. 2015), but from one draw: a draw for each layer takes seconds to compile."""
    shapes, tree = jax.tree.flatten(jax.eval_shape(build, key))
    whole = (sum(math.prod(x.shape) for x in shapes),)
    numbers = jax.random.normal(key, whole) if he else jax.random.uniform(key, whole, minval=-1.0, maxval=1.0)
    parts = jnp.split(numbers, np.cumsum([math.prod(x.shape) for x in shapes])[:-1])
    module = jax.tree.unflatten(tree, [part.reshape(x.shape) for part, x in zip(parts, shapes, strict=True)])

    def scale(layer):
        inputs = layer.weight.shape[1] if isinstance(layer, eqx.nn.Linear) else layer.hidden_size
        if he:
            return jax.tree.map(lambda x: x * math.sqrt(2 / inputs) if x.ndim > 1 else jnp.zeros_like(x), layer)
        return jax.tree.map(lambda x: x / math.sqrt(inputs), layer)

    return jax.tree.map(scale, module, is_leaf=lambda x: isinstance(x, eqx.nn.Linear | eqx.nn.LSTMCell))


def width(spec: Spec) -> int:
    """How many numbers an observation has."""
    return math.prod(spec.shape)


def choosable(spec: Spec, q: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    """Values of which only those of actions that may be chosen are not minus infinity."""
    return q if spec.allowed is None else jnp.where(jnp.arange(q.shape[-1]) < spec.allowed, q, -jnp.inf)


def encode(spec: Spec, observation: Float[Array, "E ..."], scaled: bool, stretched: bool = False) -> Float[Array, "E S"]:
    """Observations as vectors; if `scaled`, each number with finite bounds is mapped from them to [-1, 1]; if `stretched`, only what is
    bound to stay smaller than 1 is multiplied, so that the larger bound becomes 1. Bytes always become [0, 1]."""
    x = numbers(jnp.asarray(observation).reshape(observation.shape[0], -1), spec.brightest)
    if spec.dtype == "uint8" or not (scaled or stretched) or not spec.low:
        return x
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if not scaled:
        largest = np.maximum(np.abs(low), np.abs(high))
        return x / np.where((largest > 0) & (largest < 1), largest, 1)
    known = np.isfinite(low) & np.isfinite(high) & (high > low)
    low, high = np.where(known, low, -1), np.where(known, high, 1)
    return (2 * x - (low + high)) / (high - low)


def optimiser(rate: float | Array, clip: float, eps: float = 1e-8) -> optax.GradientTransformation:
    """Adam, with gradients no longer than `clip`."""
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate, eps=eps))


def descend(
    optimiser: optax.GradientTransformation, loss: Callable[..., Any], params: PyTree, state: PyTree, *data: Any, has_aux: bool = False
) -> tuple[PyTree, PyTree, Any]:
    """One gradient step on `loss(params, *data)`: new parameters, new state of the optimiser, the loss before it (and, with `has_aux`,
    what else it gives)."""
    value, gradient = jax.value_and_grad(loss, has_aux=has_aux)(params, *data)
    return *applied(optimiser, gradient, params, state), value


def applied(optimiser: optax.GradientTransformation, gradient: PyTree, params: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
    """New parameters, and the new state of the optimiser."""
    updates, state = optimiser.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


def in_turn(work: Callable[..., Any], *data: Any) -> Any:
    """`work(*data)`. On a CPU `vmap` does the work of one run after that of another: what an LSTM computes with stays in the cache from
    step to step."""
    if platform() != "cpu":
        return work(*data)
    program, shape = jax.make_jaxpr(work, return_shape=True)(*data)  # nothing that differs between runs may come by closure

    @sequential_vmap
    def one(data, more):
        return eval_jaxpr(program.jaxpr, more, *jax.tree.leaves(data))

    return jax.tree.unflatten(jax.tree.structure(shape), one(data, program.consts))


def clipped(x: Float[Array, "..."], norm: float) -> Float[Array, "..."]:
    """The same, shortened where its norm is greater."""
    return x * jnp.minimum(1.0, norm / jnp.maximum(jnp.linalg.norm(x), 1e-12))
