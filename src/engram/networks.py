"""Networks: visual networks and LSTMs, their initialization, and their inputs."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from engram.batching import sequential_over_runs
from engram.encoders import Encoder, EncoderName, Impala, is_image, make_encoder, to_float
from engram.heads import Activation, Head, HeadName, input_layers, make_head
from engram.types import Spec

NormalizeObs = Literal["none", "bounds", "small"]


class VisualNetwork(eqx.Module):
    """An image encoder and a head on its features."""

    encoder: Encoder
    head: Head

    def __call__(self, x: Shaped[Array, "S"]) -> Float[Array, "O"]:
        return self.head(self.encoder(x))


Network = Head | VisualNetwork


def make_network(
    spec: Spec,
    encoder_name: EncoderName,
    sizes: tuple[int, ...],
    key: Key[Array, ""],
    activation: Activation = jax.nn.relu,
    head_name: HeadName = "q",
) -> Network:
    """A head with layers of these sizes, on the features of an encoder if there are images."""
    encoder = make_encoder(spec, encoder_name, key)
    if encoder is None:
        return make_head(head_name, (obs_size(spec), *sizes), key, activation)
    sizes = encoder.num_features, *sizes
    return VisualNetwork(encoder, make_head(head_name, sizes, key, activation, has_encoder=True))


def encode(network: Network, x: Shaped[Array, "S"]) -> Float[Array, "F"]:
    """The encoder's features; of a vector, the vector itself."""
    return network.encoder(x) if isinstance(network, VisualNetwork) else x


def encode_batch(network: Network, obs: Shaped[Array, "B S"]) -> Float[Array, "B F"]:
    """The features of several observations."""
    return jax.vmap(lambda x: encode(network, x))(obs)


def head(network: Network) -> Head:
    """The layers after the encoder."""
    return network.head if isinstance(network, VisualNetwork) else network


def needs_sequential(network: PyTree) -> bool:
    """Whether convolutions with the weights of several runs at once would be slow."""
    modules = jax.tree.leaves(network, is_leaf=lambda x: isinstance(x, Impala))
    return any(isinstance(module, Impala) for module in modules)


def apply_sequentially(function: Callable[..., Any], network: PyTree, *data: Any) -> Any:
    """`function(network, *data)`, run by run under `vmap` if the network needs that."""
    if needs_sequential(network):
        return sequential_over_runs(function, network, *data, on_gpu=True)
    return function(network, *data)


def evaluate(network: Network, obs: Shaped[Array, "B S"]) -> Float[Array, "B O"]:
    """The network's outputs for a batch; not to be differentiated."""
    return apply_sequentially(lambda network, obs: jax.vmap(network)(obs), network, obs)


def add_inputs(network: Network, count: int) -> Network:
    """The network with `count` further inputs to its head, whose weights start at 0."""

    def weights(network):
        return [layer.weight for layer in input_layers(head(network))]

    wider = [jnp.pad(weight, ((0, 0), (0, count))) for weight in weights(network)]
    return eqx.tree_at(weights, network, wider)


class LSTMState(NamedTuple):
    """Hidden state h and cell state c."""

    h: Float[Array, "*B H"]
    c: Float[Array, "*B H"]


def zero_state(*shape: int) -> LSTMState:
    """The state of an LSTM before its first input."""
    return LSTMState(jnp.zeros(shape), jnp.zeros(shape))


def reset_where(state: PyTree, episode_start: Bool[Array, "E"]) -> PyTree:
    """LSTM states of E environments, zero where an episode starts.

    If E differs from the number of states, all of them are new environments and start at zero.
    """
    num_envs = episode_start.shape[0]

    def one(x):
        known = x if x.shape[0] == num_envs else jnp.zeros((num_envs, *x.shape[1:]))
        return jnp.where(episode_start[:, None], 0.0, known)

    return jax.tree.map(one, state)


def unroll(
    cell: eqx.nn.LSTMCell,
    state: LSTMState,
    inputs: Float[Array, "T B X"],
    episode_start: Bool[Array, "T B"],
) -> LSTMState:
    """States of B LSTMs after each of T inputs, reset where an episode starts.

    The same as calling the cell T times, but the products with the inputs are one.
    """
    assert cell.bias is not None
    projected = inputs @ cell.weight_ih.T + cell.bias

    def one_step(state, inputs):
        projected, episode_start = inputs
        h, c = reset_where(state, episode_start)
        i, f, g, o = jnp.split(projected + h @ cell.weight_hh.T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        state = LSTMState(jax.nn.sigmoid(o) * jnp.tanh(c), c)
        return state, state

    return lax.scan(one_step, state, (projected, episode_start))[1]


class RecurrentNetwork(eqx.Module):
    """Encoder (for images), a linear layer with activation, an LSTM, a linear layer."""

    encoder: Encoder | None
    embed: eqx.nn.Linear
    cell: eqx.nn.LSTMCell
    head: eqx.nn.Linear
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        key: Key[Array, ""],
        activation: Activation = jax.nn.relu,
        encoder: Encoder | None = None,
    ):
        inputs, hidden, lstm, outputs = sizes
        if encoder is not None:
            inputs = encoder.num_features
        keys = jax.random.split(key, 3)
        self.encoder = encoder
        self.embed = eqx.nn.Linear(inputs, hidden, key=keys[0])
        self.cell = eqx.nn.LSTMCell(hidden, lstm, key=keys[1])
        self.head = eqx.nn.Linear(lstm, outputs, key=keys[2])
        self.activation = activation

    def __call__(
        self, state: LSTMState, obs: Shaped[Array, "T B S"], episode_start: Bool[Array, "T B"]
    ) -> tuple[LSTMState, Float[Array, "T B O"]]:
        """States of B LSTMs after each of T observations, and the outputs there."""
        features = obs
        if self.encoder is not None:
            # One axis in place of two: a GPU sums the gradients of biases three times as fast.
            flat = jax.vmap(self.encoder)(obs.reshape(-1, obs.shape[-1]))
            features = flat.reshape(*obs.shape[:-1], -1)
        embed, head = (jax.vmap(jax.vmap(layer)) for layer in (self.embed, self.head))
        state = unroll(self.cell, state, self.activation(embed(features)), episode_start)
        return state, head(state.h)

    def one_step(
        self, state: LSTMState, obs: Shaped[Array, "B S"]
    ) -> tuple[LSTMState, Float[Array, "B O"]]:
        """States and outputs after one observation of each LSTM; the caller resets states."""
        no_start = jnp.zeros((1, obs.shape[0]), bool)
        return jax.tree.map(lambda x: x[0], self(state, obs[None], no_start))


def init_params(build: Callable[[Key[Array, ""]], PyTree], key: Key[Array, ""]) -> PyTree:
    """`build(key)`, with weights and biases uniform within 1 / sqrt(inputs).

    All come from one draw: a draw for each layer takes seconds to compile.
    """
    shapes, tree = jax.tree.flatten(jax.eval_shape(build, key))
    sizes = [math.prod(x.shape) for x in shapes]
    uniforms = jax.random.uniform(key, (sum(sizes),), minval=-1.0, maxval=1.0)
    parts = jnp.split(uniforms, np.cumsum(sizes)[:-1])
    leaves = [part.reshape(x.shape) for part, x in zip(parts, shapes, strict=True)]

    def scale(layer):
        is_linear = isinstance(layer, eqx.nn.Linear)
        inputs = layer.weight.shape[1] if is_linear else layer.hidden_size
        return jax.tree.map(lambda x: x / math.sqrt(inputs), layer)

    is_layer = lambda x: isinstance(x, eqx.nn.Linear | eqx.nn.LSTMCell)  # noqa: E731
    return jax.tree.map(scale, jax.tree.unflatten(tree, leaves), is_leaf=is_layer)


def obs_size(spec: Spec) -> int:
    """Numbers of a flattened observation."""
    return math.prod(spec.shape)


def preprocess(
    spec: Spec, observation: Shaped[Array, "E ..."], normalize_obs: NormalizeObs = "none"
) -> Shaped[Array, "E S"]:
    """Flattened observations as networks receive them: images as bytes, all else as floats."""
    if is_image(spec):
        return observation.reshape(observation.shape[0], -1)
    return flatten_obs(spec, observation, normalize_obs)


def flatten_obs(
    spec: Spec, observation: Shaped[Array, "E ..."], normalize_obs: NormalizeObs = "none"
) -> Float[Array, "E S"]:
    """Observations as float vectors; bytes are scaled to [0, 1].

    With "bounds" each number with finite bounds is mapped from them to [-1, 1]. With "small" only
    numbers whose bounds lie within (-1, 1) are divided by the larger bound.
    """
    x = to_float(jnp.asarray(observation).reshape(observation.shape[0], -1), spec.pixel_max)
    if spec.dtype == "uint8" or normalize_obs == "none" or not spec.low:
        return x
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if normalize_obs == "small":
        bound = np.maximum(np.abs(low), np.abs(high))
        return x / np.where((bound > 0) & (bound < 1), bound, 1)
    known = np.isfinite(low) & np.isfinite(high) & (high > low)
    low, high = np.where(known, low, -1), np.where(known, high, 1)
    return (2 * x - (low + high)) / (high - low)


def mask_actions(spec: Spec, q: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    """Values in which invalid actions have minus infinity."""
    if spec.num_valid_actions is None:
        return q
    return jnp.where(jnp.arange(q.shape[-1]) < spec.num_valid_actions, q, -jnp.inf)
