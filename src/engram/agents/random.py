"""Acts at random: what every learner must beat."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int, Key

from engram.agents.shared import count
from engram.types import Spec, TimeStep


@dataclass(frozen=True)
class Random:
    """Every action with the same probability, whatever is seen."""

    def init(self, key: Key[Array, ""], spec: Spec) -> tuple[()]:
        return ()

    def act(self, state, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        return state, jax.random.randint(key, (spec.envs,), 0, count(spec)), {}

    def learn(self, state, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        return state, {}

    def play(self, state, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        return state, jax.random.randint(key, (observation.shape[0],), 0, count(spec))
