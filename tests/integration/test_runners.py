"""Runners: random seeds, the timesteps that agents receive, metrics, and the choice of a runner."""

from dataclasses import replace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import RecordingAgent, TapeEnv
from runner_helpers import assert_same_records, records, run, share_compiled, tape_task

from engram import runners
from engram.agents import DQN, MBEC, MBECpp, Random, agent_name
from engram.envs import CartPole, Task, get_task
from engram.periodic import periodically
from engram.runners import GymRunner, JaxRunner
from engram.runners.parallel import realized_return
from engram.types import Spec, TimeStep

CARTPOLE = get_task("cartpole")
NOISY_CARTPOLE = get_task("cartpole-gaussian")
SPEC = Spec((4,), 2, max_episode_steps=200, truncation_is_terminal=True, num_iterations=200)
SMALL = {"batch_size": 4, "hidden_size": 8, "num_layers": 1}
SMALL_DQN = DQN(**SMALL, gamma=0.5)
SMALL_MBECPP = MBECpp(**SMALL, num_neighbours=2, memory_size=32, chunk=2, trajectory_dim=4)


# Seeds


@pytest.fixture(scope="module")
def three_seeds():
    """Three runs of recording agents on noisy Cart Pole, and their returns."""
    return run(JaxRunner, RecordingAgent(), [NOISY_CARTPOLE] * 3, [7, 8, 9], SPEC)


def test_seeds_differ_in_initial_states_noise_and_random_numbers(three_seeds):
    received = records(three_seeds[0])
    for name in ("observation", "reward", "uniform"):
        first, second, third = received[name][:, 1:]
        for a, b in ((first, second), (first, third), (second, third)):
            assert not np.array_equal(a, b), name
    initial_states = received["observation"][:, 0].reshape(3, -1)
    assert len(np.unique(initial_states, axis=0)) == 3
    uniforms = received["uniform"]
    assert len(np.unique(uniforms)) == uniforms.size  # no random number is used twice


def test_a_run_alone_receives_the_same_as_among_others(three_seeds):
    alone, returns = run(JaxRunner, RecordingAgent(), [NOISY_CARTPOLE], [8], SPEC)
    assert_same_records(records(alone), records(three_seeds[0]), 0, 1)
    np.testing.assert_array_equal(returns[:, 0], three_seeds[1][:, 1])


def learned(state):
    """What an agent has learned: networks, and memory if it has one."""
    if hasattr(state, "q"):
        return state.q
    return state.params, state.episodic.trajectory_model, state.episodic.memory


def train(agent, seeds):
    """Returns, what was learned, and means of metrics after 120 iterations of Cart Pole."""
    runner, returns = run(JaxRunner, agent, [CARTPOLE] * len(seeds), seeds, SPEC, 120)
    return returns, jax.tree.leaves(learned(runner.run_state.agent)), runner.pop_metrics()


@pytest.fixture(scope="module")
def three_dqns():
    return train(SMALL_DQN, [5, 6, 7])


def check_same_as_alone(three_runs, agent):
    """Compares the second of three runs, which has seed 6, with a run of its own."""
    returns, leaves, means = three_runs
    own_returns, own_leaves, own_means = train(agent, [6])
    np.testing.assert_array_equal(own_returns[:, 0], returns[:, 1])
    for a, b in zip(leaves, own_leaves, strict=True):
        np.testing.assert_allclose(a[1], b[0], atol=2e-3, rtol=2e-3)
        if a.ndim > 2:
            assert np.any(np.abs(a[0] - a[1]) > 1e-2)  # unlike other seeds
    assert means.keys() == own_means.keys()
    for name in means:
        assert means[name][1] == pytest.approx(own_means[name][0], rel=1e-2, abs=1e-3), name


def test_a_dqn_alone_learns_the_same_as_among_others(three_dqns):
    check_same_as_alone(three_dqns, SMALL_DQN)


@pytest.mark.slow
def test_an_mbecpp_alone_learns_the_same_as_among_others():
    check_same_as_alone(train(SMALL_MBECPP, [5, 6, 7]), SMALL_MBECPP)


def test_runs_may_differ_in_noise_and_report_true_returns():
    tasks = [CARTPOLE, get_task("cartpole-bernoulli")]
    runner, returns = run(JaxRunner, RecordingAgent(), tasks, [3, 3], SPEC)
    received = records(runner)
    np.testing.assert_array_equal(received["observation"][0], received["observation"][1])
    assert set(received["reward"][0, 1:].ravel()) == {1.0}
    assert 0.1 < np.mean(received["reward"][1, 1:] == -1.0) < 0.3
    np.testing.assert_array_equal(returns[:, 0], returns[:, 1])


def test_advancing_in_parts_equals_advancing_at_once(three_seeds):
    parts = JaxRunner(RecordingAgent(), [NOISY_CARTPOLE] * 3, [7, 8, 9], SPEC)
    parts.start()
    returns = np.concatenate([parts.advance(n) for n in (150, 1, 49)])
    assert_same_records(records(parts), records(three_seeds[0]))
    np.testing.assert_array_equal(returns, three_seeds[1])
    assert parts.iteration == 200


# The program without branches

MBEC_SMALL = MBEC(num_neighbours=2, memory_size=32, trajectory_dim=4, refine_batch=2)
RARELY = replace(SMALL_DQN, train_frequency=40)
"""in 39 of 40 iterations nothing is due"""


@pytest.fixture
def any_segment(monkeypatch):
    """Segments are worth a call however short they are."""
    monkeypatch.setattr("engram.runners.jax_env.MIN_SEGMENT", 0)


def without_branches(agent, parts):
    runner = JaxRunner(agent, [CARTPOLE] * 2, [5, 6], SPEC)
    runner.has_branchless_program = True
    runner.start()
    return runner, np.concatenate([runner.advance(n) for n in parts])


@pytest.mark.parametrize("agent", [RARELY, MBEC_SMALL], ids=agent_name)
def test_a_program_without_branches_learns_the_same(any_segment, agent):
    runner, returns = without_branches(agent, (70, 1, 69))
    other, expected = run(JaxRunner, agent, [CARTPOLE] * 2, [5, 6], SPEC, 140)
    assert runner._run._cache_size() == 2  # both programs have run
    np.testing.assert_array_equal(returns, expected)
    for a, b in zip(
        jax.tree.leaves(runner.run_state), jax.tree.leaves(other.run_state), strict=True
    ):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            continue
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("first", "iterations"), [(0, 200), (37, 50), (80, 1), (81, 39)])
def test_segments_without_branches_are_the_iterations_in_which_the_usual_updates_are_due(
    any_segment, first, iterations
):
    on_cpu = JaxRunner(RARELY, [CARTPOLE], [5], SPEC)
    assert on_cpu._segments(iterations) == [(iterations, None)]
    runner = JaxRunner(RARELY, [CARTPOLE], [5], SPEC)
    runner.has_branchless_program = True
    runner.iteration = first
    segments = runner._segments(iterations)
    by_iteration = [pattern is None for length, pattern in segments for _ in range(length)]
    due = [step >= 32 and step % 40 == 0 for step in range(first, first + iterations)]
    assert by_iteration == due


def test_a_second_start_and_a_restored_state_have_the_same_programs(any_segment):
    runner, expected = without_branches(RARELY, (100,))
    runner.start()
    np.testing.assert_array_equal(runner.advance(100), expected)
    saved = runner.save()
    restored = JaxRunner(RARELY, [CARTPOLE] * 2, [5, 6], SPEC)
    restored.has_branchless_program = True
    restored.restore(*jax.tree.map(jnp.copy, saved[:1]), saved[1])
    assert restored._segments(60) == runner._segments(60)
    np.testing.assert_array_equal(restored.advance(60), runner.advance(60))
    assert runner.advance(0).shape == (0, 2, 1)


def test_an_agent_whose_condition_depends_on_its_state_has_one_program(any_segment):
    class Stateful(type(RARELY)):
        def learn(self, state, spec, step, key):
            is_due = lambda _: jnp.any(state.action == 0)  # noqa: E731
            periodically(is_due, step, lambda: step, lambda: step)
            return super().learn(state, spec, step, key)

    runner = JaxRunner(Stateful(**SMALL), [CARTPOLE], [5], SPEC)
    runner.has_branchless_program = True
    runner.start()
    assert runner._segments(100) == [(100, None)]
    runner.advance(10)


def test_an_agent_without_periodic_updates_has_one_program(any_segment):
    runner, returns = without_branches(Random(), (100,))
    assert runner._segments(100) == [(100, None)]
    assert returns.shape == (100, 2, 1)


def test_segments_too_short_to_be_worth_a_call_have_branches():
    runner = JaxRunner(replace(RARELY, train_frequency=2), [CARTPOLE], [5], SPEC)
    runner.has_branchless_program = True
    assert runner._segments(100) == [(100, None)]


def test_reset_seeds_depend_on_run_seed_and_episode_index_alone():
    def reset_seeds(lengths, seeds, num_envs=1):
        envs = []

        def make(length):
            envs.append(TapeEnv(rewards=(0.0,) * length))
            return envs[-1]

        tasks = [Task("tape", "", lambda length=length: make(length)) for length in lengths]
        run(GymRunner, Random(), tasks, seeds, Spec((2,), 2, num_envs=num_envs, num_iterations=13))
        return [env.seeds for env in envs]

    alone = reset_seeds([3], [5])[0]
    among_others = reset_seeds([2, 3, 4], [4, 5, 6])
    assert among_others[1] == alone
    assert reset_seeds([6], [5])[0] == alone[:3]  # longer episodes, the same seeds
    every_seed = [seed for env_seeds in among_others for seed in env_seeds]
    assert len(set(every_seed)) == len(every_seed)
    two_envs = reset_seeds([3], [5], num_envs=2)
    assert two_envs[0] == alone
    assert not set(two_envs[0]) & set(two_envs[1])


# Timesteps


def cartpole_task(max_episode_steps):
    def make():
        return gym.make(
            "CartPole-v1", max_episode_steps=max_episode_steps, disable_env_checker=True
        )

    return Task("short", "", make, jax_env=CartPole(max_episode_steps=max_episode_steps))


def check_episodes(received, returns, max_episode_steps):
    """Checks each timestep of one run on Cart Pole against the rules of the task."""
    iterations, num_envs = returns.shape
    for env in range(num_envs):
        episode_steps = 0
        for step in range(1, iterations):
            episode_steps += 1
            now = {name: x[step, env] for name, x in received.items() if name != "uniform"}
            final, observation = now["final_observation"], now["observation"]
            fallen = abs(final[0]) > 2.4 or abs(final[2]) > 12 * 2 * np.pi / 360
            assert now["terminated"] == fallen
            assert now["truncated"] == (episode_steps == max_episode_steps)
            done = now["terminated"] or now["truncated"]
            assert np.isnan(returns[step - 1, env]) != done
            assert np.array_equal(final, observation) != done
            if done:
                assert returns[step - 1, env] == episode_steps
                assert np.abs(observation).max() <= 0.05
                episode_steps = 0


@pytest.mark.parametrize("runner_class", [JaxRunner, GymRunner])
@pytest.mark.parametrize("max_episode_steps", [6, 200])
def test_termination_and_truncation_are_distinguished(runner_class, max_episode_steps):
    """Pushed to one side always, a pole falls within 8 to 11 steps."""
    task = cartpole_task(max_episode_steps)
    spec = Spec((4,), 2, max_episode_steps=max_episode_steps, num_envs=2, num_iterations=60)
    runner, returns = run(runner_class, RecordingAgent(), [task] * 2, [1, 2], spec)
    assert returns.shape == (60, 2, 2)
    received = records(runner)
    for r in range(2):
        own = {name: record[r] for name, record in received.items()}
        check_episodes(own, returns[:, r], max_episode_steps)
    assert received["terminated"].any() == (max_episode_steps == 200)
    assert received["truncated"].any() == (max_episode_steps == 6)
    first_observations = received["observation"][:, 0].reshape(-1, 4)
    assert len(np.unique(first_observations, axis=0)) == 4  # each environment has its own seed


def test_replay_stores_terminal_flags_and_final_observations():
    cases = [(False, False, 1.0), (True, False, 0.0), (True, True, 1.0)]
    compiled = {}
    for truncate, truncation_is_terminal, terminal in cases:
        spec = Spec(
            (2,),
            2,
            max_episode_steps=3,
            truncation_is_terminal=truncation_is_terminal,
            num_iterations=8,
        )
        agent = DQN(batch_size=2, hidden_size=2, num_layers=1)
        runner = GymRunner(agent, [tape_task(truncate=truncate)], [0], spec)
        share_compiled(runner, compiled.setdefault(spec, runner))
        runner.start()
        runner.advance(8)
        replay = jax.tree.map(lambda x: np.asarray(x)[0, :7, 0], runner.run_state.agent.replay)
        assert replay.terminal.tolist() == [0, 0, terminal, 0, 0, terminal, 0]
        assert replay.done.tolist() == [0, 0, 1, 0, 0, 1, 0]
        assert replay.reward.tolist() == [1, 2, 3, 1, 2, 3, 1]
        assert replay.obs[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert replay.next_obs[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]  # before the reset


# Metrics


def test_metrics_are_means_since_the_last_call():
    spec = Spec((2,), 2, num_iterations=12)
    runner, _ = run(GymRunner, RecordingAgent(), [tape_task()] * 2, [0, 1], spec, 4)
    means = runner.pop_metrics()
    assert means["step"].tolist() == [1.5, 1.5]
    assert means["mean_reward"].tolist() == [1.5, 1.5]  # of 0, 1, 2 and 3
    runner.advance(2)
    assert runner.pop_metrics()["step"].tolist() == [4.5, 4.5]


@pytest.mark.parametrize("runner_class", [JaxRunner, GymRunner])
def test_an_agent_is_traced_once_for_metrics_and_once_to_run(runner_class, monkeypatch):
    """Tracing MBEC++ takes seconds, and training asks for the template several times."""
    traces = []
    learn = DQN.learn
    monkeypatch.setattr(DQN, "learn", lambda *args: (traces.append(None), learn(*args))[1])
    task, shape = (CARTPOLE, (4,)) if runner_class is JaxRunner else (tape_task(), (2,))
    spec = Spec(shape, 2, num_iterations=3)
    runner, _ = run(runner_class, SMALL_DQN, [task] * 2, [1, 2], spec)
    runner.template()
    assert {"epsilon", "realized_return", "td_loss"} < set(runner.pop_metrics())
    assert len(traces) == 2


def test_the_realized_return_is_the_mean_return_after_each_step():
    gamma = 0.9
    num_steps = 60
    rng = np.random.default_rng(3)
    rewards = rng.normal(size=(num_steps, 2)).astype(np.float32)
    terminated, truncated = rng.random((2, num_steps, 2)) < 0.1
    zero = jnp.zeros((2, 1))
    first = TimeStep(zero, jnp.zeros(2), jnp.zeros(2, bool), jnp.zeros(2, bool), zero)
    timesteps = [
        first._replace(reward=rewards[t], terminated=terminated[t], truncated=truncated[t])
        for t in range(num_steps)
    ]
    weight = jnp.zeros(2)
    total = 0.0
    for timestep in [first, *timesteps]:
        weight, realized = realized_return(gamma, weight, timestep)
        total += float(realized)
    done = terminated | truncated
    returns = np.zeros((num_steps + 1, 2))
    for t in range(num_steps - 1, -1, -1):
        returns[t] = rewards[t] + gamma * np.where(done[t], 0.0, returns[t + 1])
    assert total == pytest.approx(returns.mean(axis=1).sum(), rel=1e-4)


def test_agents_that_report_values_report_realized_returns(three_dqns):
    # Each step of Cart Pole has reward 1, so that most returns are 1 + 0.5 + 0.25 + ...
    assert three_dqns[2]["realized_return"] == pytest.approx([1.9] * 3, abs=0.1)
    random, _ = run(JaxRunner, Random(), [CARTPOLE], [0], SPEC, 1)
    assert "realized_return" not in random.pop_metrics()


# The choice of a runner


def test_the_fastest_runner_for_all_tasks_is_chosen():
    def runner_class(tasks, **options):
        return type(runners.make_runner(Random(), tasks, range(len(tasks)), SPEC, **options))

    assert runner_class([CARTPOLE]) is JaxRunner
    assert runner_class([CARTPOLE], use_gym=True) is GymRunner
    assert runner_class([CARTPOLE, cartpole_task(6)]) is GymRunner
    assert runner_class([tape_task()]) is GymRunner


def test_every_seed_runs_on_every_task():
    assert runners.cross_seeds(["a", "b"], [1, 2]) == (["a", "a", "b", "b"], [1, 2, 1, 2])
