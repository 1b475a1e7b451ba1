"""The Atari campaign: sessions add complete rows, and stopped ones continue."""

import json
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from atari_rollouts import use_drift

from engram import vec_evaluator
from engram.agents import make
from engram.cli import main
from engram.errors import EngramError, Interrupted
from engram.paper import atari_page, atari_runs, campaign, validation
from engram.paper.atari_runs import Job

PLAN = (Job("dqn", "breakout", 160, 0), Job("dqn", "pong", 160, 1))
OTHER = Job("dqn", "hero", 160, 0)
TINY = {
    "hidden_size": 8,
    "num_layers": 1,
    "batch_size": 4,
    "buffer_size": 200,
    "learning_starts": 8,
    "learning_rate": 1e-2,
    "encoder": "nature",
}


@pytest.fixture(scope="module", autouse=True)
def small():
    """A tiny network, few short games to validate and test it, and memory for many runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari_runs, "make_agent", lambda job: make("dqn", **TINY))
        patch.setattr(campaign, "memory_size", lambda: 10**12)
        patch.setattr("engram.envs.atari.MAX_FRAMES", 200)
        patch.setattr(vec_evaluator, "NUM_EVAL_ENVS", 2)
        for name, value in {"VALIDATIONS": 4, "VALIDATION_GAMES": 1, "TEST_GAMES": 3}.items():
            patch.setattr(validation, name, value)
        yield


def read(job, results):
    return json.loads(job.file(results).read_text())


def test_runs_of_one_agent_and_budget_share_a_program_if_they_fit(tmp_path, monkeypatch):
    plan = (*PLAN, Job("mbec++", "pong", 160, 0), Job("dqn", "pong", 1_600_000, 0))
    assert campaign.next_batch(tmp_path, 8, plan) == list(PLAN)
    assert campaign.next_batch(tmp_path, 1, plan) == [PLAN[0]]
    for memory in (None, 1):  # unknown, and too little: one run is always tried
        monkeypatch.setattr(campaign, "memory_size", lambda memory=memory: memory)
        assert campaign.next_batch(tmp_path, 8, plan) == [PLAN[0]]


class Session(NamedTuple):
    """What a session left that was killed before it wrote its rows, and then continued."""

    results: Path
    missing_when_killed: list[Job]
    lines: list[str]
    """what the second session reported"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A session of two of three runs; its second part fails if it trains."""
    results, lines = tmp_path_factory.mktemp("results"), []
    run = partial(campaign.run_session, results, results / "scratch", 4.0)
    plan, only = (*PLAN, OTHER), ("breakout-dqn", "pong")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "row", None)  # killed after the test, before a row is written
        with pytest.raises(TypeError):
            run(2, print, plan, only)
    missing = atari_runs.missing(results, PLAN)
    with pytest.MonkeyPatch.context() as patch:
        advance = "engram.runners.atari.AtariRunner.advance"
        patch.setattr(advance, lambda *_: pytest.fail("it was trained already"))
        run(1, lines.append, plan, only)
    return Session(results, missing, lines)


def test_stopped_batch_continues_as_a_whole_without_training_twice(session):
    assert session.missing_when_killed == list(PLAN)
    assert session.lines[0] == "2 runs: breakout-dqn-0k-0, pong-dqn-0k-1"
    assert session.lines[-1] == "All runs with breakout-dqn pong in their names are done."
    assert not atari_runs.missing(session.results, PLAN)
    assert not list((session.results / "scratch").rglob("*.safetensors"))


def test_session_adds_complete_rows(session):
    row = read(PLAN[0], session.results)
    assert (row["game"], row["seed"], row["steps"]) == ("breakout", 0, 160)
    assert (row["emulator_frames"], row["runs_in_one_program"]) == (640, 2)
    assert len(row["test_games"]) == 3
    assert row["test_return"] == pytest.approx(np.mean(row["test_games"]))
    assert not any(np.isnan(row["validation"]))
    curve = row["curve"]
    assert curve["steps"][-1] == 160
    assert np.isfinite(curve["q_max"]).all()
    assert len(curve["q_max"]) == len(curve["return"]) == len(curve["steps"])


def test_session_of_selected_runs_leaves_the_others(session):
    results, plan = session.results, (*PLAN, OTHER)
    assert atari_runs.missing(results, plan) == [OTHER]
    page = (results / "atari" / "README.md").read_text()
    assert page == atari_page.page(results, plan)
    assert "| breakout | dqn | 640 | 1 of 1 |" in page
    assert "| hero | dqn | 640 | 0 of 1 | – | – | – | – |" in page


def test_selection_without_a_run_is_refused(tmp_path):
    with pytest.raises(EngramError, match="'tetris' in its name: names are like breakout-dqn-0k"):
        campaign.run_session(tmp_path, tmp_path, 4.0, 8, print, PLAN, ("pong", "tetris"))


@pytest.mark.slow
def test_session_that_is_not_interrupted_finishes_the_plan(tmp_path):
    lines = []
    campaign.run_session(tmp_path, tmp_path / "scratch", 4.0, 8, lines.append, PLAN)
    assert lines[0] == "2 runs: breakout-dqn-0k-0, pong-dqn-0k-1"
    assert lines[-1] == "All runs of the plan are done."
    assert not atari_runs.missing(tmp_path, PLAN)
    assert (tmp_path / "atari" / "README.md").read_text() == atari_page.page(tmp_path, PLAN)


def test_session_without_time_trains_nothing(tmp_path):
    with pytest.raises(Interrupted, match=r"No time is left to start .* repeat the command"):
        campaign.run(PLAN[:1], tmp_path, tmp_path / "scratch", time.monotonic() - 1)
    assert atari_runs.missing(tmp_path, PLAN) == list(PLAN)


@pytest.mark.parametrize(
    "agent",
    [
        make("dqn", **TINY),
        pytest.param(
            make("mbec++", **TINY, memory_size=64, num_neighbours=3), marks=pytest.mark.slow
        ),
    ],
    ids=["dqn", "mbec++"],
)
def test_each_run_is_tested_with_its_best_validated_policy(tmp_path, monkeypatch, agent):
    monkeypatch.setattr(atari_runs, "make_agent", lambda job: agent)
    # The first of two equal policies is kept.
    validations = np.array([[1.0, 5.0], [4.0, 2.0], [2.0, 2.0], [4.0, 7.0]])
    calls = []

    def evaluate(evaluator, states, seeds, episodes):
        calls.append((jax.tree.map(np.array, states), seeds))
        returns = [*validations, np.zeros(2)][len(calls) - 1]
        return np.tile(returns[:, None], episodes)

    monkeypatch.setattr(vec_evaluator.VecEvaluator, "evaluate", evaluate)
    campaign.run(PLAN, tmp_path, tmp_path / "scratch", time.monotonic() + 500)
    *validated, (tested, test_seeds) = calls
    assert [seeds for _, seeds in validated] == [[10_000, 10_001]] * 4
    assert test_seeds == [0, 1]
    for r, best in enumerate((1, 3)):
        is_tested = [
            all(
                np.array_equal(a[r], b[r])
                for a, b in zip(jax.tree.leaves(tested), jax.tree.leaves(states), strict=True)
            )
            for states, _ in validated
        ]
        assert np.flatnonzero(is_tested).tolist() == [best]
        assert read(PLAN[r], tmp_path)["validation"] == validations[:, r].tolist()


def test_atari_has_no_parts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["reproduce", "atari", "--part", "0"])
    message = "atari has no parts: it is trained by `engram campaign atari`."
    assert message in capsys.readouterr().err


def test_agent_that_cannot_be_evaluated_is_not_trained(tmp_path, monkeypatch):
    use_drift(monkeypatch)
    start = "engram.runners.atari.AtariRunner.start"
    monkeypatch.setattr(start, lambda runner: pytest.fail("it is trained"))
    act = "engram.agents.dqn.DQN.act_greedy"
    monkeypatch.setattr(act, lambda agent, state, *_: state.missing_field)
    with pytest.raises(AttributeError, match="missing_field"):
        campaign.run_session(tmp_path, tmp_path / "scratch", 4.0, 1, print, PLAN[1:])
