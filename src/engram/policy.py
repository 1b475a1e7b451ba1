"""A trained agent that acts greedily and learns nothing."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from engram.envs.spaces import (
    flatten_observation,
    select_part,
    shape_error,
    split_action,
)
from engram.errors import EngramError
from engram.types import Agent, Spec


class StoredMemories(NamedTuple):
    """The M memories of an agent, as NumPy arrays."""

    keys: Float[np.ndarray, "M H"]
    values: Float[np.ndarray, "M"]
    last_used: Int[np.ndarray, "M"]
    """iteration in which each was last written, or read by a decision"""
    action: Int[np.ndarray, "M"] | None
    """whose memory it is, of agents with one memory per action"""
    source: Int[np.ndarray, "M"] | None
    """number of the step that it comes from, of agents that know"""

    def __repr__(self) -> str:
        count, size = self.keys.shape
        if not count:
            return "StoredMemories(none)"
        low, high = self.values.min(), self.values.max()
        return f"StoredMemories({count:,} keys of {size} numbers, values {low:.4g} to {high:.4g})"


class Policy:
    """Acts in one environment or in several; call `reset` when an episode starts.

    Agents with a recurrent state or a trajectory carry it from step to step.
    """

    def __init__(self, agent: Agent, spec: Spec, make_state: Callable[[], PyTree]):
        self.agent, self.spec, self._make_state = agent, spec, make_state
        self.seed(0)
        self.reset()

    def __repr__(self) -> str:
        return f"Policy({self.agent!r})"

    @property
    def memory(self) -> StoredMemories | None:
        """What the agent has stored; None if it has no episodic memory."""
        memory = self.agent.memory(self.state)
        if memory is None:
            return None
        # Agents with one memory per action have a further axis, that of the actions.
        is_filled = np.arange(memory.values.shape[-1]) < np.asarray(memory.size)[..., None]
        arrays = (memory.keys, memory.values, memory.last_used)
        keys, values, last_used = (np.asarray(x)[is_filled] for x in arrays)
        action = np.nonzero(is_filled)[0] if is_filled.ndim == 2 else None
        source = None if memory.source is None else np.asarray(memory.source)[is_filled]
        return StoredMemories(keys, values, last_used, action, source)

    @cached_property
    def state(self) -> PyTree:
        """The agent's state, including trajectories in progress; made when first needed."""
        return self._make_state()

    def seed(self, seed: int) -> None:
        """Seeds the random choices, as of ties and of epsilon-greedy actions."""
        self._key, self._step = jax.random.key(seed), 0

    def reset(self, mask: np.ndarray | None = None) -> None:
        """Starts an episode in all environments, or in those where `mask` is true."""
        self._episode_start = mask

    def act(self, observation: Any) -> int | np.ndarray:
        """The action for an observation, or the actions for a batch from a vector environment.

        Observations and actions are those of the environment, before any flattening or offset.
        """
        observation = select_part(self.spec.obs_path, observation)
        array = flatten_observation(self.spec.obs_leaves, observation)
        is_single = array.shape == self.spec.shape
        if not is_single and array.shape[1:] != self.spec.shape:
            raise shape_error(self.spec.shape, array.shape)
        if self.spec.dtype == "uint8" and array.dtype.kind == "f":
            raise EngramError(
                f"An observation must be numpy.uint8, as in training, not {array.dtype}: "
                "give images as the environment does, not scaled to [0, 1]."
            )
        with np.errstate(over="ignore"):
            array = array.astype(self.spec.dtype, copy=False)
        if not np.isfinite(array).all():
            raise EngramError(
                "An observation must consist of finite numbers: it has inf or NaN, or a number too "
                "large for 32 bits."
            )
        actions = self.act_batch(array[None] if is_single else array)
        if self.spec.action_nvec:
            choices = split_action(self.spec.action_nvec, self.spec.action_start, actions)
            choices = choices.reshape(-1, *self.spec.action_shape)
            return choices[0] if is_single else choices
        actions = actions + self.spec.action_offset
        return int(actions[0]) if is_single else actions

    def act_batch(self, observations: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions, counted from 0, for a batch of flat observations; random with `epsilon`."""
        start = self._episode_start
        if start is None or np.size(start) not in (1, len(observations)):
            # Another batch size means other environments, in which episodes start.
            start = True
        episode_start = np.broadcast_to(np.asarray(start, bool), len(observations))
        key = jax.random.fold_in(self._key, self._step)
        act_greedy = _compiled_act_greedy(self.agent, self.spec, epsilon)
        batch = observations.astype(self.spec.dtype)
        self.state, actions = act_greedy(self.state, batch, episode_start, key)
        self._step += 1
        self._episode_start = np.zeros(len(observations), bool)
        return np.asarray(actions)


@cache
def _compiled_act_greedy(agent: Agent, spec: Spec, epsilon: float) -> Callable[..., Any]:
    """One compiled program for all policies of an agent on a task."""

    @jax.jit
    def act_greedy(state, observation, episode_start, key):
        return agent.act_greedy(state, spec, jnp.asarray(observation), episode_start, key, epsilon)

    return act_greedy
