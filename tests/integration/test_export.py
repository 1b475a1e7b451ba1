"""`engram export`: what it writes, says and refuses."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from training_helpers import error_of, scripted

import engram
from engram.agents import make
from engram.cli import main
from engram.exporters import check
from engram.exporters.player import Player


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dqn"
    engram.train(make("dqn", "debug"), "cartpole", seeds=[3, 1], steps=100, out=folder)
    return folder


PLAY_ALONE = """
import sys
from player import Player
player = Player("policy.npz")
print(*[player.act([0.1 * i, -i, 0.1, i % 3]) for i in range(9)])
assert not {"jax", "engram"} & set(sys.modules)
"""


def test_an_exported_agent_acts_alike_with_numpy_alone(run_folder, tmp_path, capsys):
    main(["export", str(run_folder), str(tmp_path / "policy.npz"), "--seed", "1"])
    output = capsys.readouterr().out
    assert "The agent of seed 1" in output
    assert "Its action is the agent's on 1,000 of 1,000 observations of the task." in output
    policy = engram.load(run_folder, seed=1)
    expected = [policy.act(np.array([0.1 * i, -i, 0.1, i % 3])) for i in range(9)]
    alone = subprocess.run(
        [sys.executable, "-c", PLAY_ALONE], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [int(word) for word in alone.stdout.split()] == expected


def test_a_file_that_chooses_other_actions_is_told(run_folder, tmp_path, capsys, monkeypatch):
    act = Player.act_flat
    monkeypatch.setattr(Player, "act_flat", lambda self, row: act(self, row) ^ (row[0] > 0))
    main(["export", str(run_folder), str(tmp_path / "policy.npz")])
    output = " ".join(capsys.readouterr().out.split())
    assert "1,000 of 1,000" not in output
    assert "may have nearly the same value" in output


def test_existing_files_are_replaced_only_if_asked_for(run_folder, tmp_path):
    file, player = tmp_path / "policy.npz", tmp_path / "player.py"
    player.write_text("mine")
    assert "player.py exists" in error_of(engram.export, run_folder, file)
    assert player.read_text() == "mine"
    assert not file.exists()
    player.unlink()
    engram.export(run_folder, file)
    before = file.read_bytes()
    assert "--overwrite" in error_of(engram.export, run_folder, file, seed=1)
    assert file.read_bytes() == before
    engram.export(run_folder, file, seed=1, overwrite=True)
    assert file.read_bytes() != before
    engram.export(run_folder, tmp_path / "second.npz")  # with the same player


def test_what_cannot_be_exported_is_refused_and_leaves_no_file(run_folder, tmp_path):
    file = tmp_path / "policy.npz"
    assert "ends in .npz or .onnx" in error_of(engram.export, run_folder, tmp_path / "policy.pt")
    assert "is not a run folder" in error_of(engram.export, tmp_path / "none", file)
    assert "has no seed 2" in error_of(engram.export, run_folder, file, seed=2)
    (tmp_path / "new").mkdir()
    config = (run_folder / "config.json").read_bytes()
    (tmp_path / "new" / "config.json").write_bytes(config)
    assert "has no checkpoint yet" in error_of(engram.export, tmp_path / "new", file)
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_an_environment_of_ones_own_is_replaced_by_random_observations(tmp_path):
    folder = tmp_path / "run"
    engram.train(make("drqn", "debug"), scripted(), seeds=1, steps=60, out=folder)
    written = engram.export(folder, tmp_path / "policy.npz")
    assert not written.in_task
    assert written.agreed == written.compared == check.NUM_OBSERVATIONS


ONNX_CASES = [
    ("dqn", "maze3-dynamic", {"head": "quantile"}),
    ("dqn", "maze3-dynamic", {"encoder": "impala"}),
    ("ppo", "cartpole", {"recurrent": True}),
    ("mfec", "maze3", {}),
    ("nec", "cartpole", {}),
    ("mbec", "maze3", {}),
    ("mbec++", "cartpole", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task", "options"), ONNX_CASES)
def test_an_onnx_graph_acts_like_the_agent(name, task, options, tmp_path):
    pytest.importorskip("jax2onnx")
    agent = make(name, "debug", **options)
    engram.train(agent, task, seeds=1, steps=200, out=tmp_path / "run")
    written = engram.export(tmp_path / "run", tmp_path / "policy.onnx")
    assert written.in_task
    assert written.agreed == written.compared


@pytest.mark.slow
def test_a_graph_has_named_inputs_and_outputs_and_starts_with_a_state_of_zeros(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    folder = tmp_path / "run"
    engram.train(make("drqn", "debug"), "cartpole", seeds=1, steps=100, out=folder)
    engram.export(folder, tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    state = {x.name: np.zeros(x.shape, np.float32) for x in session.get_inputs()[1:]}
    assert list(state) == ["lstm_state_h", "lstm_state_c"]
    outputs = [x.name for x in session.get_outputs()]
    assert outputs == ["action", "next_lstm_state_h", "next_lstm_state_c"]
    policy = engram.load(folder)
    for i in range(20):
        observation = np.array([i % 3 - 1, 0.1 * i, -i, 1], np.float32)
        action, *following = session.run(None, {"observation": observation} | state)
        assert action == policy.act(observation)
        state = dict(zip(state, following, strict=True))


@pytest.mark.slow
def test_an_operation_that_onnx_lacks_is_named_and_leaves_no_file(tmp_path, monkeypatch):
    pytest.importorskip("jax2onnx")
    folder = tmp_path / "run"
    agent = make("dqn", "debug")
    engram.train(agent, "cartpole", seeds=1, steps=100, out=folder)
    act_greedy = type(agent).act_greedy

    def act_randomly(self, state, spec, observation, episode_start, key, epsilon=0.0):
        epsilon_key, key = jax.random.split(key)
        epsilon = jax.random.uniform(epsilon_key)
        return act_greedy(self, state, spec, observation, episode_start, key, epsilon)

    monkeypatch.setattr(type(agent), "act_greedy", act_randomly)
    sentence = error_of(engram.export, folder, tmp_path / "policy.onnx")
    assert "jax2onnx cannot write dqn (" in sentence
    assert "random_split" in sentence
    assert list(tmp_path.iterdir()) == [folder]


def test_without_jax2onnx_the_remedy_is_named(run_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    sentence = error_of(engram.export, run_folder, tmp_path / "policy.onnx")
    assert "pip install 'engram-rl[export]'" in sentence
