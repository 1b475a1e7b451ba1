"""MBEC and MBEC++ follow trajectories by the actions taken, and train with all options at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import constant_network

from engram.agents import MBEC, make
from engram.envs import CartPole, Task, get_task
from engram.episodic.trajectory_model import RewardModel, state_action
from engram.networks import zero_state
from engram.runners import JaxRunner
from engram.types import Spec, TimeStep

MANY = 200
SPEC = Spec((2,), 2, max_episode_steps=6, num_envs=MANY, num_iterations=60)
SMALL = {"batch_size": 4, "num_neighbours": 2, "memory_size": 16, "chunk": 2, "trajectory_dim": 3}


@pytest.mark.parametrize("name", ["mbec", "mbec++"])
def test_a_trajectory_continues_with_the_action_taken_and_not_with_the_greedy_one(name):
    agent = make(name, "paper", **SMALL)
    obs, start = jnp.ones((MANY, 2)), jnp.ones(MANY, bool)

    @jax.jit
    def play():
        state = agent.init(jax.random.key(0), SPEC)
        after, actions = agent.act_greedy(state, SPEC, obs, start, jax.random.key(1), 0.5)
        pairs = state_action(obs, actions, SPEC.num_actions)
        model = state.episodic.trajectory_model
        expected = jax.vmap(model)(zero_state(MANY, agent.trajectory_dim), pairs)
        return actions, after.episodic.tau, expected

    actions, tau, expected = play()
    assert set(actions.tolist()) == {0, 1}
    np.testing.assert_allclose(tau.h, expected.h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tau.c, expected.c, rtol=1e-5, atol=1e-6)


def test_mbec_acts_by_predicted_reward_and_discounted_memory_value():
    """Equation 6: r is 1/2 and every read is 10, so with gamma = 1/2 all values are 5.5."""
    agent, spec = MBEC(**SMALL, gamma=0.5, p_refine=0.0), Spec((2,), 2, num_iterations=20)
    obs, no = jnp.ones((1, 2)), jnp.zeros(1, bool)
    timestep = TimeStep(obs, jnp.zeros(1), no, no, obs)

    @jax.jit
    def first_metrics():
        state = agent.init(jax.random.key(0), spec)
        episodic = state.episodic
        memory = episodic.memory._replace(values=jnp.full(16, 10.0), num_inserted=jnp.int32(1))
        reward_model = RewardModel(constant_network(episodic.reward_model.network, [0.5]))
        episodic = episodic._replace(memory=memory, reward_model=reward_model)
        state = state._replace(episodic=episodic)
        return agent.step(state, spec, timestep, jnp.int32(0), jax.random.key(0))[2]

    assert float(first_metrics()["q_max"]) == pytest.approx(5.5)


@pytest.mark.slow
def test_all_options_of_mbecpp_train_together():
    agent = make(
        "mbec++",
        "paper",
        **SMALL | {"trajectory_dim": 4, "hidden_size": 8, "num_write_neighbours": 3},
        trajectory_loss="prediction",
        truncation_is_terminal=True,
        store_final=True,
        center_memory_values=True,
        q_uses_tau=True,
        select_with_q_only=True,
        double_q=True,
        act_with_target=True,
        n_step=3,
        gradient_steps=2,
        loss="huber",
        anneal_lr=True,
    )
    # Most episodes are truncated.
    task = Task("short", "", get_task("cartpole").make, jax_env=CartPole(max_episode_steps=10))
    spec = Spec((4,), 2, max_episode_steps=10, num_iterations=500)
    runner = JaxRunner(agent, [task], [0], spec)
    runner.start()
    runner.max_iterations = 400  # one program for both lengths
    parts = []
    for iterations in (100, 400):
        runner.advance(iterations)
        parts.append({name: float(value[0]) for name, value in runner.pop_metrics().items()})
    first, last = parts
    assert np.isfinite([*first.values(), *last.values()]).all()
    assert last["reward_loss"] < 0.5 * first["reward_loss"]
    assert 0 < last["trajectory_loss"] < first["trajectory_loss"] * 1.5
    assert last["td_loss"] > 0
    assert 0 < last["beta"] < 1
    assert last["memory_size"] == 16
