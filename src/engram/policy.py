"""A trained agent to act with: greedy, learning nothing."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from engram.errors import EngramError
from engram.types import Agent, Spec


class Policy:
    """Acts for one environment or several; call `reset` where an episode begins, since agents with a memory carry a trajectory."""

    def __init__(self, agent: Agent, spec: Spec, state: PyTree):
        self.agent, self.spec, self.state = agent, spec, state
        self._key, self._step = jax.random.key(0), 0
        self.reset()

    def reset(self, which: np.ndarray | None = None) -> None:
        """An episode begins: in all environments, or in those that `which` marks."""
        self._first = which

    def act(self, observation: np.ndarray) -> int | np.ndarray:
        """The action for an observation, or the actions for a batch of them."""
        observation = np.asarray(observation)
        if self.spec.discrete and observation.shape[-1:] != self.spec.shape:
            observation = np.eye(self.spec.shape[0])[observation]
        is_one = observation.shape == self.spec.shape
        if not is_one and observation.shape[1:] != self.spec.shape:
            raise EngramError(f"An observation must have shape {self.spec.shape}, or (n, *that) for several, not {observation.shape}.")
        batch = observation[None] if is_one else observation
        # Another number of environments than before can only be other environments, where episodes begin.
        known = self._first is not None and np.size(self._first) in (1, len(batch))
        first = np.broadcast_to(self._first, len(batch)) if known else np.ones(len(batch), bool)
        key = jax.random.fold_in(self._key, self._step)
        self.state, action = _play(self.agent, self.spec)(self.state, batch.astype(self.spec.dtype), first, key)
        self._step += 1
        self._first = np.zeros(len(batch), bool)
        return int(action[0]) if is_one else np.asarray(action)


@cache
def _play(agent: Agent, spec: Spec):
    """Compiled once for all policies of one agent on one task."""
    return jax.jit(lambda state, observation, first, key: agent.play(state, spec, jnp.asarray(observation), first, key))
