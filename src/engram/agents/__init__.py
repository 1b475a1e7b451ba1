"""The agents by name, and how to add one's own."""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from engram.agents.dqn import DQN
from engram.agents.drqn import DRQN
from engram.agents.mbec import MBEC
from engram.agents.mbecpp import MBECpp
from engram.agents.mfec import MFEC
from engram.agents.nec import NEC
from engram.agents.ppo import PPO
from engram.agents.presets import PRESETS, default_preset
from engram.agents.random import Random
from engram.config import replace
from engram.errors import EngramError, nearest_names
from engram.imports import working_directory_importable
from engram.types import Agent

AGENTS: dict[str, type[Agent]] = {}
"""registered agent classes by name"""

AgentClass = TypeVar("AgentClass", bound=type[Agent])


def register(name: str) -> Callable[[AgentClass], AgentClass]:
    """Class decorator: makes an agent known by `name` to `make`, `train`, `load` and the CLI."""

    def decorate(cls: AgentClass) -> AgentClass:
        if ":" in name or not name:
            raise EngramError(f"An agent cannot be named {name!r}: use a word without a colon.")
        known = AGENTS.get(name)
        if known is not None and known.__module__ != cls.__module__:
            raise EngramError(
                f"There is an agent {name!r} already: register yours by another name."
            )
        AGENTS[name] = cls
        cls.name = name
        return cls

    return decorate


for _name, _class in {
    "random": Random,
    "dqn": DQN,
    "mbec": MBEC,
    "mbec++": MBECpp,
    "mfec": MFEC,
    "nec": NEC,
    "drqn": DRQN,
    "ppo": PPO,
}.items():
    register(_name)(_class)


def agent_name(agent: Agent) -> str:
    """The name by which an agent can be made again: registered, or `module:Class`."""
    cls = type(agent)
    if cls.__module__.startswith("engram.agents."):
        return cls.name
    own_name = cls.__dict__.get("name") or cls.__qualname__  # a subclass inherits the name
    return f"{cls.__module__}:{own_name}"


def agent_class(name: str) -> type[Agent]:
    """The class of a registered agent, or of `module:name` after importing the module."""
    module, _, own_name = name.rpartition(":")
    if not module:
        if name not in AGENTS:
            raise EngramError(f"There is no agent {name!r}.{nearest_names(name, AGENTS)}")
        return AGENTS[name]
    try:
        with working_directory_importable():
            imported = importlib.import_module(module)
    except ImportError as error:
        raise EngramError(
            f"The agent {name!r} cannot be imported ({error}): install its module, or go to the "
            "folder that holds it."
        ) from error
    cls = AGENTS.get(own_name)
    if cls is None or cls.__module__ != module:
        cls = getattr(imported, own_name, None)
    if not (isinstance(cls, type) and issubclass(cls, Agent)):
        raise EngramError(
            f"The module {module} has no agent {own_name!r}: derive its class from engram.Agent "
            "at the top level of the module, or in Python pass agent=."
        )
    return cls


def make(name: str, preset: str | None = None, **options: Any) -> Agent:
    """The agent of that name with a preset's options, its default preset's if None, then yours."""
    cls = agent_class(name)
    preset = default_preset(name) if preset is None else preset
    if preset not in PRESETS:
        raise EngramError(f"There is no preset {preset!r}.{nearest_names(preset, PRESETS)}")
    preset_options = PRESETS[preset].options
    if preset != "paper" and name not in preset_options:
        known = [other for other in presets_of(name) if other != preset]
        raise EngramError(
            f"The preset {preset} has no options for {name}: choose {' or '.join(known)}."
        )
    return replace(cls(), **(preset_options.get(name, {}) | options))


def presets_of(name: str) -> list[str]:
    """The presets that an agent has; `paper`, the default options, has every agent."""
    return [preset for preset in PRESETS if preset == "paper" or name in PRESETS[preset].options]


__all__ = [
    "AGENTS",
    "DQN",
    "DRQN",
    "MBEC",
    "MFEC",
    "NEC",
    "PPO",
    "PRESETS",
    "MBECpp",
    "Random",
    "agent_class",
    "agent_name",
    "default_preset",
    "make",
    "register",
]
