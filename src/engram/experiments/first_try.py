"""Does it work at the first try? Agents with their presets on Gymnasium's environments, by which but for Cart Pole nothing here was chosen.

    python -m engram.experiments.first_try run [--tasks Taxi-v4 ...] [--agents dqn-engram ...] [--out results/first-try]
    python -m engram.experiments.first_try report [--out results/first-try]

`run` leaves a JSON an environment and agent; what is there already is not repeated. `report` writes the tables.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engram.agents import make
from engram.errors import EngramError, nearest_names
from engram.experiments.running import curves, deadline, machines, main, markdown, protocol, train
from engram.records import write_json
from engram.report.statistics import summary
from engram.tasks import find

STEPS, SEEDS = 20_000, 5
TASKS = ("CartPole-v1", "Acrobot-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "Blackjack-v1")
FAMILIAR = "CartPole-v1"
"""whose noisy and shorter versions are among the tasks by which the preset `engram` was found"""
AGENTS = {name: make(name, "paper") for name in ("random", "dqn", "mfec", "nec", "drqn", "ppo", "mbec", "mbec++")}
AGENTS |= {f"{name}-engram": make(name, "engram") for name in ("dqn", "mbec++")}
AGENTS |= {f"{name}-engram-1": make(name, "engram", multi_step=1) for name in ("dqn", "mbec++")}
Found = dict[tuple[str, str], dict]


@dataclass(frozen=True)
class Run:
    """Trains what is missing."""

    tasks: tuple[str, ...] = TASKS
    agents: tuple[str, ...] = tuple(AGENTS)
    out: Path = Path("results/first-try")
    minutes: float = 60.0
    """stop, and save, after so many; the same command goes on"""
    scratch: Path = Path("runs/first-try")
    """where what is unfinished waits"""

    def __call__(self) -> None:
        until, seeds = deadline(self.minutes), range(SEEDS)
        for name, known in [(name, TASKS) for name in self.tasks] + [(name, tuple(AGENTS)) for name in self.agents]:
            if name not in known:
                raise EngramError(f"There is no {name!r} in this experiment.{nearest_names(name, known)}")
        for task in self.tasks:
            for name in self.agents:
                file = self.out / f"{task}-{name}.json"
                if file.exists():
                    continue
                tasks = [find(f"gym:{task}", STEPS)] * SEEDS
                scores, seconds = train(f"{task} {name}", AGENTS[name], tasks, seeds, self.scratch, until)
                how = protocol(AGENTS[name], STEPS, seeds, SEEDS, seconds)
                write_json(file, summary(curves(scores, 0, seeds)) | {"task": task} | how)


@dataclass(frozen=True)
class Report:
    """Writes the tables."""

    out: Path = Path("results/first-try")

    def __call__(self) -> None:
        text = page(load(self.out))
        (self.out / "README.md").write_text(text, encoding="utf-8")
        print(text)


def load(out: Path) -> Found:
    files = {(task, name): out / f"{task}-{name}.json" for task in TASKS for name in AGENTS}
    return {which: json.loads(file.read_text()) for which, file in files.items() if file.exists()}


def page(found: Found) -> str:
    return f"""\
# At the first try

Written by `python -m engram.experiments.first_try report` from the files beside it; never by hand.

Gymnasium's environments as they are. No option or preset here was chosen by them, but for Cart Pole, whose noisy and shorter versions are
among the tasks by which `engram` was found. Agents have the preset `paper`, those marked `-engram` the one of that name, `-engram-1` that
with TD targets of one reward instead of five (`--multi-step 1`). {STEPS:,} steps, one environment a run, agent steps are environment steps;
{SEEDS} seeds, mean ± standard error. A score is the mean return of the last 10 training episodes.
Trained on: {machines(found.values())}.

Over the whole run (the area under the curve of scores, divided by its length):

{table(found, "auc")}
In the end:

{table(found, "final")}
But for Cart Pole, the preset `engram` has the greater mean area on {ahead(found, "dqn")} with DQN, and on
{ahead(found, "mbec++")} with MBEC++.
"""


def table(found: Found, score: str) -> str:
    return markdown(["agent", *TASKS], [[name, *(cell(found.get((task, name)), score) for task in TASKS)] for name in AGENTS])


def cell(result: dict | None, score: str) -> str:
    if result is None:
        return "–"
    scores = np.array(result[score]["per_seed"])
    return f"{scores.mean():.3g} ± {scores.std(ddof=1) / np.sqrt(len(scores)):.2g}"


def ahead(found: Found, name: str) -> str:
    """On how many environments of those that both were trained on; Cart Pole does not count."""
    both = [(found.get((task, f"{name}-engram")), found.get((task, name))) for task in TASKS if task != FAMILIAR]
    pairs = [(new["auc"]["mean"], old["auc"]["mean"]) for new, old in both if new and old]
    return f"{sum(new > old for new, old in pairs)} of {len(pairs)} environments"


if __name__ == "__main__":
    main(Run, Report)
