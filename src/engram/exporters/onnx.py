"""An agent as an ONNX graph, traced from its own `act_greedy` and run by onnxruntime."""

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, PyTree

from engram.agents import agent_name
from engram.devices import tracing_for_onnx
from engram.errors import EngramError
from engram.policy import Policy
from engram.types import Spec

INSTALL = "pip install 'engram-rl[export]'"


def to_onnx(policy: Policy) -> bytes:
    """A graph from observation and state to the action and the next state."""
    converter = _import("jax2onnx")
    state, names, indices = policy_state(policy)
    leaves, structure = jax.tree.flatten(state)

    def act(observation: Array, *moving: Array) -> tuple[Array, ...]:
        current = list(leaves)
        for i, x in zip(indices, moving, strict=True):
            current[i] = x[None]
        state, action = act_one(policy, jax.tree.unflatten(structure, current), observation)
        following = jax.tree.leaves(state)
        return (env_action(policy.spec, action), *(following[i][0] for i in indices))

    observation = jax.ShapeDtypeStruct(policy.spec.shape, policy.spec.dtype)
    inputs = [observation, *(jax.typeof(leaves[i][0]) for i in indices)]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    with tracing_for_onnx():
        traced = jax.make_jaxpr(act)(*shapes)
    with quiet():
        try:
            # Evaluated primitive by primitive, since jax2onnx does not know all of jax.numpy.
            model = converter.to_onnx(
                jaxpr_as_fun(traced),
                shapes,
                model_name="policy",
                input_names=["observation", *names],
                output_names=["action", *(f"next_{name}" for name in names)],
            )
            return model.SerializeToString()
        except Exception as error:  # jax2onnx raises many kinds
            reason = " ".join(str(error).split()).rstrip(".")
            raise EngramError(
                f"jax2onnx cannot write {agent_name(policy.agent)} ({reason}): try a .npz file, or "
                "another agent or encoder."
            ) from error


def act_one(policy: Policy, state: PyTree, observation: Array) -> tuple[PyTree, Array]:
    """State and action after one observation within an episode."""
    no_start, key = jnp.zeros(1, bool), jax.random.key(0)
    state, action = policy.agent.act_greedy(
        state, policy.spec, observation[None], no_start, key, 0.0
    )
    return state, action[0]


def policy_state(policy: Policy) -> tuple[PyTree, list[str], list[int]]:
    """The state of one environment, and names and indices of the leaves that acting changes."""
    observation = jnp.zeros((1, *policy.spec.shape), policy.spec.dtype)
    start, key = jnp.ones(1, bool), jax.random.key(0)
    state, _ = policy.agent.act_greedy(policy.state, policy.spec, observation, start, key, 0.0)
    flat, structure = jax.tree_util.tree_flatten_with_path(state)

    def leaves_after(leaves: Sequence[Array]) -> list[Array]:
        state = jax.tree.unflatten(structure, leaves)
        return jax.tree.leaves(act_one(policy, state, observation[0])[0])

    traced = jax.make_jaxpr(leaves_after)([leaf for _, leaf in flat]).jaxpr
    pairs = zip(traced.invars, traced.outvars, strict=True)
    indices = [i for i, (before, after) in enumerate(pairs) if before is not after]
    names = [re.sub(r"\W+", "_", jax.tree_util.keystr(path)).strip("_") for path, _ in flat]
    for i in indices:
        if flat[i][1].shape[:1] != (1,):
            raise EngramError(
                f"{agent_name(policy.agent)} changes {names[i]} of its state when it acts, which "
                "has no axis of environments: give it one."
            )
    return state, [names[i] for i in indices], indices


def env_action(spec: Spec, action: Array) -> Array:
    """The environment's action; a combination of choices is a row of them."""
    if not spec.action_nvec:
        return action + spec.action_offset
    strides = np.cumprod([1, *spec.action_nvec[:0:-1]])[::-1]
    choices = action // jnp.array(strides) % jnp.array(spec.action_nvec)
    return (choices + jnp.array(spec.action_start)).reshape(spec.action_shape)


class OnnxPlayer:
    """Acts by a file that `to_onnx` wrote."""

    def __init__(self, model: bytes, spec: Spec):
        runtime = _import("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        try:
            self.session = runtime.InferenceSession(model, options)
        except Exception as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise EngramError(
                f"onnxruntime cannot run the graph ({reason}): export a .npz file."
            ) from error
        self.spec = spec
        self.reset()

    def reset(self) -> None:
        """Starts an episode: all of the state is zero."""
        names = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(bool)": bool}
        self.state = {
            x.name: np.zeros(x.shape, names[x.type]) for x in self.session.get_inputs()[1:]
        }

    def act_flat(self, row: np.ndarray) -> int:
        """The action, counted from 0, for an observation as one row."""
        observation = row.reshape(self.spec.shape).astype(self.spec.dtype)
        inputs = {"observation": observation} | self.state
        action, *state = self.session.run(None, inputs)
        self.state = dict(zip(self.state, state, strict=True))
        if not self.spec.action_nvec:
            return int(action) - self.spec.action_offset
        choices = np.ravel(action) - np.array(self.spec.action_start)
        return int(np.ravel_multi_index(tuple(choices), self.spec.action_nvec))


def _import(name: str) -> Any:
    """A module of the extra `export`."""
    try:
        with quiet():
            return import_module(name)
    except ImportError:
        raise EngramError(
            f"{name} is not installed, which .onnx files need: {INSTALL}, or export a .npz file."
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Within it converters log and warn nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
