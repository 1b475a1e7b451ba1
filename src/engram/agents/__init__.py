"""The agents by name, and named sets of options."""

from typing import Any

from engram.agents.dqn import DQN
from engram.agents.drqn import DRQN
from engram.agents.mbec import MBEC
from engram.agents.mbecpp import MBECpp
from engram.agents.mfec import MFEC
from engram.agents.nec import NEC
from engram.agents.ppo import PPO
from engram.agents.random import Random
from engram.errors import EngramError, nearest_names
from engram.options import replace
from engram.types import Agent

AGENTS: dict[str, type] = {"random": Random, "dqn": DQN, "mbec": MBEC, "mbec++": MBECpp, "mfec": MFEC, "nec": NEC, "drqn": DRQN, "ppo": PPO}

_AUTHORS_MEMORY = {
    "key_dim": 5,
    "squared_distance": True,
    "forget": "unused",
    "discount_memory": False,
    "reward_sees_trajectory": True,
    "p_recall": 0.1,
}

_BEYOND = {"stretch_inputs": True, "multi_step": 5, "huber": True, "batch": 64, "learning_rate": 2e-3, "anneal": True, "epsilon_end": 0.0}
_ENDLESS = {"time_limit_ends": False, "gamma": 0.98, "epsilon_end": 0.0}
_STEADY = {"epsilon_decay": 3e3, "learning_rate": 1e-3, "anneal": True, "target_every": 500, "batch": 128, "learn_every": 4}

_ATARI = {"hidden": 512, "layers": 1, "learning_rate": 1e-4, "learn_start": 50_000, "target_every": 250, "huber": True}
_ATARI |= {"epsilon_end": 0.1, "epsilon_decay": 1e5, "updates": 4, "act_by_target": True, "double": True}

PRESETS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "paper": ("as the paper has it; the default but for mbec++ and Atari", {}),
    "authors": (
        "as the authors' own code for classic control differs from the paper",
        {"mbec": _AUTHORS_MEMORY, "mbec++": _AUTHORS_MEMORY | {"observed_reward": True}},
    ),
    "tuned": (
        "for the noisy classic-control tasks, the best of the ranges that the paper names (results/tuning)",
        {
            "dqn": {"learning_rate": 1e-3},
            "mfec": {"neighbours": 25},
            "nec": {"neighbours": 25, "hidden": 128, "learning_rate": 1e-3},
            "drqn": {"learning_rate": 1e-3},
            "ppo": {"clip_range": 0.5, "learning_rate": 3e-3},
        },
    ),
    "engram": (
        "for mbec++ the default: what was found best on noisy classic control (docs/research.md)",
        {"dqn": _BEYOND, "mbec++": _BEYOND | {"centred": True, "q_sees_trajectory": True, "trajectory": 8, "trajectory_rate": 1e-5}},
    ),
    "cartpole": (
        "for clean Cart Pole; in how many seeds it solves it: results/solved",
        {
            "dqn": _ENDLESS | _STEADY,
            "mbec++": _ENDLESS | _STEADY,
            "mfec": _ENDLESS | {"scale_inputs": True, "neighbours": 50},
            "nec": _ENDLESS
            | {"scale_inputs": True, "neighbours": 50, "horizon": 100, "hidden": 256}
            | {"epsilon_decay": 3e3, "learning_rate": 2e-4, "anneal": True, "learn_every": 16},
            "drqn": {"learning_rate": 1e-3, "time_limit_ends": False},
            "ppo": {"learning_rate": 3e-3},
        },
    ),
    "atari": (
        "for Atari, as the paper has it but for what docs/atari.md says; for mfec and nec after their own papers; there the default",
        {
            "dqn": _ATARI,
            "mbec++": _ATARI | {"neighbours": 7, "chunk": 100, "slots": 50_000, "models_stop": 5_000_000, "q_chooses": True, "p_ask": 0.2},
            "mfec": {"clip_rewards": False, "gamma": 1.0, "epsilon_end": 0.005},
            "nec": {"clip_rewards": False, "hidden": 512, "learn_every": 1, "learn_start": 5_000, "learning_rate": 1e-4}
            | {"epsilon_end": 0.001, "epsilon_decay": 1e4},
        },
    ),
    "scaled": (
        "the paper's, with observations scaled to [-1, 1]",
        {name: {"scale_inputs": True} for name in AGENTS if name != "random"},
    ),
    "debug": (
        "small and quick, to see whether things run",
        {
            "dqn": {"hidden": 16, "batch": 8},
            "mbec": {"slots": 64, "neighbours": 3, "batch": 8},
            "mbec++": {"slots": 64, "neighbours": 3, "batch": 8, "hidden": 16},
            "mfec": {"slots": 64, "neighbours": 3, "key_dim": 8},
            "nec": {"slots": 64, "neighbours": 3, "batch": 8, "hidden": 16, "embedding": 8, "horizon": 5},
            "drqn": {"hidden": 16, "lstm": 16, "batch": 4, "sequence": 4},
            "ppo": {"hidden": 16, "lstm": 16, "rollout": 64, "epochs": 2},
        },
    ),
}


def name_of(agent: Agent) -> str:
    """The name under which an agent's class is listed."""
    return next((name for name, kind in AGENTS.items() if type(agent) is kind), type(agent).__name__.lower())


def kind_of(name: str) -> type:
    """The class of an agent."""
    if name not in AGENTS:
        raise EngramError(f"There is no agent {name!r}.{nearest_names(name, AGENTS)}")
    return AGENTS[name]


def usual(name: str, arcade: bool = False) -> str:
    """The preset of who names none: for MBEC++ what was found best, for others the paper's; for Atari that of Atari."""
    wanted = "atari" if arcade else "engram" if name == "mbec++" else "paper"
    return wanted if name in PRESETS[wanted][1] else "paper"


def make(name: str, preset: str | None = None, **options: Any) -> Agent:
    """The agent of that name, with a preset's options and then your own. Where no preset is given, that of `usual`."""
    preset = usual(name) if preset is None else preset
    if preset not in PRESETS:
        raise EngramError(f"There is no preset {preset!r}.{nearest_names(preset, PRESETS)}")
    _, overlays = PRESETS[preset]
    return replace(kind_of(name)(), **(overlays.get(name, {}) | options))


__all__ = ["AGENTS", "DQN", "DRQN", "MBEC", "MFEC", "NEC", "PPO", "PRESETS", "MBECpp", "Random", "kind_of", "make", "name_of", "usual"]
