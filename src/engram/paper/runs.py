"""Runs of the paper's figures: one agent on one task with several seeds.

Missing ones are trained, all that share a shape in one program."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram import runners
from engram.agents import agent_name, make
from engram.envs import Task, get_task
from engram.errors import EngramError
from engram.files import atomic_write, write_json
from engram.paper.running import train
from engram.provenance import describe_machine
from engram.run_dir import Curves
from engram.stats import summary
from engram.training_loop import Training
from engram.types import Agent, Spec

QUICK_SEEDS, QUICK_STEPS = 2, 400
"""steps of each environment"""


@dataclass(frozen=True)
class Run:
    """One agent on one task with several seeds: one curve of a figure."""

    label: str
    agent: Agent
    task: str
    folder: str
    """folder of its files in `results`"""
    steps: int | None = None
    """agent steps; the task's default if None"""
    seeds: int | tuple[int, ...] = 10
    """the number of seeds, counted from 0, or the seeds themselves"""
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    """arguments of the task's environment"""
    num_envs: int | None = None
    """environments per run; the agent's and the task's default if None"""

    @property
    def task_name(self) -> str:
        """The task with the arguments of its environment, in names of files and in tables."""
        return "-".join([self.task, *(f"{name}={value}" for name, value in self.env_kwargs)])

    def get_task(self) -> Task:
        return get_task(self.task, self.steps, dict(self.env_kwargs))

    def environments(self) -> int:
        """Environments per run."""
        return self.num_envs or runners.default_num_envs(self.agent, self.get_task())

    def spec(self) -> Spec:
        num_envs = self.environments()
        num_iterations = -(-self.get_task().steps // num_envs)
        return _spec(self.task, self.env_kwargs, num_envs, num_iterations)

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def num_seeds(self) -> int:
        return len(self.seed_numbers)

    def file(self, results: Path) -> Path:
        name = re.sub(r"[^\w.+=-]+", "-", self.label)
        return results / self.folder / f"{self.task_name}-{name}.json"

    def quick(self) -> "Run":
        """A small version that only shows that it works."""
        return replace(self, steps=QUICK_STEPS * self.environments(), seeds=QUICK_SEEDS)


class RunResult(NamedTuple):
    """The summary, options and provenance of a run, and the learning curve of each seed."""

    summary: dict[str, Any]
    curves: Curves
    completed: Curves
    """for each seed its steps and the number of completed episodes; empty in older results"""

    def per_seed(self, measure: str) -> np.ndarray:
        """The `final` return, the `auc` or the `completed` episodes of every seed."""
        return np.array(self.summary[measure]["per_seed"])


RunResults = dict[tuple[str, str], RunResult]
"""by task and label"""


def load(run: Run, results: Path) -> RunResult | None:
    """The result of a run, None if there is none; raises if the file is of a different run."""
    file = run.file(results)
    if not file.exists():
        return None
    try:
        stored = json.loads(file.read_text())
        curves = read_curves(file.with_suffix(".csv"))
        completed = read_curves(file.with_suffix(".csv"), "completed")
        identity = (stored["agent"], stored["task"], stored["steps"], stored["seeds"])
        identity += (stored["environments"], *stored.get("env_kwargs", {}).items())
        options = stored["options"]
    except (OSError, ValueError, KeyError) as error:
        raise EngramError(
            f"{file} or its .csv cannot be read ({error!r}): "
            "remove both, and the next reproduction trains it again."
        ) from error
    declared = (agent_name(run.agent), run.task, run.get_task().steps, list(run.seed_numbers))
    declared += (run.environments(), *run.env_kwargs)
    differing = differing_options(run.agent, options)
    if identity != declared or differing:
        difference = ", ".join(differing) or " ".join(map(str, identity))
        raise EngramError(
            f"{file} is of another run ({difference}): "
            "remove it, and the next reproduction trains the declared one."
        )
    return RunResult(stored, curves, completed)


def agent_options(agent: Agent) -> dict[str, Any]:
    return dataclasses.asdict(agent)  # pyright: ignore[reportArgumentType]


def differing_options(agent: Agent, options: dict[str, Any]) -> list[str]:
    """Each option of the agent whose stored value is another, as `name value`.

    An option that a file lacks did not exist yet, and the agent did as the paper's."""
    stored = agent_options(make(agent_name(agent), "paper")) | options
    declared = agent_options(agent)
    return [f"{name} {stored[name]}" for name in declared if stored[name] != declared[name]]


def read_curves(file: Path, column: str = "return") -> Curves:
    """Steps and a column of every seed; none if the file lacks the column."""
    with file.open() as lines:
        names = lines.readline().strip().split(",")
    if column not in names:
        return {}
    table = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    by_seed = {int(seed): table[table[:, 0] == seed] for seed in np.unique(table[:, 0])}
    return {s: (rows[:, 1], rows[:, names.index(column)]) for s, rows in by_seed.items()}


def load_all(runs: Iterable[Run], results: Path) -> RunResults:
    """The results of all runs that have one."""
    loaded = {(run.task_name, run.label): load(run, results) for run in runs}
    return {key: result for key, result in loaded.items() if result is not None}


def group_by_program(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of runs that share one program: they differ in seeds, noise and numeric options only.

    Gymnasium environments take more time than the networks and run on one core per process, so
    there each task has a program of its own."""
    groups: dict[Any, list[Run]] = {}
    for run in dict.fromkeys(runs):
        task = run.get_task()
        shape = _program_shape(run.agent), run.spec(), task.jax_env or run.task_name
        groups.setdefault(shape, []).append(run)
    return list(groups.values())


def _program_shape(agent: Agent) -> Agent:
    """The agent with all options reset that may differ between the runs of one program."""
    default = type(agent)()
    names = [name for name in agent_options(default) if runners.is_vmappable(agent, name)]
    values = {name: getattr(default, name) for name in names}
    same = {name: 0.5 if value is None else value for name, value in values.items()}
    return replace(agent, **same)  # pyright: ignore[reportArgumentType]


@cache
def _spec(
    task: str, env_kwargs: tuple[tuple[str, Any], ...], num_envs: int, num_iterations: int
) -> Spec:
    return get_task(task, None, dict(env_kwargs)).spec(num_envs, num_iterations)


def train_group(
    runs: Sequence[Run],
    results: Path,
    scratch: Path,
    until: float,
    report: Callable[[str], Any] = lambda text: None,
) -> float:
    """Trains the runs of one group together, writes their results and returns the seconds.

    It stops at the time `until`; called again, it continues."""
    tasks = [run.get_task() for run in runs]
    agent, options = common([run.agent for run in runs], [run.num_seeds for run in runs])
    label = f"{runs[0].folder} {agent_name(agent)} {tasks[0].name.partition('-')[0]}"
    seed_tasks = [task for task, run in zip(tasks, runs, strict=True) for _ in run.seed_numbers]
    seeds = [seed for run in runs for seed in run.seed_numbers]

    def write_results(training: Training) -> None:
        first = 0
        for run in runs:
            write_result(run, training, first, results)
            first += run.num_seeds

    training = train(
        label,
        agent,
        seed_tasks,
        seeds,
        scratch,
        until,
        options,
        runs[0].spec(),
        then=write_results,
        report=report,
    )
    return training.wall_seconds


def write_result(run: Run, training: Training, first: int, results: Path) -> None:
    """Writes the curves and summary of a run whose seeds start at index `first` of a training."""
    seeds, stats, file = run.seed_numbers, training.stats, run.file(results)
    num_envs = training.spec.num_envs
    steps = stats.steps(num_envs)
    curves: Curves = {seed: (steps, stats.returns[:, first + i]) for i, seed in enumerate(seeds)}
    text = io.StringIO()
    completed = stats.completed[:, first : first + len(seeds)]
    rows = [
        (seed, int(step), f"{value:.4g}", count)
        for i, seed in enumerate(seeds)
        for step, value, count in zip(*curves[seed], completed[:, i], strict=True)
    ]
    header = ("seed", "step", "return", "completed")
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    means = stats.metrics[:, first : first + len(seeds)].mean(axis=1)
    metrics = {
        metric: [float(f"{x:.4g}") for x in means[:, i]] for i, metric in enumerate(stats.names)
    }
    with atomic_write(file.with_suffix(".csv")) as out:
        out.write(text.getvalue().encode())
    task = training.tasks[first]
    protocol = {
        "task": task.name,
        "env_kwargs": dict(task.env_kwargs),
        "agent": agent_name(run.agent),
        "options": agent_options(run.agent),
        "steps": task.steps,
        "environments": num_envs,
        "seeds": list(seeds),
        "return": "un-noised return, mean of the last 10 training episodes",
        "runs_in_one_program": len(training.seeds),
        "seconds_with_compilation": training.wall_seconds,
    } | describe_machine()
    figures = summary(curves) | {"completed": {"per_seed": completed[-1].tolist()}}
    # The JSON is written last: its existence means that the result is complete.
    write_json(file, figures | protocol | {"metrics": metrics})


def common(
    agents: Sequence[Agent], counts: Sequence[int]
) -> tuple[Agent, dict[str, list[float]] | None]:
    """One agent for a program of several, each with a count of seeds, and the options per seed."""
    names = [
        name
        for name in agent_options(agents[0])
        if len({getattr(agent, name) for agent in agents}) > 1
    ]
    options: dict[str, list[float]] = {name: [] for name in names}
    for agent, count in zip(agents, counts, strict=True):
        for name in names:
            options[name] += [float(getattr(agent, name))] * count
    return agents[0], options or None
