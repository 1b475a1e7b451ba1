"""Values of DQN and MBEC++ are pulled up to the returns that followed."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents import common, make
from engram.targets import lower_bound_loss
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_envs=2, num_iterations=60)
SMALL = {"batch_size": 4, "hidden_size": 4, "learning_starts": 1, "lower_bound_weight": 0.5}
EPISODIC = {"num_neighbours": 2, "memory_size": 16, "chunk": 2, "trajectory_dim": 4}


def small(name, **options):
    return make(name, "paper", **SMALL | (EPISODIC if name == "mbec++" else {}) | options)


def test_only_values_below_the_bound_cost():
    # (5 - 2)^2 = 9, nothing for 3 < 4, nothing for an unknown return.
    bound, value = jnp.array([5.0, 3.0, -jnp.inf]), jnp.array([2.0, 4.0, 0.0])
    assert lower_bound_loss(bound, value) == pytest.approx(9 / 3)
    gradient = jax.grad(lambda value: lower_bound_loss(bound, value))(value)
    np.testing.assert_allclose(gradient, [-2 * 3 / 3, 0, 0])


@pytest.mark.parametrize("head", ["q", "quantile"])
def test_the_weighted_bound_is_part_of_dqns_loss(head):
    agent = small("dqn", head=head)
    q = agent.init(jax.random.key(0), SPEC).q
    obs, action = jnp.ones((3, 2)), jnp.zeros(3, jnp.int32)
    levels = jnp.full((3, 4), 0.5) if head == "quantile" else None
    target = jnp.zeros((3, 4) if head == "quantile" else 3)
    unknown, known = jnp.full(3, -jnp.inf), jnp.full(3, 9.0)
    without, pulled = (agent.loss_fn(q, obs, action, target, levels, x) for x in (unknown, known))
    values = jax.vmap(q)(obs)[:, 0]
    if head == "quantile":
        values = jax.vmap(q.quantiles)(obs, levels)[..., 0].mean(axis=-1)  # pyright: ignore
    expected = 0.5 * np.mean((9 - np.asarray(values)) ** 2)
    assert float(pulled - without) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["dqn", pytest.param("mbec++", marks=pytest.mark.slow)])
def test_returns_are_computed_at_intervals_and_enter_the_loss(name):
    agent = small(name, lower_bound_interval=20, gamma=0.5)
    state = jax.jit(lambda: agent.init(jax.random.key(0), SPEC))()
    rewards = np.full(state.replay.reward.shape, 100.0, np.float32)
    end = state.replay.done.at[1].set(1)
    replay = state.replay._replace(reward=jnp.asarray(rewards), done=end, terminal=end)
    learn = jax.jit(lambda state, step: agent.learn(state, SPEC, step, jax.random.key(1)))
    state = state._replace(replay=replay)
    not_due, _ = learn(state, jnp.int32(9))
    np.testing.assert_array_equal(not_due.replay.mc_return, state.replay.mc_return)
    due, metrics = learn(state, jnp.int32(10))
    np.testing.assert_allclose(due.replay.mc_return[:2], [[150, 150], [100, 100]])
    assert np.all(np.asarray(due.replay.mc_return[2:]) == -np.inf)
    assert np.isfinite(float(metrics["td_loss"]))
    # All draws are of the first two rows once no others are stored.
    unknown = jnp.full_like(replay.mc_return, -jnp.inf)
    bounded, unbounded = (
        learn(state._replace(replay=replay._replace(mc_return=x)), jnp.int32(2))[1]["td_loss"]
        for x in (due.replay.mc_return, unknown)
    )
    assert float(bounded - unbounded) > 0.5 * 0.9 * 100**2


def test_without_a_weight_replay_has_no_returns():
    agent = replace(small("dqn"), lower_bound_weight=0)
    replay = agent.init(jax.random.key(0), SPEC).replay
    assert replay.mc_return is None
    assert common.update_returns(agent, SPEC, jnp.int32(0), replay) is replay
