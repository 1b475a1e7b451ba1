"""A training that stops anywhere goes on exactly, and what goes wrong is said in a sentence with what was saved still there."""

import json
import os
import signal
from dataclasses import replace

import gymnasium as gym
import jax
import numpy as np
import pytest
from probes import Tape

import engram
from engram import loop, training
from engram.agents import DQN, MBECpp, Random
from engram.errors import EngramError
from engram.evaluation import play
from engram.records import RunFolder, is_key
from engram.tasks import Task, find
from engram.training import Interrupted, load, load_all, resume, train

SMALL = MBECpp(
    batch=4,
    neighbours=2,
    slots=16,
    chunk=2,
    trajectory=3,
    hidden=4,
    reward_hidden=4,
    consolidation_hidden=4,
    cues=2,
    learn_start=8,
)
TINY = DQN(batch=4, hidden=4, learn_start=8)


def tape(**options):
    def make_tape(render_mode=None):
        return gym.wrappers.TimeLimit(Tape(**options), 50)

    return make_tape


def complaint(call, *arguments, kind=EngramError, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


def checkpoint(path, task=None):
    """All that a run folder holds."""
    opened = training.reopen(path, task, alone=True)
    (tree, scores), meta = opened.folder.restore((opened.driver.template(), opened.scores.tree()))
    return tree, scores, meta


def arrays(tree):
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


def same(a, b):
    """Bit for bit."""
    for x, y in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


# Interrupted and resumed

SEEDS = [3, 1]


def interrupt_at(*steps, kind=signal.SIGINT):
    """Presses Ctrl-C, or asks to end, when the training has come so far."""

    def watch(progress):
        if progress.step in steps:
            os.kill(os.getpid(), kind)

    return watch


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_on_tasks_in_jax_an_interrupted_training_goes_on_bit_for_bit(tmp_path, kind):
    whole = train(TINY, "cartpole-gaussian", SEEDS, 150, out=tmp_path / "whole")
    watch = interrupt_at(57, kind=kind)
    sentence = complaint(train, TINY, "cartpole-gaussian", SEEDS, 150, out=tmp_path / "parts", watch=watch, kind=Interrupted)
    assert sentence.startswith("Interrupted; all until step 57 is saved")
    assert str(tmp_path / "parts") in sentence
    assert RunFolder.load(tmp_path / "parts").meta()["step"] == 57
    parts = resume(tmp_path / "parts")
    equal(whole, parts)


class Pressed(Tape):
    """Ctrl-C is pressed in the middle of its 41st step, once."""

    def step(self, action):
        if self.made == 40 and Pressed.armed:
            Pressed.armed = False
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def test_real_environments_are_brought_back_in_the_middle_of_an_episode_bit_for_bit(tmp_path):
    def make():
        return Pressed(rewards=(1.0, 2.0, 0.5, -1.0, 3.0, 1.0, 0.0))

    Pressed.armed = False
    whole = train(SMALL, make, SEEDS, 240, envs=2, out=tmp_path / "whole")
    Pressed.armed = True
    sentence = complaint(train, SMALL, make, SEEDS, 240, envs=2, out=tmp_path / "parts", kind=Interrupted)
    # each try-out makes an environment of its own; of the four that train, the first is pressed at its 41st step
    assert "all until step 82 is saved" in sentence
    equal(whole, resume(tmp_path / "parts", task=make), make)


def equal(whole, parts, task=None):
    for seed in SEEDS:
        np.testing.assert_array_equal(whole.curves[seed][0], parts.curves[seed][0])
        np.testing.assert_array_equal(whole.curves[seed][1], parts.curves[seed][1])
        assert np.isfinite(whole.curves[seed][1]).any()
    assert whole.metrics == parts.metrics
    same(checkpoint(whole.folder, task)[:2], checkpoint(parts.folder, task)[:2])
    for name in ("curves.csv", "metrics.csv"):
        assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes()


def test_an_interrupt_before_the_first_step_leaves_a_run_that_goes_on(tmp_path, monkeypatch):
    make = tape(rewards=(1.0, 2.0, 0.5))
    whole = train(TINY, make, SEEDS, 40, out=tmp_path / "whole")
    with monkeypatch.context() as patch:  # while it compiles, and environments are made
        begin = loop.Host._begin
        patch.setattr(loop.Host, "_begin", lambda driver: (os.kill(os.getpid(), signal.SIGINT), begin(driver)))
        sentence = complaint(train, TINY, make, SEEDS, 40, out=tmp_path / "parts", kind=Interrupted)
    assert sentence.startswith("Interrupted; all until step 1 is saved")
    equal(whole, resume(tmp_path / "parts", make))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_is_that_of_before(kind):
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with training._interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), kind)
        assert interrupted()
        assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before


def test_an_environment_that_does_not_repeat_itself_goes_on_after_a_cut(tmp_path):
    make = tape(rewards=(1.0,) * 9, forgetful=True)
    complaint(train, Random(), make, [0], 200, out=tmp_path / "run", watch=interrupt_at(104), kind=Interrupted)
    before, _, meta = checkpoint(tmp_path / "run", make)
    assert len(meta["notes"]["taken"][0]) == 104 % 9
    result = resume(tmp_path / "run", task=make)
    assert result.curves[0][0][-1] == 200
    assert int(checkpoint(tmp_path / "run", make)[0][3][0, 0]) == int(before[3][0, 0]) + 1 + (200 - 104) // 9


def test_a_broken_environment_leaves_a_folder_that_goes_on(tmp_path):
    make = tape(breaks={90: RuntimeError("out of fuel")})
    sentence = complaint(train, Random(), make, [5], 120, out=tmp_path / "run", kind=loop.EnvironmentFault)
    assert sentence.startswith("The environment make_tape broke with seed 5 at step 90: step raised RuntimeError (out of fuel). Mend it; ")
    assert "all until step 90 is saved" in sentence
    assert resume(tmp_path / "run", task=tape()).curves[5][0][-1] == 120


# What a training leaves


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    seen = []
    return train(TINY, "cartpole", [4, 2], 250, out=folder, watch=seen.append), seen


def test_curves_have_at_least_a_hundred_points_and_end_with_the_last_step(finished):
    result, seen = finished
    lines = (result.folder / "curves.csv").read_text().splitlines()
    assert lines[0] == "seed,step,return"
    rows = np.array([[float(x) for x in line.split(",")] for line in lines[1:]])
    for seed in (4, 2):
        own = rows[rows[:, 0] == seed]
        assert len(own) >= 100
        assert own[-1, 1] == 250
        assert (np.diff(own[:, 1]) > 0).all()
        np.testing.assert_array_equal(own[:, 1:], np.stack(result.curves[seed], axis=1))
        assert np.isfinite(own[-1, 2])
    assert [progress.step for progress in seen] == result.curves[4][0].tolist()
    assert seen[-1].score == pytest.approx(np.mean([result.curves[seed][1][-1] for seed in (4, 2)]))


def test_the_folder_tells_what_was_trained_and_how_it_went(finished):
    folder = finished[0].folder
    config, summary = (json.loads((folder / name).read_text()) for name in ("config.json", "summary.json"))
    assert config["agent"] == "dqn"
    assert config["options"]["hidden"] == 4
    assert (config["task"], config["seeds"], config["steps"]) == ("cartpole", [4, 2], 250)
    assert {"agent", "task", "seeds", "steps", "steps_per_second"} < set(summary)
    assert summary["seeds"] == [4, 2]
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[:2] == ["seed", "step"]
    assert {"td_loss", "epsilon", "value"} < set(header)
    assert (folder / "curves.png").stat().st_size > 10_000


def test_a_loaded_agent_acts_greedily_as_the_one_that_was_trained(finished):
    result, _ = finished
    seen = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    for seed in (4, 2):
        policy = load(result.folder, seed)
        actions = policy.act(seen)
        q = np.asarray(jax.vmap(policy.state.q)(seen))
        np.testing.assert_array_equal(actions, q.argmax(axis=1))
        np.testing.assert_array_equal(actions, result.policies[seed].act(seen))
        assert policy.act(seen[0]) == actions[0]
    assert list(load_all(result.folder)) == [4, 2]
    same(load(result.folder).state, load(result.folder, 4).state)
    assert "has no seed 7: it was trained with 4, 2" in complaint(load, result.folder, 7)
    assert "(3,)" in complaint(load(result.folder).act, np.zeros(3))


def test_a_finished_training_is_resumed_without_a_step_more(finished):
    result, _ = finished
    before = checkpoint(result.folder)
    again = resume(result.folder)
    same(before[:2], checkpoint(result.folder)[:2])
    np.testing.assert_array_equal(again.curves[4][1], result.curves[4][1])


def test_a_folder_that_holds_a_run_is_refused(finished):
    result, _ = finished
    before = {path.name: path.read_bytes() for path in result.folder.iterdir() if path.is_file()}
    assert "already holds a run" in complaint(train, TINY, "cartpole", 1, 50, out=result.folder)
    assert {path.name: path.read_bytes() for path in result.folder.iterdir() if path.is_file()} == before


def test_the_score_is_the_mean_of_the_last_ten_unnoised_returns():
    scores = training.Scores(2, 100, 5, ["loss"])
    assert np.isnan(scores.now()).all()
    returns = np.full((7, 2, 2), np.nan)
    returns[[0, 2], 0, [0, 1]] = 4.0, 8.0
    scores.add(returns)
    assert scores.now()[0] == 6.0
    assert np.isnan(scores.now()[1])
    returns = np.arange(24.0).reshape(12, 1, 2).repeat(2, axis=1)
    scores.add(returns)
    assert scores.now().tolist() == [18.5, 18.5]  # of 14 to 23
    scores.mark({"loss": np.array([1.0, 2.0])})
    assert scores.steps(3).tolist() == [15]
    assert scores.curve[0].tolist() == [18.5, 18.5]


def test_an_own_task_must_be_given_again(tmp_path):
    train(Random(), tape(), 1, 20, out=tmp_path / "run")
    assert "task=" in complaint(resume, tmp_path / "run")
    assert f"engram.evaluate({str(tmp_path / 'run')!r}, task=...)" in complaint(engram.evaluate, tmp_path / "run")
    returns = engram.evaluate(tmp_path / "run", task=tape(rewards=(1.0, 2.0, 4.0)), episodes=3)
    assert {seed: list(values) for seed, values in returns.items()} == {0: [7.0, 7.0, 7.0]}
    assert load(tmp_path / "run").act(np.zeros(2)) in (0, 1)


def test_an_own_task_may_be_called_like_one_of_ours(tmp_path):
    def cartpole(render_mode=None):
        return tape(rewards=(1.0, 2.0, 4.0))()

    train(Random(), cartpole, 1, 20, out=tmp_path / "run")
    assert "an environment of your own" in complaint(engram.evaluate, tmp_path / "run")
    assert engram.evaluate(tmp_path / "run", task=cartpole, episodes=2)[0].tolist() == [7.0, 7.0]
    train(Random(), "cartpole", 1, 20, out=tmp_path / "ours")
    assert engram.evaluate(tmp_path / "ours", episodes=1)[0][0] > 7.0


def test_who_plays_at_random_plays_alike_by_a_seed(tmp_path):
    policy, task = train(Random(), "cartpole", 1, 20).policies[0], find("cartpole")
    returns = [play(policy, task, 12, seed).tolist() for seed in (1, 1, 2)]
    assert returns[0] == returns[1] != returns[2]


# What goes wrong


@pytest.mark.parametrize("kind", [ModuleNotFoundError, OverflowError])
def test_what_a_watch_raises_is_not_hidden(tmp_path, kind):
    def watch(progress):
        raise kind("what a watch said")

    with pytest.raises(kind, match="what a watch said"):
        train(Random(), tape(), 1, 20, out=tmp_path / "run", watch=watch)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    train(Random(), tape(), 1, 20, out=tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").mkdir()
    assert "Nothing can be written into" in complaint(resume, tmp_path / "run", tape())


def test_a_run_that_was_killed_before_it_had_saved_anything_begins_when_resumed(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop.Host, "start", lambda driver: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(TINY, tape(), [3], 40, out=tmp_path / "run")
    assert f"has no checkpoint yet: let `engram.resume({str(tmp_path / 'run')!r}, task=...)` train it." in complaint(load, tmp_path / "run")
    begun, whole = resume(tmp_path / "run", tape()), train(TINY, tape(), [3], 40)
    np.testing.assert_array_equal(begun.curves[3][1], whole.curves[3][1])
    assert begun.metrics == whole.metrics


def test_a_run_that_has_lost_its_checkpoint_is_not_begun_anew(tmp_path):
    train(TINY, "cartpole", [3], 40, out=tmp_path / "run")
    RunFolder.load(tmp_path / "run").checkpoint.unlink()
    curves = (tmp_path / "run" / "curves.csv").read_bytes()
    assert "has lost its checkpoint: restore it from a copy, or train anew into another folder" in complaint(resume, tmp_path / "run")
    assert (tmp_path / "run" / "curves.csv").read_bytes() == curves


@pytest.mark.parametrize("wrong", [(np.zeros(2), {}), None, "x", ["0.5", "1"], {"seen": 1.0}, [10**400, 1]])
def test_what_is_no_observation_is_told(wrong):
    for task in (tape(), counted(gym.spaces.Discrete(5), gym.spaces.Discrete(3))):
        policy = train(Random(), task, 1, 20).policies[0]
        assert "the first thing that reset() or step() returns" in complaint(policy.act, wrong)


def test_observations_of_another_number_of_parts_are_told():
    policy = train(Random(), counted(gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Discrete(3)), 1, 20).policies[0]
    assert "must have shape (2,), or (n, *that) for several, not (3,)" in complaint(policy.act, np.array([1, 2, 1]))
    assert "must be of whole numbers from 0 to 2 and 0 to 3, not [1 4]" in complaint(policy.act, np.array([1, 4]))


def test_memory_that_does_not_suffice_is_told(monkeypatch):
    told = "The device's memory does not suffice: lower seeds, batch, replay or whatever option is very large."
    assert "too large a number to count with" in complaint(train, replace(TINY, hidden=10**11), tape(), 1, 20)

    def fail(error):
        monkeypatch.setattr(loop.Host, "advance", lambda *_: (_ for _ in ()).throw(jax.errors.JaxRuntimeError(error)))

    fail("INTERNAL: Error dispatching computation: Out of memory allocating 96000000644 bytes.")
    assert complaint(train, TINY, tape(), 1, 20) == told
    fail("INTERNAL: something else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        train(TINY, tape(), 1, 20)


def test_a_run_without_end_is_refused():
    assert "2**31 - 1 steps at most, not 2,147,483,648" in complaint(train, TINY, tape(), 1, 2**31)


def finite(tree):
    return all(np.isfinite(x).all() for x in arrays(tree) if x.dtype.kind == "f")


def test_a_loss_that_is_no_number_stops_with_a_clean_checkpoint(tmp_path):
    """Rewards that overflow after a while: what was saved before is whole."""
    rewards = tuple([1.0] * 40 + [1e38] * 9)
    agent = replace(TINY, learn_start=4)
    sentence = complaint(train, agent, tape(rewards=rewards), [6, 7], 200, out=tmp_path / "run")
    assert " was no finite number within the steps up to " in sentence
    assert f"The checkpoint in {tmp_path / 'run'} is from before that" in sentence
    tree, _, meta = checkpoint(tmp_path / "run", tape())
    assert 0 < meta["step"] < 60
    assert finite(tree[0].agent)
    assert load(tmp_path / "run", 7).act(np.zeros(2)) in (0, 1)


def test_a_learning_rate_too_high_is_told(tmp_path):
    sentence = complaint(train, replace(TINY, learning_rate=1e30), "cartpole", [6], 200, out=tmp_path / "run")
    assert " of seed 6 was no finite number within the steps up to " in sentence
    assert "lower the learning rates" in sentence
    assert finite(checkpoint(tmp_path / "run")[0][0].agent)


def test_an_interruption_after_a_loss_that_is_no_number_does_not_save_it(tmp_path):
    opened = []

    def watch(progress):
        opened.append(progress.step)

    agent = replace(TINY, learning_rate=1e30)
    complaint(train, agent, "cartpole", [6], 100, out=tmp_path / "run", watch=watch)
    assert RunFolder.load(tmp_path / "run").meta()["step"] <= opened[-1]


@pytest.mark.parametrize("seeds", [0, -1, True, [], [1, 1], [-1], [2**32], [1.5], ["x"], "abc", None, 2.0])
def test_seeds_that_are_none_are_refused(seeds):
    assert "seeds must be" in complaint(train, Random(), "cartpole", seeds, 10)


def test_seeds_may_be_counted_or_listed_by_numpy():
    assert training._numbers(3) == (0, 1, 2)
    assert training._numbers(np.int64(2)) == (0, 1)
    assert training._numbers(np.arange(4, 6)) == (4, 5)
    assert training._numbers(range(2)) == (0, 1)


@pytest.mark.parametrize(("option", "value"), [("steps", 0), ("steps", -5), ("steps", 1.5), ("envs", 0), ("envs", 2.5)])
def test_counts_that_are_none_are_refused(option, value):
    assert option in complaint(train, Random(), "cartpole", 1, **({"steps": 10} | {option: value}))


def test_what_cannot_be_trained_is_refused_before_a_folder_is_made(tmp_path):
    assert "There is no task" in complaint(train, Random(), "cartpol", 1, 10, out=tmp_path / "run")
    broken = tape(breaks={1: ValueError("no")})
    assert "ValueError" in complaint(train, Random(), broken, 1, 10, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_environments_share_the_steps():
    result = train(Random(), "cartpole", [0], 101, envs=4)
    assert result.curves[0][0][-1] == 104  # the whole rounds that hold 101
    assert result.folder is None
    assert isinstance(result.policies[0], engram.Policy)
    assert isinstance(find("cartpole"), Task)


# What users meet


def counted(space, actions):
    class Counted(gym.Env):
        observation_space, action_space = space, actions

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.t = 0
            return self.observation_space.sample(), {}

        def step(self, action):
            assert self.action_space.contains(action)
            self.t += 1
            return self.observation_space.sample(), 1.0, self.t >= 5, False, {}

    return Counted


def test_a_policy_speaks_as_the_environment_counts():
    make = counted(gym.spaces.Discrete(5, start=10), gym.spaces.Discrete(3, start=7))
    policy = train(Random(), make, 1, 20).policies[0]
    assert policy.act(14) in (7, 8, 9)
    actions = policy.act(np.arange(10, 15))  # as many as there are numbers: still a batch
    assert actions.shape == (5,)
    assert set(actions) <= {7, 8, 9}
    for wrong in (9, 15, 12.5):
        with pytest.raises(EngramError, match="whole numbers from 10 to 14"):
            policy.act(wrong)


def test_a_policy_takes_several_numbers_at_once():
    make = counted(gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Discrete(2))
    policy = train(Random(), make, 1, 20).policies[0]
    assert policy.act(np.array([2, 3])) in (0, 1)
    assert policy.act(np.array([[2, 3], [0, 0]])).shape == (2,)


def test_a_policy_takes_dictionaries_as_they_are(tmp_path):
    space = gym.spaces.Dict({"where": gym.spaces.Box(-1, 1, (2,)), "door": gym.spaces.Discrete(3)})
    learnt = train(TINY, counted(space, gym.spaces.Discrete(2)), 1, 60, out=tmp_path / "run").policies[0]
    policy = load(tmp_path / "run")
    assert policy.spec == learnt.spec
    seen = {"where": np.array([0.5, -0.5]), "door": 2}
    assert policy.act(seen) == learnt.act(seen) == policy.choose(np.array([[0, 0, 1, 0.5, -0.5]]))[0]
    assert policy.act({"where": np.zeros((4, 2)), "door": np.arange(4) % 3}).shape == (4,)
    for wrong in ({"where": np.zeros(2)}, np.zeros(5), [seen, seen], (seen,)):
        assert "An observation['door'] must be there: give the first thing" in complaint(policy.act, wrong)
    assert "observation['door'] must be of whole numbers from 0 to 2, not [3]." in complaint(policy.act, seen | {"door": 3})
    assert "observation['where'] must be of numbers" in complaint(policy.act, seen | {"where": None})
    assert "of one environment, or of as many" in complaint(policy.act, seen | {"door": np.arange(3)})
    assert "observation['where'] must have shape (2,), or (n, *that) for several, not (3,)" in complaint(
        policy.act, seen | {"where": np.zeros(3)}
    )
    assert len(engram.evaluate(tmp_path / "run", task=counted(space, gym.spaces.Discrete(2)), episodes=3)[0]) == 3
    resume(tmp_path / "run", task=counted(space, gym.spaces.Discrete(2)))
    other = gym.spaces.Dict({"where": gym.spaces.Box(-1, 1, (2,)), "gate": gym.spaces.Discrete(3)})
    with pytest.raises(EngramError, match=r"whose parts was .*'door'.*, but Counted's is .*'gate'"):
        resume(tmp_path / "run", task=counted(other, gym.spaces.Discrete(2)))


def test_an_environment_that_somebody_has_flattened_stays_as_it_is(tmp_path):
    space = gym.spaces.Dict({"where": gym.spaces.Box(-1, 1, (2,)), "door": gym.spaces.Discrete(3)})

    def flat():
        return gym.wrappers.FlattenObservation(counted(space, gym.spaces.Discrete(2))())

    train(Random(), flat, 1, 20, out=tmp_path / "run")
    assert load(tmp_path / "run").act(np.array([0, 0, 1, 0.5, -0.5])) in (0, 1)
    resume(tmp_path / "run", task=flat)


@pytest.mark.parametrize(
    ("space", "seen", "before"),
    [
        (gym.spaces.Discrete(5, start=10), 14, {"counts": [5], "starts": [10]}),
        (gym.spaces.MultiDiscrete([3, 4]), np.array([2, 3]), {"counts": [3, 4], "starts": [0, 0]}),
        (gym.spaces.Box(-1, 1, (2,)), np.zeros(2), {"counts": [], "starts": []}),
    ],
)
def test_a_run_from_before_observations_had_parts_goes_on(tmp_path, space, seen, before):
    make = counted(space, gym.spaces.Discrete(2))
    train(Random(), make, 1, 20, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["spec"]["parts"]
    config["spec"] |= before
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert load(tmp_path / "run").act(seen) in (0, 1)
    resume(tmp_path / "run", task=make)


def test_a_policy_takes_numbers_of_any_shape():
    for space, seen in [
        (gym.spaces.MultiDiscrete([5]), np.array([4])),
        (gym.spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2], [3, 4]])),
        (gym.spaces.MultiBinary((2, 3)), np.ones((2, 3), np.int8)),
        (gym.spaces.Discrete(2), True),
    ]:
        policy = train(Random(), counted(space, gym.spaces.Discrete(2)), 1, 20).policies[0]
        assert policy.act(seen) in (0, 1)
        assert policy.act(np.stack([seen] * 3)).shape == (3,)


def test_a_run_is_not_resumed_on_another_environment(tmp_path):
    train(Random(), counted(gym.spaces.Discrete(5), gym.spaces.Discrete(3)), 1, 20, out=tmp_path / "run")
    with pytest.raises(EngramError, match="actions was 3, but Counted's is 4"):
        resume(tmp_path / "run", task=counted(gym.spaces.Discrete(5), gym.spaces.Discrete(4)))


def test_two_processes_do_not_train_into_one_folder(tmp_path):
    train(Random(), "cartpole", 1, 20, out=tmp_path / "run")
    with RunFolder.load(tmp_path / "run").alone(), pytest.raises(EngramError, match="Another process is training into"):
        resume(tmp_path / "run")


def test_runs_that_do_not_fit_say_so_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "memory_size", lambda: 25_000_000_000)
    with pytest.raises(EngramError, match=r"need 288\.\d GB .*lower seeds, replay"):
        train(MBECpp(slots=10**9), "cartpole", 4, 20, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_agent_may_be_named_but_not_be_a_class():
    assert train("random", "cartpole", 1, 20).agent == Random()
    with pytest.raises(EngramError, match=r"such as engram\.DQN\(\)"):
        train(DQN, "cartpole", 1, 20)


@pytest.mark.parametrize("lost", ["own_task", "seeds", "spec", "agent", "options"])
def test_a_config_that_lacks_something_is_named(tmp_path, lost):
    train(Random(), "cartpole", 1, 20, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config[lost]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngramError, match=f"config.json lacks or garbles '{lost}'"):
        resume(tmp_path / "run")
