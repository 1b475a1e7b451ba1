"""How well memories foretell returns."""

import json
from dataclasses import replace

import numpy as np
import pytest

from engram import loop
from engram.errors import EngramError
from engram.experiments import foretelling
from engram.experiments.foretelling import Stream
from engram.types import Spec


def stream(reward, done, gist=None, value=None, action=None):
    iterations, envs = np.shape(reward)
    nothing = np.zeros((iterations, envs), np.float32)
    told = {"pixels": np.zeros((iterations, envs, 3), np.float32) if gist is None else gist}
    spec = Spec((4, 8, 8), 2, "uint8", stack=4, envs=envs, iterations=iterations)
    actions = np.zeros((iterations, envs), np.int32) if action is None else action
    return Stream(told, actions, nothing if value is None else value, np.asarray(reward, np.float32), np.array(done), spec)


def test_returns_end_where_episodes_do():
    one = stream([[1.0], [2.0], [4.0], [8.0]], [[False], [True], [False], [False]])
    np.testing.assert_allclose(foretelling.discounted(one, 0.5), [[2.0], [2.0], [8.0], [8.0]])


def test_variance_is_told_by_what_explains_it():
    x, y = np.array([[1.0, -1.0], [1.0, -1.0]]), np.array([[1.0, 1.0], [-1.0, -1.0]])
    assert foretelling.told(3 * x + y + 7, x) == pytest.approx(0.9)
    assert foretelling.told(3 * x + y + 7, x, y) == pytest.approx(1.0)


def test_what_never_changes_foretells_nothing():
    assert foretelling.correlation(np.arange(3.0), np.ones(3)) == 0
    assert foretelling.told(np.ones((3, 1)), np.arange(3.0)[:, None]) == 0


def test_the_error_of_a_mean_is_that_of_the_consoles():
    of_consoles = np.array([1.0, 2.0, 4.0, 9.0])
    error = foretelling.error(lambda x: float(x.mean()), np.tile(of_consoles, (50, 1)))
    assert error == pytest.approx(of_consoles.std(ddof=1) / 2)


def test_a_mind_that_watches_foretells_what_it_is_told_of(monkeypatch):
    """Episodes of two steps in one of four worlds; at the end two of them pay 1 for one of two actions. The Q-network knows nothing."""
    monkeypatch.setattr(foretelling, "SETTLED", 2)
    rng = np.random.default_rng(0)
    worlds = np.repeat(rng.integers(0, 4, (400, 4)), 2, axis=0)
    action = rng.integers(0, 2, (800, 4)).astype(np.int32)
    done = np.arange(800)[:, None] % 2 == np.ones(4)
    reward = np.where(done & (worlds < 2) & (action == 1), 1.0, 0.0)
    seen = np.concatenate([np.eye(4)[worlds], done[..., None]], axis=-1).astype(np.float32)
    one = stream(reward, done, seen, np.float32(rng.normal(size=(800, 4))), action)
    said, memories = foretelling.watched(one, 500, {"of": "pixels", "chunk": 1, "neighbours": 5, "p_refine": 0.0})
    found = foretelling.foretold(one, foretelling.discounted(one, 0.99), said, memories)
    assert 0 < found["memories"] <= 500
    assert found["return"] == pytest.approx(0.25, abs=0.05)
    assert found["memory_r"] > 0.6 > 0.1 > abs(found["q_r"])
    assert 0 < found["memory_r_error"] < 0.1
    assert found["both_told"] > 0.3 > 0.05 > found["q_told"]


def test_a_game_is_lived_watched_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(foretelling, "MINDS", {"the only one": {"of": "features", "chunk": 4, "neighbours": 3}})
    monkeypatch.setattr(foretelling, "SETTLED", 2)
    lived, driver, made, seen = foretelling.lived, loop.driver, [], []
    monkeypatch.setattr(loop, "driver", lambda *told: made.append(driver(*told)) or made[-1])

    def greedily(agent, *rest):
        seen.append(lived(replace(agent, epsilon_start=0.0, epsilon_end=0.0), *rest))
        return seen[-1]

    monkeypatch.setattr(foretelling, "lived", greedily)
    out = tmp_path / "foretold.json"
    foretelling.Run(("pong",), steps=160, slots=50, out=out)()
    assert {of: gist.shape for of, gist in seen[0].gist.items()} == dict.fromkeys(("features", "first features", "pixels"), (10, 16, 32))
    np.testing.assert_array_equal(seen[0].gist["features"][0], seen[0].gist["first features"][0])
    assert seen[0].value.mean() == pytest.approx(made[0].metrics()["value"][0], rel=1e-4)  # as the agent itself saw its best actions
    assert [seen[0].action[:, e].tolist() for e in range(16)] == [made[0].taken[0, e] for e in range(16)]
    assert [row["game"] for row in json.loads(out.read_text())] == ["pong"]
    foretelling.Report(out)()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if "the only one" in line] == ["| pong"] * 2  # at once, and in the report
    with pytest.raises(EngramError, match="Of 64 steps too few would count: train for more than 64"):
        foretelling.Run(("pong",), steps=64, out=out)()
    out.write_text("{")
    with pytest.raises(EngramError, match="cannot be read"):
        foretelling.Run(("pong",), out=out)()
