"""Uniformly random actions: the return that every learner must beat."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from jaxtyping import Array, Int, Key

from engram.agents import common
from engram.types import Agent, Spec, TimeStep


@dataclass(frozen=True)
class Random(Agent):
    """Takes every action with the same probability."""

    supports_action_mask: ClassVar[bool] = True

    def init(self, key: Key[Array, ""], spec: Spec) -> tuple[()]:
        return ()

    def step(self, state, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        return state, self.sample(spec, spec.num_envs, key), {}

    def act_greedy(self, state, spec: Spec, observation, episode_start, key, epsilon=0.0):
        return state, self.sample(spec, observation.shape[0], key)

    def sample(self, spec: Spec, count: int, key: Key[Array, ""]) -> Int[Array, "E"]:
        """Actions of `count` environments."""
        return jax.random.randint(key, (count,), 0, common.num_valid_actions(spec))
