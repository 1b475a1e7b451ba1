"""`get_task` returns tasks by name and refuses unknown names in one sentence with a remedy."""

import importlib
import math
from contextlib import nullcontext
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from scripted_env import ScriptedEnv

from engram.envs import (
    BernoulliReward,
    GaussianReward,
    Noise,
    RepeatedObservation,
    Task,
    get_task,
    is_registered,
    task_names,
)
from engram.envs.classic_control import CartPole, MountainCar
from engram.errors import EngramError, EngramWarning

# Registered tasks


def test_three_tasks_are_registered_each_with_three_noises():
    suffixes = ("", "-gaussian", "-bernoulli", "-transition")
    names = ("cartpole", "mountaincar", "lunarlander")
    assert task_names() == [name + suffix for name in names for suffix in suffixes]


@pytest.mark.parametrize("name", task_names())
def test_a_registered_task_passes_the_env_checker_and_has_finite_bounds(name):
    task = get_task(name)
    spec = task.inspect(num_envs=2, num_iterations=50)
    assert is_registered(task)
    assert task.description
    assert task.truncation_is_terminal
    assert spec.truncation_is_terminal
    assert len(spec.low) == len(spec.high) == spec.shape[0]
    assert np.all(np.isfinite(spec.low) & np.isfinite(spec.high))
    assert np.all(np.array(spec.low) < spec.high)
    assert (spec.num_envs, spec.num_iterations, spec.dtype) == (2, 50, "float32")


@pytest.mark.parametrize(
    ("name", "steps", "shape", "num_actions", "max_episode_steps", "jax_env"),
    [
        ("cartpole", 10_000, (4,), 2, 200, CartPole()),
        ("mountaincar", 100_000, (2,), 3, 200, MountainCar()),
        ("lunarlander", 100_000, (8,), 4, 1000, None),
    ],
)
def test_registered_tasks_are_the_papers(
    name, steps, shape, num_actions, max_episode_steps, jax_env
):
    task, spec = get_task(name), get_task(name).spec()
    assert (task.steps, task.jax_env) == (steps, jax_env)
    assert (spec.shape, spec.num_actions) == (shape, num_actions)
    assert spec.max_episode_steps == max_episode_steps


@pytest.mark.parametrize(
    ("suffix", "params", "wrapper", "attribute", "strength"),
    [
        ("gaussian", Noise(gaussian=0.2), GaussianReward, "std", 0.2),
        ("bernoulli", Noise(bernoulli=0.2), BernoulliReward, "p", 0.2),
        ("transition", Noise(transition=0.5), RepeatedObservation, "p", 0.5),
    ],
)
def test_gymnasium_and_jax_environments_have_the_same_noise(
    suffix, params, wrapper, attribute, strength
):
    for name in ("cartpole", "mountaincar", "lunarlander"):
        task = get_task(f"{name}-{suffix}")
        env = task.make()
        assert task.env_params == params
        assert isinstance(env, wrapper)
        assert getattr(env, attribute) == strength


def test_cart_pole_is_truncated_after_200_steps_and_has_practical_bounds():
    env, spec = get_task("cartpole").make(), get_task("cartpole").spec()
    env.reset(seed=0)
    for t in range(1, 201):
        state = env.unwrapped.state
        _, _, terminated, truncated, _ = env.step(int(state @ [0.05, 0.1, 1.0, 0.3] > 0))
        assert truncated == (t == 200)
        assert not terminated
    assert spec.high == (2.4, 3.0, 0.2095, 3.5)
    assert spec.low == (-2.4, -3.0, -0.2095, -3.5)


def test_a_task_passes_the_render_mode_on():
    env = get_task("cartpole-transition").make(render_mode="rgb_array")
    assert env.render_mode == "rgb_array"


def test_steps_are_formatted_with_emulator_frames_for_atari():
    assert get_task("cartpole").format_steps(1000) == "1,000 agent steps"
    atari = get_task("atari:pong").format_steps(1000)
    assert atari == "1,000 agent steps = 4,000 emulator frames"


# Names


def test_steps_replace_the_default():
    assert get_task("cartpole", steps=77).steps == 77
    assert get_task(get_task("cartpole"), steps=78).steps == 78
    assert get_task("cartpole").steps == 10_000


@pytest.mark.parametrize("steps", [0, -5, 1.5, "many"])
def test_invalid_steps_are_refused(steps):
    with pytest.raises(EngramError, match="steps="):
        get_task("cartpole", steps=steps)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cartpole-gausian", "Did you mean cartpole-gaussian"),
        ("CartPole-v1", r"Write gym:CartPole-v1\."),
        ("pong", r"Write atari:pong\."),
        ("ALE/MsPacman-v5", r"Write atari:ms_pacman\."),
    ],
)
def test_an_unknown_name_gets_a_hint(name, hint):
    with pytest.raises(EngramError, match=rf"There is no task '{name}'\. ?{hint}"):
        get_task(name)


# Gymnasium


def test_a_gymnasium_id_is_a_task_whose_truncation_is_not_terminal():
    task = get_task("gym:Acrobot-v1")
    spec = task.spec()
    assert (task.name, task.steps, task.jax_env) == ("gym:Acrobot-v1", 100_000, None)
    assert (spec.shape, spec.num_actions, spec.max_episode_steps) == ((6,), 3, 500)
    assert not spec.truncation_is_terminal
    assert is_registered(task)
    assert task.make(render_mode="rgb_array").render_mode == "rgb_array"


@pytest.mark.filterwarnings("ignore:.*latest versioned environment")
def test_an_id_without_version_is_the_latest_version():
    assert get_task("gym:Acrobot").spec() == get_task("gym:Acrobot-v1").spec()


@pytest.mark.parametrize(
    ("id", "cause"),
    [
        ("Nope-v1", "doesn't exist.*correct the id"),
        ("Nope", "doesn't exist.*correct the id"),
        ("CartPole-v9", "version `v9`"),
        ("LunarLander-v2", "use `LunarLander-v3`"),
        ("not an id", "Malformed"),
        ("no_such_module:Thing-v0", "no_such_module.*install it or go to the folder"),
        ("json:Thing-v0", "doesn't exist.*correct the id"),
        ("ALE/Pong-v5", "write atari:pong"),
        ("MsPacmanNoFrameskip-v4", "write atari:ms_pacman"),
    ],
)
def test_an_unknown_gymnasium_id_is_refused(id, cause):
    with pytest.raises(EngramError, match=f"{id}.*{cause}"):
        get_task(f"gym:{id}")


def test_games_are_refused_as_gymnasium_ids_even_if_ale_is_imported():
    pytest.importorskip("ale_py")
    gym.register_envs(importlib.import_module("ale_py"))
    assert "ALE/Pong-v5" in gym.registry
    with pytest.raises(EngramError, match="write atari:pong"):
        get_task("gym:ALE/Pong-v5")
    with pytest.raises(EngramError, match="Write atari:pong"):
        get_task("ALE/Pong-v5")
    assert get_task("gym:ale_py:ALE/Pong-v5").name == "gym:ale_py:ALE/Pong-v5"


def test_a_module_that_raises_when_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "raising_module.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngramError, match=r"gym:raising_module:A-v0 .*import.*ZeroDivisionError"):
        get_task("gym:raising_module:A-v0")


def lacking_package():
    raise gym.error.DependencyNotInstalled('Thing is not installed, run `pip install "thing"`')


def raising(render_mode=None):
    raise ValueError("no joystick\nfound")


@pytest.fixture
def broken_ids():
    gym.register("Lacking-v0", lacking_package)
    gym.register("Raising-v0", raising)
    yield
    del gym.registry["Lacking-v0"], gym.registry["Raising-v0"]


@pytest.mark.usefixtures("broken_ids")
@pytest.mark.parametrize("method", ["inspect", "spec", "make"])
def test_a_gymnasium_environment_that_cannot_be_made_is_named(method):
    lacking, raising = get_task("gym:Lacking-v0"), get_task("gym:Raising-v0")
    cause = r'gym:Lacking-v0 needs a package that is missing .*pip install "thing"'
    with pytest.raises(EngramError, match=cause):
        getattr(lacking, method)()
    with pytest.raises(EngramError, match=r"gym:Raising-v0 .*ValueError \(no joystick found\)"):
        getattr(raising, method)()


# Functions that make an environment


def test_a_function_that_makes_an_environment_is_a_task():
    def thermostat():
        return gym.wrappers.TimeLimit(ScriptedEnv(), 25)

    task = get_task(thermostat, steps=9)
    assert (task.name, task.steps, task.truncation_is_terminal) == ("thermostat", 9, False)
    assert not is_registered(task)
    assert task.inspect().max_episode_steps == 25
    assert get_task(ScriptedEnv).name == "ScriptedEnv"
    assert get_task(lambda: ScriptedEnv()).name == "lambda"
    assert get_task(partial(ScriptedEnv, reward=2.0)).name == "ScriptedEnv"
    assert get_task(ScriptedEnv).spec().max_episode_steps is None


def test_a_function_named_like_a_registered_task_is_not_registered():
    def cartpole():
        return ScriptedEnv()

    assert not is_registered(get_task(cartpole))


def test_one_environment_is_made_for_a_spec_and_none_for_a_task():
    envs = []

    class Closable(ScriptedEnv):
        is_closed = False

        def close(self):
            self.is_closed = True

    def function():
        envs.append(Closable())
        return envs[-1]

    task = get_task(function)
    assert not envs
    inspected = task.inspect(num_envs=3, num_iterations=7)
    assert [(env.num_resets, len(env.actions), env.is_closed) for env in envs] == [(1, 3, True)]
    assert inspected == task.spec(num_envs=3, num_iterations=7)
    assert (envs[1].num_resets, envs[1].actions, envs[1].is_closed) == (0, [], True)
    assert len(envs) == 2


def test_a_function_gets_the_render_mode_only_if_it_takes_one():
    render_modes = []

    def function(render_mode=None):
        render_modes.append(render_mode)
        return ScriptedEnv()

    task = get_task(function)
    task.make()
    task.make(render_mode="human")
    assert render_modes == [None, "human"]
    with pytest.raises(EngramError, match=r"ScriptedEnv cannot be rendered.*render_mode"):
        get_task(ScriptedEnv).make(render_mode="human")


def test_a_function_that_raises_or_makes_no_environment_is_named():
    with pytest.raises(EngramError, match=r"raising .*ValueError \(no joystick found\)"):
        get_task(raising).inspect()
    with pytest.raises(EngramError, match="dict made a dict, not a gymnasium"):
        get_task(dict).inspect()
    with pytest.raises(EngramError, match=r"cannot be of type ScriptedEnv.*function that makes"):
        get_task(ScriptedEnv())


def test_a_hand_made_task_may_leave_out_the_defaults():
    task = Task("mine", "a scripted environment", ScriptedEnv)
    assert get_task(task) is task
    assert task.inspect().shape == (3,)


# Specs


def task_of(observation, space):
    return get_task(partial(ScriptedEnv, observation, observation_space=space))


def test_images_stay_uint8_and_other_numbers_become_float32():
    image = np.zeros((8, 8, 3), np.uint8)
    spec = task_of(image, spaces.Box(0, 255, (8, 8, 3), np.uint8)).spec()
    assert (spec.dtype, spec.low, spec.high) == ("uint8", (), ())
    spec = task_of(np.zeros((2, 2)), spaces.Box(-3, 5, (2, 2), np.float64)).spec()
    assert (spec.dtype, spec.low, spec.high) == ("float32", (-3.0,) * 4, (5.0,) * 4)


@pytest.mark.parametrize(
    ("shape", "dtype", "largest", "high", "warning"),
    [
        ((8, 8, 3), np.uint8, 255, 255, None),
        ((8, 8, 3), np.uint8, 0, 255, None),  # a black first image
        ((8, 8, 3), np.uint8, 10, 255, "no pixel above 10, but its observation_space allows 255"),
        ((8, 8, 3), np.uint8, 10, 10, None),
        ((8, 8, 3), np.float32, 1, 1, "plain numbers: images must have the dtype numpy.uint8"),
        ((8,), np.float32, 1, 1, None),
        ((2, 3), np.float32, 1, 1, None),
    ],
)
def test_dark_images_and_images_of_floats_get_a_warning(shape, dtype, largest, high, warning):
    task = task_of(np.full(shape, largest, dtype), spaces.Box(0, high, shape, dtype))
    with nullcontext() if warning is None else pytest.warns(EngramWarning, match=warning):
        spec = task.inspect(warn=True)
    assert spec.pixel_max == (high if dtype == np.uint8 else 255)
    assert task.inspect() == spec  # without a warning, as when a run is resumed


def test_bounds_as_large_as_a_float_count_as_infinite():
    largest = np.finfo(np.float32).max
    spec = task_of(np.zeros(3), spaces.Box(-largest, np.float32([1, largest, np.inf]))).spec()
    assert spec.low == (-math.inf,) * 3
    assert spec.high == (1.0, math.inf, math.inf)
