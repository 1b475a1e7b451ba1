"""Tasks are found by name, and an environment that cannot be learnt is told so in one sentence."""

import math
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import EngramError
from engram.policy import row
from engram.tasks import BernoulliReward, GaussianReward, Noise, RepeatedObservation, Task, check, find, hardly_seen, names
from engram.tasks.checks import observation_fault, reward_fault
from engram.tasks.classic import CartPole, MountainCar
from engram.types import Part

FINE = np.zeros(3, np.float32)


class Probe(gym.Env):
    """An environment of three numbers and two actions in which one thing at a time can be made wrong."""

    def __init__(self, observation=FINE, reward=1.0, terminated=False, truncated=False, info=None, first=None, sees=None, acts=None):
        self.observation_space = spaces.Box(-1, 1, (3,)) if sees is None else sees
        self.action_space = spaces.Discrete(2) if acts is None else acts
        self.first = observation if first is None else first
        self.answer = (observation, reward, terminated, truncated, {} if info is None else info)
        self.actions = []

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, action):
        self.actions.append(action)
        return self.answer


def complaint(env, name="probe"):
    with pytest.raises(EngramError) as caught:
        check(env, name)
    sentence = str(caught.value)
    assert name in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


# Registered tasks


def test_three_tasks_are_registered_each_with_three_noises():
    versions = ("", "-gaussian", "-bernoulli", "-transition")
    assert names() == [base + noise for base in ("cartpole", "mountaincar", "lunarlander") for noise in versions]


@pytest.mark.parametrize("name", names())
def test_a_registered_task_passes_our_own_check_and_has_finite_bounds(name):
    task = find(name)
    check(task.make(), name)
    spec = task.spec(envs=2, iterations=50)
    assert task.about
    assert task.limit_ends
    assert spec.limit_ends
    assert len(spec.low) == len(spec.high) == spec.shape[0]
    assert np.all(np.isfinite(spec.low) & np.isfinite(spec.high) & (np.array(spec.low) < spec.high))
    assert (spec.envs, spec.iterations, spec.dtype) == (2, 50, "float32")


@pytest.mark.parametrize(
    ("name", "steps", "shape", "actions", "limit", "dynamics"),
    [
        ("cartpole", 10_000, (4,), 2, 200, CartPole()),
        ("mountaincar", 100_000, (2,), 3, 200, MountainCar()),
        ("lunarlander", 100_000, (8,), 4, 1000, None),
    ],
)
def test_registered_tasks_are_the_papers(name, steps, shape, actions, limit, dynamics):
    task, spec = find(name), find(name).spec()
    assert (task.steps, task.dynamics) == (steps, dynamics)
    assert (spec.shape, spec.actions, spec.limit) == (shape, actions, limit)


@pytest.mark.parametrize(
    ("noise", "params", "wrapper", "field", "strength"),
    [
        ("gaussian", Noise(gaussian=0.2), GaussianReward, "std", 0.2),
        ("bernoulli", Noise(bernoulli=0.2), BernoulliReward, "p", 0.2),
        ("transition", Noise(transition=0.5), RepeatedObservation, "p", 0.5),
    ],
)
def test_a_noisy_task_is_as_noisy_on_the_host_as_in_jax(noise, params, wrapper, field, strength):
    for base in ("cartpole", "mountaincar", "lunarlander"):
        task = find(f"{base}-{noise}")
        env = task.make()
        assert task.params == params
        assert isinstance(env, wrapper)
        assert getattr(env, field) == strength


def test_cart_pole_is_cut_after_200_steps_and_its_bounds_are_practical():
    env, spec = find("cartpole").make(), find("cartpole").spec()
    env.reset(seed=0)
    for t in range(1, 201):
        state = env.unwrapped.state
        _, _, terminated, truncated, _ = env.step(int(state @ [0.05, 0.1, 1.0, 0.3] > 0))
        assert truncated == (t == 200)
        assert not terminated
    assert spec.high == (2.4, 3.0, 0.2095, 3.5)
    assert spec.low == (-2.4, -3.0, -0.2095, -3.5)


def test_a_task_can_be_drawn():
    env = find("cartpole-transition").make(render_mode="rgb_array")
    assert env.render_mode == "rgb_array"


# Finding


def test_steps_can_be_set():
    assert find("cartpole", steps=77).steps == 77
    assert find(find("cartpole"), steps=78).steps == 78
    assert find("cartpole").steps == 10_000


@pytest.mark.parametrize("steps", [0, -5, 1.5, "many"])
def test_wrong_steps_are_named(steps):
    with pytest.raises(EngramError, match="steps="):
        find("cartpole", steps=steps)


def test_a_misspelt_name_gets_its_nearest():
    with pytest.raises(EngramError, match=r"no task 'cartpole-gausian'.*Did you mean cartpole-gaussian"):
        find("cartpole-gausian")


def test_a_bare_gymnasium_id_is_told_its_prefix():
    with pytest.raises(EngramError, match=r"no task 'CartPole-v1'\. Write gym:CartPole-v1"):
        find("CartPole-v1")


def test_any_gymnasium_id_is_a_task_where_a_limit_is_no_end():
    task = find("gym:Acrobot-v1")
    spec = task.spec()
    assert (task.name, task.steps, task.dynamics) == ("gym:Acrobot-v1", 100_000, None)
    assert (spec.shape, spec.actions, spec.limit, spec.limit_ends) == ((6,), 3, 500, False)
    assert task.make(render_mode="rgb_array").render_mode == "rgb_array"


@pytest.mark.parametrize(
    ("id", "cause"),
    [
        ("Nope-v1", "doesn't exist.*correct the id"),
        ("CartPole-v9", "version `v9`"),
        ("LunarLander-v2", "use `LunarLander-v3`"),
        ("not an id", "Malformed"),
        ("no_such_module:Thing-v0", "no_such_module.*install it"),
    ],
)
def test_an_id_that_gymnasium_does_not_have_is_named(id, cause):
    with pytest.raises(EngramError, match=f"{id}.*{cause}"):
        find(f"gym:{id}")


def lacking():
    raise gym.error.DependencyNotInstalled('Thing is not installed, run `pip install "thing"`')


def broken(render_mode=None):
    raise ValueError("no joystick\nfound")


@pytest.fixture
def registered():
    gym.register("Lacking-v0", lacking)
    gym.register("Broken-v0", broken)
    yield
    del gym.registry["Lacking-v0"], gym.registry["Broken-v0"]


@pytest.mark.usefixtures("registered")
def test_a_gymnasium_environment_that_cannot_be_made_is_named():
    with pytest.raises(EngramError, match=r'gym:Lacking-v0 needs a package that is missing .*pip install "thing"'):
        find("gym:Lacking-v0")
    with pytest.raises(EngramError, match=r"gym:Broken-v0 .*ValueError \(no joystick found\)"):
        find("gym:Broken-v0")


def test_a_function_that_makes_an_environment_is_a_task():
    def thermostat():
        return gym.wrappers.TimeLimit(Probe(), 25)

    task = find(thermostat, steps=9)
    check(task.make(), task.name)
    assert (task.name, task.steps, task.limit_ends) == ("thermostat", 9, False)
    assert task.spec().limit == 25
    assert find(Probe).name == "Probe"
    assert find(lambda: Probe()).name == "lambda"
    assert find(partial(Probe, reward=2.0)).name == "Probe"
    assert find(Probe).spec().limit is None


def test_a_function_gets_the_render_mode_only_if_it_takes_one():
    asked = []

    def shown(render_mode=None):
        asked.append(render_mode)
        return Probe()

    find(shown).make(render_mode="human")
    assert asked == [None, "human"]
    with pytest.raises(EngramError, match=r"Probe cannot be shown.*render_mode"):
        find(Probe).make(render_mode="human")


def test_a_function_that_raises_or_makes_something_else_is_named():
    with pytest.raises(EngramError, match=r"broken .*ValueError \(no joystick found\)"):
        find(broken)
    with pytest.raises(EngramError, match="dict made a dict, not a gymnasium"):
        find(dict)
    with pytest.raises(EngramError, match=r"cannot be of type Probe.*function that makes"):
        find(Probe())


def test_discrete_observations_become_one_hot():
    for space, observation, hot in [
        (spaces.Discrete(4, start=1), 3, [0, 0, 1, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    ]:
        task = find(partial(Probe, observation, sees=space))
        env, spec = task.make(), task.spec()
        check(env, task.name)
        assert env.reset()[0].tolist() == hot
        assert (spec.shape, spec.dtype) == ((len(hot),), "float32")
        assert (set(spec.low), set(spec.high)) == ({0.0}, {1.0})


def test_dictionaries_and_tuples_become_one_row():
    goal = spaces.Dict({"far": spaces.Box(0, 9, (1, 2)), "door": spaces.Discrete(3, start=1)})
    space = spaces.Tuple([goal, spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1, ())])
    seen = ({"far": np.array([[4, 5]], np.float32), "door": 3}, np.array([1, 0]), np.float32(0.5))
    task = find(partial(Probe, seen, sees=space))
    env, spec = task.make(), task.spec()
    check(env, task.name)
    assert env.reset()[0].tolist() == [0, 0, 1, 4, 5, 0, 1, 1, 0, 0.5]  # a Dict has its keys in the order of the alphabet
    assert spec.high == (1, 1, 1, 9, 9, 1, 1, 1, 1, 1)
    assert spec.low == (0, 0, 0, 0, 0, 0, 0, 0, 0, -1)
    assert spec.parts[0] == Part((0, "door"), (), (3,), (1,))
    assert [part.path for part in spec.parts] == [(0, "door"), (0, "far"), (1,), (2,)]


def spaces_within(inner):
    tuples = st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
    return tuples | st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3).map(spaces.Dict)


SOME = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.integers(-2, 2)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.just(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-1, 2]])),
    st.lists(st.integers(1, 3), min_size=1, max_size=2).map(spaces.MultiBinary),
    st.lists(st.integers(1, 3), max_size=3).map(lambda shape: spaces.Box(-1, 1, tuple(shape))),
)


@given(spaces_within(st.recursive(SOME, spaces_within, max_leaves=5)), st.integers(0, 2**31))
def test_a_policy_sees_dictionaries_and_tuples_as_training_did(space, seed):
    """Against Gymnasium's own way, by which training goes; one observation, and three at once, as vector environments give them."""
    parts = find(partial(Probe, sees=space)).spec().parts
    space.seed(seed)
    seen = [space.sample() for _ in range(3)]
    wanted = np.stack([spaces.flatten(space, one) for one in seen])
    np.testing.assert_array_equal(row(parts, seen[0]), wanted[0])
    together = concatenate(space, seen, create_empty_array(space, 3))
    np.testing.assert_array_equal(row(parts, together), wanted)


def test_actions_that_do_not_start_at_0_are_shifted():
    task = find(partial(Probe, acts=spaces.Discrete(3, start=5)))
    env = task.make()
    check(env, task.name)
    assert env.unwrapped.actions == [5, 6, 7]
    assert task.spec().actions == 3


def test_images_stay_bytes_and_other_numbers_become_float32():
    image = np.zeros((8, 8, 3), np.uint8)
    spec = find(partial(Probe, image, sees=spaces.Box(0, 255, (8, 8, 3), np.uint8))).spec()
    assert (spec.dtype, spec.low, spec.high) == ("uint8", (), ())
    spec = find(partial(Probe, np.zeros((2, 2)), sees=spaces.Box(-3, 5, (2, 2), np.float64))).spec()
    assert (spec.dtype, spec.low, spec.high) == ("float32", (-3.0,) * 4, (5.0,) * 4)


@pytest.mark.parametrize(
    ("shape", "kind", "most", "high", "why"),
    [
        ((8, 8, 3), np.uint8, 255, 255, None),
        ((8, 8, 3), np.uint8, 0, 255, None),  # black at first
        ((8, 8, 3), np.uint8, 10, 255, "begin with nothing above 10, where their space allows 255"),
        ((8, 8, 3), np.uint8, 10, 10, None),
        ((8, 8, 3), np.float32, 1, 1, "are seen as plain numbers: images must be of bytes"),
        ((8,), np.float32, 1, 1, None),
        ((2, 3), np.float32, 1, 1, None),
    ],
)
def test_images_that_are_hardly_seen_are_told(shape, kind, most, high, why):
    task = find(partial(Probe, np.full(shape, most, kind), sees=spaces.Box(0, high, shape, kind)))
    sentence = hardly_seen(task)
    assert (sentence is None) if why is None else (why in sentence)
    assert task.spec().brightest == (high if kind == np.uint8 else 255)


def test_bounds_as_large_as_a_float_mean_unknown():
    largest = np.finfo(np.float32).max
    spec = find(partial(Probe, sees=spaces.Box(-largest, np.float32([1, largest, np.inf])))).spec()
    assert spec.low == (-math.inf,) * 3
    assert spec.high == (1.0, math.inf, math.inf)


def test_a_task_of_ones_own_needs_only_what_it_has():
    task = Task("mine", "a probe", Probe)
    assert find(task) is task
    assert task.spec().shape == (3,)


# Checking


def test_a_good_environment_passes_whatever_numbers_it_uses():
    check(Probe(), "probe")
    check(Probe(observation=[0, 0.5, 1], reward=np.float32(2), terminated=np.bool_(True)), "probe")
    check(Probe(observation=np.zeros(3, np.float64), reward=np.array(1), truncated=np.array(True)), "probe")


@pytest.mark.parametrize(
    ("space", "cause"),
    [
        (spaces.Box(-1, 1, (2,)), r"continuous \(Box.*Discrete\(n\)"),
        (spaces.MultiDiscrete([2, 3]), r"MultiDiscrete.*number the combinations"),
        (spaces.MultiBinary(3), r"MultiBinary.*number the combinations"),
        (spaces.Dict({"a": spaces.Discrete(2)}), r"a Dict.*Discrete\(n\)"),
        (spaces.Discrete(3, start=1), r"counts from 1.*Discrete\(3\)"),
    ],
)
def test_an_action_space_that_cannot_be_used_is_named(space, cause):
    with pytest.raises(EngramError, match=f"probe cannot be used.*action_space.*{cause}"):
        check(Probe(acts=space), "probe")


@pytest.mark.parametrize(
    ("space", "cause"),
    [
        (spaces.Dict({"a": spaces.Box(0, 1)}), "a Dict.*find wrap it"),
        (spaces.Tuple([spaces.Box(0, 1)]), "a Tuple.*find wrap it"),
        (spaces.Discrete(3), "a Discrete.*find wrap it"),
        (spaces.Dict({}), "a Dict that holds a Dict with nothing in it"),
        (spaces.Tuple([spaces.Box(0, 1), spaces.Tuple([])]), r"a Tuple that holds at \[1\] a Tuple with nothing in it"),
        (spaces.Dict({("a", 1): spaces.Box(0, 1)}), "keys that are neither words nor whole numbers"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(5)]), r"a Tuple that holds at \[1\] a Text.*TransformObservation"),
        (spaces.Dict({"a": spaces.Dict({"eye": spaces.Box(0, 255, (9, 9, 3), np.uint8)})}), r"holds at \['a'\]\['eye'\] an image.*alone"),
        (spaces.Text(5), "a Text.*encode it"),
        (spaces.Graph(spaces.Box(0, 1), None), "a Graph.*encode it"),
        (spaces.Sequence(spaces.Box(0, 1)), "a Sequence.*encode it"),
    ],
)
def test_an_observation_space_that_cannot_be_used_is_named(space, cause):
    with pytest.raises(EngramError, match=f"probe cannot be used.*observation_space.*{cause}"):
        check(Probe(sees=space), "probe")
    if "find wrap it" not in cause:  # which nothing but itself will do
        with pytest.raises(EngramError, match=f"Probe cannot be used.*observation_space.*{cause}"):
            find(partial(Probe, sees=space)).spec()


@pytest.mark.parametrize("space", ["action_space", "observation_space"])
def test_a_forgotten_space_is_named(space):
    env = Probe()
    delattr(env, space)
    assert f"it has no {space}" in complaint(env)
    with pytest.raises(EngramError, match=f"lambda.*it has no {space}"):
        find(lambda: env).spec()


NAN = np.array([0, math.nan, 0], np.float32)


@pytest.mark.parametrize(
    ("wrong", "where", "fault"),
    [
        ({"first": np.zeros(2, np.float32)}, "reset", "observation has shape (2,) instead of (3,)"),
        ({"first": NAN}, "reset", "observation[1] is nan"),
        ({"observation": np.zeros((3, 1)), "first": FINE}, "step", "observation has shape (3, 1) instead of (3,)"),
        ({"observation": NAN, "first": FINE}, "step", "observation[1] is nan"),
        ({"observation": FINE - math.inf, "first": FINE}, "step", "observation[0] is -inf"),
        ({"observation": [1, [2, 3]], "first": FINE}, "step", "observation is a ragged list"),
        ({"observation": "abc", "first": FINE}, "step", "observation has dtype <U3 instead of float32"),
        ({"observation": {"a": 1}, "first": FINE}, "step", "observation has dtype object"),
        ({"observation": FINE, "sees": spaces.Box(0, 255, (3,), np.uint8)}, "reset", "dtype float32 instead of uint8"),
        ({"reward": math.nan}, "step", "reward is nan"),
        ({"reward": -math.inf}, "step", "reward is -inf"),
        ({"reward": None}, "step", "reward is None"),
        ({"reward": "1"}, "step", "reward is '1'"),
        ({"reward": np.ones(2)}, "step", "reward is array([1., 1.])"),
        ({"terminated": 0}, "step", "terminated is 0, not a bool"),
        ({"terminated": None}, "step", "terminated is None"),
        ({"truncated": "no"}, "step", "truncated is 'no'"),
        ({"truncated": np.array([True])}, "step", "truncated is array([ True])"),
        ({"info": [1]}, "step", "info is a list of 1, not a dict"),
    ],
)
def test_a_wrong_answer_is_named_by_its_field(wrong, where, fault):
    sentence = complaint(Probe(**wrong))
    assert f"at fault in {where}: " in sentence
    assert fault in sentence


class OldReset(Probe):
    def reset(self, *, seed=None, options=None):
        return FINE


class Unseeded(Probe):
    def reset(self):
        return FINE, {}


class OldStep(Probe):
    def step(self, action):
        return FINE, 1.0, False, {}


class Fragile(Probe):
    def step(self, action):
        raise ZeroDivisionError("wheels\noff")


class LaterWrong(Probe):
    """Right at first, wrong after the reset that follows an end."""

    def reset(self, *, seed=None, options=None):
        return (NAN if self.actions else FINE), {}


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        (OldReset(), "in reset: it returned a ndarray instead of the pair observation, info"),
        (Unseeded(), "in reset: it raised TypeError (Unseeded.reset() got an unexpected keyword argument 'seed')"),
        (OldStep(), "in step: it returned a tuple of 4 instead of the five observation, reward, terminated, truncated, info"),
        (Fragile(), "in step: it raised ZeroDivisionError (wheels off)"),
        (LaterWrong(terminated=True), "in reset: observation[1] is nan"),
        (LaterWrong(truncated=True), "in reset: observation[1] is nan"),
    ],
)
def test_an_environment_of_the_wrong_manners_is_named(env, fault):
    assert fault in complaint(env)


def test_something_that_is_no_environment_is_named():
    assert "not a gymnasium.Env" in complaint(object())


def test_the_checks_of_every_step_take_one_answer_or_a_batch():
    assert observation_fault(FINE, (3,)) is None
    assert observation_fault(np.zeros((2, 3)), (2, 3)) is None
    assert observation_fault(np.stack([FINE, NAN]), (2, 3)).startswith("observation[1, 1] is nan")
    assert observation_fault(np.float32(math.inf), ()).startswith("observation is inf")
    assert observation_fault(np.zeros((2, 2), np.uint8), (2, 2), "uint8") is None
    assert reward_fault(-1) is None
    assert reward_fault(10**400).startswith("reward is 1000")
