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
)

MARK = "†"
"""marks rows with other options than a run would have now"""
HEAD = (
    "game",
    "agent",
    "emulator frames",
    "seeds",
    "test return",
    "training return",
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

- *Test return*: mean over {validation.TEST_GAMES} games and over seeds; {describe_test(rows)}.
- *Training return*: mean of the last 10 games of training.
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
        return [*cells, "–", "–", "–", "–"]
    test = float(np.mean([row["test_return"] for row in own]))
    # A run in which no game has ended has no training return.
    training = [row["training_return"] for row in own if row["training_return"] is not None]
    return [
        *cells,
        f"{test:,.1f}",
        f"{np.mean(training):,.1f}" if training else "–",
        f"{atari_scores.human_normalized(test, game):,.1f}",
        value_and_return([row["curve"] for row in own]),
    ]


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
