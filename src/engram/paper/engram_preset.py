"""The preset `engram` on the nine noisy tasks, MBEC++'s and MBEC's; not in the paper."""

from functools import partial

from engram.agents import make
from engram.paper.experiment import Claim, Experiment
from engram.paper.noisy_control import (
    AS_TRAINED,
    NOISY,
    RIVALS,
    classic_runs,
    draw_tasks,
    leads_on_all,
    solves,
)
from engram.paper.runs import Run

POLE = "cartpole-gaussian"
DEFAULTS = "mbec defaults"
AGENTS = {
    "engram": make("mbec++", "engram", **AS_TRAINED),
    "dqn+": make("dqn", "engram"),
    "without memory": make("mbec++", "engram", **AS_TRAINED, fixed_beta=0.0),
    "without trajectory": make("mbec++", "engram", **AS_TRAINED, q_uses_tau=False),
    DEFAULTS: make("mbec", "engram"),
}


def engram_runs(*labels: str) -> tuple[Run, ...]:
    return tuple(Run(label, AGENTS[label], task, "engram") for task in NOISY for label in labels)


ENGRAM_PRESET = Experiment(
    name="engram-preset",
    in_paper=False,
    paper="Not in the paper: MBEC++ with the preset `engram` (engram), and a DQN with the same "
    "changes (dqn+)",
    runs=(*engram_runs("engram", "dqn+"), *classic_runs(NOISY, RIVALS)),
    quick_runs=tuple(run for run in engram_runs("engram", "dqn+") if run.task == POLE),
    claims=(
        *(leads_on_all("engram", rival, number=0) for rival in (*RIVALS, "dqn+")),
        Claim(
            0,
            "engram completely solves noisy Cart Pole within 10,000 steps.",
            partial(solves, "engram"),
            "final return minus 195 of 200, three kinds of noise",
        ),
    ),
    draw=partial(draw_tasks, NOISY),
)

ENGRAM_PARTS = Experiment(
    name="engram-pieces",
    in_paper=False,
    paper="Not in the paper: the preset `engram` without the memory's value (without memory), and "
    "with a Q-network that does not use tau (without trajectory)",
    runs=engram_runs("engram", "without memory", "without trajectory"),
    quick_runs=(Run("without memory", AGENTS["without memory"], POLE, "engram"),),
    claims=tuple(
        leads_on_all("engram", label, number=0)
        for label in ("without memory", "without trajectory")
    ),
    draw=partial(draw_tasks, NOISY),
)

MBEC_DEFAULTS = Experiment(
    name="mbec-defaults",
    in_paper=False,
    paper="Not in the paper: MBEC with the preset `engram`, which was found in the mazes (mbec "
    "defaults), and with the paper's options (mbec)",
    runs=(*engram_runs(DEFAULTS), *classic_runs(NOISY, ("mbec", "random"))),
    quick_runs=tuple(run for run in engram_runs(DEFAULTS) if run.task == POLE),
    claims=tuple(leads_on_all(DEFAULTS, rival, number=0) for rival in ("mbec", "random")),
    draw=partial(draw_tasks, NOISY),
)
