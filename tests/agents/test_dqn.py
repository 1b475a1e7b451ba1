"""DQN computes its TD error and acts by its networks as computed by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import constant_network

from engram.agents import DQN
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=20)
SMALL = DQN(hidden_size=2, batch_size=2, gamma=0.5, epsilon_end=0.0)
BOTH_ROWS = jnp.array([[0.0, 0.75]])
"""uniforms of a batch of the first two rows of replay"""


@pytest.fixture(scope="module")
def initial_state():
    return jax.jit(lambda: SMALL.init(jax.random.key(0), SPEC))()


@pytest.fixture(scope="module")
def state(initial_state):
    """Two transitions of rewards 1 and 4; Q is (2, 4), of the target network (3, 1)."""
    replay = initial_state.replay
    replay = replay._replace(
        obs=replay.obs.at[1].set(1.0),
        reward=replay.reward.at[:2, 0].set(jnp.array([1.0, 4.0])),
        next_obs=replay.next_obs.at[0].set(1.0).at[1].set(7.0),
    )
    return initial_state._replace(
        q=constant_network(initial_state.q, [2.0, 4.0]),
        q_target=constant_network(initial_state.q, [3.0, 1.0]),
        replay=replay,
    )


def test_the_loss_is_the_mean_td_error_of_the_actions_taken(state):
    batch = jnp.ones((2, 2)), jnp.array([0, 1])
    loss = SMALL.loss_fn(state.q, *batch, jnp.array([5.0, 5.0]))
    assert loss == pytest.approx((3**2 + 1) / 2)
    huber = replace(SMALL, loss="huber")
    loss = huber.loss_fn(state.q, *batch, jnp.array([5.0, 4.5]))
    assert loss == pytest.approx((2.5 + 0.25 / 2) / 2)


@pytest.mark.parametrize(
    ("options", "targets"),
    [
        ({}, [1 + 3 / 2, 4 + 3 / 2]),
        ({"double_q": True}, [1 + 1 / 2, 4 + 1 / 2]),
        ({"n_step": 2}, [1 + 4 / 2 + 3 / 4, 4 + 3 / 2]),
    ],
)
def test_an_update_reports_the_loss_of_its_targets(state, options, targets):
    agent = replace(SMALL, **options)

    @jax.jit
    def loss_of_update(state):
        inputs = agent.td_inputs(state, SPEC, jnp.int32(2), BOTH_ROWS)
        return agent.update(SPEC, jnp.int32(2), (state.q, state.opt_state), inputs)[1]

    # Action 0 was taken, whose value is 2.
    expected = np.mean([(target - 2) ** 2 for target in targets])
    assert float(loss_of_update(state)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("act_with_target", "action", "q_max"), [(False, 1, 4.0), (True, 0, 3.0)])
def test_actions_are_selected_by_the_target_network_if_so_chosen(
    state, act_with_target, action, q_max
):
    agent, key = replace(SMALL, act_with_target=act_with_target), jax.random.key(0)
    obs, zeros = jnp.ones((1, 2)), jnp.zeros(1, bool)
    timestep = TimeStep(obs, jnp.zeros(1), zeros, zeros, obs)

    @jax.jit
    def act(state):
        _, taken, metrics = agent.step(state, SPEC, timestep, jnp.int32(10**6), key)
        policy = agent.policy_state(state)
        _, greedy = agent.act_greedy(policy, SPEC, obs, jnp.array([True]), key)
        return taken, greedy, metrics["q_max"]

    taken, greedy, value = act(state)
    assert taken.tolist() == greedy.tolist() == [action]
    assert float(value) == q_max
