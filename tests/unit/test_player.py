"""The NumPy player chooses the actions of the agents whose arrays it is given."""

import ast
from io import BytesIO
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from engram.agents import make
from engram.devices import tracing_for_onnx
from engram.encoders import CNN, layers_for
from engram.envs.spaces import obs_leaves, split_action
from engram.episodic import knn
from engram.episodic.memory import Memory
from engram.errors import EngramError
from engram.exporters import player
from engram.exporters.arrays import convolutions, to_npz
from engram.exporters.onnx import env_action
from engram.policy import Policy
from engram.types import Spec

VECTOR = Spec((4,), 3, low=(-0.5, -np.inf, -2.0, -1.0), high=(0.5, np.inf, 6.0, 1.0))
WEIGHT_SCALE = 4.0
"""with which the greedy action is not always the same"""
IMAGE = Spec((12, 12, 3), 3, "uint8")


def untrained_policy(name, spec=VECTOR, seed=0, fill=40, **options):
    """An agent with large random weights, and `fill` random memories if it has any."""
    agent = make(name, "debug", **options)
    state = agent.init(jax.random.key(seed), spec)
    state = jax.tree.map(lambda x: x * WEIGHT_SCALE if jnp.ndim(x) == 2 else x, state)
    memory = agent.memory(state)
    if memory is not None:
        keys = jax.random.split(jax.random.key(seed + 1))
        filled = Memory(
            keys=jax.random.normal(keys[0], memory.keys.shape) / 3,
            values=jax.random.normal(keys[1], memory.values.shape),
            last_used=memory.last_used,
            num_inserted=jnp.full(memory.num_inserted.shape, fill),
            source=memory.source,
        )
        state = eqx.tree_at(agent.memory, state, filled)
    return Policy(agent, spec, lambda: agent.policy_state(state))


def copy_of(policy):
    return player.Player(BytesIO(to_npz(policy)))


def actions_along_episodes(policy, observations, episode_length=7):
    """The actions of a policy or player, which starts an episode now and then."""
    actions = []
    for i, observation in enumerate(observations):
        if i % episode_length == 0:
            policy.reset()
        actions.append(policy.act(observation))
    return actions


def random_observations(spec, count=60):
    rng = np.random.default_rng(0)
    if spec.dtype == "uint8":
        return rng.integers(256, size=(count, *spec.shape)).astype(np.uint8)
    return rng.normal(size=(count, *spec.shape)).astype(np.float32) * 3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dqn", {"head": "dueling", "normalize_obs": "bounds"}),
        ("dqn", {"head": "quantile", "act_with_target": True, "normalize_obs": "small"}),
        ("drqn", {}),
        ("ppo", {}),
        ("ppo", {"recurrent": True}),
        ("mfec", {}),
        ("nec", {}),
        ("mbec", {"normalize_obs": "small"}),
        ("mbec", {"rewards": "model", "reencode": False}),
        ("mbec++", {"head": "quantile"}),
        ("mbec++", {"q_uses_tau": False, "fixed_beta": 0.7, "head": "dueling"}),
    ],
)
def test_the_player_takes_the_agents_actions_on_vectors(name, options):
    policy = untrained_policy(name, seed=1, **options)
    observations = random_observations(VECTOR)
    expected = actions_along_episodes(policy, observations)
    assert len(set(expected)) > 1
    assert actions_along_episodes(copy_of(policy), observations) == expected


@pytest.mark.parametrize(
    "name",
    ["mbec++", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dqn", "mbec", "mfec"))],
)
def test_the_player_takes_the_agents_actions_on_images(name):
    policy = untrained_policy(name, IMAGE, seed=3)
    if name == "mbec++":  # features of images are standardized by what was seen
        stats = policy.state.projection.stats
        seen = stats._replace(mean=stats.mean + 0.1, variance=stats.variance + 4)
        policy.state = eqx.tree_at(lambda state: state.projection.stats, policy.state, seen)
    observations = random_observations(IMAGE)
    colors = np.random.default_rng(1).random((len(observations), 1, 1, 3))
    observations = (observations * colors).astype(np.uint8)
    expected = actions_along_episodes(policy, observations)
    assert len(set(expected)) > 1
    assert actions_along_episodes(copy_of(policy), observations) == expected


@pytest.mark.parametrize("shape", [(4, 84, 84), (2, 20, 20, 3), (13, 17)])
def test_the_players_convolutions_are_those_of_the_encoder(shape):
    cnn = CNN(shape, layers_for(shape, "nature"), jax.random.key(0))
    observation = random_observations(Spec(shape, 1, "uint8"), 1)[0]
    expected = cnn(jnp.asarray(observation.ravel()))
    axes = {(4, 84, 84): (0, 1, 2), (2, 20, 20, 3): (0, 3, 1, 2), (13, 17): (0, 1)}[shape]
    first = (np.prod(shape) // np.prod(np.array(shape)[list(axes[-2:])]),)
    channels_first = (*map(int, first), *(shape[axis] for axis in axes[-2:]))
    x = player.image(observation.ravel() / 255, shape, axes, channels_first)
    for name, arguments, arrays in convolutions(cnn):
        x = player.OPERATIONS[name](x, *arguments, *map(np.asarray, arrays))
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "fill"), [("mfec", 2), ("nec", 0), ("mbec", 2), ("mbec++", 0)])
def test_memories_of_fewer_than_k_keys_are_read_as_far_as_they_are_filled(name, fill):
    policy = untrained_policy(name, fill=fill)
    observations = random_observations(VECTOR, 20)
    expected = actions_along_episodes(policy, observations)
    assert actions_along_episodes(copy_of(policy), observations) == expected


def test_mfec_takes_a_stored_state_for_known_though_its_key_is_rounded():
    policy = untrained_policy("mfec")
    memory, observation = policy.state.dnd, random_observations(VECTOR, 1)
    key = policy.agent.keys(policy.state, VECTOR, observation)[0]
    # The mean of the neighbours prefers action 0; the known state's own values prefer action 2.
    keys = memory.keys.at[:, :3].set(key * jnp.array([1 + 1e-7, 1.1, 1.1])[:, None])
    values = jnp.array([[0.0, 9, 9], [1, 0, 0], [2, 0, 0]])
    memory = memory._replace(keys=keys, values=memory.values.at[:, :3].set(values))
    policy.state = policy.state._replace(dnd=memory)
    assert copy_of(policy).act(observation[0]) == 2


def test_observations_and_actions_are_those_of_the_environment():
    space = spaces.Dict(
        {
            "place": spaces.Discrete(5, start=-2),
            "speed": spaces.Box(-1, 1, (2,)),
            "rest": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))),
        }
    )
    size = spaces.flatdim(space)
    spec = Spec(
        (size,),
        6,
        obs_leaves=obs_leaves(space),
        action_nvec=(2, 3),
        action_start=(0, -1),
        action_shape=(2,),
    )
    policy = untrained_policy("dqn", spec, seed=3)
    space.seed(0)
    observations = [space.sample() for _ in range(40)]
    expected = actions_along_episodes(policy, observations)
    actions = actions_along_episodes(copy_of(policy), observations)
    assert len({tuple(action) for action in actions}) > 2
    np.testing.assert_array_equal(actions, expected)


def test_a_graph_numbers_combined_actions_as_the_environment_does():
    spec = Spec((1,), 24, action_nvec=(2, 3, 4), action_start=(0, -1, 5), action_shape=(3,))
    for action in range(24):
        expected = split_action(spec.action_nvec, spec.action_start, action)
        np.testing.assert_array_equal(env_action(spec, jnp.int32(action)), expected)


def test_the_player_needs_numpy_alone():
    tree = ast.parse(Path(player.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert all(isinstance(node, ast.Import) for node in imports)
    assert {alias.name for node in imports for alias in node.names} == {"json", "numpy"}


def test_what_the_player_cannot_play_is_refused():
    impala = untrained_policy("dqn", IMAGE, encoder="impala")
    with pytest.raises(EngramError, match="encoder impala: export"):
        to_npz(impala)


def test_searches_traced_for_onnx_take_rounding_for_zero_distance():
    keys = jax.random.normal(jax.random.key(0), (20, 8))
    queries = jnp.stack([keys[3] * (1 + 1e-7), keys[5] + 0.1])
    expected = knn.portable_knn(keys, jnp.int32(12), queries, 4)
    with tracing_for_onnx():
        distances, slots = knn.nearest_neighbours(keys, jnp.int32(12), queries, 4)
    np.testing.assert_array_equal(slots, expected[1])
    np.testing.assert_allclose(distances, expected[0], atol=1e-5)
    assert distances[0, 0] == 0 < distances[1, 0]
