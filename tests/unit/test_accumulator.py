"""Entries leave the ring of pending returns in order, each with its return, and none is lost."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.episodic import accumulator as acc

GAMMA = 0.5


class Entry(NamedTuple):
    key: jax.Array
    number: jax.Array


def entry(*numbers):
    """For each environment an entry with a number, which its key contains too."""
    number = np.array(numbers, np.int32)
    return Entry((number[:, None] + np.array([0.25, 0.75])).astype(np.float32), number)


def ring(capacity, num_envs=1):
    return acc.init_pending(entry(*[0] * num_envs), capacity)


@partial(jax.jit, static_argnames=("writes", "n_step"))
def agent_step(pending, reward, done, bootstrap, new, writes=2, n_step=None):
    """As an agent: closed entries are removed, finished ones closed, a new one appended."""
    pending = acc.add_reward(pending, reward, GAMMA)
    closed = acc.peek(pending, writes)
    pending = acc.drop(pending, jnp.sum(closed.mask, axis=-1))
    return acc.append(acc.close(pending, done, bootstrap, n_step), new), closed


def pairs(closed):
    """Numbers and returns of the closed entries of each environment."""
    arrays = (np.asarray(x) for x in (closed.entry.number, closed.returns, closed.mask))
    return [
        list(zip(number[mask].tolist(), returns[mask].tolist(), strict=True))
        for number, returns, mask in zip(*arrays, strict=True)
    ]


def run(steps, capacity=16, **options):
    """Runs one environment over steps of (reward, done, bootstrap).

    Returns the ring, and the numbers and returns of the entries removed in each step.
    """
    pending, removed = ring(capacity), []
    for number, (reward, done, bootstrap) in enumerate(steps):
        reward, bootstrap = (np.array([x], np.float32) for x in (reward, bootstrap))
        done = np.array([done])
        pending, closed = agent_step(pending, reward, done, bootstrap, entry(number), **options)
        removed += pairs(closed)
    return pending, removed


def test_a_return_sums_discounted_rewards_to_the_end_of_the_episode():
    continues = [(0.0, False, 0.0), (1.0, False, 9.0), (2.0, False, 9.0)]
    _, removed = run([*continues, (4.0, True, 0.0), (7.0, False, 9.0), (7.0, False, 9.0)])
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, and 4; two are removed in each step after the end.
    assert removed == [[], [], [], [], [(0, 3.0), (1, 4.0)], [(2, 4.0)]]


def test_a_truncated_episode_adds_the_discounted_bootstrap():
    _, removed = run([(0.0, False, 0.0), (1.0, False, 9.0), (2.0, True, 8.0), (0.0, False, 0.0)])
    # 1 + 2/2 + 8/4 and 2 + 8/2.
    assert removed[-1] == [(0, 4.0), (1, 6.0)]


def test_n_step_returns_are_closed_with_a_bootstrap():
    steps = [(0.0, False, 0.0), (1.0, False, 10.0), (2.0, False, 20.0), (4.0, False, 40.0)]
    end = [(8.0, False, 80.0), (16.0, True, 0.0)]
    _, removed = run([*steps, *end, (0.0, False, 0.0), (0.0, False, 0.0)], n_step=2)
    # The first: 1 + 2/2 + 20/4 = 7, closed by its second reward and removed a step later.
    # Then 2 + 4/2 + 40/4 and 4 + 8/2 + 80/4. Both of the end together: 8 + 16/2, and 16.
    expected = [[], [], [], [(0, 7.0)], [(1, 14.0)], [(2, 28.0)], [(3, 16.0), (4, 16.0)], []]
    assert removed == expected


def test_entries_of_an_unfinished_episode_stay_open():
    pending, removed = run([(1.0, False, 5.0)] * 6)
    assert removed == [[]] * 6
    assert int(pending.count[0]) == 6
    # Returns of five rewards down to none.
    assert sorted(pending.returns[0, :6].tolist()) == [0.0, 1.0, 1.5, 1.75, 1.875, 1.9375]


def test_the_oldest_entry_of_a_nearly_full_ring_is_closed_with_a_bootstrap():
    pending, removed = run([(0.0, False, 0.0)] + [(1.0, False, 100.0)] * 6, capacity=4)
    # Three entries are open when the fourth arrives: the first one closes after three rewards,
    # with 1 + 1/2 + 1/4 + 100/8.
    assert removed == [[], [], [], [], [(0, 14.25)], [(1, 14.25)], [(2, 14.25)]]
    assert int(pending.count[0]) == 4


def test_environments_are_independent():
    steps = [((0, 0), (0, 0)), ((1, 10), (0, 1)), ((2, 20), (1, 0)), ((0, 0), (0, 0))]
    pending, removed = ring(6, num_envs=2), []
    no_bootstrap = np.zeros(2, np.float32)
    for number, (rewards, done) in enumerate(steps):
        rewards, done = np.array(rewards, np.float32), np.array(done, bool)
        new = entry(number, 100 + number)
        pending, closed = agent_step(pending, rewards, done, no_bootstrap, new)
        removed.append(pairs(closed))
    assert removed == [[[], []], [[], []], [[], [(100, 10.0)]], [[(0, 2.0), (1, 2.0)], []]]


def test_append_changes_masked_environments_only():
    pending = acc.append(ring(4, num_envs=2), entry(7, 8), jnp.array([False, True]))
    assert pending.count.tolist() == [0, 1]
    assert pending.entry.number.tolist() == [[0, 0, 0, 0], [8, 0, 0, 0]]
    assert acc.append(pending, entry(9, 9), False).count.tolist() == [0, 1]


def test_peek_returns_whole_entries_across_the_end_of_the_ring():
    @jax.jit
    def wrap_around(pending):
        for number in range(3):
            pending = acc.append(pending, entry(number))
        pending = acc.append(acc.drop(pending, jnp.array([2])), entry(3))
        pending = acc.close(pending, jnp.array([True]), jnp.array([1.0]))
        dropped = acc.drop(pending, jnp.array([2]))
        return acc.peek(pending, 3), dropped.count, acc.peek(dropped, 2)

    closed, count, rest = wrap_around(ring(3))
    assert closed.mask.tolist() == [[True, True, False]]
    assert closed.entry.number[0, :2].tolist() == [2, 3]
    assert closed.entry.key[0, :2].tolist() == [[2.25, 2.75], [3.25, 3.75]]
    assert int(count[0]) == 0
    assert pairs(rest) == [[]]


def test_a_reused_slot_starts_without_rewards():
    reward = (5.0, False, 0.0)
    pending, _ = run([reward, (5.0, True, 0.0), reward, reward], capacity=4)
    assert pending.entry.number[0].tolist() == [0, 1, 2, 3]
    pending, _ = run([reward, (5.0, True, 0.0), reward, reward, reward], capacity=4)
    assert pending.entry.number[0].tolist() == [4, 1, 2, 3]
    assert pending.returns[0].tolist() == [0.0, 8.75, 7.5, 5.0]  # of no reward to three
    assert pending.num_rewards[0].tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize(
    ("max_episode_steps", "period", "capacity"),
    [(200, 1, 204), (200, 10, 24), (None, 1, 1004), (10**9, 1, 100_004)],
)
def test_a_ring_holds_every_entry_of_an_episode(max_episode_steps, period, capacity):
    assert acc.capacity_for(max_episode_steps, period) == capacity


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    truncated=st.booleans(),
    n_step=st.sampled_from([None, 3]),
    rewards=st.lists(st.integers(-4, 4), min_size=40, max_size=40),
)
def test_every_entry_is_removed_once_in_order_with_its_return(lengths, truncated, n_step, rewards):
    """Against sums over each episode; a ring of 2 * 6 + 4 slots suffices."""
    ends = np.cumsum(lengths)  # first step of the next episode
    value = 4.0
    steps = [
        (float(rewards[n]), n in ends, value if truncated or n not in ends else 0.0)
        for n in range(ends[-1] + 10)
    ]
    _, removed = run(steps, n_step=n_step)
    expected = []
    for number in range(ends[-1]):
        end = next(end for end in ends if end > number)
        last = end if n_step is None else min(end, number + n_step)
        discounted = (GAMMA ** (n - number - 1) * rewards[n] for n in range(number + 1, last + 1))
        bootstrap = 0.0 if last == end and not truncated else value
        expected.append((number, sum(discounted) + GAMMA ** (last - number) * bootstrap))
    written = [pair for step in removed for pair in step if pair[0] < ends[-1]]
    assert [number for number, _ in written] == [number for number, _ in expected]
    returns, expected_returns = ([x for _, x in items] for items in (written, expected))
    np.testing.assert_allclose(returns, expected_returns, rtol=1e-6, atol=1e-6)
