"""A training by a file: TOML of one's own, or the config.json of a run, with options beside it."""

import json

import pytest
from training_helpers import error_of

import engram
from engram.cli import main
from engram.cli.arguments import read_command
from engram.cli.config_file import read_config_file
from engram.cli.training import read_env_kwargs, split_words

TOML = """
agent = "dqn"
task = "gym:FrozenLake-v1"
seeds = [3]
steps = 60
wrappers = ["gymnasium.wrappers:RecordEpisodeStatistics"]

[env_kwargs]
is_slippery = false
map_name = "8x8"

[options]
hidden_size = 8
learning_rate = 1e-3
anneal_lr = true
batch_size = 4
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    return path


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_a_toml_file_trains_and_the_run_trains_the_same_again(file, tmp_path):
    main(["train", "--config", "run.toml", "--out", "first"])
    config = config_of(tmp_path / "first")
    assert (config["agent"], config["task"], config["seeds"]) == ("dqn", "gym:FrozenLake-v1", [3])
    assert config["env_kwargs"] == {"is_slippery": False, "map_name": "8x8"}
    assert config["wrappers"] == ["gymnasium.wrappers:RecordEpisodeStatistics"]
    options = config["options"]
    assert (options["hidden_size"], options["learning_rate"]) == (8, 1e-3)
    assert (options["anneal_lr"], options["batch_size"]) == (True, 4)
    main(["train", "--config=first", "--out=second"])
    again = config_of(tmp_path / "second")
    assert {k: x for k, x in again.items() if k != "commit"} == {
        k: x for k, x in config.items() if k != "commit"
    }
    curves = [(tmp_path / name / "curves.csv").read_text() for name in ("first", "second")]
    assert curves[0] == curves[1]


def test_options_beside_the_file_come_first(file):
    command = read_command(
        ["train", "--config", str(file), "--steps", "80", "--batch-size=5", "--no-anneal-lr"]
    )
    assert (command.agent, command.task, command.steps) == ("dqn", "gym:FrozenLake-v1", 80)
    assert (command.options.batch_size, command.options.anneal_lr) == (5, False)
    assert command.options.hidden_size == 8


def test_arguments_of_the_environment_keep_their_types(file, tmp_path):
    env_kwargs = {"desc": ["SF", "HG"], "map_name": None, "is_slippery": False}
    engram.train("random", "gym:FrozenLake-v1", 1, 20, env_kwargs=env_kwargs, out=tmp_path / "run")
    main(["train", "--config", str(tmp_path / "run"), "--out", str(tmp_path / "again")])
    assert config_of(tmp_path / "again")["env_kwargs"] == env_kwargs
    file.write_text(TOML.replace('"8x8"', '"10"').replace("= false", "= 1.0"))
    assert read_env_kwargs(read_command(["train", "--config", str(file)]).env_kwargs) == {
        "is_slippery": 1.0,
        "map_name": "10",
    }


@pytest.mark.parametrize(
    ("seeds", "flag", "expected"),
    [
        ("seeds = [3]", "--seed=5", ("10", 5)),
        ("seed = 3", "--seeds=2", ("2", None)),
        ("seeds = 4", "--steps=7", ("4", None)),
    ],
)
def test_seeds_beside_the_file_replace_its_own(file, seeds, flag, expected):
    file.write_text(TOML.replace("seeds = [3]", seeds))
    command = read_command(["train", "--config", str(file), flag])
    assert (command.seeds, command.seed) == expected


def test_every_option_of_a_run_is_read_from_its_config(tmp_path):
    agent = engram.make("mbec++", fixed_beta=0.25, memory_size=64, batch_size=8, epsilon_end=0.125)
    engram.train(agent, "cartpole", seeds=(7, 9), steps=80, num_envs=2, out=tmp_path / "run")
    command = read_command(["train", "--config", str(tmp_path / "run" / "config.json")])
    assert command.options == agent
    assert (command.seeds, command.steps, command.num_envs) == ("7,9", 80, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("agent = ", "is not TOML"),
        (TOML.replace("[3]", "[]"), "are none: name some"),
        ('agent = "dqn"', "names no task: add a line task"),
        ("task = 3", "names no agent"),
        (TOML + "hidden_sise = 3", "an option 'hidden_sise' that there is not. Did you mean"),
        (TOML.replace("= 60", "= -1"), "must be at least 1, but is -1"),
        (TOML.replace("= 8\n", '= "many"\n'), "must be a whole number, not 'many'"),
        (TOML.replace("[options]", "[optoins]"), "an option 'optoins'"),
        (TOML.replace('"dqn"', '"dqm"'), "There is no agent 'dqm'. Did you mean dqn?"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(file, content, words):
    file.write_text(content)
    assert words in error_of(lambda: read_command(["train", "--config", str(file)]))


def test_a_file_that_is_not_there_or_of_an_own_environment_is_told(tmp_path):
    assert "cannot be read" in error_of(lambda: read_config_file(str(tmp_path / "none.toml")))
    engram.train(
        "random", lambda: engram.envs.get_task("cartpole").make(), 1, 20, out=tmp_path / "r"
    )
    sentence = error_of(lambda: read_config_file(str(tmp_path / "r")))
    assert "train it again with engram.train" in sentence


def test_a_quote_without_its_other_and_a_missing_file_name_are_told(tmp_path):
    assert "a quote without its other" in error_of(lambda: split_words("it's"))
    assert "--config takes a file" in error_of(lambda: read_command(["train", "--config"]))
    (tmp_path / "config.json").write_text('{"agent": "dqn", "task": "cartpole", "spec": 3}')
    assert read_config_file(str(tmp_path)).options == {}
