"""An agent as plain arrays and JSON, which `player.py` plays: only the agents that it knows."""

import io
import json
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from engram.agents import DQN, DRQN, MBEC, MFEC, NEC, PPO, MBECpp, agent_name
from engram.encoders import CNN, Encoder, channels_first, is_image
from engram.episodic.reencoding import InputEncoder
from engram.errors import EngramError
from engram.heads import LEVELS, MLP, NUM_COSINES, DuelingHead, Head, QuantileHead
from engram.networks import Network, RecurrentNetwork, VisualNetwork, head, obs_size
from engram.policy import Policy
from engram.types import Spec

Operation = tuple[str, list[Any], list[Any]]
"""name, arguments that are JSON, and arrays, as in `player.OPERATIONS`"""


def to_npz(policy: Policy) -> bytes:
    """The file that `player.Player` reads."""
    spec, agent = policy.spec, policy.agent
    networks, lstm, meta = describe(policy)
    arrays: dict[str, Any] = {
        f"{name}.{i}.{j}": array
        for name, operations in networks.items()
        for i, (_, _, operands) in enumerate(operations)
        for j, array in enumerate(operands)
    }
    if lstm is not None:
        arrays |= {"lstm.input": lstm.weight_ih.T, "lstm.hidden": lstm.weight_hh.T}
        arrays["lstm.bias"] = lstm.bias
    meta = meta | {
        "agent": agent_name(agent),
        "dtype": spec.dtype,
        "leaves": [[leaf.path, leaf.nvec, leaf.start] for leaf in spec.obs_leaves]
        or [[spec.obs_path, (), ()]],
        "num_actions": spec.num_actions,
        "action_offset": spec.action_offset,
        "action_nvec": spec.action_nvec,
        "action_start": spec.action_start,
        "action_shape": spec.action_shape,
        "state_size": 0 if lstm is None else lstm.hidden_size,
        "networks": {
            name: [[kind, *arguments] for kind, arguments, _ in operations]
            for name, operations in networks.items()
        },
    }
    memories = memory_arrays(policy)
    meta["num_memories"] = len(memories)
    for i, (keys, values) in enumerate(memories):
        arrays |= {f"memory.{i}.keys": keys, f"memory.{i}.values": values}
    arrays["meta"] = json.dumps(meta)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def describe(
    policy: Policy,
) -> tuple[dict[str, list[Operation]], eqx.nn.LSTMCell | None, dict[str, Any]]:
    """The networks, the LSTM and the other numbers of a policy."""
    agent, spec, state = policy.agent, policy.spec, policy.state
    known = type(agent) in (DQN, DRQN, PPO, MFEC, NEC, MBEC, MBECpp)
    if not known or (isinstance(agent, MFEC) and state.vae is not None):
        name = "mfec with a VAE" if known else agent_name(agent)
        raise EngramError(f"The NumPy player cannot play {name}: export it to a .onnx file.")
    scaled = scale(agent, spec)
    match agent:
        case DQN():
            return network("head", agent.acting_network(state), scaled), None, {}
        case PPO(recurrent=False):
            return network("head", state.networks.actor, scaled, "tanh"), None, {}
        case PPO():
            return *recurrent(state.networks.actor, scaled, "tanh"), {}
        case DRQN():
            return *recurrent(state.q, scaled, "relu"), {}
        case MFEC():
            projection = np.asarray(state.projection)
            keys = linear(projection.T, np.zeros(projection.shape[1], np.float32))
            flat = scale(agent, spec, as_image=False)
            return {"encoder": [*flat, keys]}, None, reading(agent, "mean")
        case NEC():
            parts = network("head", state.embedding, scaled)
            meta = reading(agent, "squared", agent.kernel_delta)
            return {"encoder": parts["encoder"] + parts["head"]}, None, meta
        case MBEC():
            networks = {"encoder": scaled, "features": standardized(state.inputs, spec)}
            episodic = state.episodic
        case MBECpp():
            params, episodic = agent.acting_params(state), state.episodic
            networks = network("head", params.q, scaled) | {"features": []}
            if (projection := state.projection) is not None:
                networks["features"] = projected(projection)
            networks["beta"] = [*mlp(params.beta), ("sigmoid", [], [])]
            if agent.fixed_beta is not None:
                bias = np.full(1, agent.fixed_beta, np.float32)
                networks["beta"] = [linear(np.zeros((1, agent.trajectory_dim), np.float32), bias)]
    if not (isinstance(agent, MBEC) and agent.rules.includes_reward):
        networks["reward"] = mlp(episodic.reward_model.network)
    model = episodic.key_model or episodic.trajectory_model
    meta = reading(agent, "plain") | {"head_has_tau": getattr(agent, "q_uses_tau", False)}
    return networks, model.cell, meta


def reading(agent: Any, kernel: str, delta: float = 1e-3) -> dict[str, Any]:
    """How values are read from memories."""
    numbers = {"num_neighbours": agent.num_neighbours, "gamma": agent.gamma, "delta": delta}
    return numbers | {"kernel": kernel}


def memory_arrays(policy: Policy) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values that are stored, in the one memory or in that of each action."""
    memory = policy.memory
    if memory is None:
        return []
    if memory.action is None:
        return [(memory.keys, memory.values)]
    chosen = [memory.action == action for action in range(policy.spec.num_actions)]
    return [(memory.keys[mask], memory.values[mask]) for mask in chosen]


# Networks as operations


def scale(agent: Any, spec: Spec, as_image: bool = True) -> list[Operation]:
    """Flat observations as networks receive them, as `networks.preprocess` does."""
    size = obs_size(spec)
    factor, offset, divisor = np.ones(size), np.zeros(size), np.ones(size)
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if spec.dtype == "uint8":
        divisor = np.full(size, spec.pixel_max)
    elif agent.normalize_obs == "small" and spec.low:
        bound = np.maximum(np.abs(low), np.abs(high))
        divisor = np.where((bound > 0) & (bound < 1), bound, 1)
    elif agent.normalize_obs == "bounds" and spec.low:
        known = np.isfinite(low) & np.isfinite(high) & (high > low)
        low, high = np.where(known, low, -1), np.where(known, high, 1)
        factor, offset, divisor = np.full(size, 2), low + high, high - low
    arrays = [np.asarray(x, np.float32) for x in (factor, offset, divisor)]
    if is_image(spec):
        arrays = [x[:1] for x in arrays]
    operations: list[Operation] = [("scale", [], arrays)]
    if is_image(spec) and as_image:
        shape, axes = channels_first(spec.shape)
        operations.append(("image", [spec.shape, axes, shape], []))
    return operations


def linear(weight: Any, bias: Any) -> Operation:
    """A linear layer, whose weight is the transpose of the player's."""
    return "linear", [], [np.asarray(weight).T, bias]


def mlp(network: MLP, activation: str = "relu") -> list[Operation]:
    """The layers of an MLP with an activation between them."""
    operations: list[Operation] = []
    for layer in network.layers:
        operations += [linear(layer.weight, layer.bias), (activation, [], [])]
    return operations[:-1]


def convolutions(encoder: Encoder) -> list[Operation]:
    """An encoder's convolutions, their weights in the order of the player's windows."""
    if not isinstance(encoder, CNN):
        raise EngramError(
            "The NumPy player cannot play the encoder impala: export the run to a .onnx file."
        )
    operations: list[Operation] = []
    for layer in encoder.layers:
        kernel, stride = layer.kernel, layer.stride
        blocks = kernel // stride
        # Rows are blocks of pixels there (`encoders.patches`), channels of pixels here.
        weight = np.asarray(layer.linear.weight)
        weight = weight.reshape(-1, blocks, blocks, stride, stride, weight.shape[1] // kernel**2)
        weight = weight.transpose(0, 5, 1, 3, 2, 4).reshape(len(weight), -1)
        operations.append(("convolve", [kernel, stride], [weight.T, layer.linear.bias]))
        operations.append(("relu", [], []))
    return [*operations, ("ravel", [], [])]


def network(
    name: str, network: Network, scaled: Sequence[Operation], activation: str = "relu"
) -> dict[str, list[Operation]]:
    """An encoder and a head, whose greedy action is that of the network."""
    encoder = convolutions(network.encoder) if isinstance(network, VisualNetwork) else []
    return {"encoder": [*scaled, *encoder], name: head_operations(head(network), activation)}


def head_operations(head: Head, activation: str) -> list[Operation]:
    """A head; of a dueling one the advantages, which rank the actions alike."""
    if isinstance(head, DuelingHead):
        return mlp(head.advantage, activation)
    if not isinstance(head, QuantileHead):
        return mlp(head, activation)
    cosines = jnp.cos(jnp.pi * jnp.arange(1, NUM_COSINES + 1) * jnp.asarray(LEVELS)[:, None])
    gates = jax.nn.relu(jax.vmap(head.gate)(cosines))
    others = head.mlp.layers[0].weight.shape[1] - gates.shape[1]
    first: list[Operation] = []
    if head.first is not None:
        first = [linear(head.first.weight, head.first.bias), ("relu", [], [])]
    gate: Operation = "gate", [], [jnp.pad(gates, ((0, 0), (0, others)), constant_values=1)]
    return [*first, gate, *mlp(head.mlp), ("mean", [], [])]


def recurrent(
    network: RecurrentNetwork, scaled: Sequence[Operation], activation: str
) -> tuple[dict[str, list[Operation]], eqx.nn.LSTMCell]:
    """A network with an LSTM between its encoder and its head, and the LSTM."""
    encoder = [] if network.encoder is None else convolutions(network.encoder)
    embed = linear(network.embed.weight, network.embed.bias)
    networks = {
        "encoder": [*scaled, *encoder, embed, (activation, [], [])],
        "head": [linear(network.head.weight, network.head.bias)],
    }
    return networks, network.cell


def standardized(inputs: InputEncoder | None, spec: Spec) -> list[Operation]:
    """MBEC's inputs of the trajectory model."""
    if inputs is None:
        return []
    operations: list[Operation] = [("standardize", [], [inputs.mean, inputs.weight])]
    if inputs.encoder is None:
        return operations
    layer = inputs.encoder.linear
    dense = [linear(layer.weight, layer.bias), ("relu", [], [])]
    return [*convolutions(inputs.encoder.cnn), *dense, *operations]


def projected(projection: Any) -> list[Operation]:
    """MBEC++'s features of images, as `features.project` makes them."""
    stats = projection.stats
    std = jnp.sqrt(stats.variance)
    varies = std > 1e-6 * jnp.abs(stats.mean)
    weight = jnp.where(varies, 1 / jnp.where(varies, std, 1), 0)
    map = linear(projection.matrix.T, jnp.zeros_like(weight))
    return [map, ("standardize", [], [stats.mean, weight])]
