"""Helpers of the tests of runners: a scripted task, a training, and what agents received in it."""

import numpy as np
from probes import TapeEnv

from engram.envs import Task


def tape_task(**options):
    """A task whose environments are `TapeEnv(**options)`."""
    return Task("tape", "", lambda: TapeEnv(**options))


def run(runner_class, agent, tasks, seeds, spec, iterations=None, options=None):
    """A runner after so many iterations, all of the spec's by default, and the returns in them."""
    runner = runner_class(agent, tasks, seeds, spec, options)
    runner.start()
    return runner, runner.advance(spec.num_iterations if iterations is None else iterations)


def records(runner):
    """All that the recording agents of all runs received, by name."""
    return {name: np.asarray(record) for name, record in runner.run_state.agent.items()}


def assert_same_records(a, b, runs_of_a=slice(None), runs_of_b=slice(None)):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name][runs_of_a], b[name][runs_of_b], err_msg=name)


def share_compiled(runner, other):
    """Lets a Gymnasium runner use the compiled functions of another one with the same spec."""
    runner.device_agent.step_function = other.device_agent.step_function
    runner.device_agent.learn_function = other.device_agent.learn_function
