"""The joint value by which MBEC++ acts (Eq. 7) agrees with numbers computed by hand."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from mbecpp_by_hand import SPEC, constant_params, small_mbecpp, state_by_hand, with_options
from probes import constant_network

from engram.episodic.trajectory_model import RewardModel
from engram.types import TimeStep

GREEDY = {"p_refine": 0.0, "epsilon_end": 0.0}
LATE = jnp.int32(10**6)
"""an iteration in which epsilon is 0"""
ONES = jnp.ones((1, 2))
TIMESTEP = TimeStep(ONES, jnp.zeros(1), jnp.zeros(1, bool), jnp.zeros(1, bool), ONES)


@cache
def step_program(agent):
    """Actions of `step` and of `act_greedy`, and metrics, by a state and options."""

    @jax.jit
    def compute(state, options):
        own, key = with_options(agent, options), jax.random.key(0)
        _, action, metrics = own.step(state, SPEC, TIMESTEP, LATE, key)
        policy = own.policy_state(state)
        _, greedy = own.act_greedy(policy, SPEC, ONES, jnp.array([True]), key)
        return action, greedy, metrics

    return compute


def act(agent, state, **options):
    action, greedy, metrics = step_program(agent)(state, options)
    return int(action[0]), int(greedy[0]), {name: float(x) for name, x in metrics.items()}


def state_with_opposed_values():
    """Q_theta is (2, 4) and Q_MBEC is (10, 0): predicted rewards, with an empty memory."""
    state = state_by_hand()
    episodic = state.episodic
    network = constant_network(episodic.reward_model.network, [0.0])
    first, last = (layer.weight for layer in network.layers)
    weights = first.at[0, 2].set(1.0), last.at[0, 0].set(10.0)  # input 2 is action 0
    network = eqx.tree_at(lambda net: tuple(layer.weight for layer in net.layers), network, weights)
    memory = episodic.memory._replace(num_inserted=jnp.int32(0))
    episodic = episodic._replace(reward_model=RewardModel(network), memory=memory)
    return state._replace(episodic=episodic)


@pytest.mark.parametrize(
    ("beta", "action", "episodic_agreement", "semantic_agreement"),
    [(0.5, 0, 1.0, 0.0), (0.1, 1, 0.0, 1.0)],
)
def test_agreement_is_with_the_greedy_action_of_the_joint_value(
    beta, action, episodic_agreement, semantic_agreement
):
    agent = small_mbecpp(**GREEDY, fixed_beta=0.5)
    # The joint value is (7, 4) with beta = 1/2, and (3, 4) with beta = 1/10.
    *actions, metrics = act(agent, state_with_opposed_values(), fixed_beta=beta)
    assert actions == [action, action]
    assert metrics["episodic_agreement"] == episodic_agreement
    assert metrics["semantic_agreement"] == semantic_agreement
    assert metrics["q_max"] == pytest.approx(max(2 + 10 * beta, 4.0))
    assert metrics["beta"] == pytest.approx(beta)


def test_the_joint_value_has_centered_memory_values():
    agent = small_mbecpp(**GREEDY, center_memory_values=True)
    # Q_MBEC is 1/2 + 10/2 for every action, the mean stored value is 10, and beta is 1/2.
    *_, metrics = act(agent, state_by_hand())
    assert metrics["q_max"] == pytest.approx(4 - 4.5 / 2)


@pytest.mark.parametrize(
    ("act_with_target", "action", "q_max"),
    [(False, 1, 4.0 + 5.5 * 0.5), (True, 0, 3.0 + 5.5 * 0.2)],
)
def test_actions_are_selected_by_the_target_networks_if_so_chosen(act_with_target, action, q_max):
    agent = small_mbecpp(**GREEDY, act_with_target=act_with_target)
    state = state_by_hand()
    # Q_MBEC is 5.5 for every action; beta is 1/2, and 1/5 in the target networks.
    state = state._replace(target_params=constant_params(state.params, [3.0, 1.0], 0.2))
    *actions, metrics = act(agent, state)
    assert actions == [action, action]
    assert metrics["q_max"] == pytest.approx(q_max)
