"""Ablations of MBEC++: noisy-transition Mountain Car (Figure 6) and fixed weights (appendix)."""

from functools import partial
from pathlib import Path
from typing import Any

from engram.agents import make
from engram.paper.experiment import Claim, Comparisons, Experiment, ExperimentResults
from engram.paper.figures import plot_variants
from engram.paper.noisy_control import AS_TRAINED, SOLVED, classic_runs
from engram.paper.runs import Run
from engram.paper.verdicts import Comparison, compare, compare_to_threshold

CAR, POLE = "mountaincar-transition", "cartpole-gaussian"
FULL = "mbec++"
"""label of the agent without a change"""
CHANGES: dict[str, dict[str, Any]] = {
    "K=1": {"num_neighbours": 1},
    "K=5": {"num_neighbours": 5},
    "L=1": {"chunk": 1},
    "L=50": {"chunk": 50},
    "N=500": {"memory_size": 500},
    "N=30000": {"memory_size": 30_000},
    "no TR loss": {"trajectory_loss": "none"},
    "TP loss": {"trajectory_loss": "prediction"},
    "K_w=1": {"num_write_neighbours": 1},
    "no refine": {"p_refine": 0.0},
}
PANELS = {
    "K = 15 neighbours": ("K=1", "K=5"),
    "chunk L = 10": ("L=1", "L=50"),
    "memory size N = 3,000": ("N=500", "N=30000"),
    "TR loss": ("no TR loss", "TP loss"),
    "writing to all K, refining": ("K_w=1", "no refine"),
}
"""changes that are drawn together, under what the full agent has"""
BETAS = {f"beta={beta:g}": {"fixed_beta": beta} for beta in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)}


def ablation_runs(changes: dict[str, dict[str, Any]], task: str, folder: str) -> tuple[Run, ...]:
    return tuple(
        Run(label, make("mbec++", "paper", **AS_TRAINED, **options), task, folder)
        for label, options in changes.items()
    )


def better(*pairs: tuple[str, str]) -> Comparisons:
    """Compares areas under the curve on Mountain Car."""
    return lambda results: [
        compare(f"{a} − {b}", results.per_seed(CAR, a), results.per_seed(CAR, b)) for a, b in pairs
    ]


def does_not_learn(*labels: str) -> Comparisons:
    """Compares final returns with -190; -200 is the return of never reaching the goal."""
    return lambda results: [
        compare_to_threshold(f"−190 − {label}", results.per_seed(CAR, label, "final"), -190.0, -1)
        for label in labels
    ]


def learns_slower(results: ExperimentResults) -> list[Comparison]:
    """Compares final returns with -199, and areas under the curve with those of the full agent.

    A mean of -199 over ten episodes means that the goal was reached at least once."""
    labels = ("K_w=1", "no refine")
    learns = [
        compare_to_threshold(f"{label} − (−199)", results.per_seed(CAR, label, "final"), -199.0)
        for label in labels
    ]
    return [*learns, *better(*((FULL, label) for label in labels))(results)]


def dynamic_solves(results: ExperimentResults) -> list[Comparison]:
    returns = results.per_seed(POLE, FULL, "final")
    return [compare_to_threshold(f"dynamic − {SOLVED:.0f}", returns, SOLVED)]


def fixed_do_not_solve(results: ExperimentResults) -> list[Comparison]:
    return [
        compare_to_threshold(
            f"{SOLVED:.0f} − {label}", results.per_seed(POLE, label, "final"), SOLVED, -1
        )
        for label in BETAS
    ]


def dynamic_leads(results: ExperimentResults) -> list[Comparison]:
    dynamic = results.per_seed(POLE, FULL)
    return [
        compare(f"dynamic − {label}", dynamic, results.per_seed(POLE, label)) for label in BETAS
    ]


def draw_panels(panels: dict[str, tuple[str, ...]], results: ExperimentResults, path: Path) -> None:
    """A panel for each group of changes, with the full agent in all."""
    curves = {label: result.curves for (_, label), result in results.runs.items()}
    drawn = {
        title: {label: curves[label] for label in (FULL, *labels) if label in curves}
        for title, labels in panels.items()
    }
    plot_variants({title: lines for title, lines in drawn.items() if len(lines) > 1}, path)


ABLATIONS = Experiment(
    name="ablations",
    paper="Figure 6: noisy-transition Mountain Car, one change at a time",
    runs=(*classic_runs((CAR,), (FULL,)), *ablation_runs(CHANGES, CAR, "ablations")),
    quick_runs=ablation_runs({"K=1": CHANGES["K=1"]}, CAR, "ablations"),
    claims=(
        Claim(
            7,
            "The more neighbours, the better.",
            better(("K=5", "K=1"), (FULL, "K=5")),
            "area under the curve, K = 1, 5 and 15",
        ),
        Claim(
            7,
            "Chunks too short or too long hurt.",
            better((FULL, "L=1"), (FULL, "L=50")),
            "area under the curve, L = 10 minus L = 1 and 50",
        ),
        Claim(
            7,
            "A memory too small or too big hurts.",
            better((FULL, "N=500"), (FULL, "N=30000")),
            "area under the curve, N = 3,000 minus 500 and 30,000",
        ),
        Claim(
            7,
            "Without TR loss, or with TP loss, there is no sign of learning.",
            does_not_learn("no TR loss", "TP loss"),
            "−190 minus the final return",
        ),
        Claim(
            7,
            "With K_w = 1, or without refining, it learns, but slower.",
            learns_slower,
            "final return above −199, and area below that of the full agent",
        ),
    ),
    draw=partial(draw_panels, PANELS),
)

CONSOLIDATION = Experiment(
    name="consolidation",
    paper="Appendix, ablation of dynamic consolidation: Gaussian Cart Pole",
    runs=(*classic_runs((POLE,), (FULL,)), *ablation_runs(BETAS, POLE, "consolidation")),
    claims=(
        Claim(
            9,
            "Dynamic consolidation solves Gaussian Cart Pole in 10,000 steps.",
            dynamic_solves,
            "final return minus 195 of 200",
        ),
        Claim(
            9,
            "Every fixed weight fails there.",
            fixed_do_not_solve,
            "195 minus the final return of each fixed weight",
        ),
        Claim(
            9,
            "Dynamic consolidation is better than every fixed weight.",
            dynamic_leads,
            "area under the curve",
        ),
    ),
    draw=partial(draw_panels, {label: (label,) for label in BETAS}),
)
