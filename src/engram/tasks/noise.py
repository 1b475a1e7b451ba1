"""Noise between an environment and its agent: the three disturbances of the paper's stochastic classical control."""

import math
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from engram.errors import EngramError


class _Noise(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """A wrapper with randomness of its own, so that noise never changes what the environment does."""

    def __init__(self, env: gym.Env, **arguments: Any):
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, env)
        self.random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            # Class and depth tell apart the streams of wrappers around one environment, also of two of one class.
            stream = (_depth(self.env), *type(self).__name__.encode())
            self.random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))
        return observation, info

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.env.step(action)
        # A new dict: an environment that hands out the same one at every step must not find an old reward in it.
        return observation, reward, terminated, truncated, {"true_reward": reward, **info}


class GaussianReward(_Noise):
    """Adds to every reward a number from a Gaussian with mean 0 and deviation `std`."""

    def __init__(self, env: gym.Env, std: float = 0.2):
        if not (_is_number(std) and 0 <= std < math.inf):
            raise EngramError(f"GaussianReward got std={std!r}: give a finite number that is not negative, such as 0.2.")
        super().__init__(env, std=std)
        self.std = std

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, float(reward) + self.random.normal(0.0, self.std), terminated, truncated, info


class BernoulliReward(_Noise):
    """Turns a reward r into -r with probability `p`."""

    def __init__(self, env: gym.Env, p: float = 0.2):
        super().__init__(env, p=_probability("BernoulliReward", p))
        self.p = p

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        flip = self.random.random() < self.p
        return observation, -float(reward) if flip else float(reward), terminated, truncated, info


class RepeatedObservation(_Noise):
    """Shows again, with probability `p`, what the agent saw last in place of what is there now; a reset is always seen."""

    def __init__(self, env: gym.Env, p: float = 0.5):
        super().__init__(env, p=_probability("RepeatedObservation", p))
        self.p = p
        self.seen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = super().reset(seed=seed, options=options)
        # Copies here and below: environments and agents may go on writing into the array they share with us.
        self.seen = deepcopy(observation)
        return observation, info

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.random.random() < self.p:
            return deepcopy(self.seen), reward, terminated, truncated, info
        self.seen = deepcopy(observation)
        return observation, reward, terminated, truncated, info


def _depth(env: gym.Env) -> int:
    """How many noise wrappers are already around the environment."""
    return isinstance(env, _Noise) + (_depth(env.env) if isinstance(env, gym.Wrapper) else 0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _probability(wrapper: str, p: float) -> float:
    if not (_is_number(p) and 0 <= p <= 1):
        raise EngramError(f"{wrapper} got p={p!r}: give a probability from 0 to 1.")
    return p
