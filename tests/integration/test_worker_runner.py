"""Environments in worker processes: runs are those of `GymRunner`, faults are told, none stay."""

import functools
import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from probes import RecordingAgent, TapeEnv
from runner_helpers import assert_same_records, records

import engram
from engram.agents import Random
from engram.envs import Task, get_task
from engram.errors import EngramError
from engram.runners import GymRunner, JaxRunner, WorkerRunner, make_runner
from engram.runners.workers import Worker
from engram.types import Spec

SPEC = Spec((2,), 2, num_envs=2, num_iterations=12)
SEEDS = [3, 4]


def leave(env, reward, done):
    os._exit(7)


def kill(env, reward, done):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def wrong_shape(env, reward, done):
    return np.zeros(3), reward, done, False, {}


def no_observation(env, reward, done):
    return None, reward, done, False, {}


def a_text(env, reward, done):
    return "a step"


class FailsToReset(TapeEnv):
    def reset(self, *, seed=None, options=None):
        if self.num_steps:
            raise OSError("no more mazes")
        return super().reset(seed=seed)


class CannotBeMade(TapeEnv):
    def __init__(self):
        raise ImportError("no mazes here")


def tape_task(make=TapeEnv, **options):
    return Task("tape", "", functools.partial(make, **options))


def start(runner_class, task, second_task=None):
    """A runner of two recording agents, the second perhaps on a task of its own."""
    runner = runner_class(RecordingAgent(), [task, second_task or task], SEEDS, SPEC)
    try:
        runner.start()
    except BaseException:
        runner.close()
        raise
    return runner


@pytest.fixture(autouse=True)
def no_worker_stays():
    yield
    for child in multiprocessing.active_children():
        child.join(5)
    assert not multiprocessing.active_children()


def test_runs_are_those_of_a_gym_runner():
    received, returns = [], []
    for runner_class in (GymRunner, WorkerRunner):
        runner = start(runner_class, tape_task(), tape_task(rewards=(5.0, -1.0), truncate=True))
        returns.append(np.concatenate([runner.advance(5), runner.advance(7)]))
        received.append(records(runner))
        runner.close()
    assert_same_records(*received)
    np.testing.assert_array_equal(*returns)
    assert np.nanmean(returns[0][:, 0]) == 6
    # Seeds differ, and so do environments.
    assert len(np.unique(received[0]["observation"][:, 0, :, 1])) == 4


def test_a_restored_run_continues_as_if_never_stopped():
    whole = start(WorkerRunner, tape_task())
    whole.advance(12)
    first = start(WorkerRunner, tape_task())
    first.advance(5)
    saved = first.save()
    first.close()
    second = WorkerRunner(RecordingAgent(), [tape_task()] * 2, SEEDS, SPEC)
    second.restore(*saved)
    second.advance(7)
    assert_same_records(records(second), records(whole))
    whole.close()
    second.close()


rare = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("make", "faults", "step", "sentence"),
    [
        (TapeEnv, {5: ValueError("too\nhot.")}, 10, "step raised ValueError (too hot) in probes."),
        (TapeEnv, {5: wrong_shape}, 10, "observation has shape (3,) instead of (2,)"),
        rare(TapeEnv, {5: no_observation}, 10, "observation has dtype object instead of float32"),
        rare(TapeEnv, {5: a_text}, 10, "it returned a str instead of the five"),
        (TapeEnv, {5: SystemExit(0)}, 10, "step raised SystemExit (0)"),
        rare(TapeEnv, {5: leave}, 10, "step ended its process with exit code 7."),
        (TapeEnv, {5: kill}, 10, "its process was ended by SIGKILL during step"),
        rare(FailsToReset, {}, 6, "reset raised OSError (no more mazes) in test_worker_runner."),
    ],
    ids=["exception", "shape", "nothing", "text", "sys.exit", "exit", "kill", "reset"],
)
def test_a_fault_names_environment_seed_and_step(make, faults, step, sentence):
    runner = start(WorkerRunner, tape_task(), tape_task(make, faults=faults))
    returns = runner.advance(12)
    message = str(runner.fault)
    assert isinstance(runner.fault, EngramError)
    assert f"The environment tape failed with seed 4 at step {step}: " in message
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message
    assert len(returns) == runner.iteration == step // 2
    tree, notes = runner.save()
    runner.close()
    resumed = WorkerRunner(RecordingAgent(), [tape_task()] * 2, SEEDS, SPEC)
    resumed.restore(tree, notes)
    resumed.advance(2)
    assert resumed.fault is None
    resumed.close()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="the system has no masks")
def test_a_worker_survives_ctrl_c_before_it_is_ready():
    def interrupt_at_once(worker, *arguments):
        make(worker, *arguments)
        os.kill(worker._process.pid, signal.SIGINT)

    make = Worker.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "__init__", interrupt_at_once)
        runner = start(WorkerRunner, tape_task())
    runner.advance(2)
    runner.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_an_environment_that_cannot_be_made_is_told_from_the_worker():
    with pytest.raises(EngramError, match=r"ImportError \(no mazes here\) in test_worker_runner"):
        start(WorkerRunner, tape_task(), Task("tape", "", CannotBeMade))


def test_a_function_within_a_function_is_refused():
    with pytest.raises(EngramError, match="make it by a function at the top level of a module"):
        start(WorkerRunner, Task("tape", "", lambda: TapeEnv()))


def test_ctrl_c_does_not_reach_the_workers():
    runner = start(WorkerRunner, tape_task())
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGINT)
    time.sleep(0.2)
    runner.advance(12)
    assert runner.fault is None
    runner.close()


def test_tasks_that_ask_for_workers_train_in_them_and_resume(tmp_path):
    task = Task("tape", "", functools.partial(TapeEnv), steps=40, num_envs=2, in_workers=True)
    alone = engram.train(Random(), Task("tape", "", TapeEnv, steps=40, num_envs=2), seeds=2)
    halves = {"out": tmp_path / "run", "hooks": [StopAt(20)]}
    assert engram.train(Random(), task, seeds=2, **halves).stopped
    result = engram.resume(tmp_path / "run", task=task)
    for seed in (0, 1):
        np.testing.assert_array_equal(result.curves[seed], alone.curves[seed])


class StopAt(engram.Hook):
    def __init__(self, step):
        self.step = step

    def on_log(self, run, progress):
        if progress.step >= self.step:
            run.stop("enough")


def test_the_fastest_runner_is_chosen():
    ours, theirs = get_task("pickup3-jax"), get_task("pickup3")
    for task, num_envs, expected in (
        (ours, 4, JaxRunner),
        (theirs, 4, WorkerRunner),
        (theirs, 1, GymRunner),
    ):
        spec = ours.spec(num_envs)
        assert type(make_runner(Random(), [task], [0], spec)) is expected


def test_workers_are_chosen_by_number_kept_with_the_run_and_change_no_result(tmp_path):
    curves = []
    for workers in (0, 1, 2):
        out = tmp_path / str(workers)
        arguments = {"seeds": 2, "steps": 60, "workers": workers, "out": out, "use_gym": True}
        engram.train("random", "cartpole", **arguments, hooks=[StopAt(30)])
        assert json.loads((out / "config.json").read_text())["workers"] == workers
        engram.resume(out)
        curves.append((out / "curves.csv").read_bytes())
    assert curves[0] == curves[1] == curves[2]
    spec = get_task("cartpole").spec()
    runner = make_runner(Random(), [get_task("cartpole")] * 2, [0, 1], spec, True, workers=2)
    assert (type(runner), runner.num_workers) == (WorkerRunner, 2)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("cartpole", "step in the compiled program: leave workers out, or add use_gym."),
        ("atari:pong", "step in threads: leave workers out."),
    ],
)
def test_workers_are_for_gymnasiums_environments(task, sentence):
    with pytest.raises(EngramError) as caught:
        engram.train("random", task, seeds=1, steps=20, workers=2)
    assert sentence in str(caught.value)
