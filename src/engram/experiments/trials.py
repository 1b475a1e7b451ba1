"""Single changes of agents on Atari, tried before a campaign: some games and seeds in one program.

    python -m engram.experiments.trials run mbec++ --set q_chooses=false p_ask=0.2
    python -m engram.experiments.trials report

`run` trains the preset `atari` with changed options, otherwise like the campaign's short runs, on seeds that no reported result uses, and
adds what it finds to results/atari-trials.json. `report` prints a table: of each game the mean score in the last quarter of training,
then that of whole games by the policies of the end, as they are frozen, and in brackets what the agent expected and what it earned.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from engram.experiments import campaign
from engram.experiments.campaign import CURVES, SHORT, Job
from engram.experiments.research import parse
from engram.experiments.running import deadline, known, main, markdown, train
from engram.experiments.validation import Best
from engram.options import replace
from engram.provenance import describe_machine
from engram.records import replacing
from engram.tasks import find
from engram.tasks.atari import SKIP

FIRST_SEED, PARTS = 100, 20
"""PARTS: points of a curve, each the mean of what it stands for"""
TRIALS = Path("results/atari-trials.json")


@dataclass(frozen=True)
class Run:
    """Tries one agent with changed options."""

    agent: Annotated[str, tyro.conf.Positional]
    set: tuple[str, ...] = ()
    """what is changed, as option=value"""
    games: tuple[str, ...] = CURVES
    seeds: int = 2
    steps: int = SHORT
    """agent steps, of four emulator frames each"""
    validations: int = 1
    """how often policies are frozen and play ten whole games, the last time in the end; 0 for never"""
    out: Path = TRIALS
    minutes: float = 60.0
    """stop, and save, after so many; the same command goes on"""
    scratch: Path = Path("runs/trials")
    """where what is unfinished waits"""

    def __call__(self) -> None:
        until = deadline(self.minutes)
        known(self.out)  # which is better said before the training than after it
        jobs = [Job(self.agent, game, self.steps, FIRST_SEED + seed) for seed in range(self.seeds) for game in self.games]
        agent = replace(campaign.agent_of(jobs[0]), **dict(map(parse, self.set)))
        spec, tasks = campaign.joint(agent, jobs), [find(f"atari:{job.game}", job.steps) for job in jobs]
        seeds = [job.seed for job in jobs]
        best = Best(agent, spec, tasks, seeds, self.validations) if self.validations > 0 else None
        scores, seconds = train(f"trial {self.agent}", agent, tasks, seeds, self.scratch, until, spec=spec, beside=best)
        if best is not None:
            best.judge.close()
        trial = {
            "agent": self.agent,
            "options": campaign.options(agent),
            "steps": self.steps,
            "emulator_frames": self.steps * SKIP,
            "seconds_with_compilation": round(seconds, 1),
            "runs": [
                {"game": job.game, "seed": job.seed}
                | {name: shortened(points) for name, points in campaign.curve(scores, r, spec.envs).items()}
                | ({} if best is None else {"validation": best.past[1:, r].tolist()})
                for r, job in enumerate(jobs)
            ],
        }
        with replacing(self.out) as file:
            file.write(written([*known(self.out), trial | describe_machine()]).encode())


def shortened(points: list[float]) -> list[float | None]:
    """The means of parts of a curve; None where nothing is known."""
    return [float(f"{np.nanmean(part):.3g}") if not np.isnan(part).all() else None for part in np.array_split(np.array(points), PARTS)]


def written(trials: list[dict[str, Any]]) -> str:
    """A line for each run."""
    return json.dumps(trials, separators=(",", ":")).replace('{"agent"', '\n{"agent"').replace('{"game"', '\n{"game"') + "\n"


@dataclass(frozen=True)
class Report:
    """Prints the table."""

    out: Path = TRIALS

    def __call__(self) -> None:
        print(table(known(self.out)))


def table(trials: list[dict[str, Any]]) -> str:
    games = list(dict.fromkeys(run["game"] for trial in trials for run in trial["runs"]))
    rows = [
        [
            trial["agent"],
            changed(trial),
            f"{trial['steps']:,}",
            *(cell([run for run in trial["runs"] if run["game"] == game]) for game in games),
        ]
        for trial in trials
    ]
    return markdown(["agent", "changed", "agent steps", *games], rows)


def changed(trial: dict[str, Any]) -> str:
    """What is otherwise than in the preset of today."""
    now = campaign.options(campaign.agent_of(Job(trial["agent"], "", trial["steps"], 0)))
    return ", ".join(f"{name} {value}" for name, value in trial["options"].items() if name in now and now[name] != value) or "–"


def cell(runs: list[dict[str, Any]]) -> str:
    """Of the seeds of a game."""
    ends = {name: [run[name][-(len(run[name]) // 4) :] for run in runs] for name in ("score", "value", "earned")}
    told = {
        name: [np.mean([x for x in end if x is not None]) for end in of if any(x is not None for x in end)] for name, of in ends.items()
    }
    if not all(told.values()):
        return "–"
    score, value, earned = (float(np.mean(means)) for means in told.values())
    frozen = [run["validation"][-1] for run in runs if run.get("validation")]
    scores = [score, *([float(np.mean(frozen))] if frozen else [])]
    return f"{', '.join(f'{x:,.{1 if abs(x) < 100 else 0}f}' for x in scores)} ({value:.1f}, {earned:.1f})"


if __name__ == "__main__":
    main(Run, Report)
