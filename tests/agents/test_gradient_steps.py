"""Gradient steps of DQN and MBEC++: their targets, their length, their order and target updates."""

import copy
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents import make
from engram.optim import gradient_step, make_optimizer
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_envs=2, num_iterations=60)
SMALL = {"batch_size": 8, "hidden_size": 4, "learning_starts": 1, "target_update_interval": 10}
EPISODIC = {"num_neighbours": 2, "memory_size": 16, "chunk": 2, "trajectory_dim": 4}
EPISODIC |= {"trajectory_loss": "none", "select_with_q_only": True}
AGENTS = ["dqn", "mbec++"]


def small_agent(name, **options):
    episodic = EPISODIC if name == "mbec++" else {}
    return make(name, "paper", **SMALL | episodic | options)


def with_learning_rate(agent, learning_rate):
    """The agent with a learning rate that may be traced: one program serves all of them."""
    agent = copy.copy(agent)
    object.__setattr__(agent, "learning_rate", learning_rate)
    return agent


@cache
def random_state(agent):
    """A state with random transitions and memories."""
    state = jax.jit(lambda: agent.init(jax.random.key(0), SPEC))()
    rng = np.random.default_rng(0)

    def normal(x):
        return jnp.array(rng.normal(size=x.shape), x.dtype)

    done = jnp.array(rng.random(state.replay.done.shape) < 0.1, jnp.float32)
    replay = jax.tree.map(normal, state.replay)._replace(
        action=jnp.array(rng.integers(2, size=state.replay.action.shape), jnp.int32),
        terminal=done,
        done=done,
    )
    if not hasattr(state, "episodic"):
        return state._replace(replay=replay)
    memory = state.episodic.memory
    memory = memory._replace(
        keys=normal(memory.keys), values=normal(memory.values), num_inserted=jnp.int32(16)
    )
    return state._replace(replay=replay, episodic=state.episodic._replace(memory=memory))


@cache
def learn_program(agent):
    def compute(state, step, key, learning_rate):
        return with_learning_rate(agent, learning_rate).learn(state, SPEC, step, key)

    return jax.jit(compute)


def learn(agent, state, step, key, learning_rate=1e-3):
    return learn_program(agent)(state, jnp.int32(step), key, learning_rate)


def networks(state):
    """Online and target networks."""
    if hasattr(state, "params"):
        return state.params, state.target_params
    return state.q, state.q_target


def numbers(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


# Targets over several steps


@pytest.mark.parametrize("name", AGENTS)
def test_the_loss_depends_on_the_number_of_steps_in_a_target(name):
    """After two iterations a target has at most two rewards."""

    def loss(n_step):
        agent = small_agent(name, n_step=n_step)
        _, metrics = learn(agent, random_state(small_agent(name)), 2, jax.random.key(1))
        return float(metrics["td_loss"])

    assert loss(1) != loss(2)
    assert loss(2) == loss(3)


# Length


@pytest.mark.parametrize("name", AGENTS)
def test_adams_first_step_is_as_long_as_the_learning_rate(name):
    agent = small_agent(name)
    state = random_state(agent)
    after, _ = learn(agent, state, 41, jax.random.key(1), learning_rate=0.25)
    change = np.abs(numbers(networks(after)[0]) - numbers(networks(state)[0]))
    # A unit whose input is never positive has a gradient of 0. Gradients that are nearly as small
    # as Adam's epsilon make slightly shorter steps.
    assert np.mean(change > 0) > 0.5
    np.testing.assert_allclose(change[change > 0], 0.25, rtol=1e-2)


def test_adam_adds_eps_to_the_size_of_gradients():
    """Its first step is learning_rate g / (|g| + eps), and g has a norm of at most the maximum."""
    gradient = jnp.array([3.0, -1.0, 0.5])

    def step(eps, max_grad_norm=10.0):
        optimizer, params = make_optimizer(0.5, max_grad_norm, eps), jnp.zeros(3)
        loss = lambda params: jnp.dot(gradient, params)  # noqa: E731
        return gradient_step(optimizer, loss, params, optimizer.init(params))[0]

    for eps in (1.0, 3.0):
        expected = -0.5 * gradient / (np.abs(gradient) + eps)
        np.testing.assert_allclose(step(eps), expected, rtol=1e-4)
    clipped = gradient / np.linalg.norm(gradient)
    np.testing.assert_allclose(
        step(1.0, max_grad_norm=1.0), -0.5 * clipped / (np.abs(clipped) + 1), rtol=1e-4
    )


# Several gradient steps per update

ALL_SWITCHES = {"double_q": True, "n_step": 3, "select_with_q_only": False}
ALL_SWITCHES |= {"center_memory_values": True, "q_uses_tau": True}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("dqn", {}, marks=pytest.mark.slow),
        ("dqn", {"double_q": True, "n_step": 3}),
        pytest.param("mbec++", {}, marks=pytest.mark.slow),
        ("mbec++", ALL_SWITCHES),
    ],
)
def test_two_gradient_steps_of_an_update_equal_two_updates(name, options):
    one = small_agent(name, **options)
    state, step, key = random_state(one), 41, jax.random.key(3)  # target updates are not due
    first_key, second_key = jax.random.split(key)
    once, first = learn(one, state, step, first_key)
    twice, second = learn(one, once, step, second_key)
    together, means = learn(replace(one, gradient_steps=2), state, step, key)
    loss_field = "loss" if name == "dqn" else "losses"  # a mean here, and the second there
    together, twice = (state._replace(**{loss_field: None}) for state in (together, twice))
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(twice), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    losses = [float(metrics["td_loss"]) for metrics in (first, second)]
    assert float(means["td_loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("name", AGENTS)
def test_a_loss_is_reported_until_the_next_update(name):
    agent = small_agent(name, train_frequency=4)
    updated, metrics = learn(agent, random_state(agent), 40, jax.random.key(3))
    _, later = learn(agent, updated, 41, jax.random.key(4))
    assert float(metrics["td_loss"]) > 0
    assert float(later["td_loss"]) == float(metrics["td_loss"])


# Target networks


@pytest.mark.parametrize("name", AGENTS)
def test_targets_are_copied_by_environment_steps_whatever_the_gradient_steps(name):
    """With two environments an interval of 10 steps is 5 iterations."""
    agent = small_agent(name, gradient_steps=2)
    state, equal = random_state(small_agent(name)), []
    for step in range(21):
        state, _ = learn(agent, state, step, jax.random.fold_in(jax.random.key(0), step))
        online, target = networks(state)
        if np.array_equal(numbers(online), numbers(target)):
            equal.append(step)
    assert equal == [0, 5, 10, 15, 20]
