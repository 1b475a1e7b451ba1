"""A task: how to make its environment, for how long to train on it, and its `Spec`."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from engram.encoders import is_image
from engram.envs.atari import FRAME_SKIP, MAX_FRAMES, AtariGame
from engram.envs.classic_control import NO_NOISE
from engram.envs.env_checker import check_env, check_spaces, env_errors
from engram.envs.spaces import (
    CombineActions,
    FlattenObservation,
    OffsetAction,
    SelectObservation,
    find_wrapper,
)
from engram.errors import EngramWarning
from engram.types import JaxEnv, Spec

MAX_DARKNESS = 16
"""there is a warning if the first image is more than this many times darker than possible"""
UNBOUNDED = 1e9
"""bounds from here on count as infinite"""


@dataclass(frozen=True)
class Task:
    """An environment to learn, and for how long."""

    name: str
    description: str
    """one line for lists"""
    make: Callable[..., gym.Env]
    """makes the environment; may be called with `render_mode`"""
    steps: int = 100_000
    """default length of a training in agent steps"""
    num_envs: int = 1
    """default number of environments of a run"""
    truncation_is_terminal: bool = False
    """whether truncation by the time limit counts as termination, as in the paper"""
    jax_env: JaxEnv | None = None
    """the same environment in JAX, if there is one"""
    env_params: Any = NO_NOISE
    """`params` of `jax_env`"""
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    """arguments of the environment that differ from those of the task of this name"""
    wrappers: tuple[str, ...] = ()
    """classes `module:Class` around a Gymnasium environment, the innermost first"""
    observe: tuple[str, ...] = ()
    """parts of dictionaries that are observed; all if empty"""
    atari: AtariGame | None = None
    """the game, if it is one of Atari"""
    frame_stack: int = 0
    """frames per observation, stacked along the first axis; 0 if observations are not stacks"""
    in_workers: bool = False
    """whether environments step in processes of their own, since steps are slow"""
    preset: str | None = None
    """the preset of agents that have it, if none is named; else the agent's own default"""
    low: tuple[float, ...] = ()
    """lower bounds of observations, if those of the observation space are no use"""
    high: tuple[float, ...] = ()
    """upper bounds of observations, if those of the observation space are no use"""

    def format_steps(self, steps: int) -> str:
        """A number of agent steps in words, for Atari with emulator frames."""
        frames = f" = {steps * FRAME_SKIP:,} emulator frames" if self.atari else ""
        return f"{steps:,} agent steps{frames}"

    def inspect(
        self, num_envs: int = 1, num_iterations: int = 1_000_000, warn: bool = False
    ) -> Spec:
        """The spec, after a check of spaces, a reset and a few steps, all of one environment.

        With `warn`, images that a CNN can hardly learn from raise an `EngramWarning`.
        """
        with _open_env(self) as env:
            first_obs = check_env(env, self.name)
            spec = self._spec_of(env, num_envs, num_iterations)
        if warn and (warning := image_warning(self.name, spec, first_obs)):
            warnings.warn(warning, EngramWarning, stacklevel=3)
        return spec

    def spec(self, num_envs: int = 1, num_iterations: int = 1_000_000) -> Spec:
        """The spec, after a check of the spaces of one environment, which is not reset."""
        with _open_env(self) as env:
            check_spaces(env, self.name)
            return self._spec_of(env, num_envs, num_iterations)

    def _spec_of(self, env: gym.Env, num_envs: int, num_iterations: int) -> Spec:
        space, actions = env.observation_space, env.action_space
        assert isinstance(space, spaces.Box)
        assert isinstance(actions, spaces.Discrete)
        is_uint8 = space.dtype == np.uint8
        # Images have no bounds: hashing a tuple of thousands of them would be slow.
        has_bounds = not (is_uint8 and len(space.shape) > 1)
        flatten, offset = find_wrapper(env, FlattenObservation), find_wrapper(env, OffsetAction)
        selected, combined = find_wrapper(env, SelectObservation), find_wrapper(env, CombineActions)
        return Spec(
            shape=space.shape,
            num_actions=int(actions.n),
            dtype="uint8" if is_uint8 else "float32",
            pixel_max=max(1, int(space.high.max())) if is_uint8 else 255,
            obs_leaves=flatten.obs_leaves if flatten else (),
            obs_path=selected.obs_path if selected else (),
            action_offset=offset.action_offset if offset else 0,
            action_nvec=combined.action_nvec if combined else (),
            action_start=combined.action_start if combined else (),
            action_shape=combined.action_shape if combined else (),
            low=(self.low or _bounds(space.low)) if has_bounds else (),
            high=(self.high or _bounds(space.high)) if has_bounds else (),
            max_episode_steps=MAX_FRAMES // FRAME_SKIP if self.atari else _time_limit(env),
            frame_stack=self.frame_stack,
            truncation_is_terminal=self.truncation_is_terminal,
            num_envs=num_envs,
            num_iterations=num_iterations,
        )


def image_warning(name: str, spec: Spec, first_obs: np.ndarray) -> str | None:
    """Why a CNN cannot learn much from a task's images, if so."""
    if spec.dtype != "uint8" and is_image(replace(spec, dtype="uint8")):
        return (
            f"Observations of {name} are treated as plain numbers: "
            "images must have the dtype numpy.uint8."
        )
    if spec.frame_stack or not is_image(spec):
        return None
    largest = np.max(first_obs)
    if largest == 0 or largest > spec.pixel_max / MAX_DARKNESS:
        return None
    return (
        f"The first image of {name} has no pixel above {largest}, but its observation_space "
        f"allows {spec.pixel_max}, so that agents may hardly see it: if later images are as dark, "
        f"make {largest} the upper bound of the observation_space."
    )


@contextmanager
def _open_env(task: Task) -> Iterator[gym.Env]:
    """Makes an environment and closes it in the end."""
    env = task.make()
    try:
        yield env
    except BaseException:
        with suppress(Exception):  # the first error matters, and it may not be an environment
            env.close()
        raise
    with env_errors(task.name, "close"):
        env.close()


def _bounds(values: np.ndarray) -> tuple[float, ...]:
    # Many environments give the largest float for infinity; scaling by it would map all to 0.
    bounds = values.ravel()
    return tuple(float(x) if abs(x) < UNBOUNDED else math.copysign(math.inf, x) for x in bounds)


def _time_limit(env: gym.Env) -> int | None:
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    # An environment that is not registered has no spec, even inside a TimeLimit.
    attribute = "_max_episode_steps"
    return env.get_wrapper_attr(attribute) if env.has_wrapper_attr(attribute) else None
