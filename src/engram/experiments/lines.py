"""Lines of figures: an agent on a task with several seeds. What is missing is trained, all that share a shape in one program."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram import loop
from engram.agents import name_of
from engram.errors import EngramError
from engram.experiments.running import curves, protocol, train
from engram.records import Curves, replacing, write_json
from engram.report.statistics import summary
from engram.tasks import Task, find
from engram.types import Agent

QUICK_SEEDS, QUICK_STEPS = 2, 400


@dataclass(frozen=True)
class Line:
    """One curve of a figure."""

    label: str
    agent: Agent
    task: str
    folder: str
    """of `results`, where its numbers lie"""
    steps: int | None = None
    """the task's own number where not given"""
    seeds: int = 10

    def file(self, results: Path) -> Path:
        name = re.sub(r"[^\w.+=-]+", "-", self.label)
        return results / self.folder / f"{self.task}-{name}.json"

    def quick(self) -> "Line":
        """A small version, to see whether it works."""
        return replace(self, steps=QUICK_STEPS, seeds=QUICK_SEEDS)


class Result(NamedTuple):
    """What a line came to."""

    summary: dict[str, Any]
    curves: Curves

    def per_seed(self, measure: str) -> np.ndarray:
        """`final` or `auc` of every seed."""
        return np.array(self.summary[measure]["per_seed"])


Results = dict[tuple[str, str], Result]
"""by task and label"""


def load(line: Line, results: Path) -> Result | None:
    """A line's result, if it is there; a sentence if what is there is of something else."""
    file = line.file(results)
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text())
        curves_there = read_curves(file.with_suffix(".csv"))
        told = (found["agent"], found["task"], found["steps"], found["seeds"])
        options = found["options"]
    except (OSError, ValueError, KeyError) as error:
        raise EngramError(
            f"{file} or its .csv cannot be read ({error!r}): remove both, and the next reproduction trains it again."
        ) from error
    declared = dataclasses.asdict(line.agent)  # pyright: ignore[reportArgumentType]
    wanted = (name_of(line.agent), line.task, find(line.task, line.steps).steps, list(range(line.seeds)))
    then = dataclasses.asdict(type(line.agent)()) | options  # an option that came later had its default  # pyright: ignore
    other = [f"{option} {then[option]}" for option, value in declared.items() if then[option] != value]
    if told != wanted or other:
        what = ", ".join(other) or " ".join(map(str, told))
        raise EngramError(f"{file} is of another run ({what}): remove it, and the next reproduction trains what is declared.")
    return Result(found, curves_there)


def read_curves(file: Path) -> Curves:
    """Of every seed its steps and its returns."""
    table = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    return {int(s): (table[table[:, 0] == s, 1], table[table[:, 0] == s, 2]) for s in np.unique(table[:, 0])}


def load_all(lines: Iterable[Line], results: Path) -> Results:
    """Of those that are there."""
    found = {(line.task, line.label): load(line, results) for line in lines}
    return {key: result for key, result in found.items() if result is not None}


def groups(lines: Sequence[Line]) -> list[list[Line]]:
    """Lines that share one program: they may differ in seeds, in noise and in options that are plain numbers. Gymnasium's environments
    take more time than the networks, one after another, so there each task has a program, and may have a processor, of its own."""
    found: dict[Any, list[Line]] = {}
    for line in dict.fromkeys(lines):
        task = find(line.task, line.steps)
        found.setdefault((_shape(line.agent), _spec(line.task, task.steps), task.dynamics or line.task), []).append(line)
    return list(found.values())


def _shape(agent: Agent) -> Agent:
    """The agent, but for the options that may differ within a program."""
    usual = type(agent)()
    numbers = [f.name for f in dataclasses.fields(usual) if loop.may_differ(agent, f.name)]  # pyright: ignore[reportArgumentType]
    return replace(agent, **{name: _usual(getattr(usual, name)) for name in numbers})  # pyright: ignore[reportArgumentType]


def _usual(value: float | None) -> float:
    return 0.5 if value is None else value


@cache
def _spec(task: str, steps: int):
    return find(task, steps).spec(1, steps)


def train_group(lines: Sequence[Line], results: Path, scratch: Path, until: float) -> float:
    """Trains lines of one group together and writes what they came to; gives the seconds. From `until` on it stops, and goes on when it
    is called again."""
    tasks = [find(line.task, line.steps) for line in lines]
    agent, options = common([line.agent for line in lines], [line.seeds for line in lines])
    runs: list[tuple[Task, int]] = [(task, seed) for task, line in zip(tasks, lines, strict=True) for seed in range(line.seeds)]
    label = f"{lines[0].folder} {name_of(agent)} {tasks[0].name.partition('-')[0]}"
    scores, seconds = train(label, agent, [task for task, _ in runs], [seed for _, seed in runs], scratch, until, options)
    first = 0
    for line, task in zip(lines, tasks, strict=True):
        seeds, file = range(line.seeds), line.file(results)
        found = curves(scores, first, seeds)
        text = io.StringIO()
        rows = [(seed, int(step), f"{value:.4g}") for seed in seeds for step, value in zip(*found[seed], strict=True)]
        csv.writer(text, lineterminator="\n").writerows([("seed", "step", "return"), *rows])
        means = scores.metrics[:, first : first + len(seeds)].mean(axis=1)
        metrics = {metric: [float(f"{x:.4g}") for x in means[:, i]] for i, metric in enumerate(scores.names)}
        how = protocol(line.agent, task.steps, seeds, len(runs), seconds)
        with replacing(file.with_suffix(".csv")) as out:
            out.write(text.getvalue().encode())
        write_json(file, summary(found) | {"task": task.name} | how | {"metrics": metrics})  # last: it says that all is there
        first += len(seeds)
    return seconds


def common(agents: Sequence[Agent], counts: Sequence[int]) -> tuple[Agent, dict[str, list[float]] | None]:
    """One agent for a program of several, each with so many seeds, and the numbers in which its runs differ."""
    names = [f.name for f in dataclasses.fields(agents[0]) if len({getattr(agent, f.name) for agent in agents}) > 1]  # pyright: ignore
    values = {n: [float(getattr(agent, n)) for agent, count in zip(agents, counts, strict=True) for _ in range(count)] for n in names}
    return agents[0], values or None
