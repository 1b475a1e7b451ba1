"""Learning curves: mean returns of the last episodes, and how many ended before the time limit."""

import numpy as np
import pytest

from engram.episode_stats import EPISODES, EpisodeStats

NAN = np.nan


def make_stats(runs=1, max_episode_steps=3, num_envs=1, iterations=40, interval=4):
    return EpisodeStats(runs, iterations, interval, [], max_episode_steps, num_envs)


def returns_of(*ended, length, num_envs=1):
    """Returns [T, R, E], from the iterations at which episodes end, by run and environment."""
    returns = np.full((length, len(ended), num_envs), NAN)
    for r, environments in enumerate(ended):
        for e, iterations in enumerate(environments):
            returns[list(iterations), r, e] = 1.0
    return returns


def test_episodes_that_end_before_the_time_limit_are_completed():
    stats = make_stats(max_episode_steps=3)
    # Episodes of 1, 2, 3, 3 and 2 steps: those of 3 were cut off by the time limit.
    stats.add(returns_of([[0, 2, 5, 8, 10]], length=12))
    assert stats.num_completed.tolist() == [3]
    assert stats.episode_steps.tolist() == [[1]]


def test_without_a_time_limit_all_episodes_are_completed():
    stats = make_stats(max_episode_steps=None)
    stats.add(returns_of([[0, 2, 9]], length=12))
    assert stats.num_completed.tolist() == [3]


def test_each_environment_counts_its_own_steps_and_each_run_its_own_episodes():
    stats = make_stats(runs=2, max_episode_steps=4, num_envs=2)
    first = [[2, 6], [1, 3, 7]]  # lengths 3, 4 and 2, 2, 4
    second = [[], [3, 7]]  # never, and lengths 4, 4
    stats.add(returns_of(first, second, length=9, num_envs=2))
    assert stats.num_completed.tolist() == [3, 0]
    assert stats.episode_steps.tolist() == [[2, 1], [9, 1]]


def test_all_episodes_after_an_iteration_count_in_the_mean_return_since_then():
    stats = make_stats(runs=2, interval=4)
    for returns in ([1.0, 2.0], [3.0], [5.0, 6.0, 7.0]):  # of the first run, by log point
        ended = np.full((4, 2, 1), NAN)
        ended[: len(returns), 0, 0] = returns
        stats.add(ended)
        stats.log_point({})
    assert stats.mean_return_since(4)[0] == (3 + 5 + 6 + 7) / 4
    assert stats.mean_return_since(0)[0] == 24 / 6
    assert np.isnan(stats.mean_return_since(0)[1])


def test_an_episode_may_go_on_from_one_call_to_the_next():
    returns = returns_of([[0, 4, 6, 9]], [[1, 3, 5, 10]], length=12)
    whole, parts = make_stats(2, max_episode_steps=4), make_stats(2, max_episode_steps=4)
    whole.add(returns)
    counts = []
    for start in range(0, 12, 3):
        parts.add(returns[start : start + 3])
        counts.append(parts.num_completed.tolist())
    # Lengths 1, 4, 2, 3 and 2, 2, 2, 5.
    assert counts == [[1, 1], [1, 3], [2, 3], [3, 3]]
    for one, other in zip(whole.state(), parts.state(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_log_points_keep_the_count_until_then():
    stats = make_stats(max_episode_steps=3, iterations=12, interval=4)
    returns = returns_of([[0, 2, 5, 7, 10]], length=12)  # lengths 1, 2, 3, 2, 3
    for start in (0, 4, 8):
        stats.add(returns[start : start + 4])
        stats.log_point({})
    assert stats.completed[:, 0].tolist() == [2, 3, 3]
    assert stats.steps(num_envs=1).tolist() == [4, 8, 12]


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    returns = returns_of([[0, 5], [3, 6]], [[2, 4], [7]], length=8, num_envs=2)
    whole, before, after = (make_stats(2, 4, 2, iterations=8, interval=4) for _ in range(3))
    for stats in (whole, before):
        stats.add(returns[:4])
        stats.log_point({})
    state = before.state()
    saved = [array.copy() for array in state]
    after.restore(state)
    for stats in (whole, after):
        stats.add(returns[4:])
        stats.log_point({})
    for one, other in zip(whole.state(), after.state(), strict=True):
        np.testing.assert_array_equal(one, other)
    # Lengths 1, 5 and 4, 3; then 3, 2 and 8: those below 4 are completed.
    assert after.completed.tolist() == [[1, 1], [2, 2]]
    for one, other in zip(saved, before.state(), strict=True):  # which shares no array with it
        np.testing.assert_array_equal(one, other)


def test_a_point_is_the_mean_return_of_the_last_episodes():
    stats = make_stats(runs=2, max_episode_steps=None, num_envs=2, iterations=20, interval=20)
    returns = np.full((20, 2, 2), NAN)
    returns[:, 0, 0] = np.arange(20)
    returns[3, 1] = [5.0, 6.0]
    stats.add(returns)
    stats.log_point({})
    assert stats.returns[0] == pytest.approx([np.arange(20)[-EPISODES:].mean(), 5.5])
    assert stats.completed[0].tolist() == [20, 2]


def test_before_the_first_end_of_an_episode_there_is_no_return_and_none_is_completed():
    stats = make_stats(runs=2)
    stats.add(returns_of([[]], [[]], length=5))
    stats.log_point({})
    assert np.isnan(stats.returns[0]).all()
    assert stats.completed[0].tolist() == [0, 0]
