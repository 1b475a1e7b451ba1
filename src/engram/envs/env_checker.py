"""Checks of environments: thorough ones before training, and cheap ones at every step.

Functions named `..._error` return the cause in words that continue a sentence, or None.
"""

import math
import sysconfig
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from engram.envs.spaces import MAX_COMBINATIONS, ObservationError, flatten_error
from engram.errors import EngramError, EngramWarning
from engram.types import Spec

ENV_EXCEPTIONS = (Exception, SystemExit)
"""what an environment's fault may raise: `sys.exit` there must not end a training in silence"""
MAX_FLOAT = float(np.finfo(np.float32).max)
"""the largest number that agents can compute with"""


def check_env(env: gym.Env, name: str) -> Any:
    """Raises if the spaces, a reset or the first steps show an error; gives the first observation.

    Reset `env` afterwards.
    """
    check_spaces(env, name)
    space, actions = env.observation_space, env.action_space
    assert isinstance(space, spaces.Box)
    assert isinstance(actions, spaces.Discrete)
    first_obs, _ = checked_reset(env, name, space, seed=0)
    for i in range(3):
        _, _, terminated, truncated, _ = checked_step(env, name, space, int(i % actions.n))
        if terminated or truncated:
            checked_reset(env, name, space, seed=0)
    return first_obs


def check_spaces(env: gym.Env, name: str) -> None:
    """Raises if an agent cannot use the environment's observation or action space."""
    if not isinstance(env, gym.Env):
        raise EngramError(
            f"{name} is {_kind(env)}, not a gymnasium.Env: derive it from gymnasium.Env."
        )
    cause = _action_space_error(env)
    cause = cause or _observation_space_error(getattr(env, "observation_space", None))
    if cause:
        raise EngramError(f"The environment {name} cannot be used as it is: {cause}.")


def checked_reset(env: gym.Env, name: str, space: spaces.Box | Spec, seed: int) -> Any:
    """What `reset` returns; raises if that is wrong."""
    with env_errors(name, "reset"):
        result = env.reset(seed=seed)
    if cause := reset_error(result, space):
        raise env_error(name, "reset", cause)
    return result


def checked_step(env: gym.Env, name: str, space: spaces.Box | Spec, action: int) -> Any:
    """What `step` returns; raises if that is wrong."""
    with env_errors(name, "step"):
        result = env.step(action)
    if cause := step_error(result, space):
        raise env_error(name, "step", cause)
    return result


@contextmanager
def env_errors(name: str, method: str) -> Iterator[None]:
    """Turns an exception of an environment's method into an EngramError that names both."""
    try:
        yield
    except ObservationError as error:
        raise env_error(name, method, f"wrong observation ({one_line(error)})") from error
    except EngramError:
        raise
    except ENV_EXCEPTIONS as error:
        raise env_error(name, method, f"it raised {describe_exception(error)}") from error


def env_error(name: str, method: str, cause: str) -> EngramError:
    """The error for a method of the environment that raised or returned something wrong."""
    return EngramError(
        f"The environment {name} is at fault in {method}: {cause}; correct it and start again."
    )


def close_envs(envs: Iterable[gym.Env], name: str) -> None:
    """Closes environments; what they raise loses nothing, so that it is a warning."""
    errors = []
    for env in envs:
        try:
            env.close()
        except ENV_EXCEPTIONS as error:
            errors.append(error)
    if errors:
        warnings.warn(
            f"The environment {name} failed to close after its last step, by which nothing is "
            f"lost: close raised {describe_exception(errors[0])}.",
            EngramWarning,
            stacklevel=3,
        )


def describe_exception(error: BaseException) -> str:
    """Its class, its message in one line, and where it was raised."""
    return f"{type(error).__name__} ({one_line(error)}){error_location(error)}"


def error_location(error: BaseException) -> str:
    """File and line in the environment's own code that led to an exception."""
    internal = (f"{gym.__path__[0]}/", __file__.rpartition("envs")[0])
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if not frame.filename.startswith(internal)]
    # NumPy's file says little to the author of an environment that calls it.
    frames = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    if not frames:
        return ""
    file = frames[-1].filename.replace("\\", "/").rpartition("/")[2]
    return f" in {file}, line {frames[-1].lineno}"


def one_line(error: BaseException) -> str:
    """The message of an exception on one line, without its full stop."""
    return " ".join(str(error).split()).rstrip(".")


def reset_error(result: Any, space: spaces.Box | Spec) -> str | None:
    """What is wrong with the result of `reset`, if anything."""
    if not (isinstance(result, tuple) and len(result) == 2):
        return f"it returned {_kind(result)} instead of the pair observation, info"
    return observation_error(result[0], space.shape, space.dtype) or _info_error(result[1])


def step_error(result: Any, space: spaces.Box | Spec) -> str | None:
    """What is wrong with the result of `step`, if anything."""
    if not (isinstance(result, tuple) and len(result) == 5):
        return (
            f"it returned {_kind(result)} instead of the five "
            "observation, reward, terminated, truncated, info"
        )
    observation, reward, terminated, truncated, info = result
    return (
        observation_error(observation, space.shape, space.dtype)
        or reward_error(reward)
        or flag_error("terminated", terminated)
        or flag_error("truncated", truncated)
        or _info_error(info)
        or true_reward_error(info)
    )


def observation_error(
    observation: Any, shape: tuple[int, ...], dtype: DTypeLike = "float32"
) -> str | None:
    """What is wrong with an observation, or with a batch if `shape` has its axis, if anything."""
    try:
        array = np.asarray(observation)
    except ValueError:
        kind = type(observation).__name__
        return f"observation is a ragged {kind}, not an array of shape {shape}"
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return f"observation has dtype {array.dtype} instead of {np.dtype(dtype)}"
    if array.shape != shape:
        return f"observation has shape {array.shape} instead of {shape}"
    if array.dtype.kind != "f":
        return None
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(array.astype(np.float32, copy=False))  # as agents get it
    if is_finite.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~is_finite)[0])
    return f"observation{list(index) or ''} is {array[index]}, {_not_finite(array[index])}"


def reward_error(reward: Any) -> str | None:
    """What is wrong with one reward, if anything."""
    try:
        is_finite = math.isfinite(reward) and abs(reward) <= MAX_FLOAT
    except (TypeError, ValueError, OverflowError):
        is_finite = False
    return None if is_finite else f"reward is {reward!r}, {_not_finite(reward)}"


def true_reward_error(info: dict) -> str | None:
    """What is wrong with the reward without noise, if the environment reports one."""
    cause = reward_error(info.get("true_reward", 0.0))
    return f"in info['true_reward'], which reported returns use, {cause}" if cause else None


def flag_error(field: str, flag: Any) -> str | None:
    """What is wrong with `terminated` or `truncated`, if anything."""
    array = np.asarray(flag)
    is_bool = array.shape == () and array.dtype.kind == "b"
    return None if is_bool else f"{field} is {flag!r}, not a bool"


def _info_error(info: Any) -> str | None:
    return None if isinstance(info, dict) else f"info is {_kind(info)}, not a dict"


def _action_space_error(env: gym.Env) -> str | None:
    space: Any = getattr(env, "action_space", None)
    remedy = "agents choose one of n actions: use Discrete(n)"
    match space:
        case spaces.Discrete(start=0):
            return None
        case spaces.Discrete(n=n, start=start):
            return (
                f"its action_space counts from {start}, but agents count from 0: "
                f"use Discrete({n}), or let engram.envs.get_task wrap it"
            )
        case spaces.Box() if "continuous" in signature(type(env.unwrapped)).parameters:
            return (
                f"its action_space is continuous ({space}), but agents choose one of n actions: "
                "make it with continuous=False (--env-kwargs continuous=false)"
            )
        case spaces.Box():
            return (
                f"its action_space is continuous ({space}), but {remedy} and map each action "
                "to a value in step, or with gymnasium.wrappers.TransformAction"
            )
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return (
                f"its action_space is {space}, and {remedy}: combinations are numbered only up to "
                f"{MAX_COMBINATIONS:,}"
            )
        case None:
            return f"it has no action_space, and {remedy} in its __init__"
        case _:
            return f"its action_space is {_kind(space)}, but {remedy}"


def _observation_space_error(space: Any) -> str | None:
    remedy = "agents need arrays of numbers: use a Box"
    match space:
        case spaces.Box():
            return None
        case (
            spaces.Discrete()
            | spaces.MultiDiscrete()
            | spaces.MultiBinary()
            | spaces.Dict()
            | spaces.Tuple()
        ):
            kind = f"its observation_space is {_kind(space)}"
            return (
                flatten_error(space) or f"{kind}, but {remedy}, or let engram.envs.get_task wrap it"
            )
        case None:
            return f"it has no observation_space, and {remedy}, set in its __init__"
        case _:
            return (
                f"its observation_space is {_kind(space)}, but {remedy}, "
                "and encode it as numbers of a fixed shape"
            )


def _not_finite(value: Any) -> str:
    """Why agents cannot use a value, whose numbers have 32 bits."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if is_number and MAX_FLOAT < abs(value) != math.inf:
        return f"too large a number for agents (at most {MAX_FLOAT:.2g}): scale it"
    return "not a finite number"


def _kind(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"
