"""Tiny tasks whose values are known, environments with a script, and an agent that keeps a diary."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from engram.tasks import Task
from engram.types import Outcome, Spec

# Which probe a run is given; numbers and not code, so that one program trains them all.
ONE_STATE, TWO_STATES, SEEN_REWARD, CHOSEN_REWARD, TWO_ARMS = range(5)


class Kind(NamedTuple):
    kind: float


class Place(NamedTuple):
    t: jax.Array
    mark: jax.Array


@dataclass(frozen=True)
class Probe:
    """One state of reward 1; two states, the second of reward 1; a reward of +1 or -1 that is seen before; one that is chosen;
    and two arms, of which the second brings 1, but three steps later. All see their time and a mark."""

    def reset(self, params, key):
        mark = jnp.where(params.kind == SEEN_REWARD, jnp.where(jax.random.bernoulli(key), 1.0, -1.0), 0.0)
        return Place(jnp.int32(0), mark), jnp.stack([0.0, mark])

    def step(self, params, place, action, key):
        kind = params.kind.astype(jnp.int32)
        sign = jnp.where(action == 1, 1.0, -1.0)
        mark = jnp.where((kind == TWO_ARMS) & (place.t == 0), sign, place.mark)
        over = place.t + 1 >= jnp.array([1, 2, 1, 1, 3])[kind]
        reward = jnp.stack([1.0, over * 1.0, place.mark, sign, jnp.where(over & (mark > 0), 1.0, 0.0)])[kind]
        seen = jnp.stack([(place.t + 1).astype(jnp.float32), mark])
        return Place(place.t + 1, mark), Outcome(seen, reward, reward, over, jnp.array(False))


PROBES = [Task(f"probe-{kind}", "", lambda: None, dynamics=Probe(), params=Kind(float(kind))) for kind in range(5)]


def probe_spec(iterations):
    return Spec((2,), 2, limit=3, iterations=iterations)


class Tape(gym.Env):
    """An environment with a script: the reward of step t is `rewards[t]`; after the last it ends, or is cut. It shows its time
    and a number drawn at reset. `breaks` maps the steps ever made to what happens instead."""

    def __init__(self, rewards=(1.0, 2.0, 3.0), cut=False, breaks=None, forgetful=False):
        self.observation_space = gym.spaces.Box(-math.inf, math.inf, (2,))
        self.action_space = gym.spaces.Discrete(2)
        self.rewards, self.cut, self.breaks, self.forgetful = rewards, cut, breaks or {}, forgetful
        self.made, self.seeds = 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        self.drawn = np.random.default_rng().normal() if self.forgetful else self.np_random.normal()
        return self.seen(), {}

    def seen(self):
        return np.array([self.t, self.drawn], np.float32)

    def step(self, action):
        self.made += 1
        reward = self.rewards[self.t]
        self.t += 1
        over = self.t == len(self.rewards)
        if self.made in self.breaks:
            answer = self.breaks[self.made]
            if isinstance(answer, Exception):
                raise answer
            return answer(self, reward, over)
        return self.seen(), reward, over and not self.cut, over and self.cut, {}


@dataclass(frozen=True)
class Diary:
    """An agent that always does the same, and writes down all it is told."""

    action: int = 0

    def init(self, key, spec):
        shape = (spec.iterations, spec.envs)
        return {
            "observation": jnp.zeros((*shape, *spec.shape)),
            "reward": jnp.zeros(shape),
            "terminated": jnp.zeros(shape, bool),
            "truncated": jnp.zeros(shape, bool),
            "final": jnp.zeros((*shape, *spec.shape)),
            "lot": jnp.zeros(spec.iterations),
        }

    def act(self, state, spec, timestep, step, key):
        told = timestep._asdict() | {"lot": jax.random.uniform(key)}
        state = {name: page.at[step].set(told[name]) for name, page in state.items()}
        return state, jnp.full(spec.envs, self.action), {"mean_reward": jnp.mean(timestep.reward)}

    def learn(self, state, spec, step, key):
        return state, {"step": step * 1.0}

    def play(self, state, spec, observation, first, key):
        return state, jnp.full(observation.shape[0], self.action)
