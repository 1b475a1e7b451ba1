"""How well memories foretell returns."""

import json

import numpy as np
import pytest

from engram.errors import EngramError
from engram.experiments import foretelling
from engram.experiments.foretelling import Stream
from engram.types import Spec


def stream(reward, done, gist=None, value=None):
    iterations, envs = np.shape(reward)
    told = np.zeros((iterations, envs, 3), np.float32) if gist is None else gist
    spec = Spec((4, 8, 8), 2, "uint8", stack=4, envs=envs, iterations=iterations)
    nothing = np.zeros((iterations, envs, 2), np.float32)
    action = np.zeros((iterations, envs), np.int32)
    return Stream({"pixels": told}, action, nothing if value is None else value, np.asarray(reward, np.float32), np.array(done), spec)


def test_returns_end_where_episodes_do():
    one = stream([[1.0], [2.0], [4.0], [8.0]], [[False], [True], [False], [False]])
    np.testing.assert_allclose(foretelling.discounted(one, 0.5), [[2.0], [2.0], [8.0], [8.0]])


def test_variance_is_told_by_what_explains_it():
    x, y = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    assert foretelling.told(3 * x + y + 7, [x]) == pytest.approx(0.9)
    assert foretelling.told(3 * x + y + 7, [x, y]) == pytest.approx(1.0)


def test_a_mind_that_watches_foretells_what_it_is_told_of(monkeypatch):
    """Episodes of two steps in one of four worlds, of which two pay 1 at the end, two nothing; the Q-network knows nothing of it."""
    monkeypatch.setattr(foretelling, "SETTLED", 2)
    rng = np.random.default_rng(0)
    worlds = np.repeat(rng.integers(0, 4, (200, 4)), 2, axis=0)
    done = np.arange(400)[:, None] % 2 == np.ones(4)
    reward = np.where(done & (worlds < 2), 1.0, 0.0)
    one = stream(reward, done, np.eye(4, dtype=np.float32)[worlds], value=np.float32(rng.normal(size=(400, 4, 2))))
    said, memories = foretelling.watched(one, 500, {"gist_of": "pixels", "chunk": 1, "neighbours": 5, "p_refine": 0.0})
    found = foretelling.foretold(one, foretelling.discounted(one, 0.99), said, memories)
    assert 0 < found["memories"] <= 500
    assert found["return"] == pytest.approx(0.5, abs=0.1)
    assert found["memory_r"] > 0.7 > 0.1 > abs(found["q_r"])  # it takes a while to know what each world pays
    assert found["both_told"] > 0.5 > 0.05 > found["q_told"]


def test_choices_are_judged_by_what_is_left_when_the_state_is_known(monkeypatch):
    """A state's worth and an action's, apart: memory tells the first alone, the Q-network both."""
    monkeypatch.setattr(foretelling, "SETTLED", 0)
    rng = np.random.default_rng(0)
    state, better = rng.normal(size=(2, 200, 4))
    value = np.float32(np.stack([state + better, state], axis=-1))
    said = np.stack([state + rng.normal(size=(200, 4)), state], axis=-1)
    found = foretelling.foretold(stream(np.zeros((200, 4)), np.zeros((200, 4), bool), value=value), state + better, said, 7)
    assert found["q_choice_r"] == pytest.approx(1.0, abs=0.01)
    assert abs(found["memory_choice_r"]) < 0.15
    assert found["q_told"] == pytest.approx(1.0)
    assert (found["memory_r"], found["memories"]) == (pytest.approx(0.5, abs=0.1), 7)


def test_what_never_changes_foretells_nothing():
    assert foretelling.correlation(np.arange(3.0), np.ones(3)) == 0
    assert foretelling.told(np.ones(3), [np.arange(3.0)]) == 0


def test_a_game_is_lived_watched_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(foretelling, "MINDS", {"the only one": {"gist_of": "features", "chunk": 4, "neighbours": 3}})
    monkeypatch.setattr(foretelling, "SETTLED", 2)
    seen = []
    lived = foretelling.lived
    monkeypatch.setattr(foretelling, "lived", lambda *told: seen.append(lived(*told)) or seen[-1])
    out = tmp_path / "foretold.json"
    foretelling.Run(("pong",), steps=160, slots=50, out=out)()
    assert [stream.gist["features"].shape for stream in seen] == [(10, 16, 32)]
    assert len(np.unique(seen[0].gist["pixels"][-1], axis=0)) > 1
    assert [row["game"] for row in json.loads(out.read_text())] == ["pong"]
    foretelling.Report(out)()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if "the only one" in line] == ["| pong"] * 2  # at once, and in the report
    out.write_text("{")
    with pytest.raises(EngramError, match="cannot be read"):
        foretelling.Run(("pong",), out=out)()
