"""A trained agent that acts greedily and learns nothing."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from engram.envs.spaces import (
    flatten_observation,
    select_part,
    shape_error,
    split_action,
)
from engram.errors import EngramError
from engram.types import Agent, Spec


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
        if not np.isfinite(array).all():
            raise EngramError("An observation must consist of finite numbers: it has inf or NaN.")
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
