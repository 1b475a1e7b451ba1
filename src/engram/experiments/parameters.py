"""How many parameters the agents train (the appendix's table)."""

import math
from typing import Any

import jax

from engram.agents import make
from engram.experiments.experiment import Claim, Experiment, Found
from engram.experiments.verdicts import exactly
from engram.tasks import find

TASKS = ("cartpole", "mountaincar", "lunarlander")


def count(name: str, task: str, **options: Any) -> int:
    """The numbers that gradients move; the target's copies are not among them."""
    agent, spec = make(name, "paper", **options), find(task).spec(1, 10)
    state: Any = jax.eval_shape(lambda key: agent.init(key, spec), jax.random.key(0))
    match name:
        case "dqn":
            learns = state.q
        case "mbec":
            learns = state.mind.trajectory, state.mind.reward
        case _:
            learns = state.semantic, state.life.mind.trajectory, state.life.mind.reward
    return sum(math.prod(x.shape) for x in jax.tree.leaves(learns))


def compute(quick: bool) -> dict[str, Any]:
    tasks = TASKS[:1] if quick else TASKS
    return {
        "two hidden layers": {name: {task: count(name, task) for task in tasks} for name in ("dqn", "mbec++")},
        "three hidden layers": {name: {task: count(name, task, layers=3) for task in tasks} for name in ("dqn", "mbec++")},
        "mbec": {task: count("mbec", task) for task in tasks},
    }


def thousands(layers: str, name: str, claimed: int):
    """On Cart Pole, rounded to thousands."""

    def tests(found: Found):
        return [exactly(f"{name}, thousands", round(found.numbers[layers][name]["cartpole"] / 1000), claimed)]

    return tests


PARAMETERS = Experiment(
    name="parameters",
    paper="Appendix: the table of trainable parameters (classic control)",
    compute=compute,
    claims=(
        Claim(13, "DQN has 43K parameters (two hidden layers).", thousands("two hidden layers", "dqn", 43), "counted on Cart Pole"),
        Claim(13, "DQN has 43K parameters (three hidden layers).", thousands("three hidden layers", "dqn", 43), "counted on Cart Pole"),
        Claim(13, "MBEC++ has 39K parameters (two hidden layers).", thousands("two hidden layers", "mbec++", 39), "counted on Cart Pole"),
        Claim(
            13, "MBEC++ has 39K parameters (three hidden layers).", thousands("three hidden layers", "mbec++", 39), "counted on Cart Pole"
        ),
    ),
)
