"""Agents learn from images of any environment, and store them as bytes."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import ProbeParams, ProbeState

from engram import runners
from engram.agents import DQN, DRQN, MBEC, NEC, PPO, MBECpp
from engram.agents.ppo import forward_one
from engram.encoders import CNN
from engram.envs import Task
from engram.errors import EngramError
from engram.networks import encode
from engram.types import EnvStep, Spec, TimeStep


def image(is_bright):
    """An image whose right half is bright, or else its left half."""
    columns = jnp.where((jnp.arange(6) >= 3) == is_bright, jnp.uint8(200), jnp.uint8(30))
    return columns * jnp.ones((6, 1), jnp.uint8)


@dataclass(frozen=True)
class TwoImages:
    """An episode starts with one of two images, and has the second from the next step on.

    At the second image action 1 has reward 1. An episode never terminates but is truncated after
    three steps. With a gamma of 0.5 the second image has the value 2 and the first the value 1, if
    a truncated episode bootstraps from its final observation.
    """

    def reset(self, params, key):
        is_second = jax.random.bernoulli(key).astype(jnp.float32)
        return ProbeState(jnp.int32(0), is_second), image(is_second > 0)

    def step(self, params, state, action, key):
        reward = state.mark * (action == 1)
        next_state = ProbeState(state.t + 1, jnp.float32(1))
        return next_state, EnvStep(image(True), reward, reward, jnp.array(False), state.t == 2)


NUM_ITERATIONS = 1_200
TASK = Task("two-images", "", lambda: None, jax_env=TwoImages(), env_params=ProbeParams(0.0))
SPEC = Spec((6, 6), 2, "uint8", max_episode_steps=3, num_iterations=NUM_ITERATIONS)
COMMON = {"gamma": 0.5, "hidden_size": 16}
REPLAY = COMMON | {"batch_size": 16, "epsilon_end": 0.3, "buffer_size": 600}
Q_LEARNING = REPLAY | {"target_update_interval": 10, "learning_rate": 2e-3}
MEMORY = {"memory_size": 100, "num_neighbours": 3, "chunk": 2}
DND = {"memory_size": 300, "num_neighbours": 5, "key_size": 4, "n_step": 5}
ROLLOUT = {"num_steps": 48, "update_epochs": 6, "num_minibatches": 1}
AGENTS = {
    "dqn": DQN(**Q_LEARNING),
    "dqn, impala": DQN(**Q_LEARNING, encoder="impala", head="quantile"),
    "mbec": MBEC(
        **{name: value for name, value in REPLAY.items() if name != "hidden_size"},
        **MEMORY | {"chunk": 1},
    ),
    "mbec++": MBECpp(**Q_LEARNING, **MEMORY),
    "mbec++, impala": MBECpp(**Q_LEARNING, **MEMORY, encoder="impala", head="quantile"),
    "nec": NEC(**REPLAY, **DND, learning_rate=1e-4),
    "drqn": DRQN(**Q_LEARNING, lstm_size=8, sequence_length=3),
    "ppo": PPO(**COMMON, **ROLLOUT, learning_rate=3e-3),
}


def greedy_values(monkeypatch, agent, state, observation):
    """The values by which an agent acts where an episode starts, and its actions."""
    values = []

    def record_values(spec, q, epsilon, key):
        values.append(np.asarray(q))
        return jnp.argmax(q, axis=-1)

    with monkeypatch.context() as patch:
        patch.setattr("engram.agents.common.greedy_action", record_values)
        episode_start = jnp.ones(len(observation), bool)
        key = jax.random.key(0)
        _, action = agent.act_greedy(state, SPEC, observation, episode_start, key)
    return values[0], action


@pytest.mark.parametrize(
    "name",
    [name if name == "dqn" else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS],
)
def test_values_of_images_are_learned_and_truncation_is_not_terminal(monkeypatch, name):
    agent = AGENTS[name]
    runner = runners.JaxRunner(agent, [TASK], [0], SPEC)
    runner.start()
    runner.advance(NUM_ITERATIONS)
    state = jax.tree.map(lambda x: x[0], runner.run_state.agent)
    observation = jnp.stack([image(False), image(True)])
    q, action = greedy_values(monkeypatch, agent, agent.policy_state(state), observation)
    if name == "ppo":
        value = forward_one(state.networks, None, observation.reshape(2, -1))[2]
        np.testing.assert_allclose(value, [1.0, 2.0], atol=0.3)
    else:
        np.testing.assert_allclose(q.max(axis=-1), [1.0, 2.0], atol=0.3)
        np.testing.assert_allclose(q[1], [1.0, 2.0], atol=0.3)
    assert action[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn, impala", "mbec++, impala"])
def test_a_run_whose_convolutions_are_computed_in_turn_is_the_run_alone(name):
    def train(seeds):
        runner = runners.JaxRunner(AGENTS[name], [TASK] * len(seeds), seeds, SPEC)
        runner.start()
        runner.advance(20)
        params = runner.run_state.agent.q if "dqn" in name else runner.run_state.agent.params.q
        return [np.asarray(x) for x in jax.tree.leaves(params)]

    for alone, two in zip(train([1]), train([0, 1]), strict=True):
        np.testing.assert_allclose(two[1], alone[0], rtol=1e-3, atol=1e-4)
        assert np.abs(two[0] - alone[0]).max() > 1e-3


@pytest.mark.parametrize("name", ["dqn", "mbec", "mbec++"])
def test_replay_stores_images_as_bytes_and_final_observations(monkeypatch, name):
    # Features that are not normalized can be compared with those of the encoder.
    monkeypatch.setattr("engram.running_stats.normalize", lambda stats, x: x)
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (10, 2, 9, 7, 3)), jnp.uint8)
    spec = Spec((9, 7, 3), 3, "uint8", num_envs=2, num_iterations=100)
    agent = replace(AGENTS[name], buffer_size=8)
    state = jax.jit(agent.init, static_argnums=1)(jax.random.key(0), spec)
    step_agent = jax.jit(lambda *inputs: agent.step(inputs[0], spec, *inputs[1:])[0])
    zeros = jnp.zeros(2), jnp.zeros(2, bool)
    # The third action of one environment leads to image 9, where the episode is truncated.
    for step in range(6):
        truncated = jnp.array([step == 3, False])
        final = jnp.where(truncated[:, None, None, None], images[9], images[step])
        timestep = TimeStep(images[step], *zeros, truncated, final)
        state = step_agent(state, timestep, jnp.int32(step), jax.random.key(1))

    rows = np.array([1, 2, 3, 0])  # the first of five transitions is overwritten
    obs = images[1:5].reshape(4, 2, -1)
    next_obs = images[2:6].at[1, 0].set(images[9, 0]).reshape(4, 2, -1)
    replay = state.replay
    assert replay.obs.dtype == replay.next_obs.dtype == jnp.uint8
    np.testing.assert_array_equal(replay.obs[rows], obs)
    np.testing.assert_array_equal(replay.next_obs[rows], next_obs)
    if name == "mbec++":
        encode_all = jax.jit(jax.vmap(jax.vmap(partial(encode, state.params.q))))
        features, next_features = (encode_all(x) @ state.projection.matrix for x in (obs, next_obs))
        np.testing.assert_allclose(replay.features[rows], features, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(replay.next_features[rows], next_features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"reencode": False}, {"rewards": "model"}])
def test_mbec_refuses_images_if_its_keys_cannot_follow_the_encoder(options):
    sentence = r"^On images MBEC needs reencode and rewards from memory, .* defaults\.$"
    with pytest.raises(EngramError, match=sentence):
        MBEC(**options).init(jax.random.key(0), SPEC)


def test_mbec_refuses_stacks_of_frames():
    spec = Spec((4, 36, 36), 3, "uint8", frame_stack=4)
    with pytest.raises(EngramError, match=r"^MBEC cannot store stacks of frames: use mbec\+\+ on"):
        MBEC().init(jax.random.key(0), spec)


@pytest.mark.parametrize("agent", [PPO(), PPO(recurrent=True)])
def test_agents_without_a_frame_buffer_encode_and_store_whole_stacks(agent):
    spec = Spec((4, 36, 36), 3, "uint8", frame_stack=4, num_envs=2, num_iterations=600)
    zeros = jnp.zeros(2), jnp.zeros(2, bool), jnp.zeros(2, bool)
    observation = jnp.zeros((2, *spec.shape), jnp.uint8)
    timestep = TimeStep(observation, *zeros, jnp.zeros((2, 0), jnp.uint8))

    def init_and_step(key):
        state = agent.init(key, spec)
        return state, *agent.step(state, spec, timestep, jnp.int32(0), key)

    before, after, action, _ = jax.eval_shape(init_and_step, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert action.shape == (2,)
    assert isinstance(after.networks.actor.encoder, CNN)
    rows = after.rollout.decision.obs
    assert (rows.dtype, rows.shape[1:]) == (jnp.uint8, (2, 4 * 36 * 36))
