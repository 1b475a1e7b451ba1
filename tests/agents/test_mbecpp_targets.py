"""TD targets and losses of MBEC++ (Eq. 6 to 8) agree with numbers computed by hand."""

from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mbecpp_by_hand import (
    SPEC,
    TWO_ROWS,
    initial_state,
    small_mbecpp,
    state_by_hand,
    with_options,
    with_two_memories,
    with_two_rows,
)

from engram import replay_buffer
from engram.episodic import consolidation, control, model_training
from engram.periodic import fixed_schedule

BOTH_ROWS = jnp.array([[0.0, 0.0, 0.75]])
"""uniforms of a batch of both rows, for which the memory is read by the mean"""


@cache
def td_program(agent):
    """Inputs, Q_MBEC, targets and loss of a batch, by a state, uniforms and options."""

    @jax.jit
    def compute(state, uniforms, options):
        own = with_options(agent, options)
        inputs = own.td_inputs(state, SPEC, TWO_ROWS, uniforms)
        q_mbec = jax.vmap(state.episodic.reward_model)(inputs.state_action) + inputs.memory_value
        target = own.td_target(state.params, state.episodic, SPEC, inputs)
        return inputs, q_mbec, target, own.loss_fn(state.params, inputs, q_mbec, target)

    return compute


def td_values(agent, state, uniforms=BOTH_ROWS, **options):
    return td_program(agent)(state, uniforms, options)


LEARNER = small_mbecpp(num_neighbours=2, trajectory_loss="none")


@jax.jit
def learn_program(state, learning_rate, p_read):
    agent = with_options(LEARNER, {"learning_rate": learning_rate, "p_read": p_read})
    return agent.learn(state, SPEC, TWO_ROWS, jax.random.key(1))


def learn(state, learning_rate=1e-3, p_read=1.0):
    """`learn` after two transitions, with any numbers by one program."""
    return learn_program(state, learning_rate, p_read)


# TD targets


@pytest.mark.parametrize("fixed_beta", [None, 0.5])
def test_td_target_and_loss_are_those_of_equation_8(fixed_beta):
    agent = small_mbecpp(fixed_beta=fixed_beta)
    state = state_by_hand(beta=0.5 if fixed_beta is None else 0.9)
    _, q_mbec, target, loss = td_values(agent, with_two_rows(state, [1.0, 1.0], [0.0, 1.0]))
    # Q_MBEC is 1/2 + 10/2 for every action. The target network values the next state at
    # 5.5/2 + 3. A terminal transition has no bootstrap.
    np.testing.assert_allclose(q_mbec, [5.5, 5.5], rtol=1e-6)
    np.testing.assert_allclose(target, [1 + 0.5 * 5.75, 1.0], rtol=1e-6)
    # The joint value of the action taken is 5.5/2 + 2: the errors are 3.875 - 4.75 and 1 - 4.75.
    assert loss == pytest.approx((0.875**2 + 3.75**2) / 2, rel=1e-6)


def test_an_update_reports_the_losses_before_it():
    _, metrics = learn(with_two_rows(state_by_hand(), [1.0, 1.0]))
    # Both rows have the target 3.875 and the joint value 4.75, and a predicted reward of 1/2.
    assert float(metrics["td_loss"]) == pytest.approx(0.875**2, rel=1e-5)
    assert float(metrics["reward_loss"]) == pytest.approx(0.5**2, rel=1e-5)


def test_the_target_network_has_its_own_beta():
    state = with_two_rows(state_by_hand(beta=0.25, target_beta=0.75), [0.0, 0.0])
    _, _, target, loss = td_values(small_mbecpp(), state)
    np.testing.assert_allclose(target, 0.5 * (0.75 * 5.5 + 3), rtol=1e-5)
    error = float(target[0]) - (0.25 * 5.5 + 2)
    assert loss == pytest.approx(error**2, rel=1e-5)


def test_centered_memory_values_have_their_mean_subtracted():
    agent = small_mbecpp(fixed_beta=0.5, center_memory_values=True)
    _, q_mbec, target, _ = td_values(agent, with_two_rows(state_by_hand(), [1.0, 1.0], [0.0, 1.0]))
    # All stored values are 10, and so is their mean: Q_MBEC is 1/2 + 10/2 - 10 for every action.
    np.testing.assert_allclose(q_mbec, [-4.5, -4.5], rtol=1e-6)
    np.testing.assert_allclose(target, [1 + 0.5 * (3 - 4.5 / 2), 1.0], rtol=1e-6)


def test_a_two_step_target_bootstraps_after_the_second_transition():
    rows = {"obs": [[3.0, 3.0], [5.0, 5.0]], "next_obs": [[0.0, 0.0], [7.0, 7.0]]}
    state = with_two_rows(initial_state(), [1.0, 4.0], **rows)
    inputs, _, target, _ = td_values(small_mbecpp(n_step=2), state, jnp.zeros((1, 3)))
    _, _, (after_first, after_second), _ = td_values(small_mbecpp(), state)
    next_values = [(after_first - 1) / 0.5, (after_second - 4) / 0.5]
    # The rewards are 1 + 4/2, and the bootstrap has the weight 1/4.
    np.testing.assert_allclose(target, 3 + 0.25 * next_values[1], rtol=1e-5)
    np.testing.assert_array_equal(inputs.obs, [[3.0, 3.0], [3.0, 3.0]])
    assert np.all(np.abs(target - (3 + 0.25 * next_values[0])) > 1e-3)


@cache
def masked_target(agent):
    """TD targets by a state, memory values of the next actions, and how many are valid."""

    @jax.jit
    def compute(state, memory_values, num_valid_actions):
        spec = replace(SPEC, num_valid_actions=num_valid_actions)
        inputs = agent.td_inputs(state, spec, TWO_ROWS, BOTH_ROWS)
        inputs = inputs._replace(next_memory_values=jnp.stack([memory_values] * 2))
        return agent.td_target(state.params, state.episodic, spec, inputs)

    return compute


@pytest.mark.parametrize(
    ("options", "q", "memory_values", "next_value"),
    [
        # By default the best joint value of the target network.
        ({}, [2.0, 4.0], [20.0, 0.0], 1 + 20.5 / 2),
        # The target network's own preference, whatever the memory holds.
        ({"select_with_q_only": True}, [9.0, 4.0], [20.0, 0.0], 3 + 0.5 / 2),
        # The best joint value of the online network, evaluated by the target network.
        ({"double_q": True}, [9.0, 4.0], [0.0, 20.0], 3 + 20.5 / 2),
        ({"double_q": True}, [9.0, 4.0], [5.0, 5.0], 1 + 5.5 / 2),
        # The online network's own preference.
        ({"double_q": True, "select_with_q_only": True}, [9.0, 4.0], [0.0, 20.0], 1 + 0.5 / 2),
    ],
)
def test_the_next_action_is_selected_as_the_options_say(options, q, memory_values, next_value):
    target_of = partial(
        masked_target(small_mbecpp(**options)),
        with_two_rows(state_by_hand(q=q), [1.0, 1.0], [0.0, 1.0]),
        jnp.array(memory_values),
    )
    np.testing.assert_allclose(target_of(2), [1 + 0.5 * next_value, 1.0], rtol=1e-6)
    # An invalid second action is never selected.
    first_value = 1 + (memory_values[0] + 0.5) / 2
    np.testing.assert_allclose(target_of(1), [1 + 0.5 * first_value, 1.0], rtol=1e-6)


# tau as an input of the Q-network


def test_a_q_network_with_tau_starts_as_one_without():
    obs, tau = jnp.array([[0.5, -1.0]]), jnp.array([[2.0, 3.0]])
    without_tau, with_tau = (
        consolidation.q_values(
            small_mbecpp(q_uses_tau=q_uses_tau), initial_state(q_uses_tau).params, obs, tau
        )
        for q_uses_tau in (False, True)
    )
    np.testing.assert_array_equal(without_tau, with_tau)


def test_a_q_network_with_tau_learns_from_tau_before_and_after_the_transition():
    before, after = jnp.array([[2.0, 3.0], [4.0, 5.0]]), jnp.array([[6.0, 7.0], [8.0, 9.0]])
    state = with_two_rows(state_by_hand(q_uses_tau=True), [1.0, 1.0], [0.0, 1.0])
    replay = state.replay
    replay = replay._replace(
        tau=replay.tau._replace(h=replay.tau.h.at[:2, 0].set(before)),
        next_tau=replay.next_tau._replace(h=replay.next_tau.h.at[:2, 0].set(after)),
    )
    # The target network adds the second number of tau to the values of both actions.
    q = state.target_params.q
    first, _, last = (layer.weight for layer in q.layers)
    first = first.at[0].set(jnp.array([0.0, 0.0, 0.0, 1.0]))
    weights = [first, jnp.eye(2), last.at[:, 0].set(1.0)]
    q = eqx.tree_at(lambda q: [layer.weight for layer in q.layers], q, weights)
    target_params = state.target_params._replace(q=q)
    state = state._replace(replay=replay, target_params=target_params)
    inputs, _, target, _ = td_values(small_mbecpp(q_uses_tau=True), state)
    np.testing.assert_array_equal(inputs.tau, before)
    np.testing.assert_allclose(target, [1 + 0.5 * (5.5 / 2 + 3 + 7), 1.0], rtol=1e-6)


# Read rules


def test_td_targets_read_the_memory_by_the_rule_drawn_for_the_batch():
    agent = small_mbecpp(num_neighbours=2, p_read=0.5)
    state = with_two_rows(with_two_memories(state_by_hand()), [1.0, 1.0])

    def values_read(uniform, p_read):
        inputs, *_ = td_values(agent, state, BOTH_ROWS.at[0, 0].set(uniform), p_read=p_read)
        return np.concatenate([inputs.memory_value[:, None], inputs.next_memory_values], axis=1)

    # gamma is 1/2, and the larger of the values 0 and 10 is 10.
    assert np.all(values_read(0.5, p_read=0.5) == 5.0)
    assert np.all(values_read(0.0, p_read=0.0) == 5.0)
    assert np.all(values_read(0.49, p_read=0.5) < 4.9)
    np.testing.assert_array_equal(values_read(0.49, p_read=0.5), values_read(0.9, p_read=1.0))


def test_p_read_changes_what_is_learned():
    state = with_two_rows(with_two_memories(initial_state()), [1.0, 4.0])
    by_max, by_mean = (learn(state, p_read=p_read)[1]["td_loss"] for p_read in (0.0, 1.0))
    assert float(by_max) != float(by_mean)


class StopHere(Exception):
    """Ends an update once it has drawn its random numbers."""


def test_samples_and_read_rules_of_gradient_steps_are_independent(monkeypatch):
    agent = small_mbecpp(p_read=0.5, gradient_steps=2_000)
    state = with_two_rows(initial_state(), [1.0, 4.0])
    original, drawn = replay_buffer.n_step, {}

    def n_step(*arguments):
        index = original(*arguments)
        drawn["second_row"] = index.n_step_return.reshape(agent.gradient_steps, -1) > 1
        return index

    def read_batches(episodic, config, reached, planned, use_max):
        drawn["use_max"] = use_max
        raise StopHere

    monkeypatch.setattr(replay_buffer, "n_step", n_step)
    monkeypatch.setattr(control, "read_batches", read_batches)
    with pytest.raises(StopHere), fixed_schedule((True, False)):
        agent.learn(state, SPEC, TWO_ROWS, jax.random.key(1))
    numbers = np.array([*drawn["second_row"].T, drawn["use_max"]], float)
    assert numbers.shape == (3, 2_000)
    np.testing.assert_allclose(numbers.mean(axis=1), 0.5, atol=0.04)
    np.testing.assert_allclose(np.corrcoef(numbers), np.eye(3), atol=0.1)


# Gradients and random keys


def test_no_gradient_of_the_td_loss_reaches_memory_trajectory_model_or_reward_model():
    """Whatever the learning rate of Q_theta and f_beta, the episodic state becomes the same."""
    rows = {"obs": [[1.0, 1.0], [1.0, 1.0]], "next_obs": [[2.0, 2.0], [2.0, 2.0]]}
    before = with_two_rows(with_two_memories(initial_state()), [1.0, 5.0], [0.0, 1.0], **rows)
    slow, fast = (learn(before, learning_rate)[0] for learning_rate in (1e-4, 0.3))

    def differs(a, b):
        leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return any(np.any(x != y) for x, y in leaves)

    assert not differs(slow.episodic, fast.episodic)
    assert not differs(slow.episodic.trajectory_model, before.episodic.trajectory_model)
    assert not differs(slow.episodic.memory, before.episodic.memory)
    assert differs(slow.episodic.reward_model, before.episodic.reward_model)
    assert differs(slow.params.q, fast.params.q)
    assert differs(slow.params.beta, fast.params.beta)


@pytest.mark.parametrize("gradient_steps", [1, 4])
def test_the_trajectory_model_shares_no_key_with_gradient_steps(monkeypatch, gradient_steps):
    keys = []

    def train_trajectory_model(episodic, config, spec, replay, step, key):
        keys.append(key)
        return episodic

    monkeypatch.setattr(model_training, "train_trajectory_model", train_trajectory_model)
    key = jax.random.key(5)
    with fixed_schedule((False,)):
        small_mbecpp(gradient_steps=gradient_steps).learn(initial_state(), SPEC, jnp.int32(0), key)
    used, others = jax.random.key_data(keys[0]), [key, *jax.random.split(key, gradient_steps)]
    assert not any((used == jax.random.key_data(other)).all() for other in others)
