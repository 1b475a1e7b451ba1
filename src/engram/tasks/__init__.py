"""What is learnt: tasks by name, the noise around them, and the checks of environments that are not ours."""

from engram.tasks.checks import at_fault, blame, check, check_spaces, flag_fault, observation_fault, reward_fault
from engram.tasks.classic import CartPole, MountainCar, Noise
from engram.tasks.noise import BernoulliReward, GaussianReward, RepeatedObservation
from engram.tasks.registry import Task, adapt, find, hardly_seen, is_known, names

__all__ = [
    "BernoulliReward",
    "CartPole",
    "GaussianReward",
    "MountainCar",
    "Noise",
    "RepeatedObservation",
    "Task",
    "adapt",
    "at_fault",
    "blame",
    "check",
    "check_spaces",
    "find",
    "flag_fault",
    "hardly_seen",
    "is_known",
    "names",
    "observation_fault",
    "reward_fault",
]
