"""What agents store of Atari's frame stacks, and by which networks they encode them."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from atari_rollouts import SMALL_DQN, SMALL_MBECPP, disable_learning, play
from probes import jit_step, rollout

from engram import replay_buffer
from engram.agents import make
from engram.episodic.trajectory_model import state_action
from engram.networks import encode
from engram.types import Spec, TimeStep

GAMES = ["atari:breakout", "atari:pong"]
NUM_ITERATIONS = 70
IMAGES = Spec((4, 36, 36), 3, "uint8", frame_stack=4, num_envs=2, num_iterations=50)
SMALL = {"hidden_size": 8, "buffer_size": 64, "memory_size": 64, "num_neighbours": 3}
GATHER = jax.jit(replay_buffer.gather)


def random_frames(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def timestep_of(observation):
    """A timestep within an episode."""
    zeros = jnp.zeros(2), jnp.zeros(2, bool), jnp.zeros(2, bool)
    return TimeStep(observation, *zeros, observation[:, :0])


@pytest.fixture
def short_games(monkeypatch):
    """Games are truncated after 120 emulator frames, 30 steps."""
    monkeypatch.setattr("engram.envs.atari.MAX_FRAMES", 120)


def check_that_games_end(returns):
    """Checks that games of both runs end within the transitions that are compared."""
    assert (~np.isnan(returns[-20:-1])).any(axis=(0, 2)).all()


def complete_rows(replay):
    """Times, rows and environments of all transitions whose frame stacks are complete."""
    rows = replay.reward.shape[0]
    newest = NUM_ITERATIONS - 1  # the last iteration, whose transition is not known yet
    times = np.arange(newest - rows + 4, newest)
    return times, (jnp.repeat(times % rows, 2), jnp.tile(jnp.arange(2), len(times)))


def check_transitions(replay, runner, timesteps, r):
    """Checks what replay holds of run r against the timesteps that it received."""
    times, index = complete_rows(replay)
    stored = GATHER(replay, index)

    def received(name, times):
        return np.concatenate([getattr(timesteps[t], name)[r] for t in times])

    stacks = (len(times) * 2, 4, 84, 84)
    np.testing.assert_array_equal(stored.obs.reshape(stacks), received("observation", times))
    next_observation = received("observation", times + 1)
    np.testing.assert_array_equal(stored.next_obs.reshape(stacks), next_observation)
    np.testing.assert_array_equal(stored.reward, received("reward", times + 1))
    np.testing.assert_array_equal(stored.terminal, received("terminated", times + 1))
    np.testing.assert_array_equal(stored.done, stored.terminal)
    assert stored.done.any()
    actions = [runner.episode_actions[r, e][t] for t in times for e in range(2)]
    np.testing.assert_array_equal(stored.action, actions)


@pytest.mark.slow
def test_replay_of_dqn_holds_the_observed_transitions_while_it_learns(short_games):
    runner, timesteps, returns = play(SMALL_DQN, GAMES, [0, 1], NUM_ITERATIONS)
    check_that_games_end(returns)
    for r in range(2):
        state = jax.tree.map(lambda x, r=r: x[r], runner.run_state.agent)
        check_transitions(state.replay, runner, timesteps, r)
    assert (runner.pop_metrics()["td_loss"] > 0).all()


def test_replay_of_mbecpp_holds_transitions_features_and_trajectories(short_games, monkeypatch):
    disable_learning(monkeypatch, SMALL_MBECPP)
    runner, timesteps, returns = play(SMALL_MBECPP, GAMES, [0, 1], NUM_ITERATIONS)
    check_that_games_end(returns)
    for r in range(2):
        state = jax.tree.map(lambda x, r=r: x[r], runner.run_state.agent)
        check_transitions(state.replay, runner, timesteps, r)
        times, index = complete_rows(state.replay)
        stored = GATHER(state.replay, index)
        features = normalized_features(state, timesteps, r)
        np.testing.assert_allclose(stored.features, np.concatenate(features[times]), atol=1e-2)
        next_features = np.concatenate(features[times + 1])
        np.testing.assert_allclose(stored.next_features, next_features, atol=1e-2)
        check_trajectories(state, runner.spec, stored)


def normalized_features(state, timesteps, r):
    """A run's features at each step, normalized by those of all steps until then."""
    obs = np.concatenate([step.observation[r] for step in timesteps[:NUM_ITERATIONS]])
    encoded = jax.jit(jax.vmap(partial(encode, state.params.q)))(obs.reshape(len(obs), -1))
    raw = np.asarray(encoded @ state.projection.matrix, float).reshape(NUM_ITERATIONS, 2, -1)
    normalized = []
    for t in range(NUM_ITERATIONS):
        past = raw[: t + 1].reshape(-1, raw.shape[-1])
        std = np.maximum(past.std(axis=0), 1e-9)
        normalized.append(np.clip((raw[t] - past.mean(axis=0)) / std, -5, 5))
    return np.stack(normalized)


def check_trajectories(state, spec, stored):
    """Trajectories are those of the trajectory model, and continue until an episode ends."""
    pairs = state_action(stored.features, stored.action, spec.num_actions)
    tau = jax.jit(jax.vmap(state.episodic.trajectory_model.__call__))(stored.tau, pairs)
    np.testing.assert_allclose(stored.next_tau.h, tau.h, atol=1e-5)
    tau_h, next_tau_h = (x.h.reshape(-1, 2, x.h.shape[-1]) for x in (stored.tau, stored.next_tau))
    continued = np.where(stored.done.reshape(-1, 2, 1), 0, next_tau_h)
    np.testing.assert_allclose(tau_h[1:], continued[:-1], atol=1e-6)


def test_acting_with_target_networks_uses_their_features():
    without_exploration = {"epsilon_end": 0.0, "epsilon_decay": 1e-3}
    agents = [
        make("mbec++", "atari", **SMALL, **without_exploration, act_with_target=x)
        for x in (False, True)
    ]
    state, other = (jax.jit(agents[0].init, static_argnums=1)(key, IMAGES) for key in keys(2))
    timestep = timestep_of(random_frames(2, *IMAGES.shape))
    step_online, step_target = (jit_step(agent, IMAGES) for agent in agents)
    second = jnp.int32(1)  # the first has a random action
    with_online = state._replace(params=other.params)
    with_target = state._replace(target_params=other.params)
    a, a_action, a_metrics = step_online(with_online, timestep, second)
    b, b_action, b_metrics = step_target(with_target, timestep, second)
    assert a_action.tolist() == b_action.tolist()
    for name in a_metrics:
        assert float(a_metrics[name]) == pytest.approx(float(b_metrics[name]), rel=1e-5), name
    np.testing.assert_allclose(a.features, b.features, rtol=1e-4)
    np.testing.assert_allclose(a.projection.stats.mean, b.projection.stats.mean, rtol=1e-4)
    # The other networks have other values and other features.
    c, _, c_metrics = step_online(with_target, timestep, second)
    assert a_metrics["q_max"] != c_metrics["q_max"]
    assert not np.allclose(a.projection.stats.mean, c.projection.stats.mean)
    assert not np.allclose(a.features[0], a.features[1])


def keys(count):
    return [jax.random.key(number) for number in range(count)]


@pytest.mark.parametrize("act_with_target", [False, True])
def test_the_policy_state_acts_the_same_on_images(act_with_target):
    agent = make("mbec++", "atari", **SMALL, act_with_target=act_with_target)
    state, other = (jax.jit(agent.init, static_argnums=1)(key, IMAGES) for key in keys(2))
    state = state._replace(target_params=other.params)
    observation = random_frames(2, *IMAGES.shape)
    act = jax.jit(lambda s, key: agent.act_greedy(s, IMAGES, observation, jnp.ones(2, bool), key))
    whole, action = act(state, jax.random.key(1))
    policy, policy_action = act(agent.policy_state(state), jax.random.key(1))
    assert action.tolist() == policy_action.tolist()
    np.testing.assert_array_equal(policy.episodic.tau.h, whole.episodic.tau.h)
    assert np.any(whole.episodic.tau.h != 0)
    assert agent.policy_state(state).replay is None


def test_nec_samples_the_observed_frame_stacks():
    agent = make("nec", "atari", **SMALL | {"buffer_size": 32}, key_size=2, n_step=3)
    spec = replace(IMAGES, num_actions=2)
    num_steps = 40
    rng = np.random.default_rng(0)
    frames = rng.integers(1, 256, (num_steps + 3, 2, 36, 36)).astype(np.uint8)
    frames[:3] = 0  # black before the game
    stacks = [frames[t : t + 4].swapaxes(0, 1) for t in range(num_steps)]
    state = jax.jit(agent.init, static_argnums=1)(jax.random.key(0), spec)
    timesteps = map(timestep_of, stacks)
    states, actions, _ = rollout(jit_step(agent, spec), state, timesteps, num_steps)
    uniforms = (jnp.arange(64) + 0.5) / 64
    sample = jax.jit(replay_buffer.sample)
    for newest in (2, num_steps - 1):  # before the buffer is full, and after it has wrapped around
        replay = states[newest].replay
        rows = len(replay.action)
        numbers = jnp.arange(rows * 2.0).reshape(rows, 2)
        numbered = replay._replace(n_step_return=numbers)
        samples = jax.tree.map(np.asarray, sample(numbered, jnp.int32(newest + 1), uniforms))
        places = [divmod(int(number), 2) for number in samples.n_step_return]
        complete = range(max(0, newest + 1 - (rows - 4)), newest + 1)  # stacks of four frames
        assert {row for row, _ in places} == {t % rows for t in complete}
        for i, (row, env) in enumerate(places):
            t = newest - (newest - row) % rows
            np.testing.assert_array_equal(samples.obs[i].reshape(4, 36, 36), stacks[t][env])
            assert env or samples.action[i] == actions[t]
