"""The paper's claims about Atari, decided by the rows of the campaign."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
from scipy.stats import binomtest

from engram.envs.atari import FRAME_SKIP, PROTOCOLS
from engram.errors import EngramError
from engram.paper import atari_page, atari_scores, validation
from engram.paper.atari_runs import (
    BETAS,
    LONG,
    MORE_GAMES,
    PAPER_GAMES,
    PLAN,
    SHORT,
    Job,
    all_options,
    job_of,
    latest,
    other_options,
    read_rows,
)
from engram.paper.descriptions import describe_machines
from engram.paper.experiment import Claim, Experiment, ExperimentResults
from engram.paper.verdicts import Comparison, compare
from engram.stats import interval, mean

GAMES = {*PAPER_GAMES, *MORE_GAMES}
AHEAD_OF_SIMPLE = ("asterix", "breakout", "fishing_derby", "hero")
"""games on which the paper has MBEC++ ahead of SimPLe"""
BEHIND_SIMPLE = ("alien", "gopher")
"""games on which it has SimPLe ahead"""
NUM_SEEDS = 5
"""of the paper, at 400,000 frames"""


def collect(results: Path) -> dict[str, Any]:
    """The rows of the plan, those with present options where there are any, else older ones."""
    planned = {job.name for job in PLAN}
    try:
        rows = [row for row in read_rows(results) if job_of(row).name in planned]
        rows = latest([row for row in rows if np.isfinite(row["test_return"])])
        num_other = sum(bool(other_options(row)) for row in rows)
    except (KeyError, TypeError) as error:
        raise EngramError(
            f"A file in {results / 'atari'} is no row of the campaign ({error}): remove it."
        ) from error
    if not rows:
        return {}
    mark = f", {num_other} of them with other options {atari_page.MARK}" if num_other else ""
    return {"rows": rows, "state": f"{len(rows)} of {len(planned)} runs{mark}"}


def test_returns(results: ExperimentResults, steps: int, label: str) -> dict[str, dict[int, float]]:
    """Test returns by game and seed."""
    by_game: dict[str, dict[int, float]] = {}
    for row in results.numbers["rows"]:
        job = job_of(row)
        if (job.steps, job.label) == (steps, label):
            by_game.setdefault(job.game, {})[job.seed] = row["test_return"]
    return by_game


def compare_with_simple(
    agent: str, games: Sequence[str], sign: int, results: ExperimentResults
) -> Sequence[Comparison]:
    """Compares an agent with SimPLe, or with sign -1 SimPLe with it, averaged over games."""
    ours, simple = test_returns(results, SHORT, agent), atari_scores.simple()
    if any(len(ours.get(game, {})) < NUM_SEEDS for game in games):
        return ()
    differences = []
    for seed in range(NUM_SEEDS):
        gaps = [(ours[game][seed] - simple[game].mean) / simple[game].std for game in games]
        differences.append(sign * np.mean(gaps))
    order = f"{agent} − SimPLe" if sign > 0 else f"SimPLe − {agent}"
    return [compare(f"{order}, {', '.join(map(game_title, games))}", differences, 0.0)]


def game_title(game: str) -> str:
    return game.replace("_", " ").title()


def ahead_of_dqn(results: ExperimentResults) -> Sequence[Comparison]:
    """Counts the games on which MBEC++ is ahead of DQN, without ties.

    Games are counted because there is one seed of each, and returns on one game can outweigh those
    on all others."""
    ours, theirs = (mean_by_game(test_returns(results, LONG, a)) for a in ("mbec++", "dqn"))
    if GAMES - set(ours) or GAMES - set(theirs):
        return ()
    wins = [ours[game] > theirs[game] for game in sorted(GAMES) if ours[game] != theirs[game]]
    return compare_share(wins, 0.5, 0.5)


def best_of_half(results: ExperimentResults) -> Sequence[Comparison]:
    """Counts the games on which MBEC++ is ahead of three published agents."""
    ours = mean_by_game(test_returns(results, LONG, "mbec++"))
    published = atari_scores.published(LONG * FRAME_SKIP)
    rivals = [by_game for name, by_game in published.items() if not name.startswith("MBEC++")]
    if GAMES - set(ours):
        return ()
    wins = [ours[game] > max(rival[game] for rival in rivals) for game in sorted(GAMES)]
    return compare_share(wins, 0.25, 0.5)


def mean_by_game(returns: dict[str, dict[int, float]]) -> dict[str, float]:
    return {game: float(np.mean(list(by_seed.values()))) for game, by_seed in returns.items()}


def compare_share(wins: Sequence[bool], above: float, below: float) -> Sequence[Comparison]:
    """Tests whether the share of wins is above one number or, the other way, below another."""
    if not wins:
        return ()
    total, count = len(wins), int(np.sum(wins))
    low, high = interval(np.array(wins, float) - above, mean)
    p_for = float(binomtest(count, total, above, alternative="greater").pvalue)
    p_against = float(binomtest(count, total, below, alternative="less").pvalue)
    what = f"share of {total} games − {above:g}"
    return [Comparison(what, count / total - above, low, high, p_for, p_against)]


def learned_beats_fixed_beta(results: ExperimentResults) -> Sequence[Comparison]:
    """Compares the learned weight with the best fixed one on River Raid."""
    game = "riverraid"
    learned = test_returns(results, LONG, "mbec++").get(game, {})
    labels = [Job("mbec++", game, LONG, 0, beta).label for beta in BETAS]
    fixed = [test_returns(results, LONG, label).get(game, {}) for label in labels]
    if not learned or not all(fixed):
        return ()
    best = max(fixed, key=lambda by_seed: np.mean(list(by_seed.values())))
    seeds = sorted(set(learned) & set(best))
    if not seeds:
        return ()
    ours, theirs = [learned[seed] for seed in seeds], [best[seed] for seed in seeds]
    return [compare("learned weight − best fixed one", ours, theirs)]


NOT_IN_PAPER = ("act_with_target", "double_q", "select_with_q_only", "p_ask")
"""options of these runs that the paper's agents do not have (docs/atari.md)"""


def protocol(results: ExperimentResults) -> list[list[str]]:
    rows = results.numbers["rows"]
    budgets = sorted({row["steps"] for row in rows})
    deviations = [name for name in NOT_IN_PAPER if any(all_options(row).get(name) for row in rows)]
    others = Counter("; ".join(options) for row in rows if (options := other_options(row)))
    marked = [f"{count} run{'s' * (count != 1)}: {text}" for text, count in sorted(others.items())]
    games = len({row["game"] for row in rows})
    return [
        ["command", "`engram campaign atari`"],
        ["tasks", f"{games} games, classic protocol: {PROTOCOLS['classic'].description}"],
        ["agent steps", " and ".join(f"{steps:,}" for steps in budgets)],
        ["emulator frames", " and ".join(f"{steps * FRAME_SKIP:,}" for steps in budgets)],
        ["runs", results.numbers["state"]],
        [f"other options {atari_page.MARK}", ". ".join(marked) or "–"],
        ["not as in the paper", ", ".join(deviations) or "–"],
        ["return", f"mean of {validation.TEST_GAMES} test games; {atari_page.describe_test(rows)}"],
        ["trained on", describe_machines(rows)],
        ["all rows", "`results/atari/README.md`"],
    ]


def draw(results: ExperimentResults, path: Path) -> None:
    """Draws the learning curves of the budget with most runs."""
    rows = results.numbers["rows"]
    atari_scores.draw_curves(rows, mode(row["steps"] * FRAME_SKIP for row in rows), path)


def simple_claim(games: Sequence[str], sign: int, compared: str) -> Claim:
    names = ", ".join(map(game_title, games[:-1])) + " and " * (len(games) > 1)
    names += game_title(games[-1]) + ", taken together" * (len(games) > 1)
    winner, loser = ("mbec++", "SimPLe") if sign > 0 else ("SimPLe", "mbec++")
    return Claim(
        11,
        f"After 400,000 frames {winner} is better than {loser} on {names}.",
        partial(compare_with_simple, "mbec++", games, sign),
        compared,
        baseline=partial(compare_with_simple, "dqn", games, sign),
    )


IN_STDS = (
    "the test return of each of five seeds minus SimPLe's published mean, in units of its "
    "published standard deviation (Kaiser et al. 2020)"
)
POST_HOC = (
    "the same on this game alone; added after the results were known, because the four games "
    "together hide the one on which MBEC++ is behind"
)

ATARI = Experiment(
    name="atari",
    paper="Tables 1 and 2, the appendix's tables and learning curves, and River Raid's ablation",
    collect=collect,
    command="engram campaign atari",
    presets="mbec++ and dqn: preset `atari`",
    protocol=protocol,
    draw=draw,
    claims=(
        Claim(
            9,
            "On River Raid dynamic consolidation reaches nearly 7,000, the best fixed weight less "
            "than 3,000.",
            learned_beats_fixed_beta,
            "test returns by seed, the learned weight minus the best fixed one, 10 million "
            "emulator frames; the one seed of each in the plan cannot decide it",
        ),
        Claim(
            11,
            "mbec++ is the best of its table in about half of the games.",
            best_of_half,
            "the share of the 14 games of our plan on which it is ahead of the published NEC, MFEC "
            "and DQN at 10 million emulator frames: above a quarter, the share of each of four "
            "equal agents, is as claimed, and below a half the other way",
        ),
        Claim(
            11,
            "mbec++ learns better than dqn.",
            ahead_of_dqn,
            "the share of the 14 games of our plan on which its test return is above that of DQN "
            "with the same code and protocol, 10 million emulator frames: above a half is as "
            "claimed, below it the other way",
        ),
        simple_claim(
            AHEAD_OF_SIMPLE, 1, f"{IN_STDS}, averaged over the four games, 400,000 emulator frames"
        ),
        *(simple_claim((game,), 1, POST_HOC) for game in AHEAD_OF_SIMPLE),
        *(
            simple_claim(
                (game,),
                -1,
                f"SimPLe's mean minus {IN_STDS.partition(' minus')[0]}, in "
                "units of its published standard deviation",
            )
            for game in BEHIND_SIMPLE
        ),
    ),
)
