"""`get_task` returns tasks by name and refuses unknown names in one sentence with a remedy."""

import importlib
import math
from contextlib import nullcontext
from dataclasses import replace
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
from engram.envs.maze.jax_env import JaxMaze, MazeParams
from engram.errors import EngramError, EngramWarning

# Registered tasks


CONTROL = ("cartpole", "mountaincar", "lunarlander")
MAZES = ("maze3", "maze5", "maze3-noisy", "maze3-trap", "maze3-dynamic")
MINIWORLD = ("pickup3", "pickup5")  # see test_pickup.py: not every machine can draw
ROOMS = ("pickup3-jax", "pickup5-jax")
IMAGES = ("maze3-dynamic", *ROOMS)


def test_the_papers_tasks_are_registered():
    suffixes = ("", "-gaussian", "-bernoulli", "-transition")
    control = [name + suffix for name in CONTROL for suffix in suffixes]
    assert task_names() == [*control, *MAZES, *MINIWORLD, *ROOMS]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow) if x == "pickup5-jax" else x
        for x in task_names()
        if x not in MINIWORLD
    ],
)
def test_a_registered_task_passes_the_env_checker(name):
    task = get_task(name)
    spec = task.inspect(num_envs=2, num_iterations=50)
    assert is_registered(task)
    assert task.description
    assert task.truncation_is_terminal
    assert spec.truncation_is_terminal
    assert (spec.num_envs, spec.num_iterations) == (2, 50)
    assert spec.dtype == ("uint8" if name in IMAGES else "float32")


@pytest.mark.parametrize("name", [x for x in task_names() if x not in (*MINIWORLD, *IMAGES)])
def test_all_numbers_but_image_features_have_finite_bounds(name):
    spec = get_task(name).spec()
    assert len(spec.low) == len(spec.high) == spec.shape[0]
    assert np.all(np.isfinite(spec.low))
    assert np.all(np.array(spec.low) < spec.high)
    num_features = 512 if name == "maze3-noisy" else 0
    num_others = spec.shape[0] - num_features
    assert np.all(np.isfinite(spec.high[:num_others]))
    assert spec.high[num_others:] == (math.inf,) * num_features


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
    for name in CONTROL:
        task = get_task(f"{name}-{suffix}")
        env = task.make()
        assert task.env_params == params
        assert isinstance(env, wrapper)
        assert getattr(env, attribute) == strength


@pytest.mark.parametrize(
    ("name", "steps", "shape", "size"),
    [
        ("maze3", 5_000, (2,), 3),
        ("maze5", 20_000, (2,), 5),
        ("maze3-noisy", 10_000, (514,), 3),
        ("maze3-trap", 5_000, (4,), 3),
        ("maze3-dynamic", 10_000, (32, 32, 3), 3),
    ],
)
def test_registered_mazes_are_the_papers(name, steps, shape, size):
    task, spec = get_task(name), get_task(name).spec()
    config = task.make().unwrapped.config
    assert (task.steps, config.size) == (steps, size)
    assert (spec.shape, spec.num_actions, spec.max_episode_steps) == (shape, 4, 1000)
    assert task.jax_env == JaxMaze(replace(config, dropout_rate=0.0))
    assert task.env_params == MazeParams(0.5 if name == "maze3-noisy" else 0.0)


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


# Arguments of environments


def test_env_kwargs_replace_arguments_of_a_maze():
    task = get_task("maze3-noisy", env_kwargs={"size": 4, "dropout_rate": 0.7})
    config = task.make().unwrapped.config
    assert (config.size, config.dropout_rate, config.observation) == (4, 0.7, "features")
    assert (task.jax_env.config.size, task.env_params.dropout_rate) == (4, 0.7)
    assert task.env_kwargs == (("size", 4), ("dropout_rate", 0.7))
    assert task.spec().high[:2] == (3.0, 3.0)
    assert get_task("maze3-noisy").env_kwargs == ()


def test_env_kwargs_are_arguments_of_a_gymnasium_id():
    task = get_task("gym:FrozenLake-v1", env_kwargs={"map_name": "8x8"})
    assert task.spec().shape == (64,)
    assert task.env_kwargs == (("map_name", "8x8"),)
    assert get_task("gym:FrozenLake-v1").spec().shape == (16,)


def test_a_task_with_env_kwargs_is_registered_unless_it_was_changed():
    for name, env_kwargs in (
        ("maze3", {"size": 4}),
        ("maze3-noisy", {"dropout_rate": 0.1}),
        ("gym:FrozenLake-v1", {"map_name": "8x8"}),
    ):
        task = get_task(name, 77, env_kwargs)
        assert is_registered(task)
    assert not is_registered(replace(get_task("maze3", env_kwargs={"size": 4}), env_kwargs=()))
    assert not is_registered(replace(get_task("maze3"), truncation_is_terminal=False))


@pytest.mark.parametrize(
    ("task", "env_kwargs", "sentence"),
    [
        ("maze3", {"sise": 4}, "A maze has no argument 'sise'. Did you mean size?"),
        ("maze3", {"size": 1}, "A maze cannot have size 1"),
        ("maze3", {"render_mode": "human"}, "'render_mode' cannot be one of env_kwargs"),
        ("maze3", "size=4", "env_kwargs must be a dictionary, not 'size=4'"),
        ("gym:FrozenLake-v1", {"id": 3}, "'id' cannot be one of env_kwargs"),
        ("cartpole", {"size": 4}, "cartpole takes no env_kwargs: leave them out."),
        ("atari:pong", {"size": 4}, "atari:pong takes no env_kwargs: leave them out."),
        ("mace3", {"size": 4}, "There is no task 'mace3'. Did you mean maze3"),
        (ScriptedEnv, {"reward": 1}, "env_kwargs are for tasks by name: give them to the function"),
        (get_task("maze3"), {"size": 4}, "env_kwargs are for tasks by name"),
    ],
)
def test_env_kwargs_that_a_task_does_not_take_are_refused(task, env_kwargs, sentence):
    with pytest.raises(EngramError) as caught:
        get_task(task, env_kwargs=env_kwargs)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_an_environment_of_mujoco_is_refused_for_its_actions():
    with pytest.raises(EngramError, match=r"one of MuJoCo's, whose actions are continuous"):
        get_task("gym:HalfCheetah-v5").inspect()


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
