"""The replay buffer holds the newest rows, gives back only what was stored, and is never copied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.replay import Transition, at, empty, film, look_ahead, sample, sequences, shoot, store

STORE, SAMPLE, SEQUENCES = jax.jit(store), jax.jit(sample), jax.jit(sequences, static_argnums=2)
LOOK_AHEAD, AT, SHOOT = jax.jit(look_ahead, static_argnums=2), jax.jit(at), jax.jit(shoot)


def row(number, envs=1):
    """A row in which every number tells the iteration and the environment."""
    mark = 100.0 * number + jnp.arange(envs)
    return Transition(mark[:, None] * jnp.ones(3), jnp.arange(envs), mark, mark[:, None] + jnp.ones(3), mark % 2, mark % 2)


def filled(rows, capacity, envs=1):
    replay = empty(row(0, envs), capacity, 1000)
    replay = jax.tree.map(lambda x: x - 1, replay)  # so that what was never written shows
    for number in range(rows):
        replay = STORE(replay, row(number, envs), jnp.int32(number))
    return replay


@settings(max_examples=30)
@given(rows=st.integers(0, 12))
def test_the_ring_holds_the_newest_rows(rows):
    listed = [-1.0] * 5
    for number in range(rows):
        listed[number % 5] = 100.0 * number
    replay = filled(rows, 5)
    assert replay.reward[:, 0].tolist() == listed
    assert sorted(x for x in listed if x >= 0) == [100.0 * number for number in range(max(0, rows - 5), rows)]


@pytest.mark.parametrize(("capacity", "iterations", "envs", "rows"), [(10, 1000, 1, 10), (10, 4, 1, 4), (10, 1000, 3, 3), (2, 9, 3, 1)])
def test_a_buffer_is_no_longer_than_its_capacity_or_its_run(capacity, iterations, envs, rows):
    assert empty(row(0, envs), capacity, iterations).reward.shape == (rows, envs)


@pytest.mark.parametrize("rows", [1, 3, 5, 11])
def test_every_stored_transition_is_drawn_equally_often_and_no_other(rows):
    replay = filled(rows, 10, envs=2)
    lots = jax.random.uniform(jax.random.key(0), (20_000,))
    drawn, counts = np.unique(SAMPLE(replay, jnp.int32(rows), lots).reward, return_counts=True)
    expected = [100.0 * number + env for number in range(max(0, rows - 5), rows) for env in range(2)]
    assert drawn.tolist() == expected
    even = len(lots) / len(expected)
    assert (np.abs(counts - even) < 5 * np.sqrt(even)).all()


def test_the_smallest_and_the_largest_lots_stay_within_the_stored_rows():
    replay = filled(3, 10, envs=2)
    lots = jnp.array([0.0, np.nextafter(np.float32(1), np.float32(0)), 1.0])
    assert SAMPLE(replay, jnp.int32(3), lots).reward.tolist() == [0.0, 201.0, 201.0]


def test_a_drawn_transition_is_of_one_piece():
    replay = filled(7, 20, envs=2)
    batch = SAMPLE(replay, jnp.int32(7), jax.random.uniform(jax.random.key(1), (50,)))
    np.testing.assert_array_equal(batch.state[:, 0], batch.reward)
    np.testing.assert_array_equal(batch.next_state, batch.state + 1)
    np.testing.assert_array_equal(batch.action, batch.reward % 100)


# Several steps


def walked(rewards, over, ring, n, gamma, lots):
    """What a stretch from each drawn step brings, and its last row, in loops."""
    rows = len(rewards)
    stored = min(rows, ring)
    found = []
    for lot in lots:
        begin = now = rows - stored + min(int(np.float32(lot) * np.float32(stored)), stored - 1)
        total, discount = rewards[now], gamma
        while now - begin < n - 1 and not over[now] and now < rows - 1:
            now += 1
            total, discount = total + discount * rewards[now], discount * gamma
        found.append((begin, now, total, discount))
    return found


@settings(max_examples=40)
@given(
    steps=st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=1, max_size=12),
    n=st.integers(1, 4),
    ring=st.integers(1, 8),
    lots=st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3),
)
def test_a_stretch_gathers_rewards_until_its_length_its_episode_or_what_is_stored_is_over(steps, n, ring, lots):
    rewards, over = zip(*steps, strict=True)
    replay = empty(row(0), ring, 1000)
    for number, (reward, last) in enumerate(steps):
        new = row(number)._replace(reward=jnp.array([float(reward)]), over=jnp.array([float(last)]))
        replay = STORE(replay, new, jnp.int32(number))
    ahead = LOOK_AHEAD(replay, jnp.int32(len(steps)), n, 0.5, jnp.array(lots, jnp.float32))
    begins, ends, totals, discounts = zip(*walked(rewards, over, ring, n, 0.5, lots), strict=True)
    assert at(replay, ahead.first).state[:, 0].tolist() == [100.0 * b for b in begins]
    assert at(replay, ahead.last).state[:, 0].tolist() == [100.0 * e for e in ends]
    np.testing.assert_allclose(ahead.reward, totals, rtol=1e-6)
    np.testing.assert_allclose(ahead.discount, discounts, rtol=1e-6)


def test_stretches_stay_in_their_environment_and_single_steps_are_drawn_as_samples_are():
    replay = filled(7, 20, envs=2)._replace(over=jnp.zeros((10, 2)))
    lots = jax.random.uniform(jax.random.key(1), (50,))
    ahead = LOOK_AHEAD(replay, jnp.int32(7), 3, 0.5, lots)
    first, last = at(replay, ahead.first), at(replay, ahead.last)
    np.testing.assert_array_equal(first.action, last.action)
    np.testing.assert_array_equal(last.reward, np.minimum(first.reward + 200, 600 + first.action))
    one = LOOK_AHEAD(replay, jnp.int32(7), 1, 0.5, lots)
    np.testing.assert_array_equal(at(replay, one.first).reward, SAMPLE(replay, jnp.int32(7), lots).reward)
    np.testing.assert_array_equal(one.reward, at(replay, one.last).reward)
    assert (one.discount == 0.5).all()


# Sequences


def listed_sequences(rows, length, ring, envs):
    """All stretches of rows that lie whole in what is stored, by their rewards."""
    oldest = max(0, rows - ring)
    begins = [(begin, env) for begin in range(oldest, rows - length + 1) for env in range(envs)]
    return [[100.0 * (begin + i) + env for i in range(length)] for begin, env in begins]


@settings(max_examples=30)
@given(rows=st.integers(3, 19), envs=st.sampled_from([1, 3]), length=st.sampled_from([1, 3]))
def test_sequences_are_all_those_that_lie_whole_in_what_is_stored(rows, envs, length):
    """None crosses from the newest row to the oldest: a fine comb of lots finds each, equally often, and no other."""
    ring = 7
    lots = (np.arange(120, dtype=np.float32) + 0.5) / 120
    drawn = np.asarray(SEQUENCES(filled(rows, ring * envs, envs), jnp.int32(rows), length, lots).reward)
    assert drawn.shape == (length, 120)
    found, counts = np.unique(drawn.T, axis=0, return_counts=True)
    assert found.tolist() == sorted(listed_sequences(rows, length, ring, envs))
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("rows", [4, 9, 23])
def test_every_sequence_is_drawn_equally_often(rows):
    lots = jax.random.uniform(jax.random.key(2), (20_000,))
    drawn = np.asarray(SEQUENCES(filled(rows, 20, envs=2), jnp.int32(rows), 4, lots).reward)
    found, counts = np.unique(drawn.T, axis=0, return_counts=True)
    assert found.tolist() == sorted(listed_sequences(rows, 4, 10, 2))
    even = len(lots) / len(found)
    assert (np.abs(counts - even) < 5 * np.sqrt(even)).all()


def test_the_smallest_and_the_largest_lots_stay_within_the_stored_sequences():
    lots = jnp.array([0.0, np.nextafter(np.float32(1), np.float32(0)), 1.0])
    batch = SEQUENCES(filled(9, 10, envs=2), jnp.int32(9), 3, lots)
    assert batch.reward.T.tolist() == [[400.0, 500.0, 600.0], [601.0, 701.0, 801.0], [601.0, 701.0, 801.0]]
    np.testing.assert_array_equal(batch.state[..., 0], batch.reward)
    np.testing.assert_array_equal(batch.action, batch.reward % 100)


def test_storing_copies_nothing_alone_in_a_loop_or_over_runs():
    replay = jax.eval_shape(lambda: empty(row(0), 10**6, 10**6))
    one = jax.eval_shape(lambda: row(0))
    runs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), (replay, one))
    number = jax.ShapeDtypeStruct((), jnp.int32)

    def looped(replay, row, start):
        def body(i, replay):
            batch = sample(replay, i + 1, jnp.linspace(0.0, 0.9, 8))
            return store(replay, row._replace(reward=row.reward + jnp.mean(batch.reward)), i)

        return jax.lax.fori_loop(start, start + 9, body, replay)

    for function, arguments in (
        (store, (replay, one, number)),
        (looped, (replay, one, number)),
        (jax.vmap(looped, in_axes=(0, 0, None)), (*runs, number)),
    ):
        analysis = jax.jit(function, donate_argnums=0).lower(*arguments).compile().memory_analysis()
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arguments[0]))
        assert analysis.alias_size_in_bytes >= size
        assert analysis.temp_size_in_bytes < 100_000


# Frames stored once


def black_before(frames, beginnings, t, count):
    """The stack seen at time t: what lies before the game began is black."""
    begun = max(b for b in beginnings if b <= t)
    return np.concatenate([frames[i] if i >= begun else 0 * frames[0] for i in range(t - count + 1, t + 1)])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_stacks_built_from_single_frames_are_what_was_seen(data):
    """Of two environments whose games begin at any time, some frames black, in a ring that wraps around."""
    rows, count, envs, pixels, times = 9, 3, 2, 2, 30
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    frames = random.integers(0, 256, (envs, times, pixels)).astype(np.uint8) * (random.random((envs, times, 1)) < 0.8)
    beginnings = [[0, *data.draw(st.lists(st.integers(1, times - 1), max_size=6))] for _ in range(envs)]
    stop = data.draw(st.integers(2, times - 1))
    nothing = jnp.zeros(envs)
    replay = empty(Transition(None, jnp.zeros(envs, jnp.int32), nothing, None, nothing, nothing), rows * envs, 1000)
    replay = replay._replace(state=film(count, (count, 1, pixels), rows, envs))
    for t in range(stop + 1):
        seen = np.stack([black_before(frames[e], beginnings[e], t, count) for e in range(envs)]).reshape(envs, count, 1, pixels)
        if t:
            over = jnp.array([float(t in beginnings[e]) for e in range(envs)])
            row = Transition(None, jnp.full(envs, t - 1), jnp.full(envs, float(t - 1)), None, over, over)
            replay = STORE(replay._replace(state=None), row, jnp.int32(t - 1))._replace(state=replay.state)
        replay = replay._replace(state=SHOOT(replay.state, jnp.asarray(seen), jnp.int32(t)))
    lots = jnp.asarray(random.random(64), jnp.float32)
    for steps in (1, 3):
        ahead = LOOK_AHEAD(replay, jnp.int32(stop), steps, 0.5, lots)
        first, last = (jax.tree.map(np.asarray, AT(replay, place)) for place in (ahead.first, ahead.last))
        np.testing.assert_array_equal(SAMPLE(replay, jnp.int32(stop), lots).state, first.state)
        assert first.action.min() >= max(0, stop - (rows - count))
        assert last.action.max() <= stop - 1
        for i, env in enumerate(np.asarray(ahead.first[1])):
            np.testing.assert_array_equal(first.state[i], black_before(frames[env], beginnings[env], first.action[i], count))
            ends = [t for t in range(first.action[i], last.action[i]) if t + 1 in beginnings[env]]
            assert not ends  # no stretch goes beyond its game
            if not last.over[i]:
                np.testing.assert_array_equal(last.next_state[i], black_before(frames[env], beginnings[env], last.action[i] + 1, count))
