"""The pages of `results/classic` and `results/classic-scaled`: all returns on classic control."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engram.agents import make
from engram.figures import plot_grid
from engram.files import atomic_write
from engram.page import markdown_table
from engram.paper.descriptions import describe_layers, describe_machines, describe_preset
from engram.paper.noisy_control import (
    AGENTS,
    AS_TRAINED,
    FAMILIES,
    NOISES,
    NOISY,
    classic_runs,
)
from engram.paper.runs import Run, RunResult, load
from engram.stats import interval, iqm, mean
from engram.types import Agent

TASKS = [f"{family}{noise}" for family in FAMILIES for noise in ("", *(f"-{n}" for n in NOISES))]
MEASURES = {"final": "final return", "auc": "area"}
SCALED_TASKS = [task for task in TASKS if task.startswith("mountaincar")]
SCALED_AGENTS: dict[str, Agent] = {
    "dqn": make("dqn", "paper", normalize_obs="bounds"),
    "mbec++": make("mbec++", "paper", normalize_obs="bounds", **AS_TRAINED),
}
PAGES: dict[str, tuple[Run, ...]] = {
    "classic": classic_runs(TASKS),
    "classic-scaled": tuple(
        Run(label, agent, task, "classic-scaled")
        for task in SCALED_TASKS
        for label, agent in SCALED_AGENTS.items()
    ),
}
"""by folder of `results`"""
Results = dict[str, dict[str, RunResult]]
"""by task and label"""


def write_all(results: Path) -> None:
    """Writes every page, with its figures, whose folder exists."""
    for folder in PAGES:
        if not (results / folder).is_dir():
            continue
        loaded = load_page(folder, results)
        for name, tasks in (("noisy", NOISY), ("clean", FAMILIES)):
            curves = {
                task: {label: result.curves for label, result in loaded[task].items()}
                for task in tasks
                if task in loaded
            }
            plot_grid(curves, results / folder / f"{name}.png")
        with atomic_write(results / folder / "README.md") as file:
            file.write(page(folder, results).encode())


def load_page(folder: str, results: Path) -> Results:
    loaded: Results = {}
    for run in PAGES[folder]:
        result = load(run, results)
        if result is not None:
            loaded.setdefault(run.task, {})[run.label] = result
    return loaded


def page(folder: str, results: Path) -> str:
    loaded = load_page(folder, results)
    summaries = [result.summary for agents in loaded.values() for result in agents.values()]
    if not summaries:
        return "# Classic control, clean and noisy\n\nNo run is done yet.\n"
    steps = {summary["task"].partition("-")[0]: f"{summary['steps']:,}" for summary in summaries}
    num_seeds = len(summaries[0]["seeds"])
    means = returns_table(loaded, lambda s: (s["mean"], s["ci95"]), with_difference=True)
    iqms = returns_table(loaded, lambda s: (s["iqm"], interval(s["per_seed"], iqm)))
    return f"""\
# Classic control, clean and noisy

Written by `engram report` from the files in this folder; never by hand.

- Options: {presets(PAGES[folder])}.
- Q-networks: {describe_layers(summaries)}.
- *Final return*: un-noised return, mean of the last 10 training episodes.
- *Area*: area under that curve, divided by the steps.
- Steps of a run: {", ".join(f"{family} {count}" for family, count in steps.items())}; one
  environment per run, no frame skipping.
- Tasks: CartPole-v1 truncated at 200 steps, MountainCar-v0, LunarLander-v3; a truncation counts as
  terminal.
- Trained on: {describe_machines(summaries)}.

What the paper claims of these tasks, and whether it holds: [the report](../report/README.md).

## Means

Mean and 95% bootstrap interval over {num_seeds} seeds. The last column is MBEC++ minus DQN, paired
by seed, in bold if its 95% interval excludes 0 (not corrected for multiple comparisons).

{means}
## Interquartile means

The mean of the middle half of the seeds, which single seeds do not move, and its 95% bootstrap
interval.

{iqms}
{aggregate_section(loaded)}![noisy](noisy.png)

![clean](clean.png)
"""


def presets(runs: Sequence[Run]) -> str:
    """The agents of each preset."""
    agents: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.label != "random":
            agents.setdefault(describe_preset(run.agent), {})[run.label] = None
    texts = []
    for preset, labels in agents.items():
        source = " (the best of a [search](../tuning/README.md) on other seeds)"
        note = source if preset.startswith("preset `tuned`") else ""
        texts.append(f"{', '.join(labels)}: {preset}{note}")
    return "; ".join(texts)


def labels_of(loaded: Results) -> list[str]:
    return [label for label in AGENTS if any(label in agents for agents in loaded.values())]


def returns_table(
    loaded: Results, statistic: Callable[[dict[str, Any]], tuple], with_difference: bool = False
) -> str:
    """Final return and area of every agent on every task."""
    labels, rows = labels_of(loaded), []
    for task, agents in loaded.items():
        for measure, name in MEASURES.items():
            cells = [
                _cell(*statistic(agents[label].summary[measure])) if label in agents else "–"
                for label in labels
            ]
            cells += [difference(agents, measure)] if with_difference else []
            rows.append([task if measure == "final" else "", name, *cells])
    head = ["task", "", *labels] + ["mbec++ − dqn"] * with_difference
    return markdown_table(head, rows)


def aggregate_section(loaded: Results) -> str:
    """Each agent's interquartile mean over all seeds of the nine noisy tasks, normalized."""
    labels = [
        label for label in labels_of(loaded) if all(label in loaded.get(task, {}) for task in NOISY)
    ]
    if "random" not in labels or len(labels) == 1:
        return ""
    rows = []
    for label in labels:
        cells = []
        for measure in MEASURES:
            returns = [normalized(loaded[task], label, labels, measure) for task in NOISY]
            cells.append(_cell(iqm(returns), interval(returns, iqm), "z.2f"))
        rows.append([label, *cells])
    return f"""\
## All nine noisy tasks together

Interquartile mean over all seeds of the nine tasks. Returns are normalized: on each task the mean
of the random agent is 0 and that of the best agent is 1. 95% bootstrap interval, seeds resampled
within each task, the normalisation held fixed.

{markdown_table(["", *MEASURES.values()], rows)}
"""


def normalized(
    agents: dict[str, RunResult], label: str, labels: Sequence[str], measure: str
) -> np.ndarray:
    """Returns per seed from 0, the random agent, to 1, the best; all 0 if none beats random."""
    means = {other: agents[other].summary[measure]["mean"] for other in labels}
    random, best = means["random"], max(means.values())
    returns = agents[label].per_seed(measure)
    return (returns - random) / (best - random) if best > random else 0.0 * returns


def difference(agents: dict[str, RunResult], measure: str) -> str:
    """MBEC++ minus DQN, paired by seed, in bold if its interval excludes 0."""
    if not {"dqn", "mbec++"} <= agents.keys():
        return "–"
    gaps = agents["mbec++"].per_seed(measure) - agents["dqn"].per_seed(measure)
    low, high = interval(gaps, mean)
    bold = "**" if low > 0 or high < 0 else ""
    return f"{bold}{gaps.mean():+.1f}{bold} [{low:+.1f}, {high:+.1f}]"


def _cell(value: float, ends: tuple[float, float], digits: str = ".1f") -> str:
    low, high = ends
    return f"{value:{digits}} [{low:{digits}}, {high:{digits}}]"
