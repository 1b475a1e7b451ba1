"""The numbers of trainable parameters (table of the appendix)."""

import math
from functools import partial
from typing import Any

import jax

from engram.agents import make
from engram.envs import get_task
from engram.paper.experiment import Claim, Experiment, ExperimentResults
from engram.paper.noisy_control import FAMILIES
from engram.paper.verdicts import Comparison, compare_exactly

LAYERS = {"two hidden layers": 2, "three hidden layers": 3}
CLAIMED = {"dqn": 43, "mbec++": 39}
"""thousands of parameters on classic control"""
CLAIMED_IN_MAZES = {"dqn": 43, "mbec": 2}
CLAIMED_MILLIONS = {"dqn": 13, "mbec++": 13}
"""on Atari and in 3D navigation"""
MAZE = "maze3"
IMAGES = {"Atari": ("atari:alien", "atari"), "3D navigation": ("pickup3-jax", "pickup")}
"""tasks and presets"""


def count_parameters(name: str, task: str, preset: str = "paper", **options: Any) -> int:
    """The number of parameters that receive gradients, without target networks."""
    agent, spec = make(name, preset, **options), get_task(task).spec(1, 10)
    state: Any = jax.eval_shape(lambda key: agent.init(key, spec), jax.random.key(0))
    match name:
        case "dqn":
            trained = state.q
        case "mbec":
            trained = state.episodic.trajectory_model, state.episodic.reward_model
        case _:
            episodic = state.episodic
            trained = state.params, episodic.trajectory_model, episodic.reward_model
    return sum(math.prod(x.shape) for x in jax.tree.leaves(trained))


def compute(quick: bool) -> dict[str, Any]:
    tasks = FAMILIES[:1] if quick else FAMILIES
    counts: dict[str, Any] = {
        label: {
            name: {task: count_parameters(name, task, num_layers=layers) for task in tasks}
            for name in CLAIMED
        }
        for label, layers in LAYERS.items()
    }
    counts |= {"mbec": {task: count_parameters("mbec", task) for task in (*tasks, MAZE)}}
    maze_dqn = {label: count_parameters("dqn", MAZE, num_layers=x) for label, x in LAYERS.items()}
    images = {
        label: {name: count_parameters(name, *task) for name in CLAIMED_MILLIONS}
        for label, task in IMAGES.items()
    }
    return counts | {"dqn in mazes": maze_dqn} | images


def equals_claimed(layers: str, name: str, results: ExperimentResults) -> list[Comparison]:
    """Compares the count on Cart Pole, rounded to thousands."""
    thousands = round(results.numbers[layers][name]["cartpole"] / 1000)
    return [compare_exactly(f"{name}, thousands", thousands, CLAIMED[name])]


def dqn_equals_claimed_in_mazes(layers: str, results: ExperimentResults) -> list[Comparison]:
    """Compares the count of DQN in the 3 x 3 maze, rounded to thousands."""
    thousands = round(results.numbers["dqn in mazes"][layers] / 1000)
    return [compare_exactly("dqn, thousands", thousands, CLAIMED_IN_MAZES["dqn"])]


def mbec_equals_claimed_in_mazes(results: ExperimentResults) -> list[Comparison]:
    """Compares the count of MBEC in the 3 x 3 maze, rounded to thousands."""
    thousands = round(results.numbers["mbec"][MAZE] / 1000)
    return [compare_exactly("mbec, thousands", thousands, CLAIMED_IN_MAZES["mbec"])]


def equals_claimed_millions(label: str, name: str, results: ExperimentResults) -> list[Comparison]:
    """Compares the count on images in whole millions: 13.8 million are the paper's 13M."""
    millions = results.numbers[label][name] // 10**6
    return [compare_exactly(f"{name}, millions", millions, CLAIMED_MILLIONS[name])]


PARAMETERS = Experiment(
    name="parameters",
    paper="Appendix: the table of trainable parameters",
    compute=compute,
    presets="dqn, mbec++, mbec: preset `paper`, with two and with three hidden layers; on images "
    "presets `atari` and `pickup`",
    claims=(
        *(
            Claim(
                13,
                f"{name} has {thousands}K parameters ({layers}).",
                partial(equals_claimed, layers, name),
                "counted on Cart Pole",
            )
            for name, thousands in CLAIMED.items()
            for layers in LAYERS
        ),
        *(
            Claim(
                13,
                f"In mazes dqn has {CLAIMED_IN_MAZES['dqn']}K parameters ({layers}).",
                partial(dqn_equals_claimed_in_mazes, layers),
                "counted in the 3 x 3 maze",
            )
            for layers in LAYERS
        ),
        Claim(
            13,
            f"In mazes mbec has {CLAIMED_IN_MAZES['mbec']}K parameters.",
            mbec_equals_claimed_in_mazes,
            "counted in the 3 x 3 maze",
        ),
        *(
            Claim(
                13,
                f"{label}: {name} has {CLAIMED_MILLIONS[name]}M parameters.",
                partial(equals_claimed_millions, label, name),
                f"counted on {task}, whole millions",
            )
            for label, (task, _) in IMAGES.items()
            for name in CLAIMED_MILLIONS
        ),
    ),
)
