"""Training and policies flatten observations alike, as gymnasium.spaces.flatten does."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st
from scripted_env import ScriptedEnv

from engram.agents import make
from engram.envs import check_env, get_task, wrap_spaces
from engram.envs.spaces import FlattenObservation, flatten_observation, obs_leaves
from engram.errors import EngramError
from engram.policy import Policy
from engram.types import ObsLeaf


def nested(inner):
    tuples = st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
    keys = st.text(max_size=2)
    return tuples | st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict)


LEAVES = st.one_of(
    st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.integers(-2, 2)
    ),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.just(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-1, 2]])),
    st.lists(st.integers(1, 3), min_size=1, max_size=2).map(spaces.MultiBinary),
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: spaces.Box(-1, 1, tuple(shape))),
    st.just(spaces.Box(0, 255, (2,), np.uint8)),
)
# A Box alone is not flattened.
SPACES = nested(st.recursive(LEAVES, nested, max_leaves=5)) | LEAVES.filter(
    lambda space: not isinstance(space, spaces.Box)
)


@given(SPACES, st.integers(0, 2**31))
def test_wrapper_and_policy_flatten_as_gymnasium_does(space, seed):
    """One observation, and a batch of three as vector environments return it."""
    space.seed(seed)
    observations = [space.sample() for _ in range(3)]
    expected = np.stack([spaces.flatten(space, observation) for observation in observations])

    env = wrap_spaces(ScriptedEnv(observations[0], observation_space=space))
    wrapped, _ = env.reset()
    np.testing.assert_array_equal(wrapped, expected[0])
    assert wrapped.dtype == expected.dtype
    assert env.observation_space == spaces.flatten_space(space)
    np.testing.assert_array_equal(env.step(0)[0], expected[0])

    leaves = get_task(partial(ScriptedEnv, observation_space=space)).spec().obs_leaves
    np.testing.assert_array_equal(flatten_observation(leaves, observations[0]), expected[0])
    batch = concatenate(space, observations, create_empty_array(space, 3))
    np.testing.assert_array_equal(flatten_observation(leaves, batch), expected)


def test_a_policy_acts_on_observations_of_the_environment_and_on_batches():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "door": spaces.Discrete(3)})
    actions = spaces.Discrete(3, start=7)
    spec = get_task(partial(ScriptedEnv, observation_space=space, action_space=actions)).spec()
    agent = make("random")
    policy = Policy(agent, spec, lambda: None)
    assert policy.act({"x": np.zeros(2), "door": 2}) in (7, 8, 9)
    batch = policy.act({"x": np.zeros((4, 2)), "door": np.arange(4) % 3})
    assert batch.shape == (4,)
    assert set(batch) <= {7, 8, 9}


def test_discrete_observations_become_one_hot():
    for space, observation, flat in [
        (spaces.Discrete(4, start=1), 3, [0, 0, 1, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    ]:
        task = get_task(partial(ScriptedEnv, observation, observation_space=space))
        spec = task.inspect()
        assert task.make().reset()[0].tolist() == flat
        assert (spec.shape, spec.dtype) == ((len(flat),), "float32")
        assert (set(spec.low), set(spec.high)) == ({0.0}, {1.0})


def test_nested_observations_become_one_vector():
    goal = spaces.Dict({"far": spaces.Box(0, 9, (1, 2)), "door": spaces.Discrete(3, start=1)})
    space = spaces.Tuple([goal, spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1, ())])
    nested_goal = {"far": np.array([[4, 5]], np.float32), "door": 3}
    observation = (nested_goal, np.array([1, 0]), np.float32(0.5))
    task = get_task(partial(ScriptedEnv, observation, observation_space=space))
    spec = task.inspect()
    # A Dict has its keys in alphabetical order.
    assert task.make().reset()[0].tolist() == [0, 0, 1, 4, 5, 0, 1, 1, 0, 0.5]
    assert spec.high == (1, 1, 1, 9, 9, 1, 1, 1, 1, 1)
    assert spec.low == (0, 0, 0, 0, 0, 0, 0, 0, 0, -1)
    assert spec.obs_leaves == obs_leaves(space)
    assert spec.obs_leaves[0] == ObsLeaf((0, "door"), (), (3,), (1,))
    assert [leaf.path for leaf in spec.obs_leaves] == [(0, "door"), (0, "far"), (1,), (2,)]


SPACE = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "door": spaces.Discrete(3)})
VALID = {"x": np.zeros(2), "door": 2}
BATCH = {"x": np.zeros((2, 2)), "door": np.array([0, 1])}


@pytest.mark.parametrize(
    ("observation", "cause"),
    [
        ({"x": np.zeros(2)}, r"An observation\['door'\] is missing: give the observation"),
        (np.zeros(5), "is missing"),
        ([VALID, VALID], "is missing"),  # a list is not what vector environments return
        (VALID | {"door": 3}, r"\['door'\] must consist of whole numbers from 0 to 2, not \[3\]"),
        (VALID | {"door": -1}, r"from 0 to 2, not \[-1\]"),
        (VALID | {"door": 1.0}, r"whole numbers from 0 to 2, not \[1\.\]"),
        (VALID | {"x": None}, r"\['x'\] must consist of numbers"),
        (VALID | {"x": [1, [2, 3]]}, r"\['x'\] must consist of numbers"),
        (VALID | {"x": np.zeros(3)}, r"\['x'\] must have shape \(2,\), or \(n, 2\) for a batch"),
        (BATCH | {"door": np.array([0, 1, 2])}, "must have the same batch size"),
    ],
)
def test_an_observation_outside_the_space_is_refused(observation, cause):
    with pytest.raises(EngramError, match=cause):
        flatten_observation(obs_leaves(SPACE), observation)


def test_an_environment_flattened_by_its_author_takes_flat_observations():
    def flat():
        return gym.wrappers.FlattenObservation(ScriptedEnv(VALID, observation_space=SPACE))

    spec = get_task(flat).inspect()
    assert (spec.shape, spec.obs_leaves) == ((5,), ())


def test_an_array_that_is_not_flattened_keeps_its_shape():
    assert flatten_observation((), np.zeros((2, 3))).shape == (2, 3)


def test_gymnasium_can_rebuild_a_flattened_environment_from_its_spec():
    gym.register("Nested-v0", partial(ScriptedEnv, VALID, observation_space=SPACE))
    try:
        again = gym.make(get_task("gym:Nested-v0").make().spec, disable_env_checker=True)
    finally:
        del gym.registry["Nested-v0"]
    assert isinstance(again, FlattenObservation)


def test_actions_that_do_not_start_at_0_are_offset():
    task = get_task(partial(ScriptedEnv, action_space=spaces.Discrete(3, start=5)))
    env, spec = task.make(), task.spec()
    check_env(env, task.name)
    assert env.unwrapped.actions == [5, 6, 7]
    assert (spec.num_actions, spec.action_offset) == (3, 5)
