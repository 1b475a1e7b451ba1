"""PPO stores rollouts, and updates after each of them from whole sequences of its environments."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    CUE,
    WALK,
    constant_network,
    cue_returns,
    episode_timesteps,
    jit_step,
    probe_spec,
    rollout,
)

from engram.agents.ppo import PPO, ActorCritic, Sample, forward_one, to_sequences
from engram.errors import EngramError
from engram.runners import JaxRunner
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=40)
AGENT = PPO(gamma=0.5, hidden_size=3, num_steps=4, update_epochs=1, num_minibatches=1)
RECURRENT = replace(AGENT, recurrent=True, lstm_size=4, sequence_length=2)
FORWARD_ONE = jax.jit(forward_one)


@pytest.fixture(scope="module", params=["feed-forward", "recurrent"])
def variant(request):
    """An agent and its initial state."""
    agent = RECURRENT if request.param == "recurrent" else AGENT
    return agent, agent.init(jax.random.key(0), SPEC)


@pytest.fixture(scope="module")
def initial_state():
    return AGENT.init(jax.random.key(0), SPEC)


# Rollouts


def test_actions_are_sampled_by_their_probabilities():
    num_envs = 30_000
    spec = Spec((2,), 3, num_envs=num_envs, num_iterations=2)
    agent = PPO(hidden_size=2, num_steps=num_envs, num_minibatches=1)
    state = agent.init(jax.random.key(0), spec)
    probabilities = np.array([0.1, 0.2, 0.7])
    actor = constant_network(state.networks.actor, np.log(probabilities))
    state = state._replace(networks=ActorCritic(actor, state.networks.critic))
    obs, no = jnp.zeros((num_envs, 2)), jnp.zeros(num_envs, bool)
    timestep = TimeStep(obs, jnp.zeros(num_envs), no, no, obs)
    after, actions, _ = jit_step(agent, spec)(state, timestep, jnp.int32(0))
    expected = probabilities * num_envs
    counts = np.bincount(actions, minlength=3)
    # Chi-square of two degrees of freedom: one draw in a thousand exceeds it.
    assert np.sum((counts - expected) ** 2 / expected) < 13.8
    log_probs = np.asarray(after.last.log_prob)
    np.testing.assert_allclose(np.exp(log_probs), probabilities[np.asarray(actions)], rtol=1e-5)
    _, greedy = agent.act_greedy(state, spec, obs[:5], jnp.ones(5, bool), jax.random.key(1))
    assert greedy.tolist() == [2] * 5


@pytest.fixture(scope="module")
def two_episodes(variant):
    """An agent, its initial state, and five steps of a truncated and a terminated episode."""
    agent, state = variant
    timesteps = episode_timesteps((1.0, [1.0, 2.0], True), (2.0, [4.0, 8.0], False))
    return agent, state, rollout(jit_step(agent, SPEC), state, timesteps, 5)


def test_the_value_of_the_final_observation_is_added_where_an_episode_is_truncated(two_episodes):
    _, state, (states, actions, metrics) = two_episodes
    rows = jax.tree.map(lambda x: np.asarray(x)[:, 0], states[-1].rollout)
    assert rows.done.tolist() == [0, 1, 0, 1]
    assert rows.decision.episode_start.tolist() == [True, False, True, False]
    assert rows.decision.action.tolist() == actions[:4]
    assert rows.decision.obs.tolist() == [[0, 1], [1, 1], [0, 2], [1, 2]]
    values = [x["value"] for x in metrics[:4]]
    np.testing.assert_allclose(rows.decision.value, values, rtol=1e-6)
    # The value of (2, 1), by an LSTM that has observed the episode until then.
    lstm_state = state.lstm_state
    for t in range(3):
        obs = jnp.array([[float(t), 1.0]])
        lstm_state, _, value = FORWARD_ONE(state.networks, lstm_state, obs)
    rewards = [1.0, 2.0 + 0.5 * float(value[0]), 4.0, 8.0]
    np.testing.assert_allclose(rows.reward, rewards, rtol=1e-5)
    assert abs(float(value[0])) > 1e-3


def test_nothing_is_added_if_truncation_is_terminal(initial_state):
    agent = replace(AGENT, truncation_is_terminal=True)
    timesteps = episode_timesteps((1.0, [1.0, 2.0], True))
    states, _, _ = rollout(jit_step(agent, SPEC), initial_state, timesteps, 3)
    assert states[-1].rollout.reward[:2, 0].tolist() == [1.0, 2.0]


def test_the_stored_lstm_state_is_that_before_the_step_and_zero_at_an_episodes_start(two_episodes):
    agent, _, (states, _, _) = two_episodes
    stored = states[-1].rollout.decision.lstm_state
    if not agent.recurrent:
        assert stored is None
        return
    for network in stored:
        assert np.any(network.h[:, 0], axis=-1).tolist() == [False, True, False, True]
    for t in (1, 3):
        for before, row in zip(states[t - 1].lstm_state, stored, strict=True):
            np.testing.assert_allclose(row.h[t], before.h, atol=1e-6)
            np.testing.assert_allclose(row.c[t], before.c, atol=1e-6)


# Updates


def test_sequences_are_consecutive_rows_of_one_environment():
    rows = 10 * jnp.arange(6)[:, None] + jnp.arange(2)  # row and environment as two digits
    sequences = to_sequences(rows, 3)
    assert sorted(sequences.T.tolist()) == [[0, 10, 20], [1, 11, 21], [30, 40, 50], [31, 41, 51]]


@pytest.fixture(scope="module")
def training(variant):
    """An agent, and its states before and after each of 18 iterations of four environments.

    A rollout has 32 steps, so that there are eight iterations between two updates.
    """
    agent = replace(variant[0], num_steps=32, num_minibatches=2)
    spec = Spec((2,), 2, max_episode_steps=6, num_envs=4, num_iterations=40)
    runner = JaxRunner(agent, [WALK], [0], spec)
    runner.start()
    states = [jax.tree.map(np.array, runner.run_state.agent)]
    for _ in range(18):
        runner.advance(1)
        states.append(jax.tree.map(np.array, runner.run_state.agent))
    return agent, [jax.tree.map(lambda x: x[0], state) for state in states]


def test_networks_change_after_every_rollout_and_not_between(training):
    _, states = training
    weights = [jax.tree.leaves(state.networks) for state in states]
    changed = [
        step
        for step, (old, new) in enumerate(pairwise(weights))
        if any(np.any(x != y) for x, y in zip(old, new, strict=True))
    ]
    assert changed == [8, 16]  # the reward of the eighth row comes with the next step


def test_the_networks_that_acted_have_probability_ratios_of_1_and_the_stored_values(training):
    """Also over sequences that cross the end of an episode."""
    agent, states = training
    rows = jax.tree.map(lambda x: x[:6], states[8].rollout)
    assert int(np.sum(rows.done)) > 0
    # With an advantage of 0 the targets of the values are the stored values.
    samples = Sample(rows.decision, np.zeros_like(rows.reward))
    batch = jax.tree.map(jnp.asarray, to_sequences(samples, 2 if agent.recurrent else 1))
    loss = jax.jit(agent.loss_fn)
    _, metrics = loss(states[0].networks, batch)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["value_loss"] == pytest.approx(0.0, abs=1e-10)
    _, metrics = loss(states[-1].networks, batch)
    # After two updates the networks are others.
    assert metrics["approx_kl"] > 1e-6
    assert metrics["value_loss"] > 1e-6


@pytest.mark.parametrize(("num_steps", "num_envs", "length"), [(4, 1, 4), (10, 4, 2), (7, 7, 1)])
def test_a_rollout_is_split_among_the_environments(num_steps, num_envs, length):
    agent = replace(AGENT, num_steps=num_steps)
    assert agent.rollout_length(replace(SPEC, num_envs=num_envs)) == length


def test_a_rollout_with_an_lstm_consists_of_whole_sequences():
    agent = replace(RECURRENT, num_steps=30, sequence_length=4)
    lengths = [agent.rollout_length(replace(SPEC, num_envs=num_envs)) for num_envs in (1, 3, 7)]
    assert lengths == [28, 8, 4]


def test_the_learning_rate_decays_linearly_to_0(initial_state):
    """Adam's first step is as long as its learning rate."""
    timesteps = episode_timesteps((1.0, [1.0, 2.0, 4.0, 8.0], False))
    states, _, _ = rollout(jit_step(AGENT, SPEC), initial_state, timesteps, 5)
    update = jax.jit(lambda step: AGENT.update(states[-1], SPEC, step, jax.random.key(0))[0])
    old = jax.tree.leaves(initial_state.networks)

    def change(step):
        new = jax.tree.leaves(update(jnp.int32(step)))
        return np.concatenate([np.ravel(a - b) for a, b in zip(new, old, strict=True)])

    first = change(0)
    assert np.abs(first).max() == pytest.approx(AGENT.learning_rate, rel=0.05)
    np.testing.assert_allclose(change(30), first / 4, rtol=1e-2, atol=2e-7)
    assert np.abs(change(40)).max() < 1e-9


# Initialization


def test_weights_are_orthogonal_and_the_policy_starts_nearly_uniform(variant):
    _, state = variant

    def gain(weight):
        w = np.asarray(weight, float)
        product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(product, product[0, 0] * np.eye(len(product)), atol=1e-5)
        return np.sqrt(product[0, 0])

    for network, last_gain in zip(state.networks, (0.01, 1.0), strict=True):
        leaves = jax.tree.leaves(network)
        gains = [gain(x) for x in leaves if x.ndim == 2]
        assert gains == pytest.approx([2**0.5] * (len(gains) - 1) + [last_gain], rel=1e-4)
        assert not any(np.any(x) for x in leaves if x.ndim == 1)
    _, log_probs, _ = FORWARD_ONE(state.networks, state.lstm_state, jnp.array([[1.0, -1.0]]))
    np.testing.assert_allclose(np.exp(log_probs), 0.5, atol=0.02)


def test_orthogonal_matrices_are_drawn_one_after_the_other(monkeypatch):
    """JAX 0.10 hangs on a CPU if it draws two large ones at once."""

    def keys_of_draws(value):
        keys = []

        def draw(key, shape):
            keys.append(np.asarray(jax.random.key_data(key)))
            return jnp.full(shape, value)

        monkeypatch.setattr(jax.nn.initializers, "orthogonal", lambda gain: draw)
        PPO().make_networks(jax.random.key(0), SPEC)
        return np.array(keys)

    # Each key but the first depends on the matrices before it, so that it comes after them.
    differs = (keys_of_draws(1.0) != keys_of_draws(np.nan)).any(axis=1)
    assert differs.tolist() == [False] + [True] * 5


@pytest.mark.parametrize(
    ("options", "spec", "message"),
    [
        (
            {"num_steps": 3, "num_minibatches": 4},
            SPEC,
            "A rollout of 3 steps cannot be split into 4 minibatches: "
            "raise num_steps or lower num_minibatches.",
        ),
        (
            {"num_steps": 8, "num_minibatches": 3, "recurrent": True, "sequence_length": 4},
            SPEC,
            "A rollout of 2 sequences of 4 steps cannot be split into 3 minibatches: "
            "raise num_steps or lower num_minibatches.",
        ),
        (
            {"num_steps": 3},
            replace(SPEC, num_envs=4),
            "num_steps (3) must hold a step of each of the 4 environments: raise it to at least 4.",
        ),
        (
            {"num_steps": 40},
            SPEC,
            "The run ends before its first rollout of 40 steps: raise steps or lower num_steps.",
        ),
    ],
)
def test_rollouts_that_do_not_fit_are_refused_in_one_sentence(options, spec, message):
    with pytest.raises(EngramError) as error:
        PPO(**options).init(jax.random.key(0), spec)
    assert str(error.value) == message


# A task that needs memory

ITERATIONS = 900
OPTIONS = {
    "gamma": 0.9,
    "hidden_size": 16,
    "num_steps": 96,
    "update_epochs": 6,
    "num_minibatches": 2,
    "learning_rate": 1e-2,
    "anneal_lr": False,
}


def greedy_returns(agent):
    """Returns [seed, cue] after training in four environments."""
    runner = JaxRunner(agent, [CUE] * 2, [0, 1], probe_spec(ITERATIONS, num_envs=4))
    runner.start()
    runner.advance(ITERATIONS)
    returns = jax.jit(jax.vmap(lambda state: cue_returns(agent, state, runner.spec)))
    return np.asarray(returns(runner.run_state.agent))


def test_ppo_with_an_lstm_recalls_a_cue_that_is_no_longer_observed():
    agent = PPO(**OPTIONS, recurrent=True, lstm_size=16, sequence_length=12)
    assert greedy_returns(agent).mean(axis=-1).min() > 0.9


def test_ppo_without_an_lstm_cannot_recall_the_cue():
    """The last observation is the same for both cues, so its action is right for one of them."""
    assert greedy_returns(PPO(**OPTIONS)).sum(axis=-1).tolist() == [0.0, 0.0]
