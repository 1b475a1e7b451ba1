"""A training by a file: TOML of one's own, or the config.json of a run, with options beside it."""

import json

import pytest
from training_helpers import error_of

import engram
from engram.cli import main
from engram.cli.arguments import read_command
from engram.cli.config_file import read_config_file

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
