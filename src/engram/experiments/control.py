"""Classic control: nine noisy tasks, what memory and network contribute, ablations, and how the two are joined (Section 4.2, appendix)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engram.agents import make
from engram.experiments.experiment import Claim, Experiment, Found
from engram.experiments.lines import Line
from engram.experiments.running import NOISES, NOISY, PRESET
from engram.experiments.verdicts import Test, against_bar, compare
from engram.report.figures import grid, learning_curves, shares

RIVALS = ("dqn", "mfec", "nec", "mbec")
"""whom the paper compares MBEC++ with on these tasks"""
POLE = "cartpole-gaussian"
POLES = tuple(f"cartpole-{noise}" for noise in NOISES)
HARDER = tuple(task for task in NOISY if task not in POLES)
SOLVED = 195.0


def noisy_lines(tasks: Sequence[str], labels: Sequence[str]) -> tuple[Line, ...]:
    return tuple(Line(name, make(name, PRESET[name]), task, "classic") for task in tasks for name in labels)


def leads(ours: str, others: Sequence[str], tasks: Sequence[str], measure: str = "auc"):
    """Comparisons of one agent with others on every task."""

    def tests(found: Found) -> list[Test]:
        return [
            compare(f"{ours} − {other}, {task}", found.per_seed(task, ours, measure), found.per_seed(task, other, measure))
            for task in tasks
            for other in others
        ]

    return tests


def solves(label: str):
    def tests(found: Found) -> list[Test]:
        return [against_bar(f"{label} − {SOLVED:.0f}, {task}", found.per_seed(task, label, "final"), SOLVED) for task in POLES]

    return tests


def others_do_not_solve(found: Found) -> list[Test]:
    """Positive where the other stays below."""
    return [
        against_bar(f"{SOLVED:.0f} − {name}, {task}", found.per_seed(task, name, "final"), SOLVED, -1) for task in POLES for name in RIVALS
    ]


def fail(found: Found) -> list[Test]:
    """Positive where an agent stays below half of the way from random to the best."""
    tests = []
    for task in HARDER:
        means = {label: found.per_seed(task, label, "final").mean() for label in ("random", "mbec++", *RIVALS)}
        half = (means["random"] + max(means.values())) / 2
        tests += [against_bar(f"half − {name}, {task}", found.per_seed(task, name, "final"), half, -1) for name in ("mfec", "nec")]
    return tests


def gives_way(found: Found) -> list[Test]:
    """Of the shares of greedy actions that one part alone would have chosen: first twentieth and last tenth of training, by task."""
    parts = {part: [found.lines[task, "mbec++"].summary["metrics"][part] for task in NOISY] for part in ("episodic", "semantic")}
    first, last = ({part: [np.mean(x[cut]) for x in parts[part]] for part in parts} for cut in (slice(10), slice(-20, None)))
    return [
        compare("episodic share, first less last", first["episodic"], last["episodic"]),
        compare("semantic share, last less first", last["semantic"], first["semantic"]),
    ]


def draw_noisy(found: Found, path: Path) -> None:
    labels = list(dict.fromkeys(label for _, label in found.lines))
    grid({task: {a: found.lines[task, a].curves for a in labels if (task, a) in found.lines} for task in NOISY}, path)


def draw_contributions(found: Found, path: Path) -> None:
    tasks: dict[str, Any] = {task: result.summary for (task, _), result in found.lines.items()}
    shares(
        {task: {part: s["metrics"][part] for part in ("episodic", "semantic", "beta")} for task, s in tasks.items()},
        {task: s["steps"] for task, s in tasks.items()},
        path,
    )


NOISY_TASKS = Experiment(
    name="noisy-control",
    paper="Figure 4 and the appendix's figure: nine noisy classic-control tasks",
    lines=noisy_lines(NOISY, ("mbec++", "dqn", "mfec", "nec", "mbec", "drqn", "ppo", "random")),
    quick_lines=noisy_lines(("cartpole-gaussian",), ("mbec++", "dqn", "mfec")),
    claims=(
        Claim(
            4,
            "MBEC++ completely solves noisy Cart Pole within 10,000 steps.",
            solves("mbec++"),
            "final score less 195 of 200, three noises",
        ),
        Claim(4, "No other model does.", others_do_not_solve, "195 less the final score of DQN, MFEC, NEC and MBEC, three noises"),
        Claim(4, "MBEC++ leads on all nine noisy tasks.", leads("mbec++", RIVALS, NOISY), "area under the curve, nine tasks, four rivals"),
        Claim(4, "DQN is the runner-up.", leads("dqn", RIVALS[1:], NOISY), "area of DQN less that of MFEC, NEC and MBEC, nine tasks"),
        Claim(4, "MFEC and NEC fail on the harder tasks.", fail, "half of the way from random to the best, less their final score"),
        Claim(4, "MBEC alone performs badly.", leads("dqn", ("mbec",), NOISY, "final"), "final score of DQN less MBEC's, nine tasks"),
    ),
    draw=draw_noisy,
)

OURS = tuple(Line(label, make(name, "engram"), task, "engram") for task in NOISY for label, name in (("engram", "mbec++"), ("dqn+", "dqn")))

ENGRAM = Experiment(
    name="engram-preset",
    is_ours=True,
    paper="Not in the paper: MBEC++ with the preset `engram`, and a DQN with the same changes, `dqn+`",
    lines=(*OURS, *noisy_lines(NOISY, RIVALS)),
    quick_lines=tuple(line for line in OURS if line.task == POLE),
    claims=(
        Claim(0, "It leads DQN on all nine noisy tasks.", leads("engram", ("dqn",), NOISY), "area, nine tasks, the tuned DQN"),
        Claim(0, "It leads MFEC, NEC and MBEC on all nine.", leads("engram", RIVALS[1:], NOISY), "area, nine tasks, three rivals"),
        Claim(0, "It leads a DQN with the same changes on all nine.", leads("engram", ("dqn+",), NOISY), "area, nine tasks"),
        Claim(
            0, "It completely solves noisy Cart Pole within 10,000 steps.", solves("engram"), "final score less 195 of 200, three noises"
        ),
    ),
    draw=draw_noisy,
)

WITHOUT = tuple(
    Line(label, make("mbec++", "engram", **options), task, "engram")
    for task in NOISY
    for label, options in (("without memory", {"fixed_beta": 0.0}), ("without trajectory", {"q_sees_trajectory": False}))
)

PIECES = Experiment(
    name="engram-pieces",
    is_ours=True,
    paper="Not in the paper: the preset `engram` without the memory's value, and with a Q-network that does not see the trajectory",
    lines=(*(line for line in OURS if line.label == "engram"), *WITHOUT),
    quick_lines=tuple(line for line in WITHOUT if line.task == POLE and line.label == "without memory"),
    claims=(
        Claim(0, "The memory's value helps on all nine.", leads("engram", ("without memory",), NOISY), "area, nine tasks"),
        Claim(0, "Seeing the trajectory helps on all nine.", leads("engram", ("without trajectory",), NOISY), "area, nine tasks"),
    ),
    draw=draw_noisy,
)

CONTRIBUTIONS = Experiment(
    name="contributions",
    paper="Figure on the two parts' contributions over time",
    lines=noisy_lines(NOISY, ("mbec++",)),
    quick_lines=noisy_lines(("cartpole-gaussian",), ("mbec++",)),
    claims=(
        Claim(
            5,
            "The episodic contribution starts high and is gradually replaced by the semantic one.",
            gives_way,
            "how often each part alone would have chosen the action, begin against end of training, paired by task",
        ),
    ),
    draw=draw_contributions,
)

CAR = "mountaincar-transition"
BASE = "mbec++"
SIZES: dict[str, dict[str, Any]] = {
    "K=1": {"neighbours": 1},
    "K=5": {"neighbours": 5},
    "L=1": {"chunk": 1},
    "L=50": {"chunk": 50},
    "N=500": {"slots": 500},
    "N=30000": {"slots": 30_000},
}
PARTS: dict[str, dict[str, Any]] = {
    "no TR loss": {"trajectory_loss": "none"},
    "TP loss": {"trajectory_loss": "prediction"},
    "K_w=1": {"write_neighbours": 1},
    "no refine": {"p_refine": 0.0},
}


def ablated(changes: dict[str, dict[str, Any]], preset: str, folder: str) -> tuple[Line, ...]:
    return tuple(Line(label, make("mbec++", preset, **options), CAR, folder) for label, options in changes.items())


def learns(label: str):
    """Whether it ends above what random reaches, which is -200: at least once in ten episodes it gets there ten steps earlier."""
    return lambda found: [against_bar(f"{label} − (−199)", found.per_seed(CAR, label, "final"), -199.0)]


def better(*pairs: tuple[str, str]):
    return lambda found: [compare(f"{a} − {b}", found.per_seed(CAR, a), found.per_seed(CAR, b)) for a, b in pairs]


def does_not_learn(*labels: str):
    """Positive where a final score stays below -190, of -200 for never reaching the goal."""
    return lambda found: [against_bar(f"−190 − {label}", found.per_seed(CAR, label, "final"), -190.0, -1) for label in labels]


def draw_one(task: str, subtitle: str):
    """All lines of one task in one panel."""
    return lambda found, path: learning_curves({label: r.curves for (_, label), r in found.lines.items()}, path, task, subtitle)


ABLATIONS = Experiment(
    name="ablations",
    paper="Figure 6: noisy-transition Mountain Car, one change at a time",
    lines=(*noisy_lines((CAR,), (BASE,)), *ablated(SIZES, "paper", "ablations"), *ablated(PARTS, "paper", "ablations")),
    quick_lines=ablated({"K=1": SIZES["K=1"]}, "paper", "ablations"),
    claims=(
        Claim(7, "The more neighbours, the better.", better(("K=5", "K=1"), (BASE, "K=5")), "area, K = 1, 5 and 15"),
        Claim(7, "Chunks too short or too long hurt.", better((BASE, "L=1"), (BASE, "L=50")), "area, L = 10 less L = 1 and 50"),
        Claim(7, "A memory too small or too big hurts.", better((BASE, "N=500"), (BASE, "N=30000")), "area, N = 3,000 less 500 and 30,000"),
        Claim(
            7,
            "Without TR loss, or with TP loss, there is no sign of learning.",
            does_not_learn("no TR loss", "TP loss"),
            "−190 less the final score",
        ),
        Claim(
            7,
            "With K_w = 1, or without refining, it learns, but slower.",
            lambda found: [
                *learns("K_w=1")(found),
                *learns("no refine")(found),
                *better((BASE, "K_w=1"), (BASE, "no refine"))(found),
            ],
            "final score above −199, and area below that of the whole",
        ),
    ),
    draw=draw_one(CAR, "MBEC++, one change at a time"),
)

BETAS = {f"beta={beta:g}": {"fixed_beta": beta} for beta in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)}


CONSOLIDATION = Experiment(
    name="consolidation",
    paper="Appendix, ablation of dynamic consolidation: Gaussian Cart Pole",
    lines=(
        *noisy_lines((POLE,), (BASE,)),
        *(Line(label, make("mbec++", "paper", **options), POLE, "consolidation") for label, options in BETAS.items()),
    ),
    claims=(
        Claim(
            9,
            "Dynamic consolidation solves Gaussian Cart Pole in 10,000 steps.",
            lambda found: [against_bar(f"dynamic − {SOLVED:.0f}", found.per_seed(POLE, BASE, "final"), SOLVED)],
            "final score less 195 of 200",
        ),
        Claim(
            9,
            "Every fixed weight fails there.",
            lambda found: [against_bar(f"{SOLVED:.0f} − {label}", found.per_seed(POLE, label, "final"), SOLVED, -1) for label in BETAS],
            "195 less the final score of each fixed weight",
        ),
        Claim(
            9,
            "Dynamic consolidation is better than every fixed weight.",
            lambda found: [compare(f"dynamic − {label}", found.per_seed(POLE, BASE), found.per_seed(POLE, label)) for label in BETAS],
            "area under the curve",
        ),
    ),
    draw=draw_one(POLE, "fixed and dynamic weights of memory"),
)
