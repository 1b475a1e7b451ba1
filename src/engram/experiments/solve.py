"""Does each agent solve clean Cart Pole? With the preset `cartpole`, at least eight of ten seeds should end at 195 of 200 or more.

    python -m engram.experiments.solve run [--agents ppo ...] [--out results/solved]
    python -m engram.experiments.solve report [--out results/solved]

`run` leaves a JSON an agent; what is there already is not repeated. `report` writes the table, and the sentence on each agent's page.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from engram.agents import make
from engram.experiments.running import curves, deadline, machines, main, markdown, protocol, train
from engram.records import write_json
from engram.report.statistics import summary
from engram.tasks import find

PRESET, TASK, SOLVED = "cartpole", "cartpole", 195
STEPS = {"mbec++": 20_000, "dqn": 20_000, "mfec": 40_000, "nec": 60_000, "drqn": 30_000, "ppo": 30_000}
BEGIN, END = "<!-- solved: written by `python -m engram.experiments.solve report` -->", "<!-- end of solved -->"


@dataclass(frozen=True)
class Run:
    """Trains what is missing."""

    agents: tuple[str, ...] = tuple(STEPS)
    seeds: int = 10
    out: Path = Path("results/solved")
    minutes: float = 60.0
    """stop, and save, after so many; the same command goes on"""
    scratch: Path = Path("runs/solved")
    """where what is unfinished waits"""

    def __call__(self) -> None:
        until, seeds = deadline(self.minutes), range(self.seeds)
        for name in self.agents:
            file = self.out / f"{name}.json"
            if file.exists():
                continue
            agent, task = make(name, PRESET), find(TASK, STEPS[name])
            scores, seconds = train(f"{TASK} {name}", agent, [task] * len(seeds), seeds, self.scratch, until)
            how = protocol(agent, task.steps, seeds, len(seeds), seconds)
            write_json(file, summary(curves(scores, 0, seeds)) | {"task": TASK} | how)


@dataclass(frozen=True)
class Report:
    """Writes the table and the sentences."""

    out: Path = Path("results/solved")

    def __call__(self) -> None:
        found = load(self.out)
        (self.out / "README.md").write_text(page(found))
        for name, result in found.items():
            file = document(name)
            before, rest = file.read_text().split(BEGIN)
            file.write_text(before + sentence(name, result) + rest.split(END)[1])
        print(page(found))


def load(out: Path) -> dict[str, dict]:
    return {name: json.loads((out / f"{name}.json").read_text()) for name in STEPS if (out / f"{name}.json").exists()}


def document(name: str) -> Path:
    return Path("docs/agents") / f"{name.replace('+', 'p')}.md"


def solved(result: dict) -> int:
    return sum(score >= SOLVED for score in result["final"]["per_seed"])


def sentence(name: str, result: dict) -> str:
    """What an agent's page says."""
    seeds = len(result["seeds"])
    return (
        f"{BEGIN}\n`engram train {name} {TASK} --preset {PRESET} --steps {result['steps']}` "
        f"[ends](../../results/solved/README.md) at {SOLVED} of 200 or more in {solved(result)} of {seeds} seeds.\n{END}"
    )


def page(found: dict[str, dict]) -> str:
    rows = [
        [name, f"{r['steps']:,}", f"{solved(r)} of {len(r['seeds'])}", ", ".join(f"{x:.0f}" for x in r["final"]["per_seed"])]
        for name, r in found.items()
    ]
    return f"""\
# Clean Cart Pole, solved

Written by `python -m engram.experiments.solve report` from the files beside it; never by hand.

Each agent with the preset `{PRESET}` on CartPole-v1 cut at 200 steps. A seed counts as solved where its final score, the mean return of the
last 10 training episodes, is at least {SOLVED}. The presets were chosen on other seeds. One environment a run; agent steps are environment
steps. Trained on: {machines(found.values())}.

{markdown(["agent", "steps", "solved", "final score of each seed"], rows)}"""


if __name__ == "__main__":
    main(Run, Report)
