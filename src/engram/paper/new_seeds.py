"""The default MBEC++ on seeds that played no part in choosing its options; not in the paper."""

from functools import partial

from engram.agents import make
from engram.paper.experiment import Claim, Experiment
from engram.paper.noisy_control import NOISY, draw_tasks, leads, leads_on_all
from engram.paper.runs import Run

SEEDS = tuple(range(10, 30))
AGENTS = {
    "mbec++": make("mbec++"),
    "store_final": make("mbec++", store_final=True),
    "without memory": make("mbec++", fixed_beta=0.0),
    "dqn": make("dqn", "tuned"),
    "dqn+": make("dqn", "engram"),
}
RUNS = tuple(
    Run(label, agent, task, "new-seeds", seeds=SEEDS)
    for task in NOISY
    for label, agent in AGENTS.items()
)

NEW_SEEDS = Experiment(
    name="new-seeds",
    in_paper=False,
    paper="Not in the paper: the default MBEC++ on seeds 10 to 29, with the tuned DQN (dqn), a DQN "
    "with the same changes (dqn+), without the memory's value, and with `store_final`",
    runs=RUNS,
    quick_runs=tuple(run for run in RUNS if run.task == "cartpole-gaussian"),
    claims=(
        *(leads_on_all("mbec++", rival, number=0) for rival in ("dqn", "dqn+", "without memory")),
        Claim(
            0,
            "Storing the trajectory of an episode's last step helps on all nine noisy tasks.",
            partial(leads, "store_final", "mbec++", NOISY, "auc"),
            "area under the curve, nine tasks, paired by seed",
        ),
    ),
    draw=partial(draw_tasks, NOISY),
)
