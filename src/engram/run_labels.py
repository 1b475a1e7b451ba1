"""Run folders side by side: read, checked, and labelled by what differs between them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from engram.errors import EngramError
from engram.run_dir import STUDY_FILE, Curves, RunDir

MAX_OPTIONS = 3
"""a label names at most so many options; beyond, the name of the folder is shorter"""
OF_TASK = ("wrappers", "observe")
"""lists that make another task, as `env_kwargs` do"""
T = TypeVar("T")


@dataclass(frozen=True)
class LabelledRun:
    """A run folder that has curves, and what to call it among others."""

    folder: RunDir
    agent: str
    task: str
    """its name with the arguments of its environment"""
    options: dict[str, Any]
    steps: int
    """agent steps of each seed in the end"""
    curves: Curves
    variant: str = ""
    """what differs from other runs of its agent, if there are any"""

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def label(self) -> str:
        """The agent, and what differs from other runs of it."""
        return f"{self.agent} {self.variant}".strip()


def read_runs(paths: Sequence[str | Path]) -> list[LabelledRun]:
    """The runs in these folders, in this order, with labels that tell them apart.

    Studies are left out, so that `runs/*` may have some."""
    paths = [path for path in paths if not Path(path, STUDY_FILE).exists()]
    if not paths:
        raise EngramError("There is no run folder to read: name one that `engram train` made.")
    _check_distinct([Path(path) for path in paths])
    runs = [_read_run(path) for path in paths]
    names = _folder_names(runs)
    variants: dict[Path, str] = {}
    for of_agent in group_by(runs, lambda run: run.agent).values():
        variants |= _variants(of_agent, names)
    return [replace(run, variant=variants[run.path]) for run in runs]


def group_by(runs: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """The runs by a key, both in the order in which they come."""
    groups: dict[str, list[T]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def _check_distinct(paths: Sequence[Path]) -> None:
    for first, second in combinations(paths, 2):
        if first.resolve() == second.resolve():
            other = "" if first == second else f", also as {second}"
            raise EngramError(f"{first} is named twice{other}: leave one of them out.")


def _read_run(path: str | Path) -> LabelledRun:
    """The run in a folder, which must have the return of an episode."""
    folder = RunDir.load(path)
    try:
        config = folder.config
        kwargs = [f"{name}={value}" for name, value in config.get("env_kwargs", {}).items()]
        kwargs += [f"{name}={','.join(x)}" for name in OF_TASK if (x := config.get(name))]
        agent, task, options = config["agent"], config["task"], dict(config["options"])
        steps = int(config["steps"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngramError(
            f"{path}/config.json lacks or garbles {error}: restore it from a copy, or train anew."
        ) from error
    curves = folder.read_curves()
    if all(np.isnan(returns).all() for _, returns in curves.values()):
        raise EngramError(
            f"No episode of {path} has ended yet, so it has no return: let "
            f"`{folder.resume_command}` train it on, or leave it out."
        )
    return LabelledRun(folder, agent, " ".join([task, *kwargs]), options, steps, curves)


def _folder_names(runs: Sequence[LabelledRun]) -> dict[Path, str]:
    """The names of the runs' folders, or where two have the same name their whole paths."""
    names = {run.path: run.path.resolve().name for run in runs}
    is_distinct = len(set(names.values())) == len(runs)
    return names if is_distinct else {run.path: str(run.path) for run in runs}


def _variants(runs: Sequence[LabelledRun], names: Mapping[Path, str]) -> dict[Path, str]:
    """What tells the runs of one agent apart: options that differ on a task, or the folder."""
    tasks = group_by(runs, lambda run: run.task).values()
    pairs = [pair for of_task in tasks for pair in combinations(of_task, 2)]
    differing = {
        name: None
        for a, b in pairs
        for name in a.options
        if name in b.options and a.options[name] != b.options[name]
    }
    named = differing if len(differing) <= MAX_OPTIONS else {}
    variants = {run.path: _spell_options(run, named) for run in runs}
    for of_task in tasks:
        counts = Counter(variants[run.path] for run in of_task)
        for run in of_task:
            if counts[text := variants[run.path]] > 1:
                variants[run.path] = f"{text} ({names[run.path]})".strip()
    return variants


def _spell_options(run: LabelledRun, names: Iterable[str]) -> str:
    values = {name: run.options[name] for name in names if name in run.options}
    texts = {n: f"{x:g}" if isinstance(x, float) else str(x) for n, x in values.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())
