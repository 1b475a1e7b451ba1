"""The page of `results/atari`: every run of the plan, and its returns next to published ones."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engram.envs.atari import FRAME_SKIP, PROTOCOLS
from engram.files import atomic_write
from engram.page import markdown_table
from engram.paper import atari_scores, validation
from engram.paper.atari_runs import (
    PLAN,
    Job,
    Row,
    group_of,
    job_of,
    latest,
    other_options,
    read_rows,
    scored_steps,
)

MARK = "†"
"""marks rows with other options than a run would have now"""
HEAD = (
    "game",
    "agent",
    "emulator frames",
    "seeds",
    "training score",
    "test return",
    "test / training, %",
    "human-normalized, %",
    "Q max, realized return",
)


def write(results: Path, plan: Sequence[Job] = PLAN) -> None:
    """Writes the page with its figures."""
    atari_scores.draw(latest(read_rows(results)), results / "atari")
    with atomic_write(results / "atari" / "README.md") as file:
        file.write(page(results, plan).encode())


def page(results: Path, plan: Sequence[Job] = PLAN) -> str:
    rows = latest(read_rows(results))
    groups: dict[tuple, int] = Counter((job.game, job.label, job.steps) for job in plan)
    lines = [table_line(group, count, rows) for group, count in groups.items()]
    return f"""\
# Atari

Written by `engram campaign atari` and `engram report` from the files in this folder; never by hand.

Agent steps are a quarter of the emulator frames. Classic protocol:
{PROTOCOLS["classic"].description}.

- *Training score*: mean over all games of the last {window(rows)};
  of older rows, over their curves there. No policy is chosen for it.
- *Test return*: mean over {validation.TEST_GAMES} games and over seeds; {describe_test(rows)}.
- *Test / training*: both human-normalized, and their ratio. Below 70 the policy is not held: it
  depends on still learning. A dash where training is no better than random play.
- *Human-normalized*: by the constants of DQN Zoo (`src/engram/data`).
- *Q max, realized return*: the agent's value of its best action, and the discounted return of
  clipped rewards that followed, in the last tenth of training.
{describe_other_options(rows)}
{markdown_table(HEAD, lines)}{atari_scores.sections(rows)}"""


def table_line(group: tuple[str, str, int], num_planned: int, rows: Sequence[Row]) -> list[str]:
    game, label, steps = group
    own = [row for row in rows if group_of(row) == group]
    mark = f" {MARK}" if any(map(other_options, own)) else ""
    cells = [game, label, f"{steps * FRAME_SKIP:,}", f"{len(own)} of {num_planned}{mark}"]
    if not own:
        return [*cells, "–", "–", "–", "–", "–"]
    test = float(np.mean([row["test_return"] for row in own]))
    training = float(np.mean([training_score(row) for row in own]))
    return [
        *cells,
        "–" if np.isnan(training) else f"{training:,.1f}",
        f"{test:,.1f}",
        share_held(test, training, game),
        f"{atari_scores.human_normalized(test, game):,.1f}",
        value_and_return([row["curve"] for row in own]),
    ]


def training_score(row: Row) -> float:
    """Mean return of the games at the end of training; NaN if none has ended there."""
    if "training_score" in row:
        return float("nan") if row["training_score"] is None else row["training_score"]
    steps, returns = (np.array(row["curve"][name], float) for name in ("steps", "return"))
    last = returns[steps > row["steps"] - scored_steps(row["steps"])]
    return float(np.mean(last))


def share_held(test: float, training: float, game: str) -> str:
    """The test return as a share of the training score, both human-normalized."""
    tested, trained = (atari_scores.human_normalized(x, game) for x in (test, training))
    return f"{100 * tested / trained:.0f}" if trained > 0 else "–"


def window(rows: Sequence[Row]) -> str:
    """The steps of the training score, in words."""
    budgets = sorted({row["steps"] for row in rows})
    frames = [f"{FRAME_SKIP * scored_steps(steps):,}" for steps in budgets]
    return f"{' or '.join(frames) or 'million'} emulator frames"


def value_and_return(curves: Sequence[dict[str, list[float]]]) -> str:
    """Means of Q max and realized return over the last tenth of training."""
    ends = []
    for curve in curves:
        if "realized_return" in curve:
            last = -max(1, len(curve["q_max"]) // 10)
            ends.append([np.mean(curve[name][last:]) for name in ("q_max", "realized_return")])
    return ", ".join(f"{mean:.1f}" for mean in np.mean(ends, axis=0)) if ends else "–"


def describe_test(rows: Sequence[Row]) -> str:
    """The test protocol of the rows."""
    current = [row for row in rows if row["test"] == job_of(row).test]
    texts = Counter(row["test"] for row in rows if row["test"] != job_of(row).test)
    parts = [f"{text} ({count} runs)" for text, count in sorted(texts.items())]
    if current:
        epsilon = PROTOCOLS["classic"].eval_epsilon
        parts.insert(
            0,
            f"whole games, unclipped rewards, epsilon {epsilon}, by the policy that was best in "
            f"{validation.VALIDATIONS} validations of {validation.VALIDATION_GAMES} games "
            f"({len(current)} runs)",
        )
    return "; ".join(parts) or "no run is done yet"


def describe_other_options(rows: Sequence[Row]) -> str:
    """A list of the options in which marked rows differ from a run now."""
    differences = Counter("; ".join(options) for row in rows if (options := other_options(row)))
    if not differences:
        return ""
    lines = [
        f"- {count} run{'s' * (count != 1)}: {text}" for text, count in sorted(differences.items())
    ]
    return (
        f"\n{MARK} Trained with other options than a run would have now, here and in all tables "
        "and figures below:\n\n" + "\n".join(lines) + "\n"
    )
