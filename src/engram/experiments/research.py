"""What was tried to make memory lead: single changes, on seeds that no reported result uses.

    python -m engram.experiments.research run mbec++ --families mountaincar --seeds 8 --set multi_step=3 centred=true --grid gamma=0.98,0.99
    python -m engram.experiments.research report

`run` trains one agent with changed options on the noisy versions of a task, every combination of the grid in one program, and adds a row
for each combination to results/research/trials.json, but for those that are there. `report` writes the tables of docs/research.md.
"""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from engram.agents import make
from engram.errors import EngramError
from engram.experiments.lines import common
from engram.experiments.running import FAMILIES, NOISES, deadline, main, markdown, train
from engram.provenance import describe_machine
from engram.records import replacing
from engram.report.statistics import area
from engram.tasks import find

FIRST_SEED = 2000
TRIALS, PAGE = Path("results/research/trials.json"), Path("docs/research.md")
BEGIN, END = "<!-- trials: written by `python -m engram.experiments.research report` -->", "<!-- end of trials -->"


@dataclass(frozen=True)
class Run:
    """Tries one agent with changed options."""

    agent: Annotated[str, tyro.conf.Positional]
    families: tuple[str, ...] = FAMILIES
    set: tuple[str, ...] = ()
    """what is changed, as option=value"""
    grid: tuple[str, ...] = ()
    """plain numbers of which every combination is tried, as option=value,value"""
    seeds: int = 8
    steps: int | None = None
    out: Path = TRIALS
    minutes: float = 60.0
    """stop, and save, after so many; the same command goes on"""
    scratch: Path = Path("runs/research")
    """where what is unfinished waits"""

    def __call__(self) -> None:
        until, fixed = deadline(self.minutes), dict(parse(words) for words in self.set)
        lists = {name: values if isinstance(values, list) else [values] for name, values in map(parse, self.grid)}
        changes = [fixed | dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
        for family in self.families:
            if wanted := [change for change in changes if not self.is_known(family, change)]:
                self.train(family, wanted, until)

    def load(self) -> dict[str, Any]:
        return json.loads(self.out.read_text()) if self.out.exists() else {"noises": NOISES, "first_seed": FIRST_SEED, "trials": []}

    def is_known(self, family: str, change: dict[str, Any]) -> bool:
        """Whether this was tried, with as many seeds."""
        wanted = family, self.agent, change, find(f"{family}-{NOISES[0]}", self.steps).steps, self.seeds
        return any(wanted == (t["family"], t["agent"], t["options"], t["steps"], len(t["area"][0])) for t in self.load()["trials"])

    def train(self, family: str, changes: list[dict[str, Any]], until: float) -> None:
        tasks = [find(f"{family}-{noise}", self.steps) for noise in NOISES]
        seeds = range(FIRST_SEED, FIRST_SEED + self.seeds)
        agent, options = common([make(self.agent, "paper", **change) for change in changes], [len(tasks) * self.seeds] * len(changes))
        runs = [(task, seed) for _ in changes for task in tasks for seed in seeds]
        label = f"{family} {self.agent}"
        scores, _ = train(label, agent, [task for task, _ in runs], [seed for _, seed in runs], self.scratch, until, options)
        shape = len(changes), len(tasks), self.seeds
        areas = np.array([area(scores.steps(1), curve) for curve in scores.curve.T]).reshape(shape)
        finals = scores.curve[-1].reshape(shape)
        machine = describe_machine()
        found = self.load()
        for i, change in enumerate(changes):
            how = {"family": family, "agent": self.agent, "options": change, "steps": tasks[0].steps}
            where = {"device": machine["device"], "commit": machine["commit"]}
            found["trials"].append(how | where | {"area": areas[i].round(1).tolist(), "final": finals[i].round(1).tolist()})
        with replacing(self.out) as file:  # a line a trial
            file.write((json.dumps(found, separators=(",", ":")).replace('{"family"', '\n{"family"') + "\n").encode())


@dataclass(frozen=True)
class Report:
    """Writes the tables."""

    out: Path = TRIALS
    page: Path = PAGE

    def __call__(self) -> None:
        text = written(self.page.read_text(encoding="utf-8"), json.loads(self.out.read_text()))
        with replacing(self.page) as file:
            file.write(text.encode())


def parse(words: str) -> tuple[str, Any]:
    """`option=value` or `option=value,value`: numbers, true, false, or a word."""
    name, equals, text = words.partition("=")
    if not equals or not text:
        raise EngramError(f"{words!r} says nothing: write option=value, such as multi_step=3.")
    values = [_value(part) for part in text.split(",")]
    return name, values if len(values) > 1 else values[0]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def tables(found: dict) -> str:
    """A table for each family, best area first."""
    parts = []
    for family in FAMILIES:
        trials = [trial for trial in found["trials"] if trial["family"] == family]
        rows = [_row(trial) for trial in sorted(trials, key=lambda t: -np.mean(t["area"]))]
        head = ["agent", "changed", "steps", "seeds", *found["noises"], "area, mean ± s.e.", "final, mean"]
        parts.append(f"**{family}**\n\n{markdown(head, rows)}")
    return "\n".join(parts)


def _row(trial: dict) -> list[str]:
    areas, finals = np.array(trial["area"]), np.array(trial["final"])
    changed = ", ".join(name if value is True else f"{name} {value}" for name, value in trial["options"].items())
    error = areas.mean(axis=0).std(ddof=1) / np.sqrt(areas.shape[1])
    cells = [*(f"{x:.0f}" for x in areas.mean(axis=1)), f"{areas.mean():.1f} ± {error:.1f}", f"{finals.mean():.0f}"]
    return [trial["agent"], changed or "–", f"{trial['steps']:,}", str(areas.shape[1]), *cells]


def written(page: str, found: dict) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + tables(found) + END + rest.split(END)[1]


if __name__ == "__main__":
    main(Run, Report)
