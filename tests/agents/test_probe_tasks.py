"""Every agent learns the values of probe tasks whose values are known; gamma is 1/2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    ACTION_REWARD,
    CUE,
    DELAYED_REWARD,
    OBSERVED_REWARD,
    ONE_STATE,
    PROBES,
    TWO_STATES,
    cue_returns,
    probe_spec,
)

from engram.agents import DQN, DRQN, MBEC, MFEC, NEC, PPO, MBECpp, Random, make, mbec
from engram.agents.ppo import forward_one
from engram.episodic import consolidation, control
from engram.networks import zero_state
from engram.runners import JaxRunner

STEPS = 600
SPEC = probe_spec(STEPS)
REPLAY = {"gamma": 0.5, "epsilon_end": 1.0, "batch_size": 16, "learning_starts": 16}
Q_LEARNING = {"hidden_size": 24, "target_update_interval": 10, "learning_rate": 5e-3}
# Without refinement values are exact: one at the first state moves even far neighbours, and so
# raises the value of an episode's end.
EPISODIC = {"num_neighbours": 5, "memory_size": 200, "chunk": 1, "trajectory_dim": 8}
EPISODIC |= {"reward_lr": 5e-3, "p_read": 1.0, "p_refine": 0.0}
LEARNERS = {
    "dqn": DQN(**Q_LEARNING, **REPLAY),
    "dqn, dueling": DQN(**Q_LEARNING, **REPLAY, head="dueling"),
    "dqn, quantile": DQN(**Q_LEARNING, **REPLAY, head="quantile", double_q=True),
    "mbec": MBEC(**REPLAY, **EPISODIC),
    "mbec of the paper": make("mbec", "paper", **REPLAY, **EPISODIC),
    "mbec++": make("mbec++", "paper", **Q_LEARNING, **REPLAY, **EPISODIC),
    "mbec++, quantile": make(
        "mbec++", "paper", **Q_LEARNING, **REPLAY, **EPISODIC, head="quantile"
    ),
    "mfec": MFEC(gamma=0.5, epsilon_end=1.0, num_neighbours=3, memory_size=200),
    "nec": NEC(hidden_size=16, key_size=4, num_neighbours=5, memory_size=200, n_step=5, **REPLAY),
    "drqn": DRQN(
        **REPLAY | Q_LEARNING | {"hidden_size": 16},
        lstm_size=8,
        sequence_length=4,
        train_frequency=1,
    ),
    "ppo": PPO(
        gamma=0.5,
        hidden_size=16,
        num_steps=24,
        update_epochs=6,
        num_minibatches=1,
        learning_rate=1e-2,
    ),
}


def train(agent):
    """The agent and its states after training on all probes, by one program."""
    runner = JaxRunner(agent, PROBES, [0] * len(PROBES), SPEC)
    runner.start()
    runner.advance(STEPS)
    # NumPy takes one run's state without a program for each shape.
    return agent, jax.tree.map(np.asarray, runner.run_state.agent)


def values(learner, probe, observations, actions=()):
    """Values of both actions at the last observation, after `actions` at those before it.

    PPO has one value, that of the state.
    """
    agent, states = learner
    state, obs = jax.tree.map(lambda x: x[probe], states), jnp.array(observations)
    if isinstance(agent, DQN):
        return np.asarray(state.q(obs[-1]))
    if isinstance(agent, MFEC | NEC):
        return np.asarray(agent.q_values(state, SPEC, obs[-1:])[0])
    if isinstance(agent, DRQN):
        no_start = jnp.zeros((len(obs), 1), bool)
        _, q = state.q(zero_state(1, agent.lstm_size), obs[:, None], no_start)
        return np.asarray(q[-1, 0])
    if isinstance(agent, PPO):
        return np.asarray(forward_one(state.networks, None, obs[-1:])[2])
    episodic, rules, features = state.episodic, control.PAPER_RULES, obs
    if isinstance(agent, MBEC):
        rules, features = agent.rules, mbec.model_input(state, obs)
    for t, one_obs in enumerate(features[:, None]):
        start = jnp.array([t == 0])
        plan, q, tau = control.plan_values(episodic, agent, SPEC, one_obs, start, rules)
        if t < len(actions):
            episodic = episodic._replace(tau=control.select(plan, jnp.array([actions[t]])))
    if isinstance(agent, MBECpp):
        beta = consolidation.beta(agent, state.params, tau.h)
        q = beta[:, None] * q + consolidation.q_values(agent, state.params, obs[-1:], tau.h)
    return np.asarray(q[0])


def check_a_reward_of_1_has_the_value_1(learner):
    np.testing.assert_allclose(values(learner, ONE_STATE, [[0.0, 0.0]]), 1.0, atol=0.1)


def check_a_reward_one_step_later_is_discounted_once(learner):
    np.testing.assert_allclose(values(learner, TWO_STATES, [[0.0, 0.0]]), 0.5, atol=0.1)
    for action in (0, 1):
        last = values(learner, TWO_STATES, [[0.0, 0.0], [1.0, 0.0]], [action])
        np.testing.assert_allclose(last, 1.0, atol=0.1)


def check_a_reward_that_the_observation_shows_is_predicted(learner):
    for mark in (-1.0, 1.0):
        value = values(learner, OBSERVED_REWARD, [[0.0, mark]])
        np.testing.assert_allclose(value, mark, atol=0.15)


def check_actions_with_unlike_rewards_have_unlike_values(learner):
    if isinstance(learner[0], PPO):
        return  # it has no values of actions
    value = values(learner, ACTION_REWARD, [[0.0, 0.0]])
    np.testing.assert_allclose(value, [-1.0, 1.0], atol=0.15)


def check_an_action_with_a_delayed_reward_has_its_discounted_value(learner):
    if isinstance(learner[0], PPO):
        return
    value = values(learner, DELAYED_REWARD, [[0.0, 0.0]])
    np.testing.assert_allclose(value, [0.0, 0.25], atol=0.1)
    assert value[1] > value[0] + 0.1


def check_greedy_actions_are_the_best(learner):
    agent, states = learner
    obs, start = jnp.zeros((6, 2)), jnp.ones(6, bool)
    act_greedy = jax.vmap(lambda state, key: agent.act_greedy(state, SPEC, obs, start, key)[1])
    keys = jax.random.split(jax.random.key(1), len(PROBES))
    actions = np.asarray(jax.jit(act_greedy)(states, keys))
    assert (actions[ACTION_REWARD] == 1).all()
    assert (actions[DELAYED_REWARD] == 1).all()


CHECKS = [
    check_a_reward_of_1_has_the_value_1,
    check_a_reward_one_step_later_is_discounted_once,
    check_a_reward_that_the_observation_shows_is_predicted,
    check_actions_with_unlike_rewards_have_unlike_values,
    check_an_action_with_a_delayed_reward_has_its_discounted_value,
    check_greedy_actions_are_the_best,
]


VARIANTS = "dqn, dueling", "mbec++, quantile", "mbec of the paper"
"""of agents and heads that others here test"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x in VARIANTS else x for x in LEARNERS],
)
def test_every_agent_learns_the_values_of_all_probe_tasks(name):
    """One test per agent, since two processes would compile the same programs twice."""
    learner = train(LEARNERS[name])
    for check in CHECKS:
        check(learner)


def test_a_random_agent_takes_all_actions_alike():
    obs, start = jnp.zeros((1000, 2)), jnp.ones(1000, bool)
    _, actions = Random().act_greedy((), SPEC, obs, start, jax.random.key(0))
    assert 400 < int(actions.sum()) < 600


@pytest.mark.parametrize("q_uses_tau", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_q_network_with_tau_remembers_a_cue(q_uses_tau):
    """The memory has no weight. At the last step both cues have the same observation."""
    agent = make(
        "mbec++",
        "paper",
        gamma=0.9,
        hidden_size=16,
        learning_rate=5e-3,
        target_update_interval=20,
        epsilon_end=0.1,
        epsilon_decay=300.0,
        fixed_beta=0.0,
        q_uses_tau=q_uses_tau,
        batch_size=16,
        memory_size=8,
        num_neighbours=1,
        chunk=1,
        trajectory_dim=8,
    )
    runner = JaxRunner(agent, [CUE] * 2, [0, 1], probe_spec(1_500))
    runner.start()
    runner.advance(1_500)
    returns_of = jax.jit(jax.vmap(lambda state: cue_returns(agent, state, runner.spec)))
    returns = np.asarray(returns_of(runner.run_state.agent))
    assert returns.sum(axis=-1).tolist() == ([2.0, 2.0] if q_uses_tau else [0.0, 0.0])
