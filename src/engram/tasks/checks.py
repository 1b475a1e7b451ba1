"""What can be wrong with an environment, said in one sentence before training, and cheaply at every step of it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from engram.errors import EngramError
from engram.types import Spec
from engram.vision import is_image


def observation_fault(observation: Any, shape: tuple[int, ...], dtype: DTypeLike = "float32") -> str | None:
    """What is wrong with an observation (or, with their shape, a batch of them), if anything."""
    try:
        array = np.asarray(observation)
    except ValueError:
        return f"observation is a ragged {type(observation).__name__}, not an array of shape {shape}"
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return f"observation has dtype {array.dtype} instead of {np.dtype(dtype)}"
    if array.shape != shape:
        return f"observation has shape {array.shape} instead of {shape}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        return f"observation{list(place) or ''} is {array[place]}, not a finite number"
    return None


def reward_fault(reward: Any) -> str | None:
    """What is wrong with one reward, if anything."""
    try:
        fine = math.isfinite(reward)
    except (TypeError, ValueError, OverflowError):
        fine = False
    return None if fine else f"reward is {reward!r}, not a finite number"


def flag_fault(field: str, flag: Any) -> str | None:
    """What is wrong with `terminated` or `truncated`, if anything."""
    array = np.asarray(flag)
    return None if array.shape == () and array.dtype.kind == "b" else f"{field} is {flag!r}, not a bool"


def reset_fault(answer: Any, space: spaces.Box | Spec) -> str | None:
    """What is wrong with all that `reset` returned, if anything."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return f"it returned {_kind(answer)} instead of the pair observation, info"
    return observation_fault(answer[0], space.shape, space.dtype) or _info_fault(answer[1])


def step_fault(answer: Any, space: spaces.Box | Spec) -> str | None:
    """What is wrong with all that `step` returned, if anything."""
    if not (isinstance(answer, tuple) and len(answer) == 5):
        return f"it returned {_kind(answer)} instead of the five observation, reward, terminated, truncated, info"
    observation, reward, terminated, truncated, info = answer
    return (
        observation_fault(observation, space.shape, space.dtype)
        or reward_fault(reward)
        or flag_fault("terminated", terminated)
        or flag_fault("truncated", truncated)
        or _info_fault(info)
        or true_reward_fault(info)
    )


def true_reward_fault(info: dict) -> str | None:
    """What is wrong with the reward by which runs are scored, if there is one."""
    wrong = reward_fault(info.get("true_reward", 0.0))
    return f"info['true_reward'], by which runs are scored: {wrong}" if wrong else None


def at_fault(name: str, where: str, fault: str) -> EngramError:
    """The sentence for what went wrong in `where`, a method of the environment."""
    return EngramError(f"The environment {name} is at fault in {where}: {fault}; correct it there and start again.")


@contextmanager
def blame(name: str, where: str) -> Iterator[None]:
    """Turns whatever an environment raises into one sentence that names it."""
    try:
        yield
    except EngramError:
        raise
    except Exception as error:
        raise at_fault(name, where, f"it raised {type(error).__name__} ({in_brief(error)})") from error


def in_brief(error: Exception) -> str:
    """An exception's message on one line, fit to stand within a sentence."""
    return " ".join(str(error).split()).rstrip(".")


def check(env: gym.Env, name: str) -> None:
    """Raises what is wrong with an environment, as far as its spaces, a reset and a few steps show; reset it afterwards."""
    check_spaces(env, name)
    space, actions = env.observation_space, env.action_space
    assert isinstance(space, spaces.Box)
    assert isinstance(actions, spaces.Discrete)
    _reset(env, name, space)
    for i in range(3):
        with blame(name, "step"):
            answer = env.step(int(i % actions.n))
        if fault := step_fault(answer, space):
            raise at_fault(name, "step", fault)
        if answer[2] or answer[3]:
            _reset(env, name, space)


def check_spaces(env: gym.Env, name: str) -> None:
    """Raises which of an environment's spaces Engram cannot learn with, and what to do about it."""
    if not isinstance(env, gym.Env):
        raise EngramError(f"{name} is {_kind(env)}, not a gymnasium.Env: derive it from gymnasium.Env and start again.")
    fault = _action_space_fault(getattr(env, "action_space", None)) or _observation_space_fault(getattr(env, "observation_space", None))
    if fault:
        raise EngramError(f"The environment {name} cannot be used as it is: {fault}.")


def row_fault(space: spaces.Space) -> str | None:
    """Why an observation cannot be seen as one row of numbers, which numbered ones are, and dictionaries and tuples of numbers; if so."""
    for path, part in leaves(space):
        if fault := _unfit(part):
            where = " at " + "".join(f"[{key!r}]" for key in path) if path else ""
            return f"its observation_space is {_kind(space)} that holds{where} {fault}, by gymnasium.wrappers.TransformObservation"
    return None


def leaves(space: spaces.Space, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """What dictionaries and tuples, one within another, are made of, and where it lies; of anything else, that itself."""
    match space:
        case spaces.Dict() if space.spaces and all(isinstance(key, str | int) for key in space.spaces):
            parts = space.spaces.items()
        case spaces.Tuple() if space.spaces:
            parts = enumerate(space.spaces)
        case _:
            yield path, space
            return
    for key, part in parts:
        yield from leaves(part, (*path, key))


def _unfit(space: spaces.Space) -> str | None:
    """Why something cannot be a part of a row of numbers, if so."""
    match space:
        case spaces.Box() if space.dtype == np.uint8 and is_image(Spec(space.shape, 1, "uint8")):
            return "an image, which a row of numbers garbles: show it alone or leave it out"
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return None
        case spaces.Dict() | spaces.Tuple():
            return f"{_kind(space)} with nothing in it, or with keys that are neither words nor whole numbers: leave it out"
        case _:
            return f"{_kind(space)}, which is no array of numbers: leave it out or encode it"


def _reset(env: gym.Env, name: str, space: spaces.Box) -> None:
    with blame(name, "reset"):
        answer = env.reset(seed=0)
    if fault := reset_fault(answer, space):
        raise at_fault(name, "reset", fault)


def _action_space_fault(space: Any) -> str | None:
    wanted = "Engram chooses one of n actions: use Discrete(n)"
    match space:
        case spaces.Discrete(start=0):
            return None
        case spaces.Discrete():
            return (
                f"its action_space counts from {space.start}, where Engram counts from 0: use Discrete({space.n}), or let "
                "engram.tasks.find wrap it"
            )
        case spaces.Box():
            return f"its action_space is continuous ({space}), but {wanted} and map each number to a value in step"
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return f"its action_space is {space}, but {wanted} and number the combinations, one for each n"
        case None:
            return f"it has no action_space, and {wanted} in its __init__"
        case _:
            return f"its action_space is {_kind(space)}, but {wanted}"


def _observation_space_fault(space: Any) -> str | None:
    wanted = "Engram sees arrays of numbers: use a Box"
    match space:
        case spaces.Box():
            return None
        case spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Dict() | spaces.Tuple():
            return row_fault(space) or f"its observation_space is {_kind(space)}, but {wanted}, or let engram.tasks.find wrap it"
        case None:
            return f"it has no observation_space, and {wanted}, set in its __init__"
        case _:
            return f"its observation_space is {_kind(space)}, but {wanted}, and encode it as numbers of a fixed shape"


def _info_fault(info: Any) -> str | None:
    return None if isinstance(info, dict) else f"info is {_kind(info)}, not a dict"


def _kind(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"
