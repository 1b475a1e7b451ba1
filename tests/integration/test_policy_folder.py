"""Policy folders act as the runs that they come from, and cannot go on learning."""

import gymnasium as gym
import jax
import numpy as np
import pytest

import engram
from engram import exporters, zoo
from engram.cli import main
from engram.errors import EngramError
from engram.run_dir import RunDir

AGENT = engram.make("mbec++", "debug")


class LargeReward(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return self.reset()[0], 1e5, True, False, {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "run"
    engram.train(AGENT, "cartpole-gaussian", seeds=[3, 5], steps=200, out=path)
    return path


@pytest.fixture(autouse=True)
def few_observations(monkeypatch):
    monkeypatch.setattr(exporters.check, "NUM_OBSERVATIONS", 50)


def test_a_policy_folder_has_one_seeds_agent_and_its_step(run, tmp_path):
    folder = tmp_path / "policy"
    written = engram.export(run, folder, seed=5)
    assert (written.seed, written.agreed, written.compared) == (5, 50, 50)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "policy.safetensors"]
    state, expected = engram.load(folder).state, engram.load(run, 5).state
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert engram.training.trained_steps(folder) == 200
    with pytest.raises(EngramError, match=r"has no seed 3: it was trained with 5\."):
        engram.load(folder, 3)


def test_half_precision_halves_the_file_and_rounds_the_numbers(run, tmp_path):
    for name, half in (("whole", False), ("half", True)):
        engram.export(run, tmp_path / name, half=half)
    sizes = [RunDir.load(tmp_path / name).policy.stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.7 * sizes[0]  # the header has the same size
    states = [jax.tree.leaves(engram.load(tmp_path / name).state) for name in ("whole", "half")]
    for whole, half in zip(*states, strict=True):
        assert half.dtype == whole.dtype
        np.testing.assert_allclose(half, whole, rtol=1e-3, atol=1e-6)


def test_numbers_too_large_for_half_precision_are_refused(tmp_path):
    run = tmp_path / "run"
    engram.train("mfec", LargeReward, seeds=1, steps=60, out=run)
    with pytest.raises(EngramError, match="too large for half precision"):
        engram.export(run, tmp_path / "half", half=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_that_fails_keeps_the_old_folder_and_leaves_no_new_one(
    run, tmp_path, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporters.check, "count_agreements", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engram.export(run, tmp_path / "policy")
    assert not list(tmp_path.iterdir())


def test_names_of_the_zoo_are_no_targets(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: engram.export(run, "zoo:mine"),
        lambda: engram.train(AGENT, "cartpole", seeds=1, steps=20, out="zoo:mine"),
        lambda: engram.tune(AGENT, "cartpole", "zoo:mine", trials=1),
    ):
        with pytest.raises(EngramError, match="zoo:mine cannot be written"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_policy_folder_is_evaluated_but_not_resumed_or_plotted(run, tmp_path, capsys):
    folder = tmp_path / "policy"
    main(["export", str(run), str(folder)])
    main(["eval", str(folder), "--episodes", "2"])
    assert "mbec++ on cartpole-gaussian" in capsys.readouterr().out
    with pytest.raises(EngramError, match=r"without what learns.*engram train --config"):
        engram.resume(folder)
    with pytest.raises(EngramError, match="without its learning curve"):
        engram.plot(folder, tmp_path / "curves.png")
    assert len(list(folder.iterdir())) == 2


def test_only_policy_folders_are_replaced(run, tmp_path):
    folder = tmp_path / "policy"
    engram.export(run, folder)
    with pytest.raises(EngramError, match="exists: name another file, or replace it"):
        engram.export(run, folder)
    engram.export(run, folder, seed=5, overwrite=True)
    assert RunDir.load(folder).config["seeds"] == [5]
    with pytest.raises(EngramError, match="is no policy folder, so it is kept"):
        engram.export(folder, run, overwrite=True)
    with pytest.raises(EngramError, match="Only policy folders have half precision"):
        engram.export(run, tmp_path / "a.npz", half=True)


@pytest.mark.parametrize("name", zoo.names())
def test_an_agent_of_the_zoo_loads_and_has_a_card(name):
    policy = engram.load(f"{zoo.PREFIX}{name}")
    observation = np.zeros(policy.spec.shape, policy.spec.dtype)
    assert 0 <= policy.act(observation) < policy.spec.num_actions
    assert "greedy episodes" in zoo.headline(name)
    assert f"engram eval zoo:{name}" in (zoo.FOLDER / name / "README.md").read_text()


def test_an_agent_of_the_zoo_is_as_good_as_its_card_says():
    (returns,) = engram.evaluate("zoo:ppo-cartpole", episodes=5).values()
    assert returns.mean() > 190


def test_an_unknown_agent_of_the_zoo_is_refused_with_the_nearest_name():
    with pytest.raises(EngramError, match=r"no 'ppo-cartpol'. Did you mean ppo-cartpole"):
        engram.load("zoo:ppo-cartpol")
