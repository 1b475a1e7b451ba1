"""Reinforcement learning with episodic memory: many runs in one compiled program."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.agents import DQN, DRQN, MBEC, MFEC, NEC, PPO, MBECpp, Random, make, register
    from engram.comparison import compare
    from engram.envs import BernoulliReward, GaussianReward, RepeatedObservation, Task
    from engram.errors import EngramError
    from engram.exporters import export
    from engram.hooks import TimeBudget
    from engram.loggers.progress_bar import ProgressBar
    from engram.loggers.tensorboard import TensorBoard
    from engram.loggers.timings import Timings
    from engram.loggers.trackers import Trackio, WandB
    from engram.policy import Policy
    from engram.run_figures import plot
    from engram.training import Hook, Progress, Result, evaluate, load, resume, train
    from engram.tuning import TuneResult, tune
    from engram.types import Agent

__all__ = [
    "DQN",
    "DRQN",
    "MBEC",
    "MFEC",
    "NEC",
    "PPO",
    "Agent",
    "BernoulliReward",
    "EngramError",
    "GaussianReward",
    "Hook",
    "MBECpp",
    "Policy",
    "Progress",
    "ProgressBar",
    "Random",
    "RepeatedObservation",
    "Result",
    "Task",
    "TensorBoard",
    "TimeBudget",
    "Timings",
    "Trackio",
    "TuneResult",
    "WandB",
    "compare",
    "evaluate",
    "export",
    "load",
    "make",
    "plot",
    "register",
    "resume",
    "train",
    "tune",
]

_MODULES = {
    "agents": ("DQN", "DRQN", "MBEC", "MFEC", "NEC", "PPO", "MBECpp", "Random", "make", "register"),
    "comparison": ("compare",),
    "envs": ("BernoulliReward", "GaussianReward", "RepeatedObservation", "Task"),
    "errors": ("EngramError",),
    "exporters": ("export",),
    "hooks": ("TimeBudget",),
    "loggers.progress_bar": ("ProgressBar",),
    "loggers.tensorboard": ("TensorBoard",),
    "loggers.timings": ("Timings",),
    "loggers.trackers": ("Trackio", "WandB"),
    "policy": ("Policy",),
    "run_figures": ("plot",),
    "types": ("Agent",),
    "training": ("Hook", "Progress", "Result", "evaluate", "load", "resume", "train"),
    "tuning": ("TuneResult", "tune"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name or a module on first use, so that `engram --help` needs no JAX."""
    if name in _MODULE_OF:
        value = getattr(import_module(f"engram.{_MODULE_OF[name]}"), name)
    elif not name.startswith("_") and find_spec(f"engram.{name}") is not None:
        value = import_module(f"engram.{name}")
    else:
        raise AttributeError(f"module 'engram' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
