"""Exploration, schedules and checks that agents share agree with numbers computed by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents import DQN, make
from engram.agents.common import (
    epsilon_greedy,
    epsilon_schedule,
    greedy_action,
    is_terminal,
    learning_rate_schedule,
    should_update,
    update_target,
)
from engram.errors import EngramError
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=20)
TWO_ENVS = replace(SPEC, num_envs=2)
MANY = 30_000


# Ends of episodes


@pytest.mark.parametrize(
    ("option", "of_task", "expected"),
    [
        (None, False, [True, False, False]),
        (None, True, [True, True, False]),
        (True, False, [True, True, False]),
        (False, True, [True, False, False]),
    ],
)
def test_truncation_is_terminal_as_the_option_says_else_as_the_task_does(option, of_task, expected):
    terminated, truncated = jnp.array([True, False, False]), jnp.array([False, True, False])
    timestep = TimeStep(None, None, terminated, truncated, None)
    spec = replace(SPEC, truncation_is_terminal=of_task)
    agent = DQN(truncation_is_terminal=option)
    assert is_terminal(agent, spec, timestep).tolist() == expected
    # The frame after a truncation is not stored, so with frame stacks it is always terminal.
    stacked = replace(spec, frame_stack=4)
    if option is False:
        with pytest.raises(EngramError, match="cannot be off where frames are stacked"):
            is_terminal(agent, stacked, timestep)
    else:
        assert is_terminal(agent, stacked, timestep).tolist() == [True, True, False]


# Exploration


def test_epsilon_decays_from_1_to_its_final_value_by_environment_steps():
    agent = DQN(epsilon_end=0.1, epsilon_decay=10.0)
    assert epsilon_schedule(agent, SPEC, jnp.int32(0)) == pytest.approx(1.0)
    assert epsilon_schedule(agent, SPEC, jnp.int32(10)) == pytest.approx(0.1 + 0.9 / np.e)
    assert epsilon_schedule(agent, TWO_ENVS, jnp.int32(5)) == pytest.approx(0.1 + 0.9 / np.e)
    assert epsilon_schedule(agent, SPEC, jnp.int32(1000)) == pytest.approx(0.1)


def action_frequencies(q, epsilon):
    uniforms = jax.random.uniform(jax.random.key(0), (2, MANY))
    actions = epsilon_greedy(jnp.tile(jnp.array(q), (MANY, 1)), jnp.float32(epsilon), uniforms)
    return np.bincount(actions, minlength=len(q)) / MANY


def test_with_probability_epsilon_any_action_is_taken():
    frequencies = action_frequencies([0.0, 1.0, 0.0], epsilon=0.3)
    np.testing.assert_allclose(frequencies, [0.1, 0.8, 0.1], atol=0.01)


def test_a_uniform_of_1_takes_the_last_action():
    q, uniforms = jnp.array([[0.0, 1.0, 0.0]]), jnp.array([[0.0], [1.0]])
    assert epsilon_greedy(q, jnp.float32(1.0), uniforms).tolist() == [2]


def test_ties_are_broken_at_random():
    equal = action_frequencies([-7.0, -7.0, -7.0], epsilon=0.0)
    np.testing.assert_allclose(equal, [1 / 3] * 3, atol=0.01)
    two_best = action_frequencies([2.0, 1.0, 2.0], epsilon=0.0)
    np.testing.assert_allclose(two_best, [0.5, 0.0, 0.5], atol=0.01)


def test_invalid_actions_are_never_taken():
    frequencies = action_frequencies([0.0, 1.0, -jnp.inf], epsilon=0.5)
    np.testing.assert_allclose(frequencies, [0.25, 0.75, 0.0], atol=0.01)
    spec = replace(SPEC, num_valid_actions=jnp.int32(1))
    q = jnp.tile(jnp.array([0.0, 1.0]), (100, 1))
    assert not np.any(greedy_action(spec, q, 0.5, jax.random.key(0)))


# Schedules


def test_an_annealed_learning_rate_falls_linearly_to_0():
    annealed = DQN(learning_rate=0.5, anneal_lr=True)
    rates = [float(learning_rate_schedule(annealed, SPEC, jnp.int32(t))) for t in (0, 5, 15, 20)]
    assert rates == [0.5, 0.375, 0.125, 0.0]
    assert float(learning_rate_schedule(annealed, SPEC, jnp.int32(25))) == 0.0
    assert learning_rate_schedule(DQN(learning_rate=0.5), SPEC, jnp.int32(15)) == 0.5


@pytest.mark.parametrize(
    ("num_envs", "expected"), [(1, [8, 12, 16]), (2, [4, 6, 8]), (8, [1, 2, 3])]
)
def test_updates_start_and_recur_by_environment_steps(num_envs, expected):
    agent, spec = DQN(learning_starts=6, train_frequency=4), replace(SPEC, num_envs=num_envs)
    due = [step for step in range(20) if should_update(agent, spec, jnp.int32(step))]
    assert due[:3] == expected


IMAGES = Spec((8, 8), 2, "uint8", num_iterations=20)


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vector", "image"])
@pytest.mark.parametrize(
    ("num_envs", "expected"),
    [(1, [1, 0, 0, 0, 0, 0, 1]), (2, [1, 0, 0, 1, 0, 0, 1]), (32, [1] * 7)],
)
def test_targets_are_copied_by_environment_steps(spec, num_envs, expected):
    agent, spec = DQN(target_update_interval=6), replace(spec, num_envs=num_envs)
    online, target = {"q": jnp.ones(3)}, {"q": jnp.zeros(3)}
    copies = [update_target(agent, spec, jnp.int32(t), online, target)["q"] for t in range(7)]
    assert [copy.tolist() for copy in copies] == [[x] * 3 for x in expected]


def test_only_large_networks_are_copied_by_a_branch():
    def branches(spec):
        copy = lambda step: update_target(DQN(), spec, step, jnp.ones(3), jnp.zeros(3))  # noqa: E731
        return str(jax.make_jaxpr(copy)(jnp.int32(0))).count("cond[")

    assert (branches(SPEC), branches(IMAGES)) == (0, 1)


# Checks


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("mbec", "num_neighbours"),
        ("mbec", "num_write_neighbours"),
        ("mbec++", "num_neighbours"),
        ("mbec++", "num_write_neighbours"),
        ("mfec", "num_neighbours"),
        ("nec", "num_neighbours"),
    ],
)
def test_more_neighbours_than_slots_are_refused(name, option):
    sentence = rf"^{option} \(9\) must not exceed memory_size \(5\)"
    with pytest.raises(EngramError, match=sentence):
        make(name, **({"num_neighbours": 2, "memory_size": 5} | {option: 9}))
