"""Tasks by name: the paper's classical control, Atari, Gymnasium ids, and your own environments."""

import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from engram.envs.atari import FRAME_STACK, GAMES, PROTOCOLS, AtariEnv, AtariGame
from engram.envs.classic_control import NO_NOISE, CartPole, MountainCar, Noise
from engram.envs.env_checker import env_errors, one_line
from engram.envs.maze import gym_env as maze_env
from engram.envs.maze.tasks import MAZE_TASKS, maze_task
from engram.envs.pickup import gym_env as pickup_env
from engram.envs.pickup.tasks import PICKUP_TASKS, pickup_task
from engram.envs.spaces import SelectObservation, wrap_spaces
from engram.envs.task import Task
from engram.envs.wrappers import (
    BernoulliReward,
    GaussianReward,
    RepeatedObservation,
    wrapper_class,
    wrapper_name,
)
from engram.errors import EngramError, nearest_names
from engram.imports import working_directory_importable

EnvFunction = Callable[..., gym.Env]
RESERVED_KWARGS = {"id", "noise", "wrappers", "observe", "render_mode", "disable_env_checker"}
"""arguments of environments that Engram sets itself"""
maze_env.register()
pickup_env.register()
GYM_REMEDY = "correct the id, or name the package that registers it, as in gym:my_package:Mine-v0"


def get_task(
    task: str | Task | EnvFunction,
    steps: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | type] = (),
    observe: Sequence[str] = (),
) -> Task:
    """The task of a name, of `gym:ID` or `atari:GAME`, or of a function that makes an environment.

    `steps` replaces the task's default, and `env_kwargs` arguments of the environment of a maze, of
    a room or of `gym:ID`. Of `gym:ID` alone `wrappers` are classes (`module:Class`) around the
    environment, the innermost first, and `observe` are the parts of dictionaries that are observed.
    No environment is made: `Task.inspect` finds its errors.
    """
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise EngramError(f"A task cannot have steps={steps!r}: give a whole number above 0.")
    if not isinstance(env_kwargs or {}, Mapping):
        raise EngramError(
            f"env_kwargs must be a dictionary, not {env_kwargs!r}: write {{'size': 7}}."
        )
    if reserved := RESERVED_KWARGS & set(env_kwargs or {}):
        raise EngramError(f"{min(reserved)!r} cannot be one of env_kwargs: leave it out.")
    if (wrappers or observe) and not (isinstance(task, str) and task.startswith("gym:")):
        what = "wrappers" if wrappers else "observe"
        raise EngramError(
            f"Only environments by their Gymnasium id, gym:ID, can have {what}: leave it out, or "
            "wrap the environment in the function that makes it."
        )
    match task:
        case _ if env_kwargs and not isinstance(task, str):
            raise EngramError(
                "env_kwargs are for tasks by name: give them to the function that makes the "
                "environment, as in functools.partial(make, size=8)."
            )
        case Task():
            result = task
        case str():
            names = tuple(map(wrapper_name, _listed("wrappers", wrappers)))
            parts = tuple(_listed("observe", observe))
            result = _named_task(task, dict(env_kwargs or {}), names, parts)
        case function if callable(function):
            name = _function_name(function)
            result = Task(name, f"your own {name}", partial(_make_own, function, name))
        case _:
            raise EngramError(
                f"A task cannot be of type {type(task).__name__}: "
                "give a name, gym:ID, atari:GAME, or a function that makes an environment."
            )
    return result if steps is None else replace(result, steps=steps)


def is_registered(task: Task) -> bool:
    """Whether `get_task(task.name)` is this task, and not a changed copy or a function of yours."""
    if task.name.startswith(("gym:", "atari:")):
        return True
    if task.name not in TASKS:
        return False
    known = get_task(task.name, task.steps, dict(task.env_kwargs))
    # With env_kwargs every call makes a new partial function, which equals no other.
    is_same_make = bool(task.env_kwargs) or task.make is known.make
    return is_same_make and replace(task, make=known.make) == known


def task_names() -> list[str]:
    """Names of all registered tasks, without the families gym: and atari:."""
    return list(TASKS)


def _listed(option: str, names: Any) -> Sequence[Any]:
    """The names, if they are a list of different ones and not one text."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise EngramError(f"{option} must be a list of names, not {names!r}.")
    if option == "observe" and not all(isinstance(name, str) for name in names):
        raise EngramError(f"observe must be a list of names, not {names!r}.")
    if len(set(names)) < len(names) and option == "observe":
        raise EngramError(f"observe names a part twice: {', '.join(names)}.")
    return names


def _named_task(
    name: str,
    env_kwargs: dict[str, Any],
    wrappers: tuple[str, ...] = (),
    observe: tuple[str, ...] = (),
) -> Task:
    if name in MAZE_TASKS and env_kwargs:
        return maze_task(name, env_kwargs)
    if name in PICKUP_TASKS and env_kwargs:
        return pickup_task(name, env_kwargs)
    if env_kwargs and not name.startswith("gym:") and (name in TASKS or name.startswith("atari:")):
        raise EngramError(f"{name} takes no env_kwargs: leave them out.")
    if name in TASKS:
        return TASKS[name]
    if name.startswith("atari:"):
        return _atari_task(name)
    if name.startswith("gym:"):
        id = name.removeprefix("gym:")
        with _gym_errors(id, "the import of its module"):
            _check_id(id)
        return Task(
            name,
            f"Gymnasium's {id}",
            partial(_make_gym, id, wrappers=wrappers, observe=observe, **env_kwargs),
            env_kwargs=tuple(env_kwargs.items()),
            wrappers=wrappers,
            observe=observe,
        )
    if name in gym.registry and not _is_ale(name):
        hint = f" Write gym:{name}."
    elif game := _atari_game(name):
        hint = f" Write atari:{game}."
    else:
        hint = nearest_names(name, TASKS)
    raise EngramError(f"There is no task {name!r}.{hint}")


# Atari


def _atari_task(name: str) -> Task:
    """`atari:breakout` by the classic protocol, `atari:breakout-modern` by the modern one."""
    game, _, protocol_name = name.removeprefix("atari:").partition("-")
    if game not in GAMES:
        hint = nearest_names(game, GAMES)
        raise EngramError(f"There is no Atari game {game!r} among the 57.{hint}")
    protocol = PROTOCOLS.get(protocol_name or "classic")
    if protocol is None:
        raise EngramError(
            f"Atari has no protocol {protocol_name!r}: write atari:{game}, or atari:{game}-modern."
        )
    atari = AtariGame(game, protocol)
    return Task(
        name,
        f"Atari's {game.replace('_', ' ')}: {protocol.description}",
        partial(AtariEnv, atari),
        steps=2_500_000,
        num_envs=4,
        truncation_is_terminal=True,
        atari=atari,
        frame_stack=FRAME_STACK,
        preset="atari",
    )


def _atari_game(id: str) -> str | None:
    """The game of ids like ALE/MsPacman-v5, MsPacmanNoFrameskip-v4 or ms_pacman, if it is one."""
    name = re.sub(r"^ALE/|(-ram)?(NoFrameskip|Deterministic)?-v\d+$", "", id)
    games = {game.replace("_", ""): game for game in GAMES}
    return games.get(name.replace("_", "").lower())


def _is_ale(id: str) -> bool:
    """Whether an id of Gymnasium was registered by ale_py."""
    return id in gym.registry and str(gym.registry[id].entry_point).startswith("ale_py")


# Gymnasium


def _make_gym(
    id: str,
    noise: Noise = NO_NOISE,
    *,
    wrappers: Sequence[str] = (),
    observe: Sequence[str] = (),
    render_mode: str | None = None,
    **options: Any,
) -> gym.Env:
    if render_mode is not None:  # some environments do not take this argument
        options["render_mode"] = render_mode
    with _gym_errors(id, "__init__"), _no_render_warnings() if render_mode else nullcontext():
        try:
            # Our checks replace Gymnasium's, whose warnings would be printed as well.
            env = gym.make(id, disable_env_checker=True, **options)
        except TypeError as error:
            unexpected = [name for name in options if f"argument '{name}'" in str(error)]
            if unexpected and unexpected[0] != "render_mode":
                raise EngramError(
                    f"gym:{id} takes no argument {unexpected[0]!r}: correct env_kwargs."
                ) from error
            if render_mode is None or "render_mode" not in str(error):
                raise
            cause = "its __init__ takes no render_mode"
            raise EngramError(f"gym:{id} cannot be rendered: {cause}.") from error
    for name in wrappers:
        wrapper = wrapper_class(name)
        with env_errors(f"gym:{id}", f"the wrapper {name}"):
            env = wrapper(env)
    if observe:
        env = SelectObservation(env, observe)
    return wrap_spaces(_add_noise(env, noise))


def _check_id(id: str) -> None:
    """Imports the module of `module:ID`, if any, and raises Gymnasium's error for an unknown id."""
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    namespace, base, version = parse_env_id(name)
    if version is None:  # Gymnasium makes the latest
        name = get_env_id(namespace, base, find_highest_version(namespace, base))
    if _is_ale(name) and not module:  # known only if something has imported ale_py
        raise gym.error.NameNotFound(f"{name} is one of ALE's games")
    gym.spec(name)


@contextmanager
def _gym_errors(id: str, method: str) -> Iterator[None]:
    """Finds modules in the working directory, and turns exceptions into one-sentence errors."""
    has_module = ":" in id
    with env_errors(f"gym:{id}", method):
        try:
            with working_directory_importable() if has_module else nullcontext():
                yield
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            if "mujoco" in str(error).lower():
                raise EngramError(
                    f"gym:{id} is one of MuJoCo's, whose actions are continuous, but agents choose "
                    "one of n actions: choose another, or give --wrapper a class that maps n "
                    "actions to MuJoCo's and install MuJoCo."
                ) from error
            is_module = has_module and isinstance(error, ModuleNotFoundError)
            remedy = "install it" + (" or go to the folder that contains it" if is_module else "")
            raise EngramError(
                f"gym:{id} needs a package that is missing ({one_line(error)}): {remedy}."
            ) from error
        except gym.error.Error as error:
            game = _atari_game(id)
            remedy = f"write atari:{game}" if game else GYM_REMEDY
            raise EngramError(f"Gymnasium has no {id!r} ({one_line(error)}): {remedy}.") from error


@contextmanager
def _no_render_warnings() -> Iterator[None]:
    """Silences Gymnasium on environments without render modes, which `record` refuses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*render_mode.*")
        yield


def _add_noise(env: gym.Env, noise: Noise) -> gym.Env:
    if noise.bernoulli:
        env = BernoulliReward(env, float(noise.bernoulli))
    if noise.gaussian:
        env = GaussianReward(env, float(noise.gaussian))
    if noise.transition:
        env = RepeatedObservation(env, float(noise.transition))
    return env


# Functions that make an environment


def _make_own(function: EnvFunction, name: str, *, render_mode: str | None = None) -> gym.Env:
    if render_mode is not None and not _takes_render_mode(function):
        raise EngramError(
            f"{name} cannot be rendered: "
            "give the function that makes it a parameter render_mode=None."
        )
    with env_errors(name, "the function that makes it"):
        env = function() if render_mode is None else function(render_mode=render_mode)
    if not isinstance(env, gym.Env):
        raise EngramError(
            f"{name} made a {type(env).__name__}, not a gymnasium.Env: "
            "let it return an environment."
        )
    return wrap_spaces(env)


def _takes_render_mode(function: EnvFunction) -> bool:
    parameters = inspect.signature(function).parameters
    has_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return "render_mode" in parameters or has_kwargs


def _function_name(function: EnvFunction) -> str:
    if isinstance(function, partial):
        return _function_name(function.func)
    return getattr(function, "__name__", type(function).__name__).strip("<>")


# The paper's classical control

NOISES = {
    "": (NO_NOISE, ""),
    "-gaussian": (
        Noise(gaussian=0.2),
        "; rewards have Gaussian noise of standard deviation 0.2",
    ),
    "-bernoulli": (
        Noise(bernoulli=0.2),
        "; rewards have the wrong sign with probability 0.2",
    ),
    "-transition": (
        Noise(transition=0.5),
        "; the last observation is repeated with probability 0.5",
    ),
}


def _with_noises(task: Task) -> dict[str, Task]:
    """A task of Gymnasium and its three noisy versions."""
    return {
        f"{task.name}{suffix}": replace(
            task,
            name=f"{task.name}{suffix}",
            description=f"{task.description}{description}",
            make=partial(task.make, noise=noise),
            truncation_is_terminal=True,
            env_params=noise,
        )
        for suffix, (noise, description) in NOISES.items()
    }


# Cart Pole's velocities have no bounds, and the other bounds are twice those that end an episode;
# these are the values that occur in practice.
_CART_POLE_BOUNDS = (2.4, 3.0, 0.2095, 3.5)

_CART_POLE = Task(
    "cartpole",
    "Cart Pole: keep a pole upright, for at most 200 steps",
    partial(_make_gym, "CartPole-v1", max_episode_steps=200),
    steps=10_000,
    jax_env=CartPole(),
    low=tuple(-bound for bound in _CART_POLE_BOUNDS),
    high=_CART_POLE_BOUNDS,
)
_MOUNTAIN_CAR = Task(
    "mountaincar",
    "Mountain Car: swing a weak car up a hill within 200 steps",
    partial(_make_gym, "MountainCar-v0"),
    jax_env=MountainCar(),
)
_LUNAR_LANDER = Task(
    "lunarlander",
    "Lunar Lander: land a rocket gently between two flags",
    partial(_make_gym, "LunarLander-v3"),
)

TASKS = {
    **_with_noises(_CART_POLE),
    **_with_noises(_MOUNTAIN_CAR),
    **_with_noises(_LUNAR_LANDER),
    **MAZE_TASKS,
    **PICKUP_TASKS,
}
