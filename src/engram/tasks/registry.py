"""What can be learnt, by name: the paper's classical control tasks, any Gymnasium id, or an environment of your own."""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from engram.errors import EngramError, nearest_names
from engram.tasks.atari import GAMES, LONGEST, PROTOCOLS, SKIP, STACK, Arcade, Console
from engram.tasks.checks import blame, check_spaces, in_brief, leaves, row_fault
from engram.tasks.classic import CartPole, MountainCar, Noise
from engram.tasks.noise import BernoulliReward, GaussianReward, RepeatedObservation
from engram.types import Dynamics, Part, Spec
from engram.vision import is_image

QUIET = Noise()
FAINT = 16
"""so many times what is seen may be the brightest that could be, and it is still seen well"""


@dataclass(frozen=True)
class Task:
    """Something to be learnt, and for how long."""

    name: str
    about: str
    """one line for lists"""
    make: Callable[..., gym.Env]
    """makes the environment; takes `render_mode`"""
    steps: int = 100_000
    """how long to train where nothing else is said"""
    envs: int = 1
    """environments of a run where nothing else is said"""
    limit_ends: bool = False
    """whether being cut by the time limit counts as an end, as it did in the paper"""
    dynamics: Dynamics | None = None
    """the same task in JAX, where there is one"""
    params: Noise = QUIET
    """what `dynamics` is called with"""
    arcade: Arcade | None = None
    """the game, where it is one of Atari's"""
    low: tuple[float, ...] = ()
    """practical bounds of the observations, where those of the environment will not do"""
    high: tuple[float, ...] = ()

    def amount(self, steps: int) -> str:
        """So many agent steps, in words; of Atari, in emulator frames too."""
        return f"{steps:,} agent steps" + (f" = {steps * SKIP:,} emulator frames" if self.arcade else "")

    def spec(self, envs: int = 1, iterations: int = 1_000_000) -> Spec:
        """What an agent must know of the task; makes an environment to find out."""
        env = self.make()
        check_spaces(env, self.name)
        space, actions = env.observation_space, env.action_space
        assert isinstance(space, spaces.Box)
        assert isinstance(actions, spaces.Discrete)
        # Images stay bytes, and need no bounds: a tuple of thousands of them would be slow to hash.
        image = space.dtype == np.uint8 and len(space.shape) > 1
        spec = Spec(
            shape=space.shape,
            actions=int(actions.n),
            dtype="uint8" if space.dtype == np.uint8 else "float32",
            brightest=max(1, int(space.high.max())) if space.dtype == np.uint8 else 255,
            **_numbering(env),
            low=() if image else self.low or _bounds(space.low),
            high=() if image else self.high or _bounds(space.high),
            limit=_limit(env) if self.arcade is None else LONGEST // SKIP,
            stack=STACK if self.arcade else 0,
            limit_ends=self.limit_ends,
            envs=envs,
            iterations=iterations,
        )
        with blame(self.name, "close"):
            env.close()
        return spec


def find(task: str | Task | Callable[..., gym.Env], steps: int | None = None) -> Task:
    """The task of a registered name, of `gym:ID`, or of a function that makes an environment; `steps` replaces its own."""
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise EngramError(f"A task cannot be learnt for steps={steps!r}: give a whole number above 0.")
    match task:
        case Task():
            found = task
        case str() if task in TASKS:
            found = TASKS[task]
        case str() if task.startswith("atari:"):
            found = _atari(task)
        case str() if task.startswith("gym:"):
            found = _tried(Task(task, f"Gymnasium's {task[4:]}", partial(_gym, task[4:])))
        case str():
            hint = f" Write gym:{task}." if task in gym.registry else nearest_names(task, TASKS)
            raise EngramError(f"There is no task {task!r}.{hint}")
        case make if callable(make):
            name = _name(make)
            found = _tried(Task(name, f"your own {name}", partial(_own, make, name)))
        case _:
            raise EngramError(
                f"A task cannot be of type {type(task).__name__}: give a name, gym:ID, or a function that makes an environment."
            )
    return found if steps is None else replace(found, steps=steps)


def is_known(task: Task) -> bool:
    """Whether its name is enough to find it again. A function of your own may be called like a registered task."""
    return task.name.startswith(("gym:", "atari:")) or (task.name in TASKS and TASKS[task.name].make is task.make)


def hardly_seen(task: Task) -> str | None:
    """Why agents with convolutions will hardly see what the task shows, in a sentence, if it may be images."""
    spec = task.spec()
    if spec.dtype != "uint8" and is_image(replace(spec, dtype="uint8")):
        return f"Observations of {task.name} are seen as plain numbers: images must be of bytes (numpy.uint8)."
    if not is_image(spec):
        return None
    env = task.make()
    with blame(task.name, "reset"):
        most = np.max(env.reset(seed=0)[0])
        env.close()
    if most == 0 or most > spec.brightest / FAINT:
        return None
    return (
        f"Images of {task.name} begin with nothing above {most}, where their space allows {spec.brightest}, and may hardly be seen: "
        "if there is no more later, make that its upper bound."
    )


def names() -> list[str]:
    """All registered tasks."""
    return list(TASKS)


def adapt(env: gym.Env) -> gym.Env:
    """Makes discrete observations one-hot, dictionaries and tuples of numbers one row, and numbers the actions from 0; leaves all else as
    it is."""
    space = getattr(env, "observation_space", None)
    if space is not None and not isinstance(space, spaces.Box) and row_fault(space) is None:
        env = Row(env)
    actions = getattr(env, "action_space", None)
    if isinstance(actions, spaces.Discrete) and actions.start != 0:
        env = Shifted(env, lambda action: action + actions.start, spaces.Discrete(actions.n))
    return env


class Row(gym.wrappers.FlattenObservation):
    """`adapt`'s own: what somebody has wrapped alike is left as they see it."""


class Shifted(gym.wrappers.TransformAction):
    """The same, for actions."""


def _gym(id: str, noise: Noise = QUIET, *, render_mode: str | None = None, **options) -> gym.Env:
    if render_mode is not None:  # some environments do not know the argument at all
        options["render_mode"] = render_mode
    with blame(f"gym:{id}", "__init__"):
        try:
            # Our own checks speak plainer than Gymnasium's, whose warnings would come on top.
            with _here() if ":" in id else nullcontext(), _quiet_on_films() if render_mode else nullcontext():
                env = gym.make(id, disable_env_checker=True, **options)
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            where = " or go to the folder where it lies" if isinstance(error, ModuleNotFoundError) and ":" in id else ""
            raise EngramError(f"gym:{id} needs a package that is missing ({in_brief(error)}): install it{where}.") from error
        except TypeError as error:
            if render_mode is None or "render_mode" not in str(error):
                raise
            raise EngramError(f"gym:{id} cannot be shown: its __init__ takes no render_mode.") from error
        except gym.error.Error as error:
            raise EngramError(
                f"Gymnasium has no {id!r} to make ({in_brief(error)}): correct the id, or name the package that registers it, "
                "as in gym:my_package:Mine-v0."
            ) from error
    if noise.bernoulli:
        env = BernoulliReward(env, float(noise.bernoulli))
    if noise.gaussian:
        env = GaussianReward(env, float(noise.gaussian))
    if noise.transition:
        env = RepeatedObservation(env, float(noise.transition))
    return adapt(env)


@contextmanager
def _here() -> Iterator[None]:
    """Within it modules in the folder where one is are found, after all others."""
    if "" in sys.path:
        yield
        return
    sys.path.append("")
    try:
        yield
    finally:
        sys.path.remove("")  # and nothing that the module may have added


@contextmanager
def _quiet_on_films() -> Iterator[None]:
    """Within it Gymnasium does not warn of an environment that names no way to be shown: what cannot be is told afterwards."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*render_mode.*")
        yield


def _atari(name: str) -> Task:
    """`atari:breakout` by the classic protocol, `atari:breakout-modern` by the modern one."""
    game, _, protocol = name.removeprefix("atari:").partition("-")
    if game not in GAMES:
        raise EngramError(f"There is no Atari game {game!r} among the 57.{nearest_names(game, GAMES)}")
    if (protocol or "classic") not in PROTOCOLS:
        raise EngramError(f"Atari has no protocol {protocol!r}: write atari:{game}, or atari:{game}-modern.")
    arcade = Arcade(game, PROTOCOLS[protocol or "classic"])
    about = f"Atari's {game.replace('_', ' ')}: {arcade.protocol.about}"
    return Task(name, about, partial(Console, arcade), 2_500_000, envs=4, limit_ends=True, arcade=arcade)


def _own(make: Callable[..., gym.Env], name: str, *, render_mode: str | None = None) -> gym.Env:
    if render_mode is not None and not _takes(make, "render_mode"):
        raise EngramError(f"{name} cannot be shown: give the function that makes it a parameter render_mode=None.")
    with blame(name, "the function that makes it"):
        env = make() if render_mode is None else make(render_mode=render_mode)
    if not isinstance(env, gym.Env):
        raise EngramError(f"{name} made a {type(env).__name__}, not a gymnasium.Env: let it return an environment.")
    return adapt(env)


def _takes(make: Callable[..., gym.Env], parameter: str) -> bool:
    parameters = inspect.signature(make).parameters
    return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _name(make: Callable[..., gym.Env]) -> str:
    if isinstance(make, partial):
        return _name(make.func)
    return getattr(make, "__name__", type(make).__name__).strip("<>")


def _tried(task: Task) -> Task:
    """The task itself, after it has made an environment once: better to fail now than in the middle of an experiment."""
    env = task.make()
    with blame(task.name, "close"):
        env.close()
    return task


def _bounds(values: np.ndarray) -> tuple[float, ...]:
    # Many environments write the largest float where they mean infinity; scaling by it would flatten everything to 0.
    return tuple(float(v) if abs(v) < 1e9 else float(np.copysign(np.inf, v)) for v in values.ravel())


def _numbering(env: gym.Env) -> dict[str, Any]:
    """How the environment inside `adapt`'s wrappers shows observations and counts actions."""
    found: dict[str, Any] = {}
    while isinstance(env, gym.Wrapper):
        inner = env.env
        if isinstance(env, Shifted):
            assert isinstance(inner.action_space, spaces.Discrete)
            found["first_action"] = int(inner.action_space.start)
        if isinstance(env, Row):
            found["parts"] = tuple(Part(path, part.shape, **_counted(part)) for path, part in leaves(inner.observation_space))
        env = inner
    return found


def _counted(space: spaces.Space) -> dict[str, tuple[int, ...]]:
    """How numbered observations are counted."""
    match space:
        case spaces.Discrete(n=n, start=start):
            return {"counts": (int(n),), "starts": (int(start),)}
        case spaces.MultiDiscrete(nvec=nvec, start=start):
            return {"counts": tuple(map(int, nvec.ravel())), "starts": tuple(map(int, np.ravel(start)))}
        case _:
            return {}


def _limit(env: gym.Env) -> int | None:
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    # An environment that was never registered has no spec, even inside a TimeLimit.
    return env.get_wrapper_attr("_max_episode_steps") if env.has_wrapper_attr("_max_episode_steps") else None


def _family(name: str, about: str, id: str, steps: int, **more) -> dict[str, Task]:
    """A task and its three noisy versions, with the noise of the paper."""
    options = more.pop("options", {})
    versions = {
        name: (QUIET, ""),
        f"{name}-gaussian": (Noise(gaussian=0.2), "; Gaussian noise of deviation 0.2 on the rewards"),
        f"{name}-bernoulli": (Noise(bernoulli=0.2), "; one reward in five has the wrong sign"),
        f"{name}-transition": (Noise(transition=0.5), "; half of the time the last observation is seen again"),
    }
    return {
        version: Task(version, about + words, partial(_gym, id, noise, **options), steps, limit_ends=True, params=noise, **more)
        for version, (noise, words) in versions.items()
    }


# Cart Pole's velocities are unbounded and its other bounds twice what ends an episode: these are what an agent meets.
_CART = (2.4, 3.0, 0.2095, 3.5)

TASKS = {
    **_family(
        "cartpole",
        "Cart Pole: keep a pole upright, for at most 200 steps",
        "CartPole-v1",
        10_000,
        options={"max_episode_steps": 200},
        dynamics=CartPole(),
        low=tuple(-bound for bound in _CART),
        high=_CART,
    ),
    **_family(
        "mountaincar",
        "Mountain Car: swing a weak car up a hill within 200 steps",
        "MountainCar-v0",
        100_000,
        dynamics=MountainCar(),
    ),
    **_family("lunarlander", "Lunar Lander: land a rocket gently between two flags", "LunarLander-v3", 100_000),
}
