"""Environments: tasks by name, noise wrappers, flattening of spaces, and checks of environments."""

from engram.envs.classic_control import CartPole, MountainCar, Noise
from engram.envs.env_checker import check_env, check_spaces, env_errors
from engram.envs.registry import get_task, is_registered, task_names
from engram.envs.spaces import wrap_spaces
from engram.envs.task import Task
from engram.envs.wrappers import BernoulliReward, GaussianReward, RepeatedObservation

__all__ = [
    "BernoulliReward",
    "CartPole",
    "GaussianReward",
    "MountainCar",
    "Noise",
    "RepeatedObservation",
    "Task",
    "check_env",
    "check_spaces",
    "env_errors",
    "get_task",
    "is_registered",
    "task_names",
    "wrap_spaces",
]
