"""Reinforcement learning with episodic memory: many runs in one compiled program."""

from engram.agents import DQN, DRQN, MBEC, MFEC, NEC, PPO, MBECpp, Random, make
from engram.errors import EngramError
from engram.events import Events
from engram.policy import Policy
from engram.tasks import BernoulliReward, GaussianReward, RepeatedObservation, Task
from engram.training import Progress, Result, evaluate, load, resume, train

__all__ = [
    "DQN",
    "DRQN",
    "MBEC",
    "MFEC",
    "NEC",
    "PPO",
    "BernoulliReward",
    "EngramError",
    "Events",
    "GaussianReward",
    "MBECpp",
    "Policy",
    "Progress",
    "Random",
    "RepeatedObservation",
    "Result",
    "Task",
    "evaluate",
    "load",
    "make",
    "resume",
    "train",
]
