"""Arguments of environments: read from the command line, saved with the run, and used again."""

import json
import shlex
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from training_helpers import DQN_SMALL, error_of

import engram
from engram import runners
from engram.agents import Random
from engram.cli import main
from engram.cli.arguments import option_types, read_options
from engram.cli.training import Train, read_env_kwargs
from engram.envs import get_task
from engram.envs.maze.gym_env import MazeEnv
from engram.envs.maze.jax_env import JaxMaze
from engram.envs.maze.layout import parse
from engram.errors import EngramError
from engram.run_dir import RunDir
from engram.training import load_training

DETOUR = """
    +---+---+---+---+
    | A             |
    +---+---+---+   +
    |               |
    +   +---+---+---+
    |               |
    +---+---+---+   +
    |             G |
    +---+---+---+---+
"""


@pytest.fixture
def in_tmp_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mazes(monkeypatch):
    """The configuration of every maze that is made, in Gymnasium and in JAX."""
    configs = []
    make, reset = MazeEnv.__init__, JaxMaze.reset

    def record_gym(env, *arguments, **options):
        make(env, *arguments, **options)
        configs.append(env.config)

    def record_jax(jax_env, *arguments):
        configs.append(jax_env.config)
        return reset(jax_env, *arguments)

    monkeypatch.setattr(MazeEnv, "__init__", record_gym)
    monkeypatch.setattr(JaxMaze, "reset", record_jax)
    return configs


def read_config(path):
    return json.loads((path / "config.json").read_text())


# Words of the command line


@pytest.mark.parametrize(
    ("words", "env_kwargs"),
    [
        (None, {}),
        ("size=7", {"size": 7}),
        ("size=7 dropout_rate=0.5", {"size": 7, "dropout_rate": 0.5}),
        ("maze_seed=1e3 loop_rate=.25", {"maze_seed": 1_000, "loop_rate": 0.25}),
        ("trap=true a=True b=false c=FALSE", {"trap": True, "a": True, "b": False, "c": False}),
        ("maze=None other=none", {"maze": None, "other": None}),
        ("maze=dynamic map_name=8x8", {"maze": "dynamic", "map_name": "8x8"}),
        ("features=a/b=c.pth text=", {"features": "a/b=c.pth", "text": ""}),
        ("x=-1 y=-0.5 z=1", {"x": -1, "y": -0.5, "z": 1}),
    ],
)
def test_words_spell_numbers_switches_none_and_texts(words, env_kwargs):
    read = read_env_kwargs(words)
    assert read == env_kwargs
    assert list(map(type, read.values())) == list(map(type, env_kwargs.values()))


@pytest.mark.parametrize("words", ["size", "=3", "size=3 trap", "a-b=3", "3=4", "size==3 ="])
def test_words_without_name_and_value_are_refused(words):
    sentence = error_of(read_env_kwargs, words)
    assert "--env-kwargs takes words like size=7 or trap=true, not" in sentence


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--env-kwargs size=7", {"env_kwargs": "size=7"}),
        ("--env_kwargs=size=7", {"env_kwargs": "size=7"}),
        (
            "--env-kwargs size=7 trap=true x=-1 --steps 50",
            {"env_kwargs": "size=7 trap=true x=-1", "steps": 50},
        ),
        (
            "--steps 50 --env-kwargs size=7 trap=true",
            {"env_kwargs": "size=7 trap=true", "steps": 50},
        ),
    ],
)
def test_several_words_follow_one_option(flags, options):
    assert read_options(flags.split(), option_types(Train), "engram --help") == options


@pytest.mark.parametrize(
    ("words", "env_kwargs"),
    [
        (["features=my dir/a.pth", "size=4"], {"features": "my dir/a.pth", "size": 4}),
        ([f"maze={DETOUR}"], {"maze": DETOUR}),
        (["size=7 trap=true"], {"size": 7, "trap": True}),
        (["text='a b' size=4"], {"text": "a b", "size": 4}),
        (["text=it's", "other=x=y z"], {"text": "it's", "other": "x=y z"}),
    ],
)
def test_a_word_of_the_shell_may_have_spaces(words, env_kwargs):
    options = read_options(["--env-kwargs", *words], option_types(Train), "engram --help")
    assert read_env_kwargs(options["env_kwargs"]) == env_kwargs


def test_an_argument_given_twice_is_refused():
    assert "two values of size" in error_of(read_env_kwargs, "size=3 trap=true size=4")


def test_a_drawing_on_the_command_line_is_trained_in_and_told_as_a_shell_reads_it(
    capsys, in_tmp_path, mazes
):
    main(["train", "random", "maze3", "--env-kwargs", f"maze={DETOUR}", "--seed=1", "--steps=50"])
    assert {config.size for config in mazes} == {4}
    command = capsys.readouterr().out.partition("engram train ")[2]
    assert shlex.split(command)[-1] == f"maze={DETOUR}"
    (folder,) = (in_tmp_path / "runs").iterdir()
    assert len(folder.name) < 80


# Runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run folder of a maze with arguments, trained by the command line; its default name."""
    path = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        words = "size=2 maze=random maze_seed=5 loop_rate=1.0"
        main(f"train random maze3-trap --env-kwargs {words} --seeds 2 --steps 100".split())
    (folder,) = (path / "runs").iterdir()
    return folder


KWARGS = {"size": 2, "maze": "random", "maze_seed": 5, "loop_rate": 1}


def test_a_run_keeps_its_env_kwargs(trained):
    assert trained.name == "random-maze3-trap-size-2-maze-random-maze_seed-5-loop_rate-1"
    config = read_config(trained)
    assert config["env_kwargs"] == KWARGS
    assert (config["task"], config["custom_task"]) == ("maze3-trap", False)
    assert config["spec"]["shape"] == [4]
    assert config["spec"]["high"] == [1.0] * 4


def test_a_run_without_env_kwargs_keeps_none(tmp_path):
    engram.train("random", "maze3", seeds=1, steps=20, out=tmp_path / "run")
    assert read_config(tmp_path / "run")["env_kwargs"] == {}


def test_eval_plays_in_the_environment_of_the_run(capsys, trained, mazes, in_tmp_path):
    main(f"eval {trained} --episodes 3 --video film.gif".split())
    assert "random on maze3-trap: 3 greedy episodes of each seed" in capsys.readouterr().out
    assert len(mazes) > 3
    for config in mazes:
        assert {name: getattr(config, name) for name in KWARGS} == KWARGS
        assert config.trap
    assert (in_tmp_path / "film.gif").exists()


class StopAt(engram.Hook):
    """Stops a run at a step."""

    def __init__(self, step):
        self.step = step

    def on_log(self, run, progress):
        if progress.step == self.step:
            run.stop("as the test wants")


@pytest.mark.parametrize("use_gym", [False, True])
def test_resume_goes_on_in_the_environment_of_the_run(capsys, tmp_path, mazes, use_gym):
    arguments = {"seeds": 2, "steps": 100, "use_gym": use_gym, "env_kwargs": KWARGS}
    whole = engram.train("random", "maze3-trap", **arguments)
    parts = tmp_path / "parts"
    engram.train("random", "maze3-trap", **arguments, out=parts, hooks=[StopAt(40)])
    assert RunDir.load(parts).meta()["step"] == 40
    mazes.clear()
    main(["resume", str(parts)])
    assert "2 seeds, 100 agent steps" in " ".join(capsys.readouterr().out.split())
    assert mazes
    assert all({name: getattr(maze, name) for name in KWARGS} == KWARGS for maze in mazes)
    rows = np.loadtxt(parts / "curves.csv", delimiter=",", skiprows=1)  # seed, step, return
    for seed, (steps, returns) in whole.curves.items():
        np.testing.assert_array_equal(rows[rows[:, 0] == seed, 1:].T, [steps, returns])
        assert np.isfinite(returns).sum() > 20


def test_a_drawn_maze_is_saved_with_the_run(tmp_path):
    env_kwargs = {"maze": DETOUR, "observation": "image"}
    engram.train("random", "maze3", 1, 20, out=tmp_path / "run", env_kwargs=env_kwargs)
    assert read_config(tmp_path / "run")["env_kwargs"] == env_kwargs
    run = load_training(tmp_path / "run")
    np.testing.assert_array_equal(run.task.jax_env.config.layout, parse(DETOUR))
    np.testing.assert_array_equal(run.task.make().unwrapped.layout, parse(DETOUR))
    assert run.spec.shape == (42, 42, 3)


def test_numbers_of_numpy_can_be_saved(tmp_path):
    env_kwargs = {"size": np.int64(2), "loop_rate": np.float64(0.5)}
    engram.train("random", "maze3", 1, 20, out=tmp_path / "run", env_kwargs=env_kwargs)
    assert read_config(tmp_path / "run")["env_kwargs"] == {"size": 2, "loop_rate": 0.5}


def test_an_id_of_gymnasium_with_module_and_namespace_is_trained(capsys, in_tmp_path, mazes):
    name = "gym:engram.envs:engram/Maze-v0"
    main(f"train random {name} --env-kwargs size=4 --seeds 2 --steps 50 --out run".split())
    assert read_config(in_tmp_path / "run")["env_kwargs"] == {"size": 4}
    assert read_config(in_tmp_path / "run")["task"] == name
    main(["eval", "run", "--episodes", "1"])
    assert f"random on {name}" in " ".join(capsys.readouterr().out.split())
    assert {maze.size for maze in mazes} == {4}


def test_a_function_takes_no_env_kwargs(tmp_path):
    make_env = partial(gym.make, "CartPole-v1")
    sentence = error_of(
        engram.train, Random(), make_env, env_kwargs={"size": 4}, out=tmp_path / "run"
    )
    assert "give them to the function that makes the environment" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("env_kwargs", [{"sise": 4}, {"size": 1}, {"maze": "+---+"}])
def test_wrong_env_kwargs_leave_no_run_folder(tmp_path, env_kwargs):
    out = tmp_path / "run"
    with pytest.raises(EngramError):
        engram.train("random", "maze3", 1, 20, out=out, env_kwargs=env_kwargs)
    assert not out.exists()


def test_a_config_whose_env_kwargs_are_garbled_is_refused(tmp_path):
    engram.train("random", "maze3", 1, 20, out=tmp_path / "run", env_kwargs={"size": 2})
    config = read_config(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"env_kwargs": {"size": 0}}))
    assert "A maze cannot have size 0" in error_of(engram.resume, tmp_path / "run")


# Seeds and parameters


@pytest.mark.parametrize(
    ("agent", "task", "env_kwargs", "use_gym"),
    [
        (Random(), "maze3-trap", {}, False),
        (Random(), "maze3-trap", {}, True),
        (Random(), "maze3-dynamic", {"observation": "position"}, False),
        pytest.param(DQN_SMALL, "maze3-noisy", {"size": 2}, False, marks=pytest.mark.slow),
    ],
)
def test_a_seed_alone_learns_the_same_as_among_others(agent, task, env_kwargs, use_gym):
    train = partial(
        engram.train, agent, task, steps=300, num_envs=2, use_gym=use_gym, env_kwargs=env_kwargs
    )
    alone, both = train(seeds=[3]), train(seeds=[1, 3])
    np.testing.assert_array_equal(alone.curves[3], both.curves[3])
    assert np.isfinite(alone.curves[3][1]).any()
    assert not np.array_equal(both.curves[1], both.curves[3], equal_nan=True)


def test_runs_with_different_dropout_rates_are_trained_by_one_program():
    tasks = [get_task("maze3-noisy", 20, {"dropout_rate": rate}) for rate in (0.0, 0.9)]
    spec = tasks[0].spec(num_iterations=20)
    assert spec == tasks[1].spec(num_iterations=20)
    runner = runners.make_runner(Random(), tasks, [0, 0], spec)
    assert isinstance(runner, runners.JaxRunner)
    runner.start()
    runner.advance(20)
    observation = np.asarray(runner.env_state.timestep.observation)[:, 0]
    np.testing.assert_array_equal(observation[0, :2], observation[1, :2])
    is_active = observation[0] > 0
    is_active[:2] = False
    assert np.mean(observation[1][is_active] == 0) == pytest.approx(0.9, abs=0.1)


class CountEnds(engram.Hook):
    """Remembers at the end how many episodes the environments and the statistics have counted."""

    def on_end(self, run):
        self.ended = np.asarray(run.runner.env_state.episode_index).sum(axis=1)
        self.completed = run.stats.completed[-1]
        self.points = run.stats.completed


def test_completed_episodes_of_a_training_are_those_that_reached_the_goal():
    hook = CountEnds()
    engram.train("random", "maze3", 3, 600, num_envs=3, hooks=[hook], env_kwargs={"size": 2})
    np.testing.assert_array_equal(hook.completed, hook.ended)
    assert hook.completed.min() > 5
    assert np.all(np.diff(hook.points, axis=0) >= 0)
