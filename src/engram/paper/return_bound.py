"""DQN with values bounded by the returns that followed (self-imitation); not in the paper."""

from functools import partial
from typing import Any

from engram.agents import make
from engram.paper.experiment import Claim, Experiment
from engram.paper.new_seeds import SEEDS as MOUNTAINCAR_SEEDS
from engram.paper.noisy_control import CARTPOLES, draw_tasks, leads
from engram.paper.runs import Run

BOUND: dict[str, Any] = {"lower_bound_weight": 0.01, "lower_bound_interval": 500}
"""chosen on seeds from 100 on (docs/notebook/2026-11-20-return-bounds.md)"""
AGENTS = {
    "dqn": make("dqn", "tuned"),
    "dqn bound": make("dqn", "tuned", **BOUND),
    "dqn+": make("dqn", "engram"),
    "dqn+ bound": make("dqn", "engram", **BOUND),
}
MOUNTAINCARS = tuple(task.replace("cartpole", "mountaincar") for task in CARTPOLES)
CARTPOLE_SEEDS = tuple(range(10, 50))
FOLDER = "return-bound"


def declare(name: str, label: str, described: str) -> Experiment:
    """An agent with the bound and without it."""
    labels = f"{label} bound", label
    cartpole = tuple(
        Run(which, AGENTS[which], task, FOLDER, seeds=CARTPOLE_SEEDS)
        for task in CARTPOLES
        for which in labels
    )
    # The agents without it were trained on these seeds before.
    mountaincar = tuple(
        Run(which, AGENTS[which], task, folder, seeds=MOUNTAINCAR_SEEDS)
        for task in MOUNTAINCARS
        for which, folder in zip(labels, (FOLDER, "new-seeds"), strict=True)
    )
    return Experiment(
        name=name,
        in_paper=False,
        paper=f"Not in the paper: {described} ({label}), alone and with values bounded from below "
        "by the returns that followed (bound); Cart Pole on 40 and Mountain Car on 20 seeds that "
        "played no part in choosing the bound",
        runs=(*cartpole, *mountaincar),
        quick_runs=cartpole[:2],
        claims=tuple(
            Claim(
                0,
                f"A lower bound by returns helps {label} on noisy {where}.",
                partial(leads, *labels, tasks, "auc"),
                "area under the curve, three kinds of noise, paired by seed",
            )
            for where, tasks in (("Cart Pole", CARTPOLES), ("Mountain Car", MOUNTAINCARS))
        ),
        draw=partial(draw_tasks, (*CARTPOLES, *MOUNTAINCARS)),
    )


RETURN_BOUND = declare("return-bound", "dqn", "the tuned DQN")
RETURN_BOUND_ENGRAM = declare(
    "return-bound-engram", "dqn+", "the DQN with MBEC++'s default options"
)
