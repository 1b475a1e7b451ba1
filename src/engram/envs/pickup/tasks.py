"""The paper's 3D task: MiniWorld's own room, and the same room in JAX."""

from functools import partial
from typing import Annotated, Any

import gymnasium as gym
from gymnasium.wrappers import FrameStackObservation

from engram.config import Range, check
from engram.envs.pickup import gym_env, miniworld
from engram.envs.pickup.config import PickupConfig, make_config
from engram.envs.pickup.jax_env import JaxPickup
from engram.envs.task import Task

FRAME_STACK, MAX_FRAME_STACK = 4, 16
STEPS = 2_000_000
NUM_ENVS = 16

_NUM_OBJS = {"pickup3": 3, "pickup5": 5, "pickup3-jax": 3, "pickup5-jax": 5}


def pickup_task(name: str, env_kwargs: dict[str, Any] | None = None) -> Task:
    """A pickup task by name; `env_kwargs` replace arguments of its environment.

    `frame_stack` is one of them: how many frames make an observation.
    """
    arguments = {"num_objs": _NUM_OBJS[name], "frame_stack": FRAME_STACK} | (env_kwargs or {})
    frame_stack = arguments.pop("frame_stack")
    check("frame_stack", frame_stack, Annotated[int, Range(1, MAX_FRAME_STACK)])
    config = make_config(arguments)
    is_jax = name.endswith("-jax")
    where = "in JAX" if is_jax else "in MiniWorld, as in the paper"
    return Task(
        name,
        f"3D navigation {where}: find and pick up {config.num_objs} objects within 400 steps",
        partial(_make, gym_env.make if is_jax else miniworld.make, config, frame_stack),
        steps=STEPS,
        num_envs=NUM_ENVS,
        truncation_is_terminal=True,
        jax_env=JaxPickup(config) if is_jax else None,
        env_params=(),
        env_kwargs=tuple((env_kwargs or {}).items()),
        frame_stack=frame_stack,
        in_workers=not is_jax,
        preset="pickup",
    )


def _make(
    make_room: Any, config: PickupConfig, frame_stack: int, *, render_mode: str | None = None
) -> gym.Env:
    """The last frames, black before an episode."""
    room = make_room(config, render_mode)
    return FrameStackObservation(room, frame_stack, padding_type="zero")


PICKUP_TASKS = {name: pickup_task(name) for name in _NUM_OBJS}
