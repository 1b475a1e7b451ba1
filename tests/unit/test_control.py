"""Episodic control stores what Algorithm 1 says: every L-th trajectory with the return after it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted_rollout import (
    AGENT,
    FIVE_STEPS,
    SPEC,
    TERMINATED,
    TRUNCATED,
    assert_stored,
    programs,
    rollout,
)

from engram.episodic import control
from engram.types import TimeStep

STORES_FINAL = replace(AGENT, store_final=True)
SECOND_EPISODE = [[(3.0, "")], [(5.0, "")]]


@pytest.fixture(autouse=True, scope="module")
def no_moving_of_neighbours():
    """Writes do not move neighbours, so that stored values can be computed by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "WRITE_LR", 0.0)
        yield


def first_episode(result, env=0):
    """What `FIVE_STEPS` leaves in the memory, with its end.

    After t = 2 the return is 4 + 8/2 + 16/4, after t = 4 it is 16, and after the end 0.
    """
    return [(result.tau(0, t, env), value) for t, value in ((2, 12.0), (4, 16.0), (5, 0.0))]


def test_every_second_step_is_stored_with_the_return_after_it():
    result = rollout(AGENT, SPEC, FIVE_STEPS)
    assert_stored(result.states[-1], first_episode(result)[:2])


def test_with_store_final_the_end_of_the_episode_is_stored_with_return_0():
    result = rollout(STORES_FINAL, SPEC, FIVE_STEPS)
    assert_stored(result.states[-1], first_episode(result))


def test_entries_are_written_one_per_step_after_the_end_in_order():
    result = rollout(STORES_FINAL, SPEC, FIVE_STEPS)
    written = [int(state.episodic.memory.num_inserted) for state in result.states]
    assert written == [0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3, 3]
    first_key = result.states[5].episodic.memory.keys[0]
    np.testing.assert_allclose(first_key, result.tau(0, 2), atol=1e-6)


@pytest.mark.parametrize("agent", [AGENT, STORES_FINAL], ids=["default", "store_final"])
def test_an_end_at_a_multiple_of_the_chunk_is_stored_once(agent):
    result = rollout(agent, SPEC, [*FIVE_STEPS[:3], [(8.0, TERMINATED)]])
    assert_stored(result.states[-1], [(result.tau(0, 2), 4 + 8 / 2), (result.tau(0, 4), 0.0)])


def test_the_next_episode_starts_with_a_zero_trajectory_and_its_own_count_of_steps():
    result = rollout(STORES_FINAL, SPEC, [*FIVE_STEPS, *SECOND_EPISODE, [(7.0, TERMINATED)]])
    second = [(result.tau(5, 7), 7.0), (result.tau(5, 8), 0.0)]
    assert_stored(result.states[-1], first_episode(result) + second)


WITH_TRUNCATION = [*FIVE_STEPS, *SECOND_EPISODE, [(7.0, TRUNCATED)]]


def test_a_truncated_episode_bootstraps_from_the_memory():
    result = rollout(STORES_FINAL, SPEC, WITH_TRUNCATION)
    # With K = 1 the bootstrap is the value of the memory nearest to the last trajectory.
    memory, last = result.states[7].episodic.memory, result.tau(5, 8)
    assert int(memory.size) == 3
    nearest = np.linalg.norm(np.asarray(memory.keys)[:3] - last, axis=1).argmin()
    bootstrap = float(memory.values[nearest])
    second = [(result.tau(5, 7), 7 + bootstrap / 2), (last, bootstrap)]
    assert_stored(result.states[-1], first_episode(result) + second)


def test_a_truncated_episode_has_no_bootstrap_if_truncation_is_terminal():
    spec = replace(SPEC, truncation_is_terminal=True)
    result = rollout(STORES_FINAL, spec, WITH_TRUNCATION)
    second = [(result.tau(5, 7), 7.0), (result.tau(5, 8), 0.0)]
    assert_stored(result.states[-1], first_episode(result) + second)


def test_a_bootstrap_is_discounted_by_the_steps_before_it():
    """With one memory of value 8 and K = 1, every read is 8; then an episode is truncated."""
    agent = replace(STORES_FINAL, memory_size=1, chunk=3)
    spec = replace(SPEC, max_episode_steps=30)
    script = [[(0.0, "")], [(0.0, "")], [(8.0, "")], [(0.0, TERMINATED)]]
    state = rollout(agent, spec, script, extra=0).states[-1]
    episodic = state.episodic
    episodic = episodic._replace(
        memory=episodic.memory._replace(values=jnp.array([8.0])),
        pending=episodic.pending._replace(count=jnp.zeros(1, jnp.int32)),
    )
    state = state._replace(episodic=episodic)
    _, step = programs(agent, spec)
    values = []
    for iteration in range(5, 10):
        obs = np.full((1, 2), iteration, np.float32)
        no, truncated = np.array([False]), np.array([iteration == 8])
        timestep = TimeStep(obs, np.ones(1, np.float32), no, truncated, np.ones((1, 2)))
        key = jax.random.key(iteration)
        state, _, _ = step(state, timestep, jnp.int32(iteration), key)
        values.append(float(state.episodic.memory.values[0]))
    # The entry of t = 3 has one more reward before the truncation: 1 + 8/2. That of the end, the
    # bootstrap alone, is written one step later.
    assert values == [8.0, 8.0, 8.0, 5.0, 8.0]


def test_environments_are_independent():
    spec = replace(SPEC, num_envs=2)
    other = [(10.0, ""), (20.0, ""), (40.0, TERMINATED), (5.0, ""), (6.0, "")]
    script = [[one, second] for (one,), second in zip(FIVE_STEPS, other, strict=True)]
    result = rollout(STORES_FINAL, spec, script, extra=4)
    second = [(result.tau(0, t, env=1), value) for t, value in ((2, 40.0), (3, 0.0))]
    assert_stored(result.states[-1], first_episode(result, env=0) + second)
    # Both environments are in their second episode. No reward came after its t = 2.
    pending = result.states[-1].episodic.pending
    assert pending.count.tolist() == [2, 3]  # of t = 2, 4 and of t = 2, 4, 6
    assert not np.any(pending.returns[1][pending.is_open[1]])


def test_an_episode_longer_than_its_limit_closes_its_oldest_entries_early():
    states = rollout(AGENT, SPEC, [[(1.0, "")]] * 30, extra=0).states
    capacity = states[0].episodic.pending.returns.shape[1]
    assert capacity == 6 // 2 + 4
    assert max(int(state.episodic.pending.count[0]) for state in states) < capacity
    memory = states[-1].episodic.memory
    # One entry per chunk is written, but for those that are still pending.
    assert int(memory.num_inserted) == 15 - (capacity - 2)
    assert float(memory.values[0]) == pytest.approx(2.0, rel=1e-2)  # 1 + 1/2 + 1/4 + ...
