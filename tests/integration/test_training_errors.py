"""Errors of a training are one sentence each, with cause and remedy."""

import json
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import TapeEnv
from training_helpers import DQN_SMALL, arrays, error_of, read_checkpoint, scripted

from engram import run_config, runners, training, training_loop
from engram.agents import DQN, MBECpp, Random, agent_name, make
from engram.envs import get_task
from engram.errors import EngramError, EngramWarning
from engram.run_dir import RunDir
from engram.training import evaluate, load_training, resume, train


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    train(Random(), "cartpole", 1, 20, out=tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").mkdir()
    assert "Nothing can be written into" in error_of(resume, tmp_path / "run")


def test_two_processes_cannot_train_into_one_folder(tmp_path):
    train(Random(), "cartpole", 1, 20, out=tmp_path / "run")
    with RunDir.load(tmp_path / "run").lock():
        assert "Another process is training into" in error_of(resume, tmp_path / "run")


def test_too_little_memory_is_named(monkeypatch):
    too_large = replace(DQN_SMALL, hidden_size=10**11)
    assert "too large a number to count with" in error_of(train, too_large, scripted(), 1, 20)

    def fail(error):
        raise jax.errors.JaxRuntimeError(error)

    text = "INTERNAL: Error dispatching computation: Out of memory allocating 96000000644 bytes."
    monkeypatch.setattr(runners.GymRunner, "advance", lambda *_: fail(text))
    assert "The device's memory does not suffice" in error_of(train, DQN_SMALL, scripted(), 1, 20)
    monkeypatch.setattr(runners.GymRunner, "advance", lambda *_: fail("INTERNAL: something else"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        train(DQN_SMALL, scripted(), 1, 20)


def test_runs_that_do_not_fit_into_memory_are_refused_before_a_folder_is_made(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "memory_size", lambda: 25_000_000_000)
    with pytest.raises(
        EngramError, match=r"need \d+\.\d GB and there are 25\.0: lower seeds, buffer_size"
    ):
        train(MBECpp(memory_size=10**9), "cartpole", 4, 20, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_too_many_steps_is_refused():
    sentence = error_of(train, DQN_SMALL, scripted(), 1, 2**31)
    assert "2**31 - 1 steps at most, not 2,147,483,648" in sentence


def is_finite(tree):
    return all(np.isfinite(x).all() for x in arrays(tree) if x.dtype.kind == "f")


@pytest.mark.parametrize("cause", ["rewards", "learning rate"])
def test_a_metric_that_is_not_finite_ends_the_run_and_is_never_saved(tmp_path, cause):
    agent, task, out = DQN_SMALL, "cartpole", tmp_path / "run"
    if cause == "rewards":
        task = scripted(rewards=tuple([1.0] * 40 + [1e38] * 9))
    else:
        agent = replace(DQN_SMALL, learning_rate=1e30)
    sentence = error_of(train, agent, task, [6, 7], 200, out=out)
    assert " was not a finite number within the steps up to " in sentence
    assert "lower the learning rates" in sentence
    assert f"The checkpoint in {out} is from before that" in sentence
    tree, _, meta = read_checkpoint(out)
    assert 0 < meta["step"] < 60
    assert is_finite(tree[0].agent)


@dataclass(frozen=True)
class Overflowing(Random):
    """An agent whose state overflows without a trace in its metrics."""

    def init(self, key, spec):
        return {"scale": jnp.ones(3)}

    def step(self, state, spec, timestep, step, key):
        _, action, metrics = super().step((), spec, timestep, step, key)
        return {"scale": state["scale"] * jnp.where(step == 50, jnp.inf, 1.0)}, action, metrics


def test_a_state_that_is_not_finite_is_never_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop, "CHECKPOINT_RATIO", 0)
    out = tmp_path / "run"
    sentence = error_of(train, Overflowing(), "cartpole", [4, 5], 200, out=out, checkpoint_every=0)
    assert "state['scale'] of seed 4 was not a finite number within the steps up to 5" in sentence
    assert f"The checkpoint in {out} is from before that" in sentence
    run = load_training(out, agent=Overflowing(), needs_env=False)
    (((run_state,),), meta) = run.folder.restore(((run.runner.template()[0],),), partial=True)
    assert meta["step"] <= 50
    assert is_finite(run_state.agent)


@pytest.mark.parametrize("agent", [make("ppo", "debug"), make("mfec", "debug")], ids=agent_name)
def test_a_number_beyond_32_bits_is_a_fault_of_the_environment(tmp_path, agent):
    faults = {50: lambda env, reward, done: (np.array([1e300, 0]), reward, done, False, {})}
    sentence = error_of(train, agent, scripted(faults=faults), [3], 200, out=tmp_path / "run")
    assert "with seed 3 at step 50: observation[0] is 1e+300, too large a number" in sentence
    assert "all until step 50 is saved" in sentence
    tree, _, _ = read_checkpoint(tmp_path / "run")
    assert is_finite(tree[0].agent)


class FailsToClose(TapeEnv):
    """Closes without an error only if it was hardly used, as before training."""

    def close(self):
        if self.num_steps > 5:
            raise ConnectionError("the simulator is gone")


def test_an_environment_that_fails_to_close_is_a_warning_and_the_run_has_its_summary(tmp_path):
    sentence = r"lost: close raised ConnectionError \(the simulator is gone\) in test_training_err"
    with pytest.warns(EngramWarning, match=sentence) as caught:
        train(Random(), FailsToClose, 2, 40, out=tmp_path / "run")
    assert len(caught) == 1
    assert (tmp_path / "run" / "summary.json").exists()
    with pytest.warns(EngramWarning, match=sentence) as caught:
        returns = evaluate(tmp_path / "run", task=FailsToClose, episodes=20)
    assert len(caught) == 2  # one of each seed
    assert returns[1].tolist() == [6.0] * 20


@pytest.mark.parametrize(
    "seeds", [0, -1, True, [], [1, 1], [-1], [2**32], [1.5], ["x"], "abc", None, 2.0]
)
def test_invalid_seeds_are_refused(seeds):
    assert "seeds must be" in error_of(run_config.seed_numbers, seeds)


def test_seeds_may_be_counted_or_listed():
    assert run_config.seed_numbers(3) == (0, 1, 2)
    assert run_config.seed_numbers(np.int64(2)) == (0, 1)
    assert run_config.seed_numbers(np.arange(4, 6)) == (4, 5)
    assert run_config.seed_numbers(range(2)) == (0, 1)


@pytest.mark.parametrize(
    ("option", "value"),
    [("steps", 0), ("steps", -5), ("steps", 1.5), ("num_envs", 0), ("num_envs", 2.5)],
)
def test_invalid_counts_are_refused(option, value):
    options = {"steps": 10} | {option: value}
    assert option in error_of(train, Random(), "cartpole", 1, **options)


def test_an_unusable_task_is_refused_before_a_folder_is_made(tmp_path):
    out = tmp_path / "run"
    assert "There is no task" in error_of(train, Random(), "cartpol", 1, 10, out=out)
    broken = scripted(faults={1: ValueError("no")})
    assert "ValueError" in error_of(train, Random(), broken, 1, 10, out=out)
    assert not out.exists()


def test_an_agent_may_be_a_name_but_not_a_class():
    assert train("random", get_task("cartpole"), 1, 20).agent == Random()
    assert "such as engram.DQN()" in error_of(train, DQN, "cartpole", 1, 20)


@pytest.fixture(scope="module")
def random_run(tmp_path_factory):
    return train(Random(), "cartpole", 1, 20, out=tmp_path_factory.mktemp("runs") / "run").folder


def write_config(random_run, tmp_path, change):
    config = json.loads((random_run / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("key", ["custom_task", "seeds", "spec", "agent", "options", "use_gym"])
def test_a_missing_key_of_the_config_is_named(random_run, tmp_path, key):
    write_config(random_run, tmp_path, lambda config: config.pop(key))
    assert f"config.json lacks or garbles '{key}'" in error_of(resume, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.update(own_task=config.pop("custom_task")),
        lambda config: config.update(host=config.pop("use_gym")),
        lambda config: config["spec"].update(actions=2),
        lambda config: config["options"].update(an_option_of_before=32),
    ],
)
def test_a_run_folder_of_the_earlier_layout_is_refused(random_run, tmp_path, change):
    write_config(random_run, tmp_path, change)
    sentence = error_of(resume, tmp_path)
    assert "has the layout of an earlier Engram" in sentence
    assert "commit ee690b4), or train anew" in sentence
