"""3D navigation: picking up 3 and 5 objects in a room (Section 4.4 and the appendix)."""

from functools import partial
from pathlib import Path

from engram.agents import make
from engram.figures import plot_grid
from engram.paper.experiment import Claim, Experiment, ExperimentResults
from engram.paper.runs import Run
from engram.paper.verdicts import Comparison, compare, compare_to_threshold
from engram.run_dir import Curves
from engram.stats import area
from engram.types import Agent

FOLDER = "navigation"
TASKS = ("pickup3-jax", "pickup5-jax")
SEEDS = tuple(range(5))
"""options are compared on seeds from 100 on"""
OURS, RIVALS = "mbec++", ("dqn", "drqn", "ppo")
AGENTS: dict[str, Agent] = {
    OURS: make(OURS, "pickup"),
    **{name: make(name, "pickup") for name in RIVALS},
    "random": make("random"),
}
PARTS_TASK, PARTS_STEPS = TASKS[0], 1_000_000
"""of the runs without a part; others are compared over as many steps"""
PARTS: dict[str, Agent] = {
    "without memory": make(OURS, "pickup", fixed_beta=0.0),
    "with tau": make(OURS, "pickup", q_uses_tau=True),
    "with tau, without memory": make(OURS, "pickup", q_uses_tau=True, fixed_beta=0.0),
}
"""parts of MBEC++ taken away, and one that the paper does not have"""
ONE_FRAME = (("frame_stack", 1),)
ONE_FRAME_AGENTS = (OURS, "dqn", "drqn")
TASKS_IN_WORDS = (
    "engram/Pickup-v0, the rules of MiniWorld-PickupObjects-v0 in JAX: a room of 12 x 12 m with 3 "
    "or 5 objects, frames of 80 x 60 in colour, four of them stacked unless stated otherwise; "
    "truncated at 400 steps, which counts as terminal"
)


RUNS = tuple(
    Run(label, agent, task, FOLDER, seeds=SEEDS)
    for task in TASKS
    for label, agent in AGENTS.items()
)
QUICK_RUNS = tuple(run for run in RUNS if run.task == TASKS[0] and run.label != "ppo")
"""PPO learns from its first rollout on, which takes minutes on a CPU"""
PARTS_RUNS = (
    *(Run(label, agent, PARTS_TASK, FOLDER, PARTS_STEPS, SEEDS) for label, agent in PARTS.items()),
    *(
        Run(label, AGENTS[label], PARTS_TASK, FOLDER, PARTS_STEPS, SEEDS, ONE_FRAME)
        for label in ONE_FRAME_AGENTS
    ),
    # PPO's learning rate depends on the steps of the whole run.
    Run("ppo", AGENTS["ppo"], PARTS_TASK, FOLDER, seeds=SEEDS, env_kwargs=ONE_FRAME),
    Run(
        "ppo without LSTM",
        make("ppo", "pickup", recurrent=False),
        PARTS_TASK,
        FOLDER,
        seeds=SEEDS,
    ),
)


def learns_better(ours: str, rival: str, results: ExperimentResults) -> list[Comparison]:
    """Compares the areas under the curve on each task."""
    return [
        compare(
            f"{ours} − {rival}, {task}",
            results.per_seed(task, ours),
            results.per_seed(task, rival),
        )
        for task in TASKS
    ]


def learns_at_half_the_pace(rival: str, results: ExperimentResults) -> list[Comparison]:
    """Compares half of MBEC++'s area above random play with the rival's."""
    comparisons = []
    for task in TASKS:
        random = results.per_seed(task, "random").mean()
        ours, theirs = (results.per_seed(task, label) - random for label in (OURS, rival))
        comparisons.append(compare(f"half of {OURS} − {rival}, {task}", ours / 2, theirs))
    return comparisons


def fails(label: str, results: ExperimentResults) -> list[Comparison]:
    """Compares final returns with half of the way from random play to the best agent."""
    comparisons = []
    for task in TASKS:
        means = {name: results.per_seed(task, name, "final").mean() for name in AGENTS}
        half = (means["random"] + max(means.values())) / 2
        returns = results.per_seed(task, label, "final")
        comparisons.append(compare_to_threshold(f"half − {label}, {task}", returns, half, -1))
    return comparisons


def part_helps(with_it: str, without: str, results: ExperimentResults) -> list[Comparison]:
    """Compares areas under the curve up to the step to which both were trained."""
    return [compare(f"{with_it} − {without}", *areas_together(results, with_it, without))]


def frames_help(label: str, results: ExperimentResults) -> list[Comparison]:
    """Compares four stacked frames with one."""
    one_frame = f"{PARTS_TASK}-frame_stack=1"
    areas = areas_together(results, label, label, one_frame)
    return [compare(f"{label}, four frames − one", *areas)]


def areas_together(
    results: ExperimentResults, label: str, other: str, other_task: str = PARTS_TASK
) -> list[list[float]]:
    """Areas under the curves of two runs' seeds, up to the last step of the shorter one."""
    both = results.runs[PARTS_TASK, label].curves, results.runs[other_task, other].curves
    last = min(steps[-1] for curves in both for steps, _ in curves.values())
    return [
        [area(steps[steps <= last], returns[steps <= last]) for steps, returns in curves.values()]
        for curves in both
    ]


def draw(results: ExperimentResults, path: Path) -> None:
    """One panel of learning curves per task."""
    panels: dict[str, dict[str, Curves]] = {task: {} for task, _ in results.runs}
    for (task, label), result in results.runs.items():
        panels[task][label] = result.curves
    plot_grid(panels, path, columns=2)


AREA = "area under the curve of returns, both tasks, paired by seed"
PARTS_AREA = (
    "area under the curve of returns with three objects, up to the last step of the shorter run, "
    "paired by seed"
)

NAVIGATION = Experiment(
    name="navigation",
    paper="3D navigation with 3 and 5 objects (the appendix's figure)",
    tasks=TASKS_IN_WORDS,
    runs=RUNS,
    quick_runs=QUICK_RUNS,
    claims=(
        *(
            Claim(
                12, f"{OURS} learns better than {rival}.", partial(learns_better, OURS, rival), AREA
            )
            for rival in RIVALS
        ),
        Claim(
            12,
            "drqn fails to learn.",
            partial(fails, "drqn"),
            "half of the way from random play to the best agent, minus drqn's final return",
        ),
        *(
            Claim(
                12,
                f"{rival} learns much more slowly.",
                partial(learns_at_half_the_pace, rival),
                f"half of {OURS}'s area above random play, minus {rival}'s",
            )
            for rival in ("dqn", "ppo")
        ),
    ),
    draw=draw,
)

NAVIGATION_PARTS = Experiment(
    name="navigation-parts",
    in_paper=False,
    paper="Not in the paper: MBEC++ in the 3D task without the memory's value (without memory), "
    "and with a Q-network that sees tau (with tau); four frames against one; PPO without its LSTM",
    tasks=TASKS_IN_WORDS,
    runs=(*(run for run in RUNS if run.task == PARTS_TASK), *PARTS_RUNS),
    quick_runs=QUICK_RUNS,
    claims=(
        *(
            Claim(0, f"{text}.", partial(part_helps, with_it, without), PARTS_AREA)
            for text, with_it, without in (
                ("The memory's value helps MBEC++", OURS, "without memory"),
                ("It helps a Q-network that sees tau", "with tau", "with tau, without memory"),
                ("Seeing tau helps the Q-network", "with tau, without memory", "without memory"),
                ("An LSTM helps PPO", "ppo", "ppo without LSTM"),
            )
        ),
        *(
            Claim(0, f"Four frames help {label}.", partial(frames_help, label), PARTS_AREA)
            for label in (*ONE_FRAME_AGENTS, "ppo")
        ),
    ),
    draw=draw,
)
