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
RUNS = (
    *(
        Run(label, agent, task, FOLDER, seeds=CARTPOLE_SEEDS)
        for task in CARTPOLES
        for label, agent in AGENTS.items()
    ),
    *(
        Run(
            label,
            agent,
            task,
            FOLDER if label.endswith("bound") else "new-seeds",
            seeds=MOUNTAINCAR_SEEDS,
        )
        for task in MOUNTAINCARS
        for label, agent in AGENTS.items()
    ),
)


def bound_helps(label: str, tasks: tuple[str, ...], where: str) -> Claim:
    return Claim(
        0,
        f"A lower bound by returns helps {label} on noisy {where}.",
        partial(leads, f"{label} bound", label, tasks, "auc"),
        "area under the curve, three kinds of noise, paired by seed",
    )


RETURN_BOUND = Experiment(
    name="return-bound",
    in_paper=False,
    paper="Not in the paper: the tuned DQN (dqn) and the one with MBEC++'s default options (dqn+), "
    "alone and with values bounded from below by the returns that followed (bound); Cart Pole on "
    "40 and Mountain Car on 20 seeds that played no part in choosing options",
    runs=RUNS,
    quick_runs=tuple(run for run in RUNS if run.task == CARTPOLES[0]),
    claims=tuple(
        bound_helps(label, tasks, where)
        for label in ("dqn", "dqn+")
        for tasks, where in ((CARTPOLES, "Cart Pole"), (MOUNTAINCARS, "Mountain Car"))
    ),
    draw=partial(draw_tasks, (*CARTPOLES, *MOUNTAINCARS)),
)
