"""Resets of networks, the horizon that grows after them, weight decay and shifted images."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engram
from engram.agents import common, make, resets
from engram.encoders import shift_image
from engram.networks import init_params, make_network
from engram.optim import gradient_step, make_optimizer
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_envs=2, num_iterations=100)
IMAGES = Spec((5, 6, 1), 2, max_episode_steps=10, num_envs=2, num_iterations=100, dtype="uint8")
SMALL = {"batch_size": 4, "hidden_size": 4, "learning_starts": 8, "target_update_interval": 10}
EPISODIC = {"num_neighbours": 2, "memory_size": 16, "chunk": 2, "trajectory_dim": 4}


def small(name, **options):
    return make(name, "paper", **SMALL | (EPISODIC if name == "mbec++" else {}) | options)


# The horizon


def horizon_after(env_steps, **options):
    agent = small("dqn", learning_starts=20, **options)
    return resets.horizon(agent, SPEC, jnp.int32((20 + env_steps) // SPEC.num_envs))


def test_without_first_values_the_horizon_is_a_constant():
    assert resets.horizon(small("dqn", n_step=4, gamma=0.9), SPEC, jnp.int32(7)) == (4, 0.9)


@pytest.mark.parametrize(("env_steps", "n"), [(0, 10), (20, 5), (40, 3), (1_000, 3)])
def test_n_falls_by_equal_factors(env_steps, n):
    # Half way it is the square root of 10 * 3.
    horizon = horizon_after(env_steps, n_step_start=10, n_step=3, anneal_steps=40)
    assert int(horizon.n) == n


@pytest.mark.parametrize(("env_steps", "gamma"), [(0, 0.9), (20, 0.97), (40, 0.991), (99, 0.991)])
def test_the_distance_of_gamma_to_1_falls_by_equal_factors(env_steps, gamma):
    # Half way it is the square root of 0.1 * 0.009.
    horizon = horizon_after(env_steps, gamma_start=0.9, gamma=0.991, anneal_steps=40)
    assert float(horizon.gamma) == pytest.approx(gamma, abs=1e-6)


def test_targets_have_as_many_rewards_as_the_horizon():
    agent = small("dqn", n_step_start=3, n_step=1, gamma=0.5, anneal_steps=20, learning_starts=1)
    spec = replace(SPEC, num_envs=1)
    state = agent.init(jax.random.key(0), spec)
    replay = state.replay._replace(reward=state.replay.reward.at[:3, 0].set([1.0, 4.0, 16.0]))
    first_row, returns = jnp.zeros(1), []
    for step in (3, 100):
        drawn = resets.sample_n_step(agent, spec, replay, jnp.int32(step), first_row)
        returns.append(float(drawn.n_step_return[0]))
    assert returns == [1 + 4 / 2 + 16 / 4, 1.0]


# When


@settings(max_examples=30)
@given(
    interval=st.integers(2, 60),
    num_iterations=st.integers(1, 60),
    learning_starts=st.integers(0, 40),
)
def test_resets_leave_a_whole_interval_to_learn(interval, num_iterations, learning_starts):
    agent = small("dqn", reset_interval=interval, learning_starts=max(1, learning_starts))
    spec = replace(SPEC, num_iterations=num_iterations)
    every, last = interval // 2, agent.learning_starts // 2
    due = []
    for step in range(num_iterations):
        since = int(resets.env_steps_since_reset(agent, spec, jnp.int32(step)))
        assert since == 2 * max(0, step - last)
        if resets.is_due(agent, spec, step):
            due.append(step)
            last = max(last, step)
    expected = [
        k for k in range(1, num_iterations) if k % every == 0 and k + every <= num_iterations
    ]
    assert due == expected


# What


def network(spec, seed):
    build = partial(make_network, spec, "nature", (4, 2))
    return init_params(build, jax.random.key(seed))


def test_a_reset_mixes_the_encoder_and_replaces_the_head():
    old, new = network(IMAGES, 0), network(IMAGES, 1)
    mixed = resets.shrink_and_perturb(old, new, 0.75)
    encoders = mixed.encoder, old.encoder, new.encoder
    for got, kept, fresh in zip(*map(jax.tree.leaves, encoders), strict=True):
        np.testing.assert_allclose(got, 0.75 * kept + 0.25 * fresh, atol=1e-7)
    for got, fresh in zip(*map(jax.tree.leaves, (mixed.head, new.head)), strict=True):
        np.testing.assert_array_equal(got, fresh)


def test_a_network_without_an_encoder_is_replaced():
    new = network(SPEC, 1)
    assert resets.shrink_and_perturb(network(SPEC, 0), new, 0.75) is new


def online_and_target(state):
    if hasattr(state, "params"):
        return state.params.q, state.target_params.q
    return state.q, state.q_target


@pytest.mark.parametrize("name", ["dqn", pytest.param("mbec++", marks=pytest.mark.slow)])
def test_networks_are_reset_after_the_interval_only(name):
    agent = small(name, reset_interval=60, learning_rate=1e-3)
    learn = jax.jit(lambda state, step, key: agent.learn(state, SPEC, step, key)[0])
    before = jax.jit(lambda: agent.init(jax.random.key(0), SPEC))()
    changes = {}
    for step in (29, 30, 31, 90):  # the last is in the run's last interval
        after = learn(before, jnp.int32(step), jax.random.key(step))
        online, target = online_and_target(after)
        leaves = zip(*map(jax.tree.leaves, (online, online_and_target(before)[0])), strict=True)
        changes[step] = max(np.abs(new - old).max() for new, old in leaves)
        if step == 30:  # both are the same new one, and Adam starts anew
            for one, other in zip(*map(jax.tree.leaves, (online, target)), strict=True):
                np.testing.assert_array_equal(one, other)
            assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(after.opt_state))
    assert changes[30] > 0.05 > 0.01 > max(changes[29], changes[31], changes[90])


def test_seeds_are_reset_to_different_networks():
    agent = small("dqn", reset_interval=40)
    learn = jax.jit(lambda state, key: agent.learn(state, SPEC, jnp.int32(20), key)[0].q)
    state = jax.jit(lambda: agent.init(jax.random.key(0), SPEC))()
    one, other = (learn(state, jax.random.key(seed)) for seed in range(2))
    assert not np.allclose(jax.tree.leaves(one)[0], jax.tree.leaves(other)[0])


# Weight decay


def test_weight_decay_shrinks_weights_by_the_learning_rate():
    def step(weight_decay):
        optimizer, params = make_optimizer(0.1, 1.0, weight_decay=weight_decay), jnp.array([2.0])
        loss = lambda params: 0.0 * params[0]  # noqa: E731
        return float(gradient_step(optimizer, loss, params, optimizer.init(params))[0][0])

    assert step(0.0) == 2.0
    assert step(0.5) == pytest.approx(2.0 * (1 - 0.1 * 0.5))


# Shifted images


@pytest.mark.parametrize(("shape", "axes"), [((3, 4), (0, 1)), ((2, 3, 4), (1, 2))])
def test_an_image_is_moved_and_its_edges_repeated(shape, axes):
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    moved = shift_image(shape, jnp.asarray(image.ravel()), jnp.array([1, -2])).reshape(shape)
    rows, columns = np.clip(np.arange(3) - 1, 0, 2), np.clip(np.arange(4) + 2, 0, 3)
    expected = image.take(rows, axis=axes[0]).take(columns, axis=axes[1])
    np.testing.assert_array_equal(moved, expected)


def test_each_image_of_a_batch_is_shifted_by_itself():
    agent = small("dqn", random_shift=1, batch_size=64)
    image = np.zeros((5, 6, 1), np.uint8)
    image[2, 3] = 9
    obs = jnp.tile(image.ravel(), (64, 1))
    uniforms = jax.random.uniform(jax.random.key(0), (1, agent.num_uniforms))
    shifted = common.shift_images(agent, IMAGES, uniforms, obs, obs)
    for images in shifted:
        places = {tuple(np.argwhere(x)[0, :2]) for x in np.asarray(images).reshape(-1, 5, 6, 1)}
        assert places == {(row, column) for row in (1, 2, 3) for column in (2, 3, 4)}
    assert not np.array_equal(*shifted)


def test_vectors_are_not_shifted():
    agent = small("dqn", random_shift=1)
    obs = jnp.ones((4, 2))
    uniforms = jnp.zeros((1, agent.num_uniforms))
    assert common.shift_images(agent, SPEC, uniforms, obs, obs) == (obs, obs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "mbec++"])
def test_all_of_it_trains_together(name, tmp_path):
    agent = small(
        name,
        reset_interval=100,
        n_step_start=5,
        gamma_start=0.9,
        anneal_steps=50,
        weight_decay=0.1,
        gradient_steps=2,
        head="quantile",
    )
    whole = engram.train(agent, "cartpole", 2, 300, out=tmp_path / "run")
    assert all(np.isfinite(row["td_loss"]) for row in whole.metrics)
