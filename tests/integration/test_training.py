"""Results of a training, its run folder, and what is loaded from it."""

import dataclasses
import json
from dataclasses import dataclass, replace

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from probes import TapeEnv
from training_helpers import (
    DQN_SMALL,
    assert_same_bits,
    error_of,
    read_checkpoint,
    scripted,
)

import engram
from engram.agents import Random
from engram.envs import CartPole, get_task
from engram.errors import EngramError
from engram.training import load, load_policies, load_training, resume, train

CARTPOLE = get_task("cartpole")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(DQN_SMALL, "cartpole", [4, 2], 250, out=tmp_path_factory.mktemp("runs") / "run")


def test_curves_have_at_least_100_points_and_end_with_the_last_step(finished):
    lines = (finished.folder / "curves.csv").read_text().splitlines()
    assert lines[0] == "seed,step,return"
    rows = np.array([[float(x) for x in line.split(",")] for line in lines[1:]])
    for seed in (4, 2):
        own = rows[rows[:, 0] == seed]
        assert len(own) >= 100
        assert own[-1, 1] == 250
        assert (np.diff(own[:, 1]) > 0).all()
        np.testing.assert_array_equal(own[:, 1:], np.stack(finished.curves[seed], axis=1))
        assert np.isfinite(own[-1, 2])


def test_the_folder_describes_the_run_and_its_returns(finished):
    folder = finished.folder
    config = json.loads((folder / "config.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    assert config["agent"] == "dqn"
    assert config["options"] == dataclasses.asdict(DQN_SMALL)
    assert (config["task"], config["seeds"], config["steps"]) == ("cartpole", [4, 2], 250)
    assert (config["custom_task"], config["use_gym"]) == (False, False)
    assert {"agent", "task", "seeds", "steps", "steps_per_second", "final", "auc"} <= set(summary)
    assert summary["seeds"] == [4, 2]
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[:2] == ["seed", "step"]
    assert {"td_loss", "epsilon"} < set(header)
    assert (folder / "curves.png").stat().st_size > 10_000
    assert finished.stopped is None


def test_a_loaded_agent_acts_greedily_like_the_trained_one(finished):
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    for seed in (4, 2):
        policy = load(finished.folder, seed)
        actions = policy.act(observations)
        np.testing.assert_array_equal(actions, finished.policies[seed].act(observations))
        assert policy.act(observations[0]) == actions[0]
    assert list(load_policies(load_training(finished.folder))) == [4, 2]
    assert_same_bits(load(finished.folder).state, load(finished.folder, 4).state)
    assert "has no seed 7: it was trained with 4, 2" in error_of(load, finished.folder, 7)


def test_resuming_a_finished_run_trains_no_further_step(finished):
    before = read_checkpoint(finished.folder)
    again = resume(finished.folder)
    assert_same_bits(before[:2], read_checkpoint(finished.folder)[:2])
    np.testing.assert_array_equal(again.curves[4][1], finished.curves[4][1])


def test_a_folder_that_holds_a_run_is_refused(finished):
    files = {path: path.read_bytes() for path in finished.folder.iterdir() if path.is_file()}
    sentence = error_of(train, DQN_SMALL, "cartpole", 1, 50, out=finished.folder)
    assert "already holds a run" in sentence
    assert files == {path: path.read_bytes() for path in files}


def test_a_custom_task_must_be_given_again(tmp_path):
    out = tmp_path / "run"
    train(Random(), scripted(), 1, 20, out=out)
    assert "task=" in error_of(resume, out)
    hint = f"engram.evaluate({str(out)!r}, task=...)"
    assert hint in error_of(engram.evaluate, out)
    returns = engram.evaluate(out, task=scripted(rewards=(1.0, 2.0, 4.0)), episodes=3)
    assert {seed: list(values) for seed, values in returns.items()} == {0: [7.0, 7.0, 7.0]}
    assert load(out).act(np.zeros(2)) in (0, 1)


def test_a_run_on_a_custom_jax_task_is_loaded_and_evaluated(tmp_path):
    task = engram.Task("short", "", CARTPOLE.make, jax_env=CartPole(20))
    train(Random(), task, 1, 40, out=tmp_path / "run")
    assert load(tmp_path / "run").act(np.zeros(4)) in (0, 1)
    assert engram.evaluate(tmp_path / "run", task=task, episodes=2)[0].shape == (2,)


def test_a_changed_copy_of_a_registered_task_must_be_given_again(tmp_path):
    task = replace(CARTPOLE, jax_env=CartPole(20))
    train(Random(), task, 1, 40, out=tmp_path / "run")
    assert "an environment of your own" in error_of(resume, tmp_path / "run")
    train(Random(), replace(CARTPOLE, steps=60), 1, out=tmp_path / "longer")
    resume(tmp_path / "longer")


def test_an_agent_that_changes_a_dtype_of_its_state_is_named():
    @dataclass(frozen=True)
    class Careless(Random):
        def init(self, key, spec):
            return {"count": jnp.zeros(spec.num_envs, jnp.int32)}

        def step(self, state, spec, timestep, step, key):
            _, action, metrics = super().step((), spec, timestep, step, key)
            return {"count": state["count"] + 0.5}, action, metrics

    error = error_of(train, Careless(), "cartpole", 1, 20)
    assert "Careless.step returned state['count'] as float32[1], but init made it int32[1]" in error


def test_an_agent_that_cannot_be_imported_is_given_again(tmp_path):
    @dataclass(frozen=True)
    class Local(Random):
        pass

    train(Local(), "cartpole", 1, 20, out=tmp_path / "run")
    assert "pass agent=" in error_of(load, tmp_path / "run")
    assert load(tmp_path / "run", agent=Local()).act(np.zeros(4)) in (0, 1)
    returns = engram.evaluate(tmp_path / "run", episodes=2, agent=Local())
    assert returns[0].shape == (2,)
    resume(tmp_path / "run", agent=Local())


def test_a_custom_task_may_have_the_name_of_a_registered_one(tmp_path):
    def cartpole(render_mode=None):
        return scripted(rewards=(1.0, 2.0, 4.0))()

    train(Random(), cartpole, 1, 20, out=tmp_path / "custom")
    assert "an environment of your own" in error_of(engram.evaluate, tmp_path / "custom")
    returns = engram.evaluate(tmp_path / "custom", task=cartpole, episodes=2)
    assert returns[0].tolist() == [7.0, 7.0]
    train(Random(), "cartpole", 1, 20, out=tmp_path / "registered")
    assert engram.evaluate(tmp_path / "registered", episodes=1)[0][0] > 7.0


def test_an_agent_given_to_resume_must_have_the_same_options(tmp_path, finished):
    error = error_of(resume, finished.folder, agent=Random())
    assert "was trained with the agent dqn, not random" in error
    other = replace(DQN_SMALL, learning_rate=0.5)
    assert "was trained with learning_rate=" in error_of(resume, finished.folder, agent=other)
    resume(finished.folder, agent=DQN_SMALL)


def test_one_environment_is_made_to_check_the_task():
    made = []

    def make_env():
        made.append(TapeEnv())
        return made[-1]

    train(Random(), make_env, seeds=2, steps=20, num_envs=3)
    assert len(made) == 1 + 2 * 3


def test_environments_of_a_run_share_its_steps():
    result = train(Random(), "cartpole", [0], 101, num_envs=4)
    assert result.curves[0][0][-1] == 104  # whole iterations
    assert result.folder is None


def test_a_dictionary_observation_survives_saving_and_resuming(tmp_path):
    class DictEnv(gym.Env):
        action_space = gym.spaces.Discrete(3, start=7)

        def __init__(self, key="door"):
            box = gym.spaces.Box(-1, 1, (2,))
            self.observation_space = gym.spaces.Dict({"x": box, key: gym.spaces.Discrete(3)})

        def reset(self, *, seed=None, options=None):
            self.observation_space.seed(seed)
            self.t = 0
            return self.observation_space.sample(), {}

        def step(self, action):
            assert self.action_space.contains(action)
            self.t += 1
            return self.observation_space.sample(), 1.0, self.t >= 5, False, {}

    out = tmp_path / "run"
    trained = train(Random(), DictEnv, 1, 20, out=out).policies[0]
    assert load(out).spec == trained.spec
    assert load(out).act({"x": np.array([0.5, -0.5]), "door": 2}) in (7, 8, 9)
    resume(out, task=DictEnv)
    with pytest.raises(EngramError, match=r"whose observation space was .*'door'.*'gate'"):
        resume(out, task=lambda: DictEnv("gate"))
    DictEnv.action_space = gym.spaces.Discrete(4)
    with pytest.raises(EngramError, match="number of actions was 3, but DictEnv's is 4"):
        resume(out, task=DictEnv)
