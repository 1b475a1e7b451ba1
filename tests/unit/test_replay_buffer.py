"""The replay buffer holds the newest rows, samples only what was stored, and is never copied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import replay_buffer
from engram.replay_buffer import Transition, init_buffer

ADD, SAMPLE = jax.jit(replay_buffer.add), jax.jit(replay_buffer.sample)
RETURNS = jax.jit(replay_buffer.monte_carlo_returns)
N_STEP = jax.jit(replay_buffer.n_step, static_argnums=2)
SEQUENCES = jax.jit(replay_buffer.sample_sequences, static_argnums=2)
GATHER, ADD_FRAME = jax.jit(replay_buffer.gather), jax.jit(replay_buffer.add_frame)
ALMOST_ONE = np.nextafter(np.float32(1), np.float32(0))


def row(iteration, num_envs=1):
    """A row in which every number depends on iteration and environment."""
    number = 100 * np.float32(iteration) + np.arange(num_envs, dtype=np.float32)
    obs = np.repeat(number[:, None], 3, axis=1)
    return Transition(
        obs=obs,
        action=np.arange(num_envs, dtype=np.int32),
        reward=number,
        next_obs=obs + 1,
        terminal=number % 2,
        done=number % 2,
    )


def filled(rows, buffer_size, num_envs=1):
    """A buffer after `rows` iterations; slots never written hold -1."""
    buffer = init_buffer(row(0, num_envs), buffer_size, 1000)
    buffer = jax.tree.map(lambda x: np.asarray(x) - 1, buffer)
    for iteration in range(rows):
        buffer = ADD(buffer, row(iteration, num_envs), np.int32(iteration))
    return buffer


def assert_uniform(counts):
    """Counts differ by less than five standard deviations."""
    mean = counts.mean()
    assert (np.abs(counts - mean) < 5 * np.sqrt(mean)).all()


def test_the_buffer_holds_the_newest_rows():
    buffer, expected = filled(0, 5), [-1.0] * 5
    for iteration in range(12):
        buffer = ADD(buffer, row(iteration), np.int32(iteration))
        expected[iteration % 5] = 100.0 * iteration
        assert buffer.reward[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("buffer_size", "iterations", "num_envs", "rows"),
    [(10, 1000, 1, 10), (10, 4, 1, 4), (10, 1000, 3, 3), (2, 9, 3, 1)],
)
def test_a_buffer_is_no_larger_than_its_run(buffer_size, iterations, num_envs, rows):
    buffer = init_buffer(row(0, num_envs), buffer_size, iterations)
    assert buffer.reward.shape == (rows, num_envs)


@pytest.mark.parametrize("rows", [1, 3, 5, 11])
def test_samples_are_uniform_over_all_stored_transitions(rows):
    uniforms = jax.random.uniform(jax.random.key(0), (20_000,))
    batch = SAMPLE(filled(rows, 10, num_envs=2), np.int32(rows), uniforms)
    rewards, counts = np.unique(batch.reward, return_counts=True)
    stored = range(max(0, rows - 5), rows)
    assert rewards.tolist() == [100.0 * iteration + env for iteration in stored for env in range(2)]
    assert_uniform(counts)


def test_extreme_uniforms_sample_stored_transitions():
    uniforms = np.array([0.0, ALMOST_ONE, 1.0], np.float32)
    batch = SAMPLE(filled(3, 10, num_envs=2), np.int32(3), uniforms)
    assert batch.reward.tolist() == [0.0, 201.0, 201.0]


def test_all_fields_of_a_sample_are_of_the_same_transition():
    uniforms = jax.random.uniform(jax.random.key(1), (50,))
    batch = SAMPLE(filled(7, 20, num_envs=2), np.int32(7), uniforms)
    np.testing.assert_array_equal(batch.obs[:, 0], batch.reward)
    np.testing.assert_array_equal(batch.next_obs, batch.obs + 1)
    np.testing.assert_array_equal(batch.action, batch.reward % 100)


# n-step returns


def n_step_by_loops(rewards, dones, buffer_size, n, gamma, uniforms):
    """First and last row, n-step return and discount of each draw."""
    rows = len(rewards)
    stored = min(rows, buffer_size)
    results = []
    for uniform in uniforms:
        drawn = min(int(np.float32(uniform) * np.float32(stored)), stored - 1)
        first = last = rows - stored + drawn
        total, discount = rewards[first], gamma
        while last - first < n - 1 and not dones[last] and last < rows - 1:
            last += 1
            total, discount = total + discount * rewards[last], discount * gamma
        results.append((first, last, total, discount))
    return results


@settings(max_examples=30)
@given(
    steps=st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=1, max_size=12),
    n=st.sampled_from([1, 3]),
    shorter=st.sampled_from([None, 1, 2]),
    buffer_size=st.sampled_from([1, 3, 8]),
    uniforms=st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3),
)
def test_n_step_returns_stop_at_an_episode_end_and_at_the_newest_row(
    steps, n, shorter, buffer_size, uniforms
):
    rewards, dones = zip(*steps, strict=True)
    buffer = init_buffer(row(0), buffer_size, 1000)
    for iteration, step in enumerate(steps):
        reward, done = np.array(step, np.float32)[:, None]
        new = row(iteration)._replace(reward=reward, done=done)
        buffer = ADD(buffer, new, np.int32(iteration))
    limit = None if shorter is None else np.int32(shorter)
    drawn = N_STEP(buffer, np.int32(len(steps)), n, 0.5, np.array(uniforms, np.float32), limit)
    expected = n_step_by_loops(rewards, dones, buffer_size, min(n, shorter or n), 0.5, uniforms)
    first, last, returns, discounts = zip(*expected, strict=True)
    assert GATHER(buffer, drawn.first).obs[:, 0].tolist() == [100.0 * x for x in first]
    assert GATHER(buffer, drawn.last).obs[:, 0].tolist() == [100.0 * x for x in last]
    np.testing.assert_allclose(drawn.n_step_return, returns, rtol=1e-6)
    np.testing.assert_allclose(drawn.discount, discounts, rtol=1e-6)


@pytest.fixture(scope="module")
def one_long_episode():
    return filled(7, 20, num_envs=2)._replace(done=jnp.zeros((10, 2)))


def test_n_step_samples_do_not_cross_environments(one_long_episode):
    uniforms = jax.random.uniform(jax.random.key(1), (50,))
    drawn = N_STEP(one_long_episode, np.int32(7), 3, 0.5, uniforms)
    first, last = (GATHER(one_long_episode, index) for index in (drawn.first, drawn.last))
    np.testing.assert_array_equal(first.action, last.action)
    expected = np.minimum(first.reward + 200, 600 + first.action)
    np.testing.assert_array_equal(last.reward, expected)


def test_one_step_returns_are_drawn_as_samples_are(one_long_episode):
    uniforms = jax.random.uniform(jax.random.key(1), (50,))
    drawn = N_STEP(one_long_episode, np.int32(7), 1, 0.5, uniforms)
    batch = SAMPLE(one_long_episode, np.int32(7), uniforms)
    np.testing.assert_array_equal(GATHER(one_long_episode, drawn.first).reward, batch.reward)
    np.testing.assert_array_equal(GATHER(one_long_episode, drawn.last).reward, batch.reward)
    np.testing.assert_array_equal(drawn.n_step_return, batch.reward)
    assert (drawn.discount == 0.5).all()


# Sequences


def all_sequences(rows, length, buffer_rows, num_envs):
    """All sequences of stored rows, by their rewards."""
    starts = range(max(0, rows - buffer_rows), rows - length + 1)
    return [
        [100.0 * (start + i) + env for i in range(length)]
        for start in starts
        for env in range(num_envs)
    ]


@settings(max_examples=25)
@given(rows=st.integers(3, 19), num_envs=st.sampled_from([1, 3]), length=st.sampled_from([1, 3]))
def test_sequences_never_cross_from_the_newest_to_the_oldest_row(rows, num_envs, length):
    """Evenly spaced uniforms draw every sequence equally often, and no other."""
    uniforms = (np.arange(120, dtype=np.float32) + 0.5) / 120
    buffer = filled(rows, 7 * num_envs, num_envs)
    batch = np.asarray(SEQUENCES(buffer, np.int32(rows), length, uniforms).reward)
    assert batch.shape == (length, 120)
    sequences, counts = np.unique(batch.T, axis=0, return_counts=True)
    assert sequences.tolist() == sorted(all_sequences(rows, length, 7, num_envs))
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("rows", [4, 9, 23])
def test_sequences_are_drawn_uniformly(rows):
    uniforms = jax.random.uniform(jax.random.key(2), (20_000,))
    buffer = filled(rows, 20, num_envs=2)
    batch = np.asarray(SEQUENCES(buffer, np.int32(rows), 4, uniforms).reward)
    sequences, counts = np.unique(batch.T, axis=0, return_counts=True)
    assert sequences.tolist() == sorted(all_sequences(rows, 4, 10, 2))
    assert_uniform(counts)


def test_extreme_uniforms_draw_stored_sequences():
    uniforms = np.array([0.0, ALMOST_ONE, 1.0], np.float32)
    batch = SEQUENCES(filled(9, 10, num_envs=2), np.int32(9), 3, uniforms)
    newest = [601.0, 701.0, 801.0]
    assert batch.reward.T.tolist() == [[400.0, 500.0, 600.0], newest, newest]
    np.testing.assert_array_equal(batch.obs[..., 0], batch.reward)
    np.testing.assert_array_equal(batch.action, batch.reward % 100)


# Memory


def add_in_a_loop(buffer, row, start):
    def body(i, buffer):
        batch = replay_buffer.sample(buffer, i + 1, jnp.linspace(0.0, 0.9, 8))
        new = row._replace(reward=row.reward + jnp.mean(batch.reward))
        return replay_buffer.add(buffer, new, i)

    return jax.lax.fori_loop(start, start + 9, body, buffer)


@pytest.mark.parametrize(
    ("function", "num_runs"),
    [
        (replay_buffer.add, None),
        (add_in_a_loop, None),
        (jax.vmap(add_in_a_loop, in_axes=(0, 0, None)), 2),
    ],
    ids=["once", "loop", "runs"],
)
def test_adding_a_row_does_not_copy_the_buffer(function, num_runs):
    axes = () if num_runs is None else (num_runs,)
    arrays = jax.eval_shape(lambda: (init_buffer(row(0), 10**6, 10**6), row(0)))
    buffer, new = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*axes, *x.shape), x.dtype), arrays)
    iteration = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = jax.jit(function, donate_argnums=0).lower(buffer, new, iteration).compile()
    analysis = compiled.memory_analysis()
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(buffer))
    assert analysis.alias_size_in_bytes >= size
    assert analysis.temp_size_in_bytes < 100_000


# Frames stored once

ROWS, STACK, ENVS, PIXELS, TIMES = 9, 3, 2, 2, 30


def stack_at(frames, starts, t):
    """The frame stack at time t: frames before the episode are black."""
    start = max(x for x in starts if x <= t)
    past = range(t - STACK + 1, t + 1)
    return np.concatenate([frames[i] if i >= start else 0 * frames[0] for i in past])


def init_frame_buffer():
    zeros = np.zeros(ENVS, np.float32)
    transition = Transition(None, np.zeros(ENVS, np.int32), zeros, None, zeros, zeros)
    buffer = init_buffer(transition, ROWS * ENVS, 1000)
    frames = replay_buffer.init_frames(STACK, (STACK, 1, PIXELS), ROWS, ENVS)
    return buffer._replace(obs=frames)


def fill_frame_buffer(frames, starts, stop):
    """A buffer at time `stop`; actions and rewards are the time of their transition."""
    buffer = init_frame_buffer()
    for t in range(stop + 1):
        if t:
            done = np.array([t in starts[env] for env in range(ENVS)], np.float32)
            action = np.full(ENVS, t - 1, np.int32)
            new = Transition(None, action, action.astype(np.float32), None, done, done)
            added = ADD(buffer._replace(obs=None), new, np.int32(t - 1))
            buffer = added._replace(obs=buffer.obs)
        obs = np.stack([stack_at(frames[env], starts[env], t) for env in range(ENVS)])
        obs = obs.reshape(ENVS, STACK, 1, PIXELS)
        buffer = buffer._replace(obs=ADD_FRAME(buffer.obs, obs, np.int32(t)))
    return buffer


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    starts=st.tuples(*[st.lists(st.integers(1, TIMES - 1), max_size=6)] * ENVS),
    stop=st.integers(2, TIMES - 1),
)
def test_stacks_of_single_frames_equal_the_observations(seed, starts, stop):
    """Episodes start at any time, some frames are black, and the buffer wraps around."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (ENVS, TIMES, PIXELS)).astype(np.uint8)
    frames *= rng.random((ENVS, TIMES, 1)) < 0.8
    starts = [[0, *x] for x in starts]
    buffer = fill_frame_buffer(frames, starts, stop)
    uniforms = rng.random(32).astype(np.float32)
    sampled = np.asarray(SAMPLE(buffer, np.int32(stop), uniforms).obs)
    for n in (1, 3):
        drawn = N_STEP(buffer, np.int32(stop), n, 0.5, uniforms)
        indices = drawn.first, drawn.last
        first, last = (jax.tree.map(np.asarray, GATHER(buffer, index)) for index in indices)
        np.testing.assert_array_equal(first.obs, sampled)
        assert first.action.min() >= max(0, stop - (ROWS - STACK))
        assert last.action.max() <= stop - 1
        for i, env in enumerate(np.asarray(drawn.first[1])):
            begin, end = first.action[i], last.action[i]
            expected = stack_at(frames[env], starts[env], begin)
            np.testing.assert_array_equal(first.obs[i], expected)
            assert not any(t + 1 in starts[env] for t in range(begin, end))  # one episode
            if not last.done[i]:
                expected = stack_at(frames[env], starts[env], end + 1)
                np.testing.assert_array_equal(last.next_obs[i], expected)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    starts=st.tuples(*[st.lists(st.integers(1, TIMES - 1), max_size=6)] * ENVS),
    stop=st.integers(4, TIMES - 1),
)
def test_sequences_of_single_frames_are_those_of_the_observations(seed, starts, stop):
    rng = np.random.default_rng(seed)
    frames = rng.integers(1, 256, (ENVS, TIMES, PIXELS)).astype(np.uint8)
    starts = [[0, *x] for x in starts]
    buffer = fill_frame_buffer(frames, starts, stop)
    batch = SEQUENCES(buffer, np.int32(stop), 4, rng.random(16).astype(np.float32))
    obs, action = np.asarray(batch.obs), np.asarray(batch.action)  # the action is the time
    assert (np.diff(action, axis=0) == 1).all()
    assert action.min() >= max(0, stop - (ROWS - STACK))
    for times, stacks in zip(action.T, obs.swapaxes(0, 1), strict=True):
        expected = [[stack_at(frames[e], starts[e], t) for t in times] for e in range(ENVS)]
        assert any(np.array_equal(stacks, one) for one in expected)


# Returns until an episode's end


def returns_by_loops(rewards, dones, terminals, buffer_size, gamma):
    """The return of each stored row, by its place in the buffer."""
    total, returns = -np.inf, np.full(buffer_size, -np.inf)
    for step in reversed(range(len(rewards))):
        after = total
        if dones[step]:
            after = 0.0 if terminals[step] else -np.inf
        total = rewards[step] + gamma * after
        if step >= len(rewards) - buffer_size:
            returns[step % buffer_size] = total
    return returns


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(st.integers(-9, 9), st.booleans(), st.booleans()), min_size=1, max_size=12
    ),
    buffer_size=st.sampled_from([1, 3, 8]),
)
def test_monte_carlo_returns_are_those_until_the_episodes_end(steps, buffer_size):
    buffer = init_buffer(row(0), buffer_size, 1000)
    for iteration, step in enumerate(steps):
        reward, done, terminal = np.array(step, np.float32)[:, None]
        new = row(iteration)._replace(reward=reward, done=done, terminal=terminal)
        buffer = ADD(buffer, new, np.int32(iteration))
    found = RETURNS(buffer, np.int32(len(steps)), 0.5)
    expected = returns_by_loops(*zip(*steps, strict=True), buffer_size, 0.5)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-5)
