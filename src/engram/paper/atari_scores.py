"""Atari returns next to published ones: tables per budget, human-normalized aggregates, figures."""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram.envs.atari import FRAME_SKIP
from engram.figures import plot_grid
from engram.page import markdown_table
from engram.paper.figures import plot_scores
from engram.stats import iqm

DATA = Path(__file__).parent.parent / "data"
PUBLISHED = {
    400_000: (
        "paper_table_400k.csv",
        {"SimPLe": "simple_mean", "MBEC++, paper": "mbecpp_mean"},
    ),
    10_000_000: (
        "paper_table_10m.csv",
        {
            "MBEC++, paper": "mbecpp",
            "NEC, published": "nec",
            "MFEC, published": "mfec",
            "DQN, published": "nature_dqn",
        },
    ),
}
"""by emulator frames: a file, and the names of its columns here"""
SCORES_LABEL = "human-normalized test return, % (random play 0, a human 100): seeds and their mean"
MeanReturns = Mapping[str, Mapping[str, float]]
"""by agent and game"""
SeedReturns = Mapping[str, Mapping[str, list[float]]]
"""by agent and game, one of each seed"""


def sections(rows: Sequence[dict[str, Any]]) -> str:
    """A section with tables and figures for each budget that has a row."""
    return "".join(section(rows, frames) for frames in budgets(rows))


def budgets(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({row["steps"] * FRAME_SKIP for row in rows})


def section(rows: Sequence[dict[str, Any]], frames: int) -> str:
    ours, theirs = test_returns(rows, frames), published(frames)
    constants = reference_returns()
    random = {game: reference.random for game, reference in constants.items()}
    human = {game: reference.human for game, reference in constants.items()}
    columns = {**theirs, "random": random, "human": human}
    lines = []
    for game in games(ours):
        own = [mean_and_std(returns.get(game, [])) for returns in ours.values()]
        lines.append([game, *own, *(_number(returns.get(game)) for returns in columns.values())])
    everyone = {**means(ours), **theirs}
    aggregate_head = ["agents", "games", "", "mean", "median", "IQM"]
    return f"""
## {frames:,} emulator frames

Test returns: mean, and standard deviation over seeds if there are several, next to published ones.
The paper says {frames:,} frames, but its code counts agent steps, which would make
{FRAME_SKIP * frames:,} for its MBEC++ alone. SimPLe's are those of Kaiser et al. (2020), those of
NEC, MFEC and DQN are Pritzel et al.'s (2017), random and human those of DQN Zoo.

{markdown_table(["game", *ours, *columns], lines)}
Human-normalized, per cent, over the games that all agents of a row have:

{markdown_table(aggregate_head, aggregates(everyone, list(ours)))}
{other_publications(frames)}![test returns](scores-{frames}.png)

![learning curves](curves-{frames}.png)
"""


def test_returns(rows: Sequence[dict[str, Any]], frames: int) -> dict[str, dict[str, list[float]]]:
    """Test returns of all seeds by agent and game, without ablations."""
    returns: dict[str, dict[str, list[float]]] = {}
    for row in _without_ablations(rows, frames):
        by_game = returns.setdefault(row["agent"], {})
        by_game.setdefault(row["game"], []).append(row["test_return"])
    return returns


def _without_ablations(rows: Sequence[dict[str, Any]], frames: int) -> list[dict[str, Any]]:
    """The rows of this budget whose memory weight is learned."""
    return [r for r in rows if r["steps"] * FRAME_SKIP == frames and r.get("beta") is None]


def games(returns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({game for by_game in returns.values() for game in by_game})


def means(returns: SeedReturns) -> dict[str, dict[str, float]]:
    return {
        agent: {game: float(np.mean(seeds)) for game, seeds in by_game.items()}
        for agent, by_game in returns.items()
    }


def mean_and_std(returns: Sequence[float]) -> str:
    if len(returns) < 2:
        return _number(returns[0] if returns else None)
    return f"{np.mean(returns):,.1f} ± {np.std(returns, ddof=1):,.1f}"


@cache
def published(frames: int) -> dict[str, dict[str, float]]:
    """Published returns by agent and game."""
    if frames not in PUBLISHED:
        return {}
    file, columns = PUBLISHED[frames]
    table = _read(file)
    return {
        name: {row["game"]: float(row[column]) for row in table if row[column]}
        for name, column in columns.items()
    }


class Published(NamedTuple):
    mean: float
    std: float


def simple() -> dict[str, Published]:
    """SimPLe's returns after 400,000 emulator frames, by game."""
    table = _read(PUBLISHED[400_000][0])
    return {
        row["game"]: Published(float(row["simple_mean"]), float(row["simple_std"])) for row in table
    }


def _read(file: str) -> list[dict[str, str]]:
    with open(DATA / file, newline="") as lines:
        return list(csv.DictReader(lines))


def aggregates(everyone: MeanReturns, ours: Sequence[str]) -> list[list[str]]:
    """Human-normalized aggregates over the games that a group of agents shares.

    The groups are all agents, our agents, and each of our agents with the published ones; of
    groups with the same games the last is kept."""
    theirs = [agent for agent in everyone if agent not in ours]
    groups = [*((agent, *theirs) for agent in ours), tuple(ours), tuple(everyone)]
    by_games = {tuple(_shared_games(everyone, group)): group for group in groups}
    lines = []
    for shared, group in by_games.items():
        for agent in group if shared else ():
            values = [human_normalized(everyone[agent][game], game) for game in shared]
            numbers = (np.mean(values), np.median(values), iqm(values))
            cells = (f"{x:,.1f}" for x in numbers)
            lines.append([", ".join(group), str(len(shared)), agent, *cells])
    return lines


def _shared_games(returns: MeanReturns, agents: Sequence[str]) -> list[str]:
    return sorted(set.intersection(*(set(returns[agent]) for agent in agents)))


def other_publications(frames: int) -> str:
    """A table of other agents with this budget over nearly all games."""
    budget = f"{frames // 1_000_000}M"
    rows = [row for row in _read("baselines_10m_40m.csv") if row["emulator_frames"] == budget]
    if not rows:
        return ""
    columns = ("agent", "source", "n_games", "mean_hns", "median_hns", "note")
    head = ["agent", "computed from", "games", "mean", "median", ""]
    table = markdown_table(head, [[row[column] for column in columns] for row in rows])
    return f"Other agents over (nearly) all games, human-normalized, per cent:\n\n{table}\n"


def draw(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Draws the figures of all sections."""
    for frames in budgets(rows):
        ours = test_returns(rows, frames)
        theirs = {name: x for name, x in published(frames).items() if name.startswith("MBEC++")}
        everyone = ours | {
            agent: {game: [returned] for game, returned in by_game.items()}
            for agent, by_game in theirs.items()
        }
        panels = {
            game: {
                agent: [human_normalized(returned, game) for returned in by_game.get(game, ())]
                for agent, by_game in everyone.items()
            }
            for game in games(ours)
        }
        path, title = folder / f"scores-{frames}.png", f"{frames:,} emulator frames"
        plot_scores(panels, path, title, SCORES_LABEL)
        draw_curves(rows, frames, folder / f"curves-{frames}.png")


def draw_curves(rows: Sequence[dict[str, Any]], frames: int, path: Path) -> None:
    """Draws one panel of learning curves per game."""
    panels: dict[str, dict[str, Any]] = {}
    for row in _without_ablations(rows, frames):
        curve = np.array(row["curve"]["steps"], float), np.array(row["curve"]["return"], float)
        panels.setdefault(row["game"], {}).setdefault(row["agent"], {})[row["seed"]] = curve
    plot_grid(panels, path)


class Reference(NamedTuple):
    random: float
    human: float


@cache
def reference_returns() -> dict[str, Reference]:
    """The returns of random play and of a human on each game, by the constants of DQN Zoo."""
    table = _read("atari57_human_random.csv")
    return {row["game"]: Reference(float(row["random"]), float(row["human"])) for row in table}


def human_normalized(returned: float, game: str) -> float:
    """A return in per cent of the way from random play to a human."""
    random, human = reference_returns()[game]
    return 100 * (returned - random) / (human - random)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
