"""Memories wait for their return in a ring that is never overrun, and leave it in the order they came."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import waiting as wt

GAMMA = 0.5


class Thing(NamedTuple):
    key: jax.Array
    number: jax.Array


def thing(*numbers):
    """For each environment a memory that tells its number in both of its parts."""
    count = np.array(numbers, np.int32)
    return Thing((count[:, None] + np.array([0.25, 0.75])).astype(np.float32), count)


def ring(size, envs=1):
    return wt.empty(thing(*[0] * envs), size)


@partial(jax.jit, static_argnames=("writes", "horizon"))
def tick(waiting, reward, done, rest, what, writes=2, horizon=None):
    """A step of an agent: what is ready is taken out, what is done is closed, what was just done is put in."""
    waiting = wt.accumulate(waiting, reward, GAMMA)
    ready = wt.oldest(waiting, writes)
    waiting = wt.drop(waiting, jnp.sum(ready.when, axis=-1))
    return wt.append(wt.close(waiting, done, rest, horizon), what), ready


def pairs(ready):
    """What each environment has ready: numbers and returns."""
    parts = zip(*map(np.asarray, (ready.what.number, ready.returns, ready.when)), strict=True)
    return [list(zip(number[when].tolist(), returns[when].tolist(), strict=True)) for number, returns, when in parts]


def live(steps, size=16, **options):
    """Steps of one environment, each a reward, whether it was the last, and what would still come; gives what was ready in each."""
    waiting, out = ring(size), []
    for number, (reward, done, rest) in enumerate(steps):
        told = np.array([reward], np.float32), np.array([done]), np.array([rest], np.float32)
        waiting, ready = tick(waiting, *told, thing(number), **options)
        out += pairs(ready)
    return waiting, out


def test_a_return_is_gathered_from_the_step_after_to_the_end_of_the_episode():
    _, out = live([(0.0, False, 0.0), (1.0, False, 9.0), (2.0, False, 9.0), (4.0, True, 0.0), (7.0, False, 9.0), (7.0, False, 9.0)])
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, and 4; two leave in each step after the end
    assert out == [[], [], [], [], [(0, 3.0), (1, 4.0)], [(2, 4.0)]]


def test_a_cut_episode_adds_the_discounted_rest():
    _, out = live([(0.0, False, 0.0), (1.0, False, 9.0), (2.0, True, 8.0), (0.0, False, 0.0)])
    # 1 + 2/2 + 8/4 and 2 + 8/2
    assert out[-1] == [(0, 4.0), (1, 6.0)]


def test_after_the_horizon_the_rest_is_estimated():
    steps = [(0.0, False, 0.0), (1.0, False, 10.0), (2.0, False, 20.0), (4.0, False, 40.0), (8.0, False, 80.0), (16.0, True, 0.0)]
    _, out = live([*steps, (0.0, False, 0.0), (0.0, False, 0.0)], horizon=2)
    # the first: 1 + 2/2 + 20/4 = 7, known after its second reward and taken out a step later; 2 + 4/2 + 40/4; 4 + 8/2 + 80/4;
    # those of the end together: 8 + 16/2, and 16
    assert out == [[], [], [], [(0, 7.0)], [(1, 14.0)], [(2, 28.0)], [(3, 16.0), (4, 16.0)], []]


def test_without_end_nothing_is_ready():
    waiting, out = live([(1.0, False, 5.0)] * 6)
    assert out == [[]] * 6
    assert int(waiting.count[0]) == 6
    # of five rewards to none
    assert sorted(waiting.returns[0, :6].tolist()) == [0.0, 1.0, 1.5, 1.75, 1.875, 1.9375]


def test_the_oldest_leaves_a_ring_that_is_nearly_full_with_an_estimate():
    steps = [(0.0, False, 0.0)] + [(1.0, False, 100.0)] * 6
    waiting, out = live(steps, size=4)
    # three wait when the fourth is to come: the first closes after three rewards, 1 + 1/2 + 1/4 + 100/8
    assert out == [[], [], [], [], [(0, 14.25)], [(1, 14.25)], [(2, 14.25)]]
    assert int(waiting.count[0]) == 4


def test_environments_do_not_disturb_each_other():
    waiting, out = ring(6, envs=2), []
    for number, (rewards, done) in enumerate([((0, 0), (0, 0)), ((1, 10), (0, 1)), ((2, 20), (1, 0)), ((0, 0), (0, 0))]):
        told = np.array(rewards, np.float32), np.array(done, bool), np.zeros(2, np.float32)
        waiting, ready = tick(waiting, *told, thing(number, 100 + number))
        out.append(pairs(ready))
    assert out == [[[], []], [[], []], [[], [(100, 10.0)]], [[(0, 2.0), (1, 2.0)], []]]


def test_what_is_appended_only_somewhere_is_nowhere_else():
    waiting = wt.append(ring(4, envs=2), thing(7, 8), jnp.array([False, True]))
    assert waiting.count.tolist() == [0, 1]
    assert waiting.what.number.tolist() == [[0, 0, 0, 0], [8, 0, 0, 0]]
    assert wt.append(waiting, thing(9, 9), False).count.tolist() == [0, 1]


def test_the_oldest_come_with_all_their_parts_and_across_the_seam_of_the_ring():
    @jax.jit
    def through(waiting):
        for number in range(3):
            waiting = wt.append(waiting, thing(number))
        waiting = wt.append(wt.drop(waiting, jnp.array([2])), thing(3))
        waiting = wt.close(waiting, jnp.array([True]), jnp.array([1.0]))
        return wt.oldest(waiting, 3), wt.drop(waiting, jnp.array([2]))

    ready, empty = through(ring(3))
    assert ready.when.tolist() == [[True, True, False]]
    assert ready.what.number[0, :2].tolist() == [2, 3]
    assert ready.what.key[0, :2].tolist() == [[2.25, 2.75], [3.25, 3.75]]
    assert int(empty.count[0]) == 0
    assert pairs(wt.oldest(empty, 2)) == [[]]


def test_a_place_taken_again_begins_anew():
    waiting, _ = live([(5.0, False, 0.0), (5.0, True, 0.0), (5.0, False, 0.0), (5.0, False, 0.0)], size=4)
    assert waiting.what.number[0].tolist() == [0, 1, 2, 3]
    waiting, _ = live([(5.0, False, 0.0), (5.0, True, 0.0)] + [(5.0, False, 0.0)] * 3, size=4)
    assert waiting.what.number[0].tolist() == [4, 1, 2, 3]
    assert waiting.returns[0].tolist() == [0.0, 8.75, 7.5, 5.0]  # of no reward to three
    assert waiting.age[0].tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize(("limit", "period", "places"), [(200, 1, 204), (200, 10, 24), (None, 1, 1004), (10**9, 1, 100_004)])
def test_a_ring_has_a_place_for_every_memory_of_an_episode(limit, period, places):
    assert wt.places(limit, period) == places


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    cut=st.booleans(),
    horizon=st.sampled_from([None, 3]),
    rewards=st.lists(st.integers(-4, 4), min_size=40, max_size=40),
)
def test_any_episodes_leave_their_returns_once_each_and_in_order(lengths, cut, horizon, rewards):
    """Against sums over each episode; a ring of 2 x 6 + 4 places is enough."""
    ends = np.cumsum(lengths)  # number of the first step of the next episode
    rest = 4.0
    steps = [(float(rewards[n]), n in ends, rest if cut or n not in ends else 0.0) for n in range(ends[-1] + 10)]
    _, out = live(steps, horizon=horizon)
    expected = []
    for number in range(ends[-1]):
        end = next(end for end in ends if end > number)
        last = end if horizon is None else min(end, number + horizon)
        gathered = sum(GAMMA ** (n - number - 1) * rewards[n] for n in range(number + 1, last + 1))
        follows = 0.0 if last == end and not cut else rest
        expected.append((number, gathered + GAMMA ** (last - number) * follows))
    found = [pair for ready in out for pair in ready if pair[0] < ends[-1]]
    assert [number for number, _ in found] == [number for number, _ in expected]
    np.testing.assert_allclose([r for _, r in found], [r for _, r in expected], rtol=1e-6, atol=1e-6)
