"""The page of `results/maze`: completed episodes of all agents in all mazes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from engram.files import atomic_write
from engram.page import markdown_table
from engram.paper.descriptions import describe_machines, preset_rows
from engram.paper.maze import (
    AGENTS,
    DYNAMIC,
    DYNAMIC_AGENTS,
    EPISODES,
    LARGE,
    NOISY_TASKS,
    PLAIN,
    RATES,
    READ_AGENTS,
    RUNS,
    SEEDS,
    STEPS,
    TASKS,
    TRAP,
    WITHIN,
    steps_to_complete,
)
from engram.paper.runs import RunResults, load_all
from engram.stats import interval, mean


def write(results: Path) -> None:
    """Writes the page into its folder."""
    with atomic_write(results / "maze" / "README.md") as file:
        file.write(page(results).encode())


def page(results: Path) -> str:
    loaded = load_all(RUNS, results)
    if not loaded:
        return "# Mazes\n\nNo run is done yet.\n"
    summaries = [result.summary for result in loaded.values()]
    presets = markdown_table(["label", "agent", "preset"], preset_rows(RUNS))
    noisy = {f"dropout rate {x:g}": task for x, task in zip(RATES, NOISY_TASKS, strict=True)}
    three = {"plain": PLAIN, **noisy, "trap": TRAP}
    return f"""\
# Mazes

Written by `engram report` from the files in this folder; never by hand.

- Tasks: {TASKS}.
- Steps of a run: {", ".join(f"{task} {steps:,}" for task, steps in STEPS.items())}; one environment
  per run, no frame skipping.
- *Completed episodes* reach the goal in fewer than 1,000 steps, while the agent learns. There is
  no separate evaluation, as in the paper.
- Mean and 95% bootstrap interval over {len(SEEDS)} seeds ({SEEDS[0]} to {SEEDS[-1]}), trained once,
  after all options and claims were fixed. Options were compared on seeds 100 to 139. Seeds 0 to 39
  were [looked at](../../docs/notebook/2026-11-18-mazes.md#looks-at-seeds-0-to-39) on the way and
  are not reported.
- MBEC was tuned far longer than its rivals: by dozens of trials, against two grids for each.
- Trained on: {describe_machines(summaries)}.

What the paper claims of these tasks, and whether it holds: [the report](../report/README.md). How
our reading of MBEC was found: [the notebook](../../docs/notebook/2026-11-18-mazes.md).

{presets}
## 3 x 3: completed episodes

{completed_table(loaded, AGENTS, three)}
## 3 x 3: steps to complete {EPISODES} episodes

The median over seeds, and how many of them needed at most {WITHIN:,}. A dash: more than half of the
seeds did not complete {EPISODES} episodes.

{steps_table(loaded, AGENTS, {"plain": PLAIN, **noisy})}
## Dynamic: completed episodes, and per cent above random

Per cent above random's mean, whose own uncertainty the intervals leave out.

{dynamic_table(loaded)}
## 5 x 5: completed episodes

{completed_table(loaded, READ_AGENTS, {"completed episodes": LARGE})}
![mazes](../report/maze.png)
"""


def completed_table(loaded: RunResults, labels: Iterable[str], tasks: dict[str, str]) -> str:
    """A row per agent, a column per task."""
    rows = [
        [label, *(completed_cell(loaded, task, label) for task in tasks.values())]
        for label in labels
    ]
    return markdown_table(["", *tasks], rows)


def completed_cell(loaded: RunResults, task: str, label: str) -> str:
    if (task, label) not in loaded:
        return "–"
    return cell(loaded[task, label].per_seed("completed"))


def cell(values: Sequence[float] | np.ndarray) -> str:
    low, high = interval(values, mean)
    return f"{np.mean(values):.0f} [{low:.0f}, {high:.0f}]"


def steps_table(loaded: RunResults, labels: Iterable[str], tasks: dict[str, str]) -> str:
    rows = []
    for label in labels:
        cells = []
        for task in tasks.values():
            if (task, label) not in loaded:
                cells.append("–")
                continue
            steps = steps_to_complete(loaded[task, label].completed)
            in_time = f"{np.sum(steps <= WITHIN)} of {len(steps)}"
            median = np.median(steps)
            cells.append(f"{median:,.0f} ({in_time})" if np.isfinite(median) else f"– ({in_time})")
        rows.append([label, *cells])
    return markdown_table(["", *tasks], rows)


def dynamic_table(loaded: RunResults) -> str:
    rows = []
    for label in DYNAMIC_AGENTS:
        above = "–"
        if {(DYNAMIC, label), (DYNAMIC, "random")} <= loaded.keys():
            random = loaded[DYNAMIC, "random"].per_seed("completed").mean()
            above = cell(100 * (loaded[DYNAMIC, label].per_seed("completed") / random - 1))
        rows.append([label, completed_cell(loaded, DYNAMIC, label), above])
    return markdown_table(["", "completed episodes", "% above random"], rows)
