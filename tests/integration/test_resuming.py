"""A training that stops anywhere goes on exactly, and nothing that was saved is lost."""

import os
import signal

import numpy as np
import pytest
from probes import TapeEnv
from training_helpers import (
    DQN_SMALL,
    MBECPP_SMALL,
    SEEDS,
    assert_same_run,
    error_of,
    read_checkpoint,
    scripted,
)

import engram
from engram import interrupts, runners, training
from engram.agents import Random, agent_name, make
from engram.errors import EngramWarning, Interrupted
from engram.run_dir import RunDir
from engram.training import load, resume, train


class InterruptAt(engram.Hook):
    """Sends a signal to the process at a step."""

    def __init__(self, step, kind=signal.SIGINT):
        self.step, self.kind = step, kind

    def on_log(self, run, progress):
        if progress.step == self.step:
            os.kill(os.getpid(), self.kind)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return train(DQN_SMALL, "cartpole-gaussian", SEEDS, 150, out=out)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_in_jax_resumes_bit_for_bit(tmp_path, kind, uninterrupted):
    out, hooks = tmp_path / "parts", [InterruptAt(57, kind)]
    arguments = DQN_SMALL, "cartpole-gaussian", SEEDS, 150
    sentence = error_of(train, *arguments, out=out, hooks=hooks, kind=Interrupted)
    assert sentence.startswith("Interrupted; all until step 57 is saved")
    assert f"engram resume {out}" in sentence
    assert RunDir.load(out).meta()["step"] == 57
    assert_same_run(uninterrupted, resume(out))


@pytest.mark.slow
def test_mbec_resumes_bit_for_bit_with_its_encoder_of_images(tmp_path):
    """Keys are re-encoded before the interrupt and after it."""
    arguments = make("mbec", "debug", learning_starts=8), "maze3-dynamic", SEEDS, 130
    whole = train(*arguments, out=tmp_path / "whole")
    numbers = np.array([list(row.values()) for row in whole.metrics])
    assert np.isfinite(numbers).all()
    hooks = [InterruptAt(61)]
    error_of(train, *arguments, out=tmp_path / "parts", hooks=hooks, kind=Interrupted)
    assert RunDir.load(tmp_path / "parts").meta()["step"] == 61
    assert_same_run(whole, resume(tmp_path / "parts"))


class InterruptedEnv(TapeEnv):
    """Ctrl-C is pressed in the middle of its 41st step, once."""

    is_armed = False

    def step(self, action):
        if self.num_steps == 40 and InterruptedEnv.is_armed:
            InterruptedEnv.is_armed = False
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


@pytest.mark.parametrize(
    "agent", [DQN_SMALL, pytest.param(MBECPP_SMALL, marks=pytest.mark.slow)], ids=agent_name
)
def test_a_run_in_gymnasium_resumes_bit_for_bit_within_an_episode(tmp_path, agent):
    def make_env():
        return InterruptedEnv(rewards=(1.0, 2.0, 0.5, -1.0, 3.0, 1.0, 0.0))

    arguments = agent, make_env, SEEDS, 160, 2
    whole = train(*arguments, out=tmp_path / "whole")
    InterruptedEnv.is_armed = True
    sentence = error_of(train, *arguments, out=tmp_path / "parts", kind=Interrupted)
    assert "all until step 82 is saved" in sentence
    assert_same_run(whole, resume(tmp_path / "parts", task=make_env))


def test_an_interrupt_before_the_first_step_leaves_a_run_that_resumes(tmp_path, monkeypatch):
    make_env = scripted(rewards=(1.0, 2.0, 0.5))
    whole = train(DQN_SMALL, make_env, SEEDS, 40, out=tmp_path / "whole")
    start = runners.GymRunner.start
    with monkeypatch.context() as patch:
        interrupt = lambda runner: (os.kill(os.getpid(), signal.SIGINT), start(runner))  # noqa: E731
        patch.setattr(runners.GymRunner, "start", interrupt)
        arguments = DQN_SMALL, make_env, SEEDS, 40
        sentence = error_of(train, *arguments, out=tmp_path / "parts", kind=Interrupted)
    assert sentence.startswith("Interrupted; all until step 1 is saved")
    assert_same_run(whole, resume(tmp_path / "parts", make_env))


class KillAt(engram.Hook):
    """Ends the training without giving it a chance to save."""

    def __init__(self, step):
        self.step = step

    def on_log(self, run, progress):
        if progress.step == self.step:
            raise SystemExit


def test_a_killed_run_resumes_from_its_last_checkpoint_bit_for_bit(tmp_path, uninterrupted):
    out = tmp_path / "killed"
    with pytest.raises(SystemExit):
        train(DQN_SMALL, "cartpole-gaussian", SEEDS, 150, out=out, hooks=[KillAt(57)])
    assert RunDir.load(out).meta()["step"] < 57
    assert_same_run(uninterrupted, resume(out))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_acts_as_before_the_training(kind):
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with interrupts.interrupt_flag() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), kind)
        assert interrupted()
        assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before


def test_an_environment_that_cannot_be_replayed_resumes_with_a_truncated_episode(tmp_path):
    make_env, out = scripted(rewards=(1.0,) * 9, ignores_seed=True), tmp_path / "run"
    hooks = [InterruptAt(104)]
    error_of(train, Random(), make_env, [0], 200, out=out, hooks=hooks, kind=Interrupted)
    episodes_before = int(read_checkpoint(out)[0][3][0, 0])
    assert resume(out, task=make_env).curves[0][0][-1] == 200
    episodes = int(read_checkpoint(out)[0][3][0, 0])
    assert episodes == episodes_before + 1 + (200 - 104) // 9


def test_a_fault_of_an_environment_is_named_with_seed_and_step_and_the_run_resumes(tmp_path):
    make_env, out = scripted(faults={90: RuntimeError("out of fuel")}), tmp_path / "run"
    sentence = error_of(train, Random(), make_env, [5], 120, out=out, kind=runners.EnvironmentFault)
    assert sentence.startswith("The environment make_scripted ")
    assert "with seed 5 at step 90: step raised RuntimeError (out of fuel)" in sentence
    assert "; all until step 90 is saved: go on with `engram.resume(" in sentence
    assert resume(out, task=scripted()).curves[5][0][-1] == 120


def test_sys_exit_in_an_environment_is_a_fault_like_any_other(tmp_path):
    make_env, out = scripted(faults={90: SystemExit(0)}), tmp_path / "run"
    sentence = error_of(train, Random(), make_env, [5], 120, out=out, kind=runners.EnvironmentFault)
    assert "with seed 5 at step 90: step raised SystemExit (0)" in sentence
    assert "; all until step 90 is saved" in sentence
    assert RunDir.load(out).meta()["step"] == 90


def test_a_run_killed_before_its_first_checkpoint_begins_when_resumed(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        raise_interrupt = lambda runner: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
        patch.setattr(runners.GymRunner, "start", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(DQN_SMALL, scripted(), [3], 40, out=out)
    hint = f"has no checkpoint yet: let `engram.resume({str(out)!r}, task=...)` train it."
    assert hint in error_of(load, out)
    begun, whole = resume(out, scripted()), train(DQN_SMALL, scripted(), [3], 40)
    np.testing.assert_array_equal(begun.curves[3][1], whole.curves[3][1])
    assert begun.metrics == whole.metrics


@pytest.mark.parametrize("what", ["device", "nearest-neighbour search"])
def test_a_run_that_is_resumed_where_rounding_differs_says_so_once(tmp_path, monkeypatch, what):
    arguments, out = (make("mfec", "debug"), "cartpole", [0], 60), tmp_path / "run"
    computed_by = training.Training._computed_by
    with monkeypatch.context() as patch:
        other = lambda run: computed_by(run) | {what: "another"}  # noqa: E731
        patch.setattr(training.Training, "_computed_by", other)
        error_of(train, *arguments, out=out, hooks=[InterruptAt(20)], kind=Interrupted)
    with pytest.warns(EngramWarning, match=f"differs: the {what} was another and is ") as caught:
        error_of(resume, out, hooks=[InterruptAt(40)], kind=Interrupted)
    assert len(caught) == 1
    resume(out)


def test_an_agent_without_memory_does_not_warn_of_the_search(tmp_path, monkeypatch):
    out = tmp_path / "run"
    arguments = DQN_SMALL, "cartpole", [0], 60
    error_of(train, *arguments, out=out, hooks=[InterruptAt(20)], kind=Interrupted)
    monkeypatch.setattr("engram.episodic.knn.search_name", lambda: "another")
    resume(out)


def test_a_run_that_has_lost_its_checkpoint_is_not_begun_anew(tmp_path):
    train(Random(), "cartpole", [3], 40, out=tmp_path / "run")
    RunDir.load(tmp_path / "run").checkpoint.unlink()
    curves = (tmp_path / "run" / "curves.csv").read_bytes()
    assert "has lost its checkpoint: restore it from a copy" in error_of(resume, tmp_path / "run")
    assert (tmp_path / "run" / "curves.csv").read_bytes() == curves
