"""Reading a run folder imports nothing that the user does not name."""

import json
import sys

import gymnasium as gym
import pytest
from training_helpers import error_of

import engram
from engram.agents import Random
from engram.cli import main
from engram.cli.arguments import read_command
from engram.run_dir import RunDir

MODULE = """
from pathlib import Path
import gymnasium as gym
from engram.agents import Random

Path("imported").touch()

class Mine(Random):
    pass

class Pass(gym.Wrapper):
    pass

gym.register("Mine-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
"""
FOREIGN = {
    "agent": {"agent": "foreign_code:Mine"},
    "task": {"task": "gym:foreign_code:Mine-v0"},
    "wrapper": {"wrappers": ["foreign_code:Pass"]},
}


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return engram.train(Random(), "gym:CartPole-v1", 1, 20, out=out).folder


@pytest.fixture(params=FOREIGN)
def foreign_run(request, plain_run, tmp_path, monkeypatch):
    """A run folder that names a module, which lies in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign_code.py").write_text(MODULE)
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    for name in ("checkpoint/state.safetensors", "curves.csv"):
        (tmp_path / "run" / name).write_bytes((plain_run / name).read_bytes())
    config = json.loads((plain_run / "config.json").read_text()) | FOREIGN[request.param]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    yield tmp_path / "run"
    sys.modules.pop("foreign_code", None)
    gym.registry.pop("Mine-v0", None)


@pytest.mark.parametrize("call", [engram.load, engram.evaluate, engram.resume])
def test_a_module_that_a_run_folder_names_is_imported_only_if_the_user_names_it(foreign_run, call):
    sentence = error_of(call, foreign_run)
    assert "would import foreign_code, and so run code: if you trust it, " in sentence
    assert "add `--allow-module foreign_code` to the command" in sentence
    assert "`allow_modules=['foreign_code']` to the call" in sentence
    assert "would import" in error_of(call, foreign_run, allow_modules=["foreign", "code"])
    assert not (foreign_run.parent / "imported").exists()
    call(foreign_run, allow_modules=["foreign_code"])
    assert (foreign_run.parent / "imported").exists()
    call(foreign_run)  # what is imported already runs no code


COMMANDS = [
    "eval run --episodes 2",
    "resume run",
    "export run x.npz",
    "train --config run --out new",
    "train --config=run/config.json --allow-module other --out new",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_names_what_to_add(foreign_run, command, capsys):
    with pytest.raises(SystemExit) as exit:
        main(command.split())
    assert exit.value.code == 2
    assert "add `--allow-module foreign_code`" in capsys.readouterr().err
    assert not (foreign_run.parent / "imported").exists()
    if command.startswith(("eval", "train")):
        main([*command.split(), "--allow-module", "foreign_code"])


@pytest.mark.parametrize("wrappers", ["foreign_code:Pass", ["foreign_code:Pass"]])
def test_a_file_like_the_config_of_a_run_is_checked_as_one(tmp_path, wrappers):
    config = {"agent": "random", "task": "gym:CartPole-v1", "wrappers": wrappers}
    config |= {"allow_module": "foreign_code"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sentence = error_of(read_command, ["train", "--config", str(tmp_path)])
    assert "would import foreign_code" in sentence


def test_a_hint_how_to_resume_allows_the_modules(foreign_run):
    hint = f"engram resume {foreign_run} --allow-module foreign_code"
    assert RunDir.load(foreign_run).resume_command == hint


@pytest.mark.parametrize("foreign_run", ["task", "wrapper"], indirect=True)
def test_a_task_that_is_given_needs_no_permission_for_the_one_in_the_folder(foreign_run):
    engram.evaluate(foreign_run, task=engram.envs.get_task("gym:CartPole-v1"), episodes=1)
    assert not (foreign_run.parent / "imported").exists()
