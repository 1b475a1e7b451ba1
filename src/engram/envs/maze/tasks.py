"""The paper's maze tasks, and others like them by `env_kwargs`."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym

from engram.envs.maze import gym_env
from engram.envs.maze.config import MazeConfig
from engram.envs.maze.jax_env import JaxMaze, MazeParams
from engram.envs.task import Task

_DESCRIPTIONS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "maze3": ("Maze, 3 x 3: find the way to the far corner within 1,000 steps", 5_000, {}),
    "maze5": ("Maze, 5 x 5", 20_000, {"size": 5}),
    "maze3-noisy": (
        "Maze, 3 x 3; the state is the position and 512 image features under dropout",
        10_000,
        {"observation": "features", "dropout_rate": 0.5},
    ),
    "maze3-trap": (
        "Maze, 3 x 3, with a trap in another cell in every episode",
        5_000,
        {"trap": True},
    ),
    "maze3-dynamic": (
        "Maze, 3 x 3, seen as an image; every episode has a new maze",
        10_000,
        {"maze": "dynamic", "observation": "image"},
    ),
}


def maze_task(name: str, env_kwargs: dict[str, Any] | None = None) -> Task:
    """A maze task by name; `env_kwargs` replace arguments of its environment."""
    description, steps, arguments = _DESCRIPTIONS[name]
    config = gym_env.make_config(arguments | (env_kwargs or {}))
    return Task(
        name,
        description,
        partial(_make, config),
        steps=steps,
        truncation_is_terminal=True,
        jax_env=JaxMaze(replace(config, dropout_rate=0.0)),
        env_params=MazeParams(config.dropout_rate),
        env_kwargs=tuple((env_kwargs or {}).items()),
        preset="maze",
    )


def _make(config: MazeConfig, *, render_mode: str | None = None) -> gym.Env:
    gym_env.register()
    arguments = {name: getattr(config, name) for name in MazeConfig.__dataclass_fields__}
    return gym.make(gym_env.ENV_ID, disable_env_checker=True, render_mode=render_mode, **arguments)


MAZE_TASKS = {name: maze_task(name) for name in _DESCRIPTIONS}
