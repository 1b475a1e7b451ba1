"""Atari scores beside those that others published: a table a budget, human-normalised aggregates, bars and curves."""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram.experiments.running import markdown, normalised
from engram.report.figures import bars, grid
from engram.report.statistics import iqm
from engram.tasks.atari import SKIP

DATA = Path(__file__).parent.parent / "data"
PUBLISHED = {
    400_000: ("paper_table_400k.csv", {"SimPLe": "simple_mean", "MBEC++, paper": "mbecpp_mean"}),
    10_000_000: (
        "paper_table_10m.csv",
        {"MBEC++, paper": "mbecpp", "NEC, published": "nec", "MFEC, published": "mfec", "DQN, published": "nature_dqn"},
    ),
}
"""by emulator frames: a file, and what its columns are called here"""
Scores = Mapping[str, Mapping[str, float]]
"""by agent and game"""


def sections(rows: Sequence[dict[str, Any]]) -> str:
    """All budgets of which there is a row, each with its tables and pictures; nothing where there is none."""
    return "".join(section(rows, frames) for frames in budgets(rows))


def budgets(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({row["steps"] * SKIP for row in rows})


def section(rows: Sequence[dict[str, Any]], frames: int) -> str:
    mine, theirs = ours(rows, frames), published(frames)
    beside = theirs | {name: {game: ends[i] for game, ends in scale().items()} for i, name in enumerate(("random", "human"))}
    lines = [
        [game, *(spread(scores.get(game, [])) for scores in mine.values()), *(_number(scores.get(game)) for scores in beside.values())]
        for game in games(mine)
    ]
    return f"""
## {frames:,} emulator frames

Test scores, mean (and standard deviation of the seeds, where there are several), beside what was published. The paper says {frames:,}
frames, but its code counts agent steps, which would make {SKIP * frames:,} for its MBEC++ alone; SimPLe's scores are those of Kaiser et
al. (2020), those of NEC, MFEC and DQN Pritzel et al.'s (2017), random and human those of DQN Zoo.

{markdown(["game", *mine, *beside], lines)}
Human-normalised, per cent, over the games that all in a row have:

{markdown(["agents", "games", "", "mean", "median", "IQM"], aggregates({**means(mine), **theirs}, list(mine)))}
{elsewhere(frames)}![scores](scores-{frames}.png)

![curves](curves-{frames}.png)
"""


def ours(rows: Sequence[dict[str, Any]], frames: int) -> dict[str, dict[str, list[float]]]:
    """Test scores of each agent's seeds on each game it was trained on with this budget, without those of ablations."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in _whole(rows, frames):
        found.setdefault(row["agent"], {}).setdefault(row["game"], []).append(row["test_score"])
    return found


def _whole(rows: Sequence[dict[str, Any]], frames: int) -> list[dict[str, Any]]:
    """Those of this budget, without ablations."""
    return [row for row in rows if row["steps"] * SKIP == frames and row.get("beta") is None]


def games(mine: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({game for scores in mine.values() for game in scores})


def means(mine: Mapping[str, Mapping[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {agent: {game: float(np.mean(scores)) for game, scores in of_games.items()} for agent, of_games in mine.items()}


def spread(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return _number(scores[0] if scores else None)
    return f"{np.mean(scores):,.1f} ± {np.std(scores, ddof=1):,.1f}"


@cache
def published(frames: int) -> dict[str, dict[str, float]]:
    """By agent and game."""
    if frames not in PUBLISHED:
        return {}
    file, columns = PUBLISHED[frames]
    table = _read(file)
    return {name: {row["game"]: float(row[column]) for row in table if row[column]} for name, column in columns.items()}


class Published(NamedTuple):
    mean: float
    std: float


def simple() -> dict[str, Published]:
    """SimPLe's scores after 400,000 emulator frames, by game."""
    return {row["game"]: Published(float(row["simple_mean"]), float(row["simple_std"])) for row in _read(PUBLISHED[400_000][0])}


def _read(file: str) -> list[dict[str, str]]:
    with open(DATA / file, newline="") as lines:
        return list(csv.DictReader(lines))


def aggregates(everyone: Scores, mine: Sequence[str]) -> list[list[str]]:
    """Over the games of all our agents and, where these are others, over those that the published have as well, and over those of the
    published and each of our agents."""
    lines, theirs = [], [agent for agent in everyone if agent not in mine]
    groups = [*((agent, *theirs) for agent in mine), tuple(mine), tuple(everyone)]  # of those with the same games the last
    shared_by = {agents: _shared(everyone, agents) for agents in groups}
    for agents, shared in {tuple(shared): (agents, shared) for agents, shared in shared_by.items()}.values():
        for agent in agents if shared else ():
            scores = [human_normalised(everyone[agent][game], game) for game in shared]
            numbers = (np.mean(scores), np.median(scores), iqm(scores))
            lines.append([", ".join(agents), str(len(shared)), agent, *(f"{x:,.1f}" for x in numbers)])
    return lines


def _shared(scores: Scores, agents: Sequence[str]) -> list[str]:
    return sorted(set.intersection(*(set(scores[agent]) for agent in agents)))


def elsewhere(frames: int) -> str:
    """What others' agents came to with this budget over all games."""
    rows = [row for row in _read("baselines_10m_40m.csv") if row["emulator_frames"] == f"{frames // 1_000_000}M"]
    if not rows:
        return ""
    lines = [[row["agent"], row["source"], row["n_games"], row["mean_hns"], row["median_hns"], row["note"]] for row in rows]
    head = ["agent", "computed from", "games", "mean", "median", ""]
    return f"Others over (nearly) all games, human-normalised, per cent:\n\n{markdown(head, lines)}\n"


def draw(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """The pictures of all sections."""
    for frames in budgets(rows):
        mine = ours(rows, frames)
        shown = means(mine) | {name: scores for name, scores in published(frames).items() if name.startswith("MBEC++")}
        heights = {a: [human_normalised(s[g], g) if g in s else float("nan") for g in games(mine)] for a, s in shown.items()}
        bars(games(mine), heights, folder / f"scores-{frames}.png", f"{frames:,} emulator frames", "human-normalised test score, %")
        draw_curves(rows, frames, folder / f"curves-{frames}.png")


def draw_curves(rows: Sequence[dict[str, Any]], frames: int, path: Path) -> None:
    """A panel a game, with bands where there are several seeds."""
    panels: dict[str, dict[str, Any]] = {}
    for row in _whole(rows, frames):
        curve = np.array(row["curve"]["steps"], float), np.array(row["curve"]["score"], float)
        panels.setdefault(row["game"], {}).setdefault(row["agent"], {})[row["seed"]] = curve
    grid(panels, path)


@cache
def scale() -> dict[str, tuple[float, float]]:
    """Of each game the score of random play and that of a human, by the constants of DQN Zoo."""
    return {row["game"]: (float(row["random"]), float(row["human"])) for row in _read("atari57_human_random.csv")}


def human_normalised(score: float, game: str) -> float:
    """Per cent of the way from random to a human."""
    return 100 * normalised(score, *scale()[game])


def _number(score: float | None) -> str:
    return "–" if score is None else f"{score:,.1f}"
