"""An environment that cannot be used is refused in one sentence that names cause and remedy."""

import math

import numpy as np
import pytest
from gymnasium import spaces
from scripted_env import ZEROS, ScriptedEnv

from engram.envs import check_env, env_errors, get_task
from engram.envs.env_checker import observation_error, reward_error
from engram.errors import EngramError

NAN = np.array([0, math.nan, 0], np.float32)


def error_of(env, name="my-env"):
    with pytest.raises(EngramError) as caught:
        check_env(env, name)
    sentence = str(caught.value)
    assert name in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_a_valid_environment_passes_whatever_number_types_it_uses():
    check_env(ScriptedEnv(), "my-env")
    numpy_types = {"reward": np.float32(2), "terminated": np.bool_(True)}
    check_env(ScriptedEnv([0, 0.5, 1], **numpy_types), "my-env")
    arrays = {"reward": np.array(1), "truncated": np.array(True)}
    check_env(ScriptedEnv(np.zeros(3, np.float64), **arrays), "my-env")


@pytest.mark.parametrize(
    ("space", "cause"),
    [
        (spaces.Box(-1, 1, (2,)), r"continuous \(Box.*use Discrete\(n\) and map each action"),
        (spaces.MultiDiscrete([2, 3]), r"MultiDiscrete.*use Discrete\(n\).*combination"),
        (spaces.MultiBinary(3), r"MultiBinary.*use Discrete\(n\).*combination"),
        (spaces.Dict({"a": spaces.Discrete(2)}), r"a Dict.*use Discrete\(n\)"),
        (spaces.Discrete(3, start=1), r"counts from 1.*use Discrete\(3\), or let .*get_task"),
    ],
)
def test_an_unusable_action_space_is_refused_with_a_remedy(space, cause):
    with pytest.raises(EngramError, match=f"my-env cannot be used.*action_space.*{cause}"):
        check_env(ScriptedEnv(action_space=space), "my-env")


def test_an_environment_with_a_discrete_variant_is_refused_with_its_argument():
    class Both(ScriptedEnv):
        def __init__(self, continuous: bool = True):
            super().__init__(action_space=spaces.Box(-1, 1, (2,)))

    with pytest.raises(EngramError, match=r"continuous .*--env-kwargs continuous=false"):
        check_env(Both(), "my-env")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Box(0, 1)}),
        spaces.Tuple([spaces.Box(0, 1)]),
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
    ],
)
def test_an_observation_space_that_is_not_wrapped_is_refused(space):
    kind = type(space).__name__
    with pytest.raises(EngramError, match=f"is a {kind}, but .*use a Box, or let .*get_task wrap"):
        check_env(ScriptedEnv(observation_space=space), "my-env")


@pytest.mark.parametrize(
    ("space", "cause"),
    [
        (spaces.Dict({}), "a Dict that contains a Dict that is empty"),
        (
            spaces.Tuple([spaces.Box(0, 1), spaces.Tuple([])]),
            r"a Tuple that contains at \[1\] a Tuple that is empty",
        ),
        (spaces.Dict({("a", 1): spaces.Box(0, 1)}), "keys other than str and int"),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Text(5)]),
            r"a Tuple that contains at \[1\] a Text.*encode it with .*TransformObservation",
        ),
        (
            spaces.Dict({"a": spaces.Dict({"eye": spaces.Box(0, 255, (9, 9, 3), np.uint8)})}),
            r"contains at \['a'\]\['eye'\] an image.*choose one part.*or leave the image out",
        ),
        (spaces.Text(5), "a Text.*encode it"),
        (spaces.Graph(spaces.Box(0, 1), None), "a Graph.*encode it"),
        (spaces.Sequence(spaces.Box(0, 1)), "a Sequence.*encode it"),
    ],
)
def test_an_unusable_observation_space_is_refused_with_a_remedy(space, cause):
    env = ScriptedEnv(observation_space=space)
    with pytest.raises(EngramError, match=f"my-env cannot be used.*observation_space.*{cause}"):
        check_env(env, "my-env")
    with pytest.raises(EngramError, match=f"lambda cannot be used.*observation_space.*{cause}"):
        get_task(lambda: env).spec()


@pytest.mark.parametrize("space", ["action_space", "observation_space"])
def test_a_missing_space_is_named(space):
    env = ScriptedEnv()
    delattr(env, space)
    assert f"it has no {space}" in error_of(env)
    with pytest.raises(EngramError, match=f"lambda.*it has no {space}"):
        get_task(lambda: env).spec()


UINT8 = spaces.Box(0, 255, (3,), np.uint8)


@pytest.mark.parametrize(
    ("values", "method", "cause"),
    [
        ({"reset_observation": np.zeros(2)}, "reset", "observation has shape (2,) instead of (3,)"),
        ({"reset_observation": NAN}, "reset", "observation[1] is nan"),
        ({"observation_space": UINT8}, "reset", "dtype float32 instead of uint8"),
        ({"observation": np.zeros((3, 1))}, "step", "shape (3, 1) instead of (3,)"),
        ({"observation": NAN}, "step", "observation[1] is nan"),
        ({"observation": ZEROS - math.inf}, "step", "observation[0] is -inf"),
        ({"observation": [1, [2, 3]]}, "step", "a ragged list, not an array of shape (3,)"),
        ({"observation": "abc"}, "step", "observation has dtype <U3 instead of float32"),
        ({"observation": {"a": 1}}, "step", "observation has dtype object"),
        ({"reward": math.nan}, "step", "reward is nan"),
        ({"reward": -math.inf}, "step", "reward is -inf"),
        (
            {"reset_observation": np.full(3, -1e300)},
            "reset",
            "observation[0] is -1e+300, too large",
        ),
        ({"observation": np.full(3, 1e39)}, "step", "observation[0] is 1e+39, too large a number"),
        (
            {"reward": 1e300},
            "step",
            "reward is 1e+300, too large a number for agents (at most 3.4e",
        ),
        ({"reward": -(10**400)}, "step", "reward is -1000"),
        ({"reward": None}, "step", "reward is None"),
        ({"reward": "1"}, "step", "reward is '1'"),
        ({"reward": np.ones(2)}, "step", "reward is array([1., 1.])"),
        ({"terminated": 0}, "step", "terminated is 0, not a bool"),
        ({"terminated": None}, "step", "terminated is None"),
        ({"truncated": "no"}, "step", "truncated is 'no'"),
        ({"truncated": np.array([True])}, "step", "truncated is array([ True])"),
        ({"info": [1]}, "step", "info is a list of 1, not a dict"),
        ({"info": {"true_reward": math.nan}}, "step", "info['true_reward'], which reported"),
    ],
)
def test_a_wrong_return_value_is_named_with_its_method(values, method, cause):
    sentence = error_of(ScriptedEnv(**{"reset_observation": ZEROS} | values))
    assert f"at fault in {method}: " in sentence
    assert cause in sentence


class OldReset(ScriptedEnv):
    def reset(self, *, seed=None, options=None):
        return ZEROS


class UnseededReset(ScriptedEnv):
    def reset(self):
        return ZEROS, {}


class OldStep(ScriptedEnv):
    def step(self, action):
        return ZEROS, 1.0, False, {}


class RaisingStep(ScriptedEnv):
    def step(self, action):
        raise ZeroDivisionError("wheels\noff")


class WrongSecondReset(ScriptedEnv):
    def reset(self, *, seed=None, options=None):
        return (NAN if self.actions else ZEROS), {}


@pytest.mark.parametrize(
    ("env", "cause"),
    [
        (OldReset(), "reset: it returned a ndarray instead of the pair observation, info"),
        (UnseededReset(), "reset: it raised TypeError (UnseededReset.reset() got an unexpected"),
        (OldStep(), "step: it returned a tuple of 4 instead of the five observation, reward, term"),
        (RaisingStep(), "step: it raised ZeroDivisionError (wheels off)"),
        (WrongSecondReset(terminated=True), "reset: observation[1] is nan"),
        (WrongSecondReset(truncated=True), "reset: observation[1] is nan"),
    ],
)
def test_a_wrong_method_is_named(env, cause):
    assert f"at fault in {cause}" in error_of(env)


def test_an_object_that_is_no_environment_is_refused():
    assert "not a gymnasium.Env" in error_of(object())


def test_an_observation_outside_its_nested_space_is_named():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "door": spaces.Discrete(3)})
    observation = {"x": np.zeros(2), "door": 3}
    task = get_task(lambda: ScriptedEnv(observation, observation_space=space))
    cause = r"at fault in reset: wrong observation \(.*\['door'\] must .* 0 to 2, not \[3\]\)"
    with pytest.raises(EngramError, match=cause):
        task.inspect()


def test_errors_that_are_sentences_already_are_not_wrapped():
    with pytest.raises(EngramError, match=r"^Buy a joystick\.$"), env_errors("my-env", "step"):
        raise EngramError("Buy a joystick.")


def test_step_checks_take_one_observation_or_a_batch():
    assert observation_error(ZEROS, (3,)) is None
    assert observation_error(np.zeros((2, 3)), (2, 3)) is None
    assert observation_error(np.stack([ZEROS, NAN]), (2, 3)).startswith("observation[1, 1] is nan")
    assert observation_error(np.float32(math.inf), ()).startswith("observation is inf")
    assert observation_error(np.zeros((2, 2), np.uint8), (2, 2), "uint8") is None
    assert reward_error(-1) is None
    assert reward_error(10**400).startswith("reward is 1000")


def test_an_exception_is_named_with_its_file_and_line():
    line = RaisingStep.step.__code__.co_firstlineno + 1
    with pytest.raises(EngramError, match=f"in test_env_checker.py, line {line}; correct it"):
        check_env(RaisingStep(), "own")
