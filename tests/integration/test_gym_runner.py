"""Gymnasium environments: training stops at faults, and checkpoints lead environments back."""

import math
import re

import jax
import numpy as np
import pytest
from probes import RecordingAgent, TapeEnv
from runner_helpers import assert_same_records, records, run, share_compiled, tape_task

from engram.agents import Random
from engram.envs import Task
from engram.errors import EngramError
from engram.runners import EnvironmentFault, GymRunner
from engram.types import Spec

SPEC = Spec((2,), 2, num_iterations=12)
TWO_ENVS = Spec((2,), 2, num_envs=2, num_iterations=12)


@pytest.fixture(scope="module")
def one_run():
    """A runner whose compiled functions are used by all tests with one recording agent."""
    return GymRunner(RecordingAgent(), [tape_task()], [3], SPEC)


@pytest.fixture(scope="module")
def two_runs():
    """A runner whose compiled functions are used by all tests with two recording agents."""
    return GymRunner(RecordingAgent(), [tape_task()] * 2, [3, 4], TWO_ENVS)


def similar_runner(runner, task):
    """A new runner with the compiled functions of another one, on another task."""
    new = GymRunner(RecordingAgent(), [task] * len(runner.seeds), runner.seeds, runner.spec)
    share_compiled(new, runner)
    return new


def test_advance_ends_when_stop_is_true():
    runner = GymRunner(Random(), [tape_task()], [0], SPEC)
    runner.start()
    stops = iter([False, False, True])
    assert len(runner.advance(10, lambda: next(stops))) == 3
    assert runner.iteration == int(runner.run_state.step) == 3


# Environments that fail

FAULTS = {
    "raises": (
        ValueError("too\nhot."),
        r"step raised ValueError \(too hot\) in probes.py, line \d+\.$",
    ),
    "nan": (
        lambda env, reward, done: (np.array([np.nan, 0]), reward, done, False, {}),
        r"observation\[0\] is nan",
    ),
    "shape": (
        lambda env, reward, done: (np.zeros(3), reward, done, False, {}),
        r"observation has shape \(3,\) instead of \(2,\)",
    ),
    "reward": (
        lambda env, reward, done: (env.observation(), math.nan, done, False, {}),
        "reward is nan",
    ),
    "none": (
        lambda env, reward, done: (env.observation(), None, done, False, {}),
        "reward is None",
    ),
    "four": (
        lambda env, reward, done: (env.observation(), reward, done, {}),
        "returned a tuple of 4",
    ),
    "flag": (
        lambda env, reward, done: (env.observation(), reward, None, False, {}),
        "terminated is None",
    ),
    "info": (lambda env, reward, done: (env.observation(), reward, done, False, None), "info"),
}


def run_with_fault(runner, faults):
    """Runs a similar runner; the second environment of its second run has these faults."""
    new = similar_runner(runner, tape_task())
    new.start()
    new.envs[1][1].faults = faults
    return new, new.advance(12)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_environment_seed_and_step(two_runs, name):
    fault, pattern = FAULTS[name]
    runner, returns = run_with_fault(two_runs, {5: fault})
    message = str(runner.fault)
    assert isinstance(runner.fault, EngramError)
    # The fifth iteration of two environments.
    assert message.startswith("The environment tape failed with seed 4 at step 10: ")
    assert re.search(pattern, message)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(returns) == 5


class CallsNumPy(TapeEnv):
    def step(self, action):
        return np.stack([])  # raises inside of NumPy's files


class CallsGymnasium(TapeEnv):
    def step(self, action):
        self.action_space.sample(mask="wrong")  # raises inside of Gymnasium's files


@pytest.mark.parametrize("env_class", [CallsNumPy, CallsGymnasium])
def test_an_exception_is_located_in_the_environments_own_file(env_class):
    runner, _ = run(GymRunner, Random(), [Task("own", "", env_class)], [0], SPEC)
    line = env_class.step.__code__.co_firstlineno + 1
    assert str(runner.fault).endswith(f" in test_gym_runner.py, line {line}.")


def test_after_a_fault_training_can_continue(two_runs):
    runner, _ = run_with_fault(two_runs, {5: RuntimeError("gone")})
    assert runner.iteration == int(runner.run_state.step) == 5
    assert runner.timestep.truncated.tolist() == [[False, False], [False, True]]
    assert np.isfinite(runner.timestep.observation).all()
    assert runner.episode_index.tolist() == [[1, 1], [1, 2]]
    tree, notes = runner.save()
    resumed = similar_runner(runner, tape_task())
    resumed.restore(jax.tree.map(lambda x: x, tree), notes)
    resumed.advance(7)
    assert resumed.fault is None
    received = records(resumed)
    assert received["truncated"][1, 5].tolist() == [False, True]
    times = received["observation"][:, 5:, 1, 0]
    assert times[1].tolist() == [0, 1, 2, 0, 1, 2, 0]  # a new episode
    assert times[0].tolist() == [2, 0, 1, 2, 0, 1, 2]  # other runs continue
    assert received["reward"][1, 5].tolist() == [2, 0]


def test_a_fault_in_reset_keeps_the_end_of_the_last_episode(one_run):
    class FailsToReset(TapeEnv):
        def reset(self, *, seed=None, options=None):
            if self.num_steps:
                raise OSError("no more mazes")
            return super().reset(seed=seed)

    runner = similar_runner(one_run, Task("tape", "", FailsToReset))
    runner.start()
    returns = runner.advance(12)
    assert isinstance(runner.fault, EnvironmentFault)
    assert "reset raised OSError (no more mazes) in test_gym_runner.py" in str(runner.fault)
    assert len(returns) == 3
    assert returns[2, 0, 0] == 6
    timestep = runner.timestep
    assert (timestep.reward[0, 0], timestep.terminated[0, 0]) == (3, True)
    assert np.isfinite(timestep.observation).all()


# Checkpoints


def save_and_restore(runner, task, iterations):
    """A runner restored from what a similar one saved after so many iterations; its returns."""
    first = similar_runner(runner, task)
    first.start()
    returns = first.advance(iterations)
    restored = similar_runner(runner, task)
    restored.restore(*first.save())
    return restored, returns


def test_a_restored_environment_continues_as_if_never_stopped(two_runs):
    whole = similar_runner(two_runs, tape_task())
    whole.start()
    returns = whole.advance(12)
    restored, first_returns = save_and_restore(two_runs, tape_task(), 5)
    last_returns = restored.advance(7)
    assert_same_records(records(restored), records(whole))
    np.testing.assert_array_equal(np.concatenate([first_returns, last_returns]), returns)


def test_an_environment_that_cannot_be_replayed_is_truncated(one_run):
    task = tape_task(rewards=(1.0,) * 9, ignores_seed=True)
    restored, _ = save_and_restore(one_run, task, 5)
    restored.advance(3)
    received = records(restored)
    assert received["truncated"][0, :8, 0].tolist() == [False] * 5 + [True, False, False]
    assert not received["terminated"].any()
    assert received["observation"][0, :8, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    # The last observation before the checkpoint.
    assert received["final_observation"][0, 5, 0, 0] == 5
    assert received["reward"][0, 1:8, 0].tolist() == [1.0] * 7


def test_a_replay_that_ends_early_is_not_stepped_further(one_run):
    lengths = iter([6, 2, 2, 6])

    class VariesInLength(TapeEnv):  # raises if it is stepped after its end
        def reset(self, *, seed=None, options=None):
            self.rewards = (1.0,) * next(lengths)
            return super().reset(seed=seed)

    restored, _ = save_and_restore(one_run, Task("varies", "", VariesInLength), 4)
    restored.advance(1)
    assert restored.fault is None
    assert records(restored)["truncated"][0, 4].tolist() == [True]
