"""MFEC stores the best return of each state and action, under keys that keep distances."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import episode_timesteps, jit_step, rollout

from engram.agents.mfec import MFEC, random_projection
from engram.episodic import dnd
from engram.episodic.dnd import Writes
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=40)
AGENT = MFEC(gamma=0.5, num_neighbours=1, memory_size=1000)
KEYS = jax.jit(lambda state, obs: AGENT.keys(state, SPEC, obs))
LOOKUP = jax.jit(dnd.lookup, static_argnums=2)


@pytest.fixture(scope="module")
def initial_state():
    return AGENT.init(jax.random.key(0), SPEC)


@pytest.fixture(scope="module")
def one_action():
    """The `step` and the first state of an agent with one action, so that nothing is random."""
    spec = replace(SPEC, num_actions=1)
    return jit_step(AGENT, spec), AGENT.init(jax.random.key(0), spec)


def stored_value(state, obs, action):
    """The value stored for an observation and an action, None if there is none."""
    near = LOOKUP(state.dnd, KEYS(state, jnp.array([obs], jnp.float32)), 1)
    if not near.exact[action, 0]:
        return None
    return float(state.dnd.values[action, near.slots[action, 0, 0]])


# Returns


def test_returns_of_an_episode_are_stored_for_the_actions_taken(initial_state):
    random = replace(AGENT, epsilon_end=1.0)
    timesteps = episode_timesteps((0.0, [1.0, 2.0, 4.0], False))
    states, actions, metrics = rollout(jit_step(random, SPEC), initial_state, timesteps, 8)
    # Two entries are written in each step after the episode's end.
    assert [x["memory_size"] for x in metrics] == [0, 0, 0, 0, 2, 3, 3, 3]
    assert set(actions) == {0, 1}
    # 1 + 2/2 + 4/4, 2 + 4/2, and 4.
    for t, expected in enumerate((3.0, 4.0, 4.0)):
        assert stored_value(states[-1], (t, 0.0), actions[t]) == expected
        assert stored_value(states[-1], (t, 0.0), 1 - actions[t]) is None


def test_the_best_return_of_a_state_is_kept(one_action):
    first = (0.0, [1.0, 2.0, 4.0], False)
    worse = (0.0, [0.0, 0.0, 1.0], False)
    better = (0.0, [5.0, 2.0, 4.0], False)
    states, _, metrics = rollout(*one_action, episode_timesteps(first, worse, better), 13)
    assert [stored_value(states[8], (t, 0.0), 0) for t in range(3)] == [3.0, 4.0, 4.0]
    # 5 + 2/2 + 4/4 in the first state.
    assert [stored_value(states[12], (t, 0.0), 0) for t in range(3)] == [7.0, 4.0, 4.0]
    assert states[12].dnd.num_inserted.tolist() == [3]
    # Known states have their stored value.
    assert [x["q_max"] for x in metrics[6:9]] == [3.0, 4.0, 4.0]


def test_the_return_of_a_truncated_episode_bootstraps_from_its_final_observation(one_action):
    timesteps = episode_timesteps(
        (0.0, [1.0, 2.0, 4.0], False), (5.0, [0.0, 0.0, 0.0], False), (0.0, [10.0, 20.0], True)
    )
    states, _, _ = rollout(*one_action, timesteps, 12)
    # It ends in (2, 0), of value 4 since the first episode: 10 + 20/2 + 4/4, and 20 + 4/2.
    assert [stored_value(states[-1], (t, 0.0), 0) for t in range(3)] == [21.0, 22.0, 4.0]
    assert stored_value(states[-1], (0, 5.0), 0) == 0.0


def test_greedy_actions_maximize_the_value_of_the_nearest_states(initial_state):
    obs = jnp.array([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    keys = KEYS(initial_state, obs)
    mask = jnp.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool)
    writes = Writes(jnp.tile(keys[:2], (2, 1)), jnp.array([1.0, 4.0, 2.0, 3.0]), mask)

    @jax.jit
    def write(memory):
        near = dnd.lookup(memory, writes.key, 1)
        return dnd.write(memory, near, writes, jnp.int32(0), "fifo")

    @jax.jit
    def act_greedy(state):
        return AGENT.act_greedy(state, SPEC, obs, jnp.ones(3, bool), jax.random.key(0))[1]

    # Q is (1, 2) in the first state and (4, 3) in the second, which is the nearest to the third.
    memory = write(initial_state.dnd)
    assert act_greedy(initial_state._replace(dnd=memory)).tolist() == [1, 0, 0]
    # With two neighbours the third has the mean of both, the others keep their own values.
    values = dnd.read_mean(memory, LOOKUP(memory, keys, 2))
    assert values.tolist() == [[1.0, 2.0], [4.0, 3.0], [2.5, 2.5]]


# Keys


@pytest.mark.parametrize(
    ("obs_size", "key_size", "outputs"), [(4, 64, 4), (64, 64, 64), (100, 16, 16)]
)
def test_a_projection_has_no_more_numbers_than_the_state(obs_size, key_size, outputs):
    normals = jax.ShapeDtypeStruct((obs_size, key_size), jnp.float32)
    assert jax.eval_shape(random_projection, normals).shape == (obs_size, outputs)


def test_a_shortened_projection_keeps_the_distances_of_the_long_one():
    normals = jax.random.normal(jax.random.key(0), (4, 64))
    states = np.random.default_rng(0).normal(size=(20, 4))

    def distances(x):
        return np.linalg.norm(x[:, None] - x[None], axis=-1)

    long = distances(states @ np.asarray(normals, float) / 8)  # scaled by 1 / sqrt(64)
    short = distances(states @ np.asarray(random_projection(normals), float))
    np.testing.assert_allclose(short, long, rtol=1e-4, atol=1e-5)


def test_a_projection_to_fewer_numbers_is_only_scaled():
    normals = jax.random.normal(jax.random.key(1), (300, 64))
    np.testing.assert_allclose(random_projection(normals), normals / 8, rtol=1e-6)


@pytest.mark.parametrize("width", [4, 128])
@pytest.mark.usefixtures("optimized")
def test_a_state_has_the_same_key_bit_for_bit_in_every_program(width):
    """Alone or in a batch, and in one run or among three; else it would not be recognized."""
    agent, spec = MFEC(), Spec((width,), 2, num_iterations=10)
    state = agent.init(jax.random.key(3), spec)
    obs = jax.random.normal(jax.random.key(4), (10, width))

    def keys_of_run(state, obs):
        return agent.keys(state, spec, obs)

    keys = jax.jit(keys_of_run)
    together = keys(state, obs)
    alone = np.concatenate([keys(state, one[None]) for one in obs])
    np.testing.assert_array_equal(alone, together)
    runs = jax.tree.map(lambda x: jnp.stack([x] * 3), state)
    keys_of_runs = jax.jit(jax.vmap(keys_of_run, in_axes=(0, None)))
    for num_envs in (1, 10):
        of_runs = keys_of_runs(runs, obs[:num_envs])
        np.testing.assert_array_equal(of_runs, np.stack([together[:num_envs]] * 3))
