"""Gymnasium wrappers: the three noises of the paper's classical control, and users' own by name."""

import importlib
import math
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from engram.envs.env_checker import ENV_EXCEPTIONS, one_line
from engram.errors import EngramError
from engram.imports import working_directory_importable


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


# Users' own wrappers, by name


def wrapper_name(wrapper: str | type) -> str:
    """The name `module:Class` of a wrapper."""
    if isinstance(wrapper, type):
        return f"{wrapper.__module__}:{wrapper.__qualname__}"
    if not isinstance(wrapper, str) or not all(wrapper.partition(":")[::2]):
        raise EngramError(f"A wrapper is a class or its name module:Class, not {wrapper!r}.")
    return wrapper


def wrapper_class(name: str) -> type[gym.Wrapper]:
    """The class of a wrapper, after importing its module."""
    module, _, class_name = name.partition(":")
    try:
        with working_directory_importable():
            found = getattr(importlib.import_module(module), class_name, None)
    except ENV_EXCEPTIONS as error:  # whatever a module may do when it is imported
        raise EngramError(
            f"The wrapper {name} cannot be imported ({type(error).__name__}: {one_line(error)}): "
            "install its module, or go to the folder that holds it."
        ) from error
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        raise EngramError(
            f"The module {module} has no wrapper {class_name!r}: name a class derived from "
            "gymnasium.Wrapper, at the top level of the module."
        )
    return found
