"""On a GPU a thread of its own dispatches learning, by programs without branches if possible."""

import jax
import numpy as np
import pytest
from probes import RecordingAgent
from runner_helpers import records, run, tape_task

from engram.agents import DQN, MBEC, MBECpp
from engram.envs import get_task
from engram.runners import GymRunner
from engram.types import Spec

CARTPOLE = get_task("cartpole")
SPEC = Spec((2,), 2, num_iterations=12)
SMALL = {"batch_size": 4, "hidden_size": 8, "num_layers": 1}
EPISODIC = {"num_neighbours": 2, "memory_size": 32, "chunk": 14, "trajectory_dim": 4}
AGENTS = {
    "dqn": DQN(**SMALL),
    "mbec": MBEC(**EPISODIC, batch_size=4, learning_starts=12),
    "mbec++": MBECpp(**SMALL, **EPISODIC, learning_starts=12),
}


@pytest.fixture
def as_on_gpu(monkeypatch):
    monkeypatch.setattr("engram.runners.device_agent.platform", lambda: "gpu")


@pytest.fixture(
    scope="module", params=["dqn", pytest.param("mbec", marks=pytest.mark.slow), "mbec++"]
)
def both_ways(request):
    """A run that learns in the main thread and the same one in a learner thread.

    Also the steps at which the second used the program with branches.
    """
    agent = AGENTS[request.param]
    tasks, seeds, spec = [CARTPOLE] * 2, [3, 4], CARTPOLE.spec(2, 40)
    branching_steps = []
    with jax.default_device(jax.devices("cpu")[0]), pytest.MonkeyPatch.context() as patch:
        plain, returns = run(GymRunner, agent, tasks, seeds, spec)
        patch.setattr("engram.runners.device_agent.platform", lambda: "gpu")
        threaded = GymRunner(agent, tasks, seeds, spec)
        threaded.start()
        learn = threaded.device_agent.learn_function

        def learn_with_branches(arrays):
            branching_steps.append(threaded.iteration)
            return learn(arrays)

        threaded.device_agent.learn_function = learn_with_branches
        threaded_returns = threaded.advance(40)
    return request.param, plain, returns, threaded, threaded_returns, branching_steps


def test_learning_in_a_thread_learns_the_same(both_ways):
    _, plain, returns, threaded, threaded_returns, _ = both_ways
    assert plain.device_agent.learner_thread is None
    assert plain.device_agent.common_pattern is None
    assert threaded.device_agent.learner_thread is not None
    np.testing.assert_array_equal(returns, threaded_returns)
    for a, b in zip(plain.device_agent.arrays, threaded.device_agent.arrays, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_steps_with_the_common_pattern_use_the_program_without_branches(both_ways):
    name, _, _, threaded, _, branching_steps = both_ways
    # Other steps are those before learning starts, and those at which a chunk is full: two
    # environments take the 14 steps of a chunk in 7 iterations. MBEC re-encodes its keys ever more
    # rarely.
    pattern, steps = {
        "dqn": ((True,), [*range(16)]),
        "mbec": ((False, True), [*range(6), 16, 24, 36]),
        "mbec++": ((True, False), [*range(6), 7, 14, 21, 28, 35]),
    }[name]
    assert threaded.device_agent.common_pattern == pattern
    assert branching_steps == steps


def test_an_exception_waits_for_the_learner_thread(as_on_gpu, monkeypatch):
    spec = CARTPOLE.spec(2, 40)
    runner, _ = run(GymRunner, AGENTS["dqn"], [CARTPOLE] * 2, [3, 4], spec, 2)
    monkeypatch.setattr(runner, "_send", lambda actions: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.advance(1)
    assert int(runner.run_state.step) == runner.device_agent.learn_step == 3


def test_a_new_start_does_not_use_the_last_uploaded_timestep(as_on_gpu):
    runner, _ = run(GymRunner, RecordingAgent(), [tape_task()], [0], SPEC, 2)
    runner.start()
    runner.advance(2)
    assert records(runner)["observation"][0, :2, 0, 0].tolist() == [0, 1]
