"""The three noises of the paper's stochastic classical control as Gymnasium wrappers."""

import math
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from engram.errors import EngramError


class _Noise(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """A wrapper with its own random generator, so that noise never changes the dynamics."""

    def __init__(self, env: gym.Env, **arguments: Any):
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, env)
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            # Class and depth give each of several wrappers around an environment its own stream.
            stream = (_num_noise_wrappers(self.env), *type(self).__name__.encode())
            self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))
        return observation, info

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.env.step(action)
        # A new dict: an environment may return the same one at every step, which must not keep an
        # old reward.
        return observation, reward, terminated, truncated, {"true_reward": reward, **info}


class GaussianReward(_Noise):
    """Adds Gaussian noise with mean 0 and standard deviation `std` to every reward."""

    def __init__(self, env: gym.Env, std: float = 0.2):
        if not (_is_number(std) and 0 <= std < math.inf):
            raise EngramError(
                f"GaussianReward got std={std!r}: give a finite number that is not negative, "
                "such as 0.2."
            )
        super().__init__(env, std=std)
        self.std = std

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        reward = float(reward) + self.rng.normal(0.0, self.std)
        return observation, reward, terminated, truncated, info


class BernoulliReward(_Noise):
    """Changes the sign of every reward with probability `p`."""

    def __init__(self, env: gym.Env, p: float = 0.2):
        super().__init__(env, p=_check_probability("BernoulliReward", p))
        self.p = p

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        reward = -float(reward) if self.rng.random() < self.p else float(reward)
        return observation, reward, terminated, truncated, info


class RepeatedObservation(_Noise):
    """Repeats the last observation the agent received with probability `p`, except at a reset."""

    def __init__(self, env: gym.Env, p: float = 0.5):
        super().__init__(env, p=_check_probability("RepeatedObservation", p))
        self.p = p
        self.last_observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = super().reset(seed=seed, options=options)
        # Copies here and below, since environments and agents may write into the array they share.
        self.last_observation = deepcopy(observation)
        return observation, info

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.rng.random() < self.p:
            observation = deepcopy(self.last_observation)
        else:
            self.last_observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info


def _num_noise_wrappers(env: gym.Env) -> int:
    if not isinstance(env, gym.Wrapper):
        return 0
    return isinstance(env, _Noise) + _num_noise_wrappers(env.env)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _check_probability(wrapper: str, p: float) -> float:
    if not (_is_number(p) and 0 <= p <= 1):
        raise EngramError(f"{wrapper} got p={p!r}: give a probability from 0 to 1.")
    return p
