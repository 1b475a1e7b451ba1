"""A training that stops anywhere goes on exactly; every failure is one sentence and saves all."""

import dataclasses
import json
import os
import signal
from dataclasses import dataclass, replace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engram
from engram import interrupts, run_config, runners, training
from engram.agents import DQN, MBECpp, Random, make
from engram.checkpoint import is_key
from engram.envs import CartPole, get_task
from engram.errors import EngramError, Interrupted
from engram.run_dir import RunDir
from engram.training import load, load_policies, load_training, resume, train

CARTPOLE = get_task("cartpole")

MBECPP_SMALL = make("mbec++", "debug")
DQN_SMALL = make("dqn", "debug")
SEEDS = [3, 1]


class ScriptedRewards(gym.Env):
    """Gives a list of rewards, then terminates; observes its step and a number drawn at reset."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rewards=(1.0, 2.0, 3.0), errors=None, is_seeded=True):
        self.rewards, self.is_seeded = rewards, is_seeded
        self.errors = errors or {}
        """what is raised at which of all steps"""
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.drawn = (self.np_random if self.is_seeded else np.random.default_rng()).normal()
        return self.observe(), {}

    def observe(self):
        return np.array([self.t, self.drawn], np.float32)

    def step(self, action):
        self.num_steps += 1
        if self.num_steps in self.errors:
            raise self.errors[self.num_steps]
        reward = self.rewards[self.t]
        self.t += 1
        return self.observe(), reward, self.t == len(self.rewards), False, {}


def scripted(**options):
    def make_scripted(render_mode=None):
        return gym.wrappers.TimeLimit(ScriptedRewards(**options), 50)

    return make_scripted


def error_of(call, *arguments, kind=EngramError, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


def read_checkpoint(path):
    """Runner state, statistics and metadata of a run folder."""
    run = load_training(path, needs_env=False)
    template = run.runner.template(), run.stats.state()
    (tree, stats), meta = run.folder.restore(template, partial=True)
    return tree, stats, meta


def arrays(tree):
    leaves = jax.tree.leaves(tree)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


def assert_same_bits(a, b):
    for x, y in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def assert_same_run(whole, parts):
    for seed in SEEDS:
        np.testing.assert_array_equal(whole.curves[seed], parts.curves[seed])
        assert np.isfinite(whole.curves[seed][1]).any()
    assert whole.metrics == parts.metrics
    assert_same_bits(read_checkpoint(whole.folder)[:2], read_checkpoint(parts.folder)[:2])
    for name in ("curves.csv", "metrics.csv"):
        assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes()


class InterruptAt(engram.Hook):
    """Sends a signal to the process at a step."""

    def __init__(self, step, kind=signal.SIGINT):
        self.step, self.kind = step, kind

    def on_log(self, run, progress):
        if progress.step == self.step:
            os.kill(os.getpid(), self.kind)


# Interrupting and resuming


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return train(DQN_SMALL, "cartpole-gaussian", SEEDS, 150, out=out)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_in_jax_resumes_bit_for_bit(tmp_path, kind, uninterrupted):
    out, hooks = tmp_path / "parts", [InterruptAt(57, kind)]
    arguments = DQN_SMALL, "cartpole-gaussian", SEEDS, 150
    sentence = error_of(train, *arguments, out=out, hooks=hooks, kind=Interrupted)
    assert sentence.startswith("Interrupted; all until step 57 is saved")
    assert f"engram resume {out}" in sentence
    assert RunDir.load(out).meta()["step"] == 57
    assert_same_run(uninterrupted, resume(out))


class InterruptedEnv(ScriptedRewards):
    """Ctrl-C is pressed in the middle of its 41st step, once."""

    is_armed = False

    def step(self, action):
        if self.num_steps == 40 and InterruptedEnv.is_armed:
            InterruptedEnv.is_armed = False
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def test_a_run_in_gymnasium_resumes_bit_for_bit_within_an_episode(tmp_path):
    def make_env():
        return InterruptedEnv(rewards=(1.0, 2.0, 0.5, -1.0, 3.0, 1.0, 0.0))

    arguments = MBECPP_SMALL, make_env, SEEDS, 160, 2
    whole = train(*arguments, out=tmp_path / "whole")
    InterruptedEnv.is_armed = True
    sentence = error_of(train, *arguments, out=tmp_path / "parts", kind=Interrupted)
    assert "all until step 82 is saved" in sentence
    assert_same_run(whole, resume(tmp_path / "parts", task=make_env))


def test_an_interrupt_before_the_first_step_leaves_a_run_that_resumes(tmp_path, monkeypatch):
    make_env = scripted(rewards=(1.0, 2.0, 0.5))
    whole = train(DQN_SMALL, make_env, SEEDS, 40, out=tmp_path / "whole")
    start = runners.GymRunner.start
    with monkeypatch.context() as patch:
        interrupt = lambda runner: (os.kill(os.getpid(), signal.SIGINT), start(runner))  # noqa: E731
        patch.setattr(runners.GymRunner, "start", interrupt)
        arguments = DQN_SMALL, make_env, SEEDS, 40
        sentence = error_of(train, *arguments, out=tmp_path / "parts", kind=Interrupted)
    assert sentence.startswith("Interrupted; all until step 1 is saved")
    assert_same_run(whole, resume(tmp_path / "parts", make_env))


class KillAt(engram.Hook):
    """Ends the training without giving it a chance to save."""

    def __init__(self, step):
        self.step = step

    def on_log(self, run, progress):
        if progress.step == self.step:
            raise SystemExit


def test_a_killed_run_resumes_from_its_last_checkpoint_bit_for_bit(tmp_path, uninterrupted):
    out = tmp_path / "killed"
    with pytest.raises(SystemExit):
        train(DQN_SMALL, "cartpole-gaussian", SEEDS, 150, out=out, hooks=[KillAt(57)])
    assert RunDir.load(out).meta()["step"] < 57
    assert_same_run(uninterrupted, resume(out))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_acts_as_before_the_training(kind):
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with interrupts.interrupt_flag() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), kind)
        assert interrupted()
        assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before


def test_an_environment_that_cannot_be_replayed_resumes_with_a_truncated_episode(tmp_path):
    make_env, out = scripted(rewards=(1.0,) * 9, is_seeded=False), tmp_path / "run"
    hooks = [InterruptAt(104)]
    error_of(train, Random(), make_env, [0], 200, out=out, hooks=hooks, kind=Interrupted)
    episodes_before = int(read_checkpoint(out)[0][3][0, 0])
    assert resume(out, task=make_env).curves[0][0][-1] == 200
    episodes = int(read_checkpoint(out)[0][3][0, 0])
    assert episodes == episodes_before + 1 + (200 - 104) // 9


def test_a_fault_of_an_environment_is_named_with_seed_and_step_and_the_run_resumes(tmp_path):
    make_env, out = scripted(errors={90: RuntimeError("out of fuel")}), tmp_path / "run"
    sentence = error_of(train, Random(), make_env, [5], 120, out=out, kind=runners.EnvironmentFault)
    assert sentence.startswith("The environment make_scripted ")
    assert "with seed 5 at step 90: step raised RuntimeError (out of fuel)" in sentence
    assert "; all until step 90 is saved: go on with `engram.resume(" in sentence
    assert resume(out, task=scripted()).curves[5][0][-1] == 120


def test_a_run_killed_before_its_first_checkpoint_begins_when_resumed(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        raise_interrupt = lambda runner: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
        patch.setattr(runners.GymRunner, "start", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(DQN_SMALL, scripted(), [3], 40, out=out)
    hint = f"has no checkpoint yet: let `engram.resume({str(out)!r}, task=...)` train it."
    assert hint in error_of(load, out)
    begun, whole = resume(out, scripted()), train(DQN_SMALL, scripted(), [3], 40)
    np.testing.assert_array_equal(begun.curves[3][1], whole.curves[3][1])
    assert begun.metrics == whole.metrics


def test_a_run_that_has_lost_its_checkpoint_is_not_begun_anew(tmp_path):
    train(Random(), "cartpole", [3], 40, out=tmp_path / "run")
    RunDir.load(tmp_path / "run").checkpoint.unlink()
    curves = (tmp_path / "run" / "curves.csv").read_bytes()
    assert "has lost its checkpoint: restore it from a copy" in error_of(resume, tmp_path / "run")
    assert (tmp_path / "run" / "curves.csv").read_bytes() == curves


# Results and run folders


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
        made.append(ScriptedRewards())
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


# Errors


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
    broken = scripted(errors={1: ValueError("no")})
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
