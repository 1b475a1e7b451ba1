"""The plan of Atari runs, and the rows that `results/atari` has of them, one file per run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engram.agents import agent_class, make
from engram.envs.atari import FRAME_SKIP, PROTOCOLS
from engram.errors import EngramError
from engram.paper import validation
from engram.paper.runs import agent_options, differing_options
from engram.types import Agent

PAPER_GAMES = ("alien", "asterix", "breakout", "fishing_derby", "gopher", "hero")
"""the games whose learning curves the paper shows"""
MORE_GAMES = (
    "pong",
    "riverraid",
    "seaquest",
    "ms_pacman",
    "qbert",
    "kangaroo",
    "freeway",
    "boxing",
)
BETAS = (0.1, 0.5, 0.9)
"""fixed weights of the paper's ablation on River Raid; it names 0.1, the best there"""
SHORT, LONG = 100_000, 2_500_000
"""agent steps: 400,000 and 10 million emulator frames"""


def scored_steps(steps: int) -> int:
    """Agent steps at the end of a run whose games are its training score.

    A million emulator frames, as published ones are, but at most a quarter of the run.
    """
    return min(250_000, steps // 4)


REMOVED = {"p_ask": None}
"""removed options in which published rows differ from agents now, and their neutral values"""

Row = dict[str, Any]
"""the published results of one run"""


@dataclass(frozen=True)
class Job:
    """One run of the plan."""

    agent: str
    game: str
    steps: int
    seed: int
    beta: float | None = None
    """fixed weight of MBEC++'s memory; learned if None"""

    @property
    def label(self) -> str:
        return self.agent if self.beta is None else f"{self.agent} beta={self.beta:g}"

    @property
    def name(self) -> str:
        label, frames = self.label.replace(" ", "-"), self.steps * FRAME_SKIP
        return f"{self.game}-{label}-{frames // 1000}k-{self.seed}"

    @property
    def test(self) -> str:
        """The test protocol, as rows name it."""
        return (
            f"whole games, unclipped, epsilon {PROTOCOLS['classic'].eval_epsilon}, trajectories by "
            f"what is done, the policy that did best of {validation.VALIDATIONS} validations of "
            f"{validation.VALIDATION_GAMES} games each"
        )

    def file(self, results: Path) -> Path:
        return results / "atari" / f"{self.name}.json"


AGENTS = ("mbec++", "dqn")
PLAN = (
    *(Job(agent, game, SHORT, s) for agent in AGENTS for s in range(5) for game in PAPER_GAMES),
    *(Job(agent, game, LONG, 0) for agent in AGENTS for game in PAPER_GAMES),
    *(Job(agent, game, LONG, 0) for agent in AGENTS for game in MORE_GAMES),
    *(Job("mbec++", "riverraid", LONG, 0, beta) for beta in BETAS),
)


def make_agent(job: Job) -> Agent:
    """The preset `atari`; in short runs learning starts, and exploration ends, earlier."""
    options: dict[str, Any] = {
        "learning_starts": min(50_000, job.steps // 20),
        "epsilon_decay": min(1e5, job.steps / 10),
    }
    known = agent_options(agent_class(job.agent)())
    options = {name: value for name, value in options.items() if name in known}
    if job.beta is not None:
        options["fixed_beta"] = job.beta
    return make(job.agent, "atari", **options)


def job_of(row: Row) -> Job:
    return Job(**{field.name: row[field.name] for field in fields(Job) if field.name in row})


def read_row(file: Path) -> Row:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise EngramError(
            f"{file} cannot be read ({error}): remove it, and the campaign trains that run again."
        ) from error


def read_rows(results: Path) -> list[Row]:
    return [read_row(file) for file in sorted((results / "atari").glob("*.json"))]


def other_options(row: Row) -> list[str]:
    """The options that were different when a row was trained."""
    agent = make_agent(job_of(row))
    present = agent_options(agent)
    differing = differing_options(agent, row["options"])
    texts = [f"{option}, now {present[option.partition(' ')[0]]}" for option in differing]
    removed = row.get("removed_options", {})
    for name, neutral in REMOVED.items():
        if removed.get(name, neutral) != neutral:
            texts.append(f"{name} {removed[name]}, now removed")
    return texts


def all_options(row: Row) -> dict[str, Any]:
    """The options of a row, with those that agents no longer have."""
    return row["options"] | row.get("removed_options", {})


def is_done(job: Job, results: Path) -> bool:
    """Whether there is a row of the run with the present options and test protocol."""
    if not job.file(results).exists():
        return False
    row = read_row(job.file(results))
    return row["test"] == job.test and not other_options(row)


def missing(results: Path, plan: Sequence[Job] = PLAN) -> list[Job]:
    return [job for job in plan if not is_done(job, results)]


def latest(rows: Sequence[Row]) -> list[Row]:
    """The rows to show per agent, game and budget: those with present options, else older ones."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    listed = []
    for group in groups.values():
        listed += [row for row in group if not other_options(row)] or group
    return listed


def group_of(row: Row) -> tuple[str, str, int]:
    """Game, label and agent steps: all but the seed."""
    return row["game"], job_of(row).label, row["steps"]
