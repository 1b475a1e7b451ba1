"""What the Atari campaign's ledger says of the paper's claims."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
from scipy.stats import binomtest

from engram.errors import EngramError
from engram.experiments import campaign, pace, scoreboard
from engram.experiments.campaign import CURVES, LONG, NEXT, SHORT
from engram.experiments.experiment import Claim, Experiment, Found
from engram.experiments.running import machines
from engram.experiments.verdicts import Test, compare
from engram.report.statistics import interval, mean
from engram.tasks.atari import PROTOCOLS, SKIP

GAMES = {*CURVES, *NEXT}
AHEAD = ("asterix", "breakout", "fishing_derby", "hero")
"""games on which the paper has MBEC++ ahead of SimPLe"""
SEEDS = 5
"""that the paper has"""


def gather(results: Path) -> dict[str, Any]:
    """The ledger's runs of its plan: claims are judged by `rows`, trained as it has them now; `shown` is what there is to show."""
    planned = {job.name for job in campaign.PLAN}
    try:
        known = [row for row in campaign.rows(results) if campaign.of_row(row).name in planned and np.isfinite(row["test_score"])]
        rows = [row for row in known if not campaign.other_options(row)]
    except (KeyError, TypeError) as error:
        raise EngramError(f"A file in {results / 'atari'} is not what the campaign writes ({error}): remove it.") from error
    others = f", and {len(known) - len(rows)} that were trained otherwise" if len(known) > len(rows) else ""
    return {"rows": rows, "shown": campaign.latest(known), "state": f"{len(rows)} of {len(planned)} runs{others}"} if known else {}


def scores(found: Found, steps: int, label: str) -> dict[str, dict[int, float]]:
    """Test scores by game and seed."""
    by_game: dict[str, dict[int, float]] = {}
    for row in found.numbers["rows"]:
        job = campaign.of_row(row)
        if (job.steps, job.label) == (steps, label):
            by_game.setdefault(job.game, {})[job.seed] = row["test_score"]
    return by_game


def ahead_of_simple(found: Found, games: Sequence[str] = AHEAD) -> Sequence[Test]:
    """On average over games."""
    ours, simple = scores(found, SHORT, "mbec++"), scoreboard.simple()
    if any(len(ours.get(game, {})) < SEEDS for game in games):
        return ()
    gaps = [np.mean([(ours[game][seed] - simple[game].mean) / simple[game].std for game in games]) for seed in range(SEEDS)]
    return [compare(f"{', '.join(map(titled, games))}, in standard deviations of SimPLe", gaps, 0.0)]


def titled(game: str) -> str:
    return game.replace("_", " ").title()


def ahead_of_dqn(found: Found) -> Sequence[Test]:
    """By games, of each of which there is one seed; counted, since scores of one can outweigh those of all others. Ties do not count."""
    ours, theirs = (means(scores(found, LONG, agent)) for agent in ("mbec++", "dqn"))
    if GAMES - set(ours) or GAMES - set(theirs):
        return ()
    return share([ours[game] > theirs[game] for game in sorted(GAMES) if ours[game] != theirs[game]], 0.5, 0.5)


def is_best_of_half(found: Found) -> Sequence[Test]:
    """That of four agents one is best in half of the games is more than a quarter, and not less than half."""
    ours = means(scores(found, LONG, "mbec++"))
    others = [scores for name, scores in scoreboard.published(LONG * SKIP).items() if not name.startswith("MBEC++")]
    if GAMES - set(ours):
        return ()
    return share([ours[game] > max(scores[game] for scores in others) for game in sorted(GAMES)], 0.25, 0.5)


def means(by_game: dict[str, dict[int, float]]) -> dict[str, float]:
    """Of the seeds."""
    return {game: float(np.mean(list(by_seed.values()))) for game, by_seed in by_game.items()}


def share(are: Sequence[bool], more: float, less: float) -> Sequence[Test]:
    """Whether the share of games for which something is so is more than the one number; or, the other way, less than the other. What it
    exceeds the first by is given."""
    if not are:
        return ()
    low, high = interval(np.array(are, float) - more, mean)
    count, so = len(are), int(np.sum(are))
    for_it, against = binomtest(so, count, more, alternative="greater"), binomtest(so, count, less, alternative="less")
    return [Test(f"share of {count} games, less {more:g}", so / count - more, low, high, float(for_it.pvalue), float(against.pvalue))]


def weights(found: Found) -> Sequence[Test]:
    """On River Raid: the learnt weight against the best of the fixed ones."""
    learnt = scores(found, LONG, "mbec++").get("riverraid", {})
    fixed = [scores(found, LONG, campaign.label("mbec++", beta)).get("riverraid", {}) for beta in campaign.BETAS]
    if not learnt or not all(fixed):
        return ()
    best = max(fixed, key=lambda by_seed: np.mean(list(by_seed.values())))
    seeds = sorted(set(learnt) & set(best))
    if not seeds:
        return ()
    return [compare("learnt weight, best fixed one", [learnt[seed] for seed in seeds], [best[seed] for seed in seeds])]


OURS = ("act_by_target", "double", "q_chooses", "p_ask")
"""options that the paper's agents have not, which runs may have (docs/atari.md)"""


def card(found: Found) -> list[list[str]]:
    """How the runs came about."""
    rows = found.numbers["shown"]
    budgets = sorted({row["steps"] for row in rows})
    return [
        ["command", "`engram campaign atari`"],
        ["tasks", f"{len({row['game'] for row in rows})} games, classic protocol: {PROTOCOLS['classic'].about}"],
        ["agent steps", " and ".join(f"{steps:,}" for steps in budgets)],
        ["emulator frames", " and ".join(f"{steps * SKIP:,}" for steps in budgets)],
        ["runs", found.numbers["state"]],
        ["otherwise than the paper", ", ".join(name for name in OURS if any(row["options"].get(name) for row in rows)) or "–"],
        ["score", f"mean of {pace.TEST_GAMES} test games; {campaign.judged(rows)}"],
        ["trained on", machines(rows)],
        ["all of them", "`results/atari/README.md`"],
    ]


def draw(found: Found, path: Path) -> None:
    """The curves of the budget of which there is most."""
    rows = found.numbers["shown"]
    scoreboard.draw_curves(rows, mode(row["steps"] * SKIP for row in rows), path)


ATARI = Experiment(
    name="atari",
    paper="Tables 1 and 2, the appendix's tables and learning curves, and River Raid's ablation",
    gather=gather,
    by="engram campaign atari",
    card=card,
    draw=draw,
    claims=(
        Claim(
            9,
            "On River Raid dynamic consolidation reaches nearly 7,000, the best fixed weight less than 3,000.",
            weights,
            "test scores by seed, the learnt weight minus the best of the fixed ones, 10 million emulator frames; one seed of each, as is "
            "planned, cannot decide it",
        ),
        Claim(
            11,
            "MBEC++ is the best of its table in about half of the games.",
            is_best_of_half,
            "the share of the 14 games of our plan on which ours is above the published NEC, MFEC and DQN at 10 million emulator frames; "
            "as claimed is more than a quarter, which each of four alike would have, and the other way less than a half",
        ),
        Claim(
            11,
            "MBEC++ learns better than DQN.",
            ahead_of_dqn,
            "the share of the 14 games of our plan on which its test score is above that of DQN by the same code and protocol, 10 million "
            "emulator frames; as claimed is more than half, the other way less",
        ),
        Claim(
            11,
            "After 400,000 frames MBEC++ is better than SimPLe on Asterix, Breakout, Fishing Derby and Hero, taken together.",
            ahead_of_simple,
            "the test score of each of five seeds less SimPLe's published mean, in units of its published standard deviation (Kaiser et "
            "al. 2020), averaged over the four games, 400,000 emulator frames",
        ),
        *(
            Claim(
                11,
                f"After 400,000 frames MBEC++ is better than SimPLe on {titled(game)}.",
                partial(ahead_of_simple, games=(game,)),
                "the same on this game alone; asked after the scores were known, since the four together hide the one that is behind",
            )
            for game in AHEAD
        ),
    ),
)
