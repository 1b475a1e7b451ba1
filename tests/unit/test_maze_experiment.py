"""The maze experiment: its measure by hand, and its claims on results made up by hand."""

from pathlib import Path

import numpy as np
import pytest

from engram.paper.experiment import ExperimentResults
from engram.paper.maze import (
    MAZE,
    NOISY_TASKS,
    OURS,
    PAPERS,
    RUNS,
    STRONG_NOISE,
    TRAP,
    steps_to_complete,
)
from engram.paper.runs import RunResult, group_by_program
from engram.paper.verdicts import verdict

STEPS = np.array([500, 1_000, 1_500])


def curves(*completed):
    return {seed: (STEPS, np.array(counts)) for seed, counts in enumerate(completed)}


@pytest.mark.parametrize(
    ("completed", "steps"),
    [
        ((0, 50, 150), 1_250),  # half of the way from 50 to 150
        ((0, 100, 100), 1_000),  # not the end of a plateau
        ((200, 300, 400), 250),  # before the first point
        ((0, 0, 99), np.inf),
    ],
)
def test_steps_to_100_episodes_are_interpolated(completed, steps):
    assert steps_to_complete(curves(completed))[0] == steps


def test_each_seed_has_its_own_steps():
    assert steps_to_complete(curves((0, 100, 100), (0, 0, 100))).tolist() == [1_000, 1_500]


def made_up(completed):
    """Results in which an agent completes so many episodes, plus the seed, on every task."""
    runs = {}
    for run in RUNS:
        counts = completed.get((run.task_name, run.label), 50) + np.arange(20)
        by_seed = curves(*(np.full(3, count) for count in counts))
        summary = {name: {"per_seed": counts.tolist()} for name in ("final", "auc", "completed")}
        runs[run.task_name, run.label] = RunResult(summary | {"steps": 5_000}, by_seed, by_seed)
    return ExperimentResults(runs, {})


def verdict_of(text, results):
    (claim,) = [claim for claim in MAZE.claims if text in claim.text]
    return verdict(claim.comparisons(results))


def test_a_lead_at_every_rate_is_needed():
    ahead = {(task, OURS): 100 for task in STRONG_NOISE}
    assert verdict_of("at every rate", made_up(ahead)) == "holds"
    behind_dqn = ahead | {(STRONG_NOISE[0], "dqn"): 200}
    assert verdict_of("at every rate", made_up(behind_dqn)) == "does not hold"


def test_the_paper_is_judged_by_its_own_options():
    ours_ahead = {(TRAP, OURS): 100}
    assert verdict_of("With traps MBEC is best", made_up(ours_ahead)) == "undecided"
    papers_ahead = {(TRAP, PAPERS): 100}
    assert verdict_of("With traps MBEC is best", made_up(papers_ahead)) == "holds"


def test_all_models_must_be_in_time_without_noise():
    task = NOISY_TASKS[0]
    fast = {(task, label): 300 for label in (PAPERS, "dqn", "mfec")}
    assert verdict_of("Without noise all models", made_up(fast)) == "holds"
    slow = fast | {(task, "dqn"): 0}
    assert verdict_of("Without noise all models", made_up(slow)) == "does not hold"


def test_runs_that_differ_in_dropout_share_a_program():
    of_dqn = [run for run in RUNS if run.task == "maze3-noisy" and run.label == "dqn"]
    assert len(group_by_program(of_dqn)) == 1
    assert len({run.file(Path()) for run in of_dqn}) == len(of_dqn) == 5
