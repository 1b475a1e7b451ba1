"""Presets: named overlays of the agents' default options."""

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """What a preset is for, and the options it sets for each agent."""

    description: str
    options: dict[str, dict[str, Any]]


# The defaults of mbec++, as far as they apply to a DQN.
_ENGRAM = {
    "normalize_obs": "small",
    "n_step": 5,
    "loss": "huber",
    "batch_size": 64,
    "learning_rate": 2e-3,
    "anneal_lr": True,
    "epsilon_end": 0.0,
}
_PAPER_MBECPP = {
    "normalize_obs": "none",
    "n_step": 1,
    "loss": "mse",
    "batch_size": 32,
    "learning_rate": 5e-4,
    "anneal_lr": False,
    "epsilon_end": 0.01,
    "trajectory_dim": 16,
    "trajectory_lr": 5e-4,
    "center_memory_values": False,
    "q_uses_tau": False,
}
_PAPER_MBEC = {
    "gamma": 0.99,
    "truncation_is_terminal": None,
    "epsilon_decay": 500.0,
    "num_neighbours": 15,
    "chunk": 10,
    "memory_size": 3_000,
    "p_refine": 0.1,
    "trajectory_loss": "recall",
    "rewards": "model",
    "n_step": None,
    "refine_batch": 0,
    "reencode": False,
    "weigh_inputs": False,
}
_CLEAN = {"truncation_is_terminal": False, "gamma": 0.98, "epsilon_end": 0.0}
_CLEAN_Q = _CLEAN | {
    "epsilon_decay": 3e3,
    "learning_rate": 1e-3,
    "anneal_lr": True,
    "target_update_interval": 500,
    "batch_size": 128,
    "train_frequency": 4,
}
_CLEAN_MEMORY = _CLEAN | {"normalize_obs": "bounds", "num_neighbours": 50}
# 16 environments per run, four gradient steps per iteration: as often per step as one environment
# with one gradient step every four steps.
_ATARI = {
    "hidden_size": 512,
    "num_layers": 1,
    "learning_rate": 1e-4,
    "learning_starts": 50_000,
    "train_frequency": 16,
    "target_update_interval": 1_000,
    "loss": "huber",
    "epsilon_end": 0.1,
    "epsilon_decay": 1e5,
    "gradient_steps": 4,
    "act_with_target": True,
    "double_q": True,
}
_ATARI_MEMORY = {
    "num_neighbours": 7,
    "chunk": 100,
    "memory_size": 50_000,
    "select_with_q_only": True,
}
# 16 environments per run, so one gradient step per iteration: as many samples per environment step
# as with a batch of 32 every four steps.
_PICKUP = {
    "hidden_size": 512,
    "num_layers": 1,
    "learning_rate": 2e-4,
    "batch_size": 128,
    "learning_starts": 20_000,
    "train_frequency": 16,
    "buffer_size": 200_000,
    "target_update_interval": 8_000,
    "loss": "huber",
    "epsilon_end": 0.05,
    "epsilon_decay": 1e5,
    "double_q": True,
    "n_step": 5,
    "adam_eps": 1.5e-4,
}
_PICKUP_MEMORY = {"num_neighbours": 15, "chunk": 20, "memory_size": 10_000}

PRESETS = {
    "paper": Preset(
        "the paper's options; default of all agents but mbec and mbec++, and not on Atari",
        {"mbec++": _PAPER_MBECPP, "mbec": _PAPER_MBEC},
    ),
    "tuned": Preset(
        "baselines on noisy classic control: the best of the ranges that the paper names",
        {
            "dqn": {"learning_rate": 1e-3},
            "mfec": {"num_neighbours": 25},
            "nec": {"num_neighbours": 25, "hidden_size": 128, "learning_rate": 1e-3},
            "drqn": {"learning_rate": 1e-3},
            "ppo": {"clip_coef": 0.5, "learning_rate": 3e-3},
        },
    ),
    "engram": Preset(
        "default of mbec++, best on noisy classic control, and of mbec, best in mazes "
        "(docs/notebook)",
        {"dqn": _ENGRAM, "mbec++": {}, "mbec": {}},
    ),
    "maze": Preset(
        "baselines in mazes, there the default: the best of the ranges that the paper names, of "
        "gamma, epsilon and truncation",
        {
            "dqn": {"epsilon_decay": 200.0},
            "mfec": {"num_neighbours": 3, "gamma": 1.0, "truncation_is_terminal": False},
        },
    ),
    "cartpole": Preset(
        "clean Cart Pole (results/solved)",
        {
            "dqn": _CLEAN_Q,
            "mbec++": _PAPER_MBECPP | _CLEAN_Q,
            "mfec": _CLEAN_MEMORY,
            "nec": _CLEAN_MEMORY
            | {
                "n_step": 100,
                "hidden_size": 256,
                "epsilon_decay": 3e3,
                "learning_rate": 2e-4,
                "anneal_lr": True,
                "train_frequency": 16,
            },
            "drqn": {"learning_rate": 1e-3, "truncation_is_terminal": False},
            "ppo": {"learning_rate": 3e-3},
        },
    ),
    "atari": Preset(
        "Atari, there the default: the paper's options but for docs/deviations.md; mfec and nec "
        "after their own papers",
        {
            "dqn": _ATARI,
            "mbec++": _PAPER_MBECPP | _ATARI | _ATARI_MEMORY,
            "mfec": {"clip_rewards": False, "gamma": 1.0, "epsilon_end": 0.005},
            "nec": {
                "clip_rewards": False,
                "hidden_size": 512,
                "train_frequency": 4,
                "learning_starts": 5_000,
                "learning_rate": 1e-4,
                "epsilon_end": 0.001,
                "epsilon_decay": 1e4,
            },
        },
    ),
    "pickup": Preset(
        "3D navigation, there the default",
        {
            "dqn": _PICKUP,
            "mbec++": _PAPER_MBECPP | _PICKUP | _PICKUP_MEMORY,
            "drqn": {
                "hidden_size": 512,
                "lstm_size": 256,
                "learning_rate": 2e-4,
                "batch_size": 32,
                "learning_starts": 20_000,
                "buffer_size": 100_000,
                "train_frequency": 16,
                "target_update_interval": 2_000,
                "epsilon_end": 0.05,
                "epsilon_decay": 1e5,
                "n_step": 5,
                "adam_eps": 1.5e-4,
            },
            "ppo": {
                "recurrent": True,
                "lstm_size": 256,
                "hidden_size": 512,
                "learning_rate": 2.5e-4,
                "num_steps": 2_048,
                "update_epochs": 4,
                "num_minibatches": 8,
            },
        },
    ),
    "scaled": Preset(
        "the paper's options with observations normalized to [-1, 1]",
        {
            "mbec++": _PAPER_MBECPP | {"normalize_obs": "bounds"},
            "mbec": _PAPER_MBEC | {"normalize_obs": "bounds"},
            **{name: {"normalize_obs": "bounds"} for name in ("dqn", "mfec", "nec", "drqn", "ppo")},
        },
    ),
    "debug": Preset(
        "small and fast, to see whether something runs",
        {
            "random": {},
            "dqn": {"hidden_size": 16, "batch_size": 8},
            "mbec": {"memory_size": 64, "num_neighbours": 3, "batch_size": 8},
            "mbec++": _PAPER_MBECPP
            | {
                "memory_size": 64,
                "num_neighbours": 3,
                "batch_size": 8,
                "hidden_size": 16,
            },
            "mfec": {"memory_size": 64, "num_neighbours": 3, "key_size": 8},
            "nec": {
                "memory_size": 64,
                "num_neighbours": 3,
                "batch_size": 8,
                "hidden_size": 16,
                "key_size": 8,
                "n_step": 5,
            },
            "drqn": {"hidden_size": 16, "lstm_size": 16, "batch_size": 4, "sequence_length": 4},
            "ppo": {"hidden_size": 16, "lstm_size": 16, "num_steps": 64, "update_epochs": 2},
        },
    ),
}


def default_preset(name: str, task_preset: str | None = None) -> str:
    """The preset if none is named: the task's if the agent has it, else the agent's own default."""
    if task_preset and name in PRESETS[task_preset].options:
        return task_preset
    return "engram" if name in ("mbec", "mbec++") else "paper"
