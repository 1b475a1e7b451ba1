"""Hooks follow a training, stop it cleanly, and are saved and resumed with it."""

import json

import numpy as np
import pytest

import engram
from engram import training_loop
from engram.agents import Random, make
from engram.best_policy import BestPolicy
from engram.cli.arguments import read_command
from engram.envs import get_task
from engram.episode_stats import EpisodeStats
from engram.errors import EngramError, EngramWarning
from engram.training_loop import Logger, Training


class Recorder(engram.Hook):
    """Records the calls that it gets, and counts log points in its state."""

    def __init__(self, stop_at=None):
        self.calls, self.stop_at, self.count = [], stop_at, np.zeros((), int)

    def on_start(self, run):
        self.calls.append("start")

    def on_log(self, run, progress):
        self.calls.append(progress)
        self.count = self.count + 1
        if progress.step == self.stop_at:
            run.stop("enough")

    def on_checkpoint(self, run):
        self.calls.append("checkpoint")

    def on_end(self, run):
        self.calls.append("end")

    def state(self):
        return self.count

    def restore(self, state):
        self.count = state


def test_hooks_are_called_at_start_log_points_checkpoints_and_end(tmp_path):
    hook = Recorder()
    result = engram.train(Random(), "cartpole", [4, 2], 200, out=tmp_path / "run", hooks=[hook])
    assert hook.calls[0] == "start"
    assert hook.calls[2] == "checkpoint"  # after the first log point
    assert hook.calls[-2:] == ["checkpoint", "end"]
    progress = [call for call in hook.calls if isinstance(call, engram.Progress)]
    assert [p.step for p in progress] == result.curves[4][0].tolist()
    last = progress[-1]
    final = [result.curves[seed][1][-1] for seed in (4, 2)]
    assert last.returns == dict(zip((4, 2), final, strict=True))
    assert last.mean_return == pytest.approx(np.mean(final))
    assert last.curve[-1] == last.mean_return
    assert last.steps == 200


def test_a_hook_stops_a_run_that_then_resumes_with_the_state_of_the_hook(tmp_path):
    agent, out = make("dqn", "debug"), tmp_path / "stopped"
    whole = engram.train(agent, "cartpole", [0], 150, out=tmp_path / "whole")
    part = engram.train(agent, "cartpole", [0], 150, out=out, hooks=[Recorder(stop_at=60)])
    assert part.stopped == "enough"
    assert part.curves[0][0][-1] == 60
    assert (out / "curves.png").exists()
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["stopped"], summary["stopped_at_step"]) == ("enough", 60)
    hook = Recorder()
    resumed = engram.resume(out, hooks=[hook])
    assert hook.count == 150
    assert resumed.stopped is None
    assert resumed.metrics == whole.metrics
    assert (out / "curves.csv").read_bytes() == (tmp_path / "whole" / "curves.csv").read_bytes()


def test_a_run_resumes_with_other_hooks_than_before(tmp_path):
    out = tmp_path / "run"
    engram.train(Random(), "cartpole", [0], 150, out=out, hooks=[Recorder(stop_at=30)])
    assert engram.load(out).act(np.zeros(4)) in (0, 1)
    engram.resume(out, hooks=[engram.TimeBudget(0)])
    assert engram.resume(out, hooks=[hook := Recorder()]).curves[0][0][-1] == 150
    assert hook.count < 120  # it began anew, since the run was saved without it in between


def test_two_hooks_of_one_class_keep_their_states_apart(tmp_path):
    hooks = [Recorder(stop_at=30), Recorder()]
    hooks[1].count += 1_000
    engram.train(Random(), "cartpole", [0], 60, out=tmp_path / "run", hooks=hooks)
    hooks = [Recorder(), Recorder()]
    engram.resume(tmp_path / "run", hooks=hooks)
    assert [int(hook.count) for hook in hooks] == [60, 1_060]


def test_two_classes_of_one_name_are_both_called_and_end_in_order():
    ends = []

    def make_hook(number):
        class Named(engram.Hook):
            def on_end(self, run):
                ends.append(number)

        return Named()

    engram.train(Random(), "cartpole", 1, 20, hooks=[make_hook(1), make_hook(2)])
    assert ends == [1, 2]


def test_a_progress_bar_needs_no_title(capsys):
    engram.train(Random(), "cartpole", 2, 20, hooks=engram.ProgressBar())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "random on cartpole, 2 seeds"
    assert "20/20 steps" in lines[-1]


def test_a_time_budget_stops_a_run_at_its_next_log_point(tmp_path):
    result = engram.train(Random(), "cartpole", [0], 200, hooks=[engram.TimeBudget(0)])
    assert result.stopped == "the time budget of 0 minutes is over"
    assert result.curves[0][0].tolist() == [2]
    with pytest.raises(EngramError, match="minutes must be"):
        engram.TimeBudget(-1)


def test_an_error_of_a_hook_is_not_hidden_and_hooks_still_end():
    class Broken(engram.Hook):
        def on_log(self, run, progress):
            raise OverflowError("from a hook")

    recorder = Recorder()
    with pytest.raises(OverflowError, match="from a hook"):
        engram.train(Random(), "cartpole", 1, 20, hooks=[recorder, Broken()])
    assert recorder.calls[-1] == "end"


def test_checkpoints_are_as_often_as_is_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop, "CHECKPOINT_RATIO", 0)
    rare, often = Recorder(), Recorder(stop_at=10)
    engram.train(Random(), "cartpole", 1, 20, out=tmp_path / "rare", hooks=[rare])
    assert rare.calls.count("checkpoint") == 2  # at the first log point, and in the end
    arguments = Random(), "cartpole", 1, 20
    engram.train(*arguments, out=tmp_path / "often", hooks=[often], checkpoint_every=0)
    assert often.calls.count("checkpoint") == 10
    often.stop_at = None
    engram.resume(tmp_path / "often", hooks=[often], checkpoint_every=0)
    assert often.calls.count("checkpoint") == 20
    with pytest.raises(EngramError, match="checkpoint_every must be at least 0, but is -1"):
        engram.train(*arguments, checkpoint_every=-1)


def test_the_command_line_has_the_time_between_checkpoints():
    words = ["train", "random", "cartpole", "--checkpoint-every", "5"]
    assert read_command(words).checkpoint_every == 5.0
    words = ["resume", "runs/mine", "--checkpoint-every=1e3"]
    assert read_command(words).checkpoint_every == 1_000.0


@pytest.mark.parametrize("method", ["on_start", "on_log", "on_checkpoint", "on_end"])
@pytest.mark.parametrize("error", [BrokenPipeError("closed"), SystemExit(1)], ids=repr)
def test_a_logger_that_fails_is_left_out_and_the_run_goes_on(tmp_path, method, error):
    recorder = Recorder()

    class Failing(Logger):
        def __init__(self):
            setattr(self, method, self.fail)

        def fail(self, *_):
            recorder.calls.append("failure")
            raise error

    with pytest.warns(EngramWarning, match=r"Failing failed .* the training goes on\.") as caught:
        engram.train(Random(), "cartpole", 1, 20, out=tmp_path / "r", hooks=[Failing(), recorder])
    assert len(caught) == 1
    assert recorder.calls.count("failure") == 1
    assert (tmp_path / "r" / "summary.json").exists()


def test_an_object_that_is_not_a_hook_is_refused():
    with pytest.raises(EngramError, match=r"is not a hook: derive its class from engram\.Hook"):
        engram.train(Random(), "cartpole", 1, 20, hooks=[print])


def test_the_best_policy_is_selected_for_atari_only():
    with pytest.raises(EngramError, match="Atari games only"):
        engram.train(Random(), "cartpole", 1, 20, hooks=[BestPolicy()])


def test_runs_of_one_training_may_differ_in_task_and_options():
    tasks = [get_task(name, 40) for name in ("cartpole", "cartpole-gaussian")]
    spec, agent = tasks[0].spec(1, 40), make("dqn", "debug")
    options = {"learning_rate": [1e-3, 1e-2]}
    together = Training(agent, tasks, [5, 5], spec, options=options)
    together.run()
    alone = Training(agent, tasks[:1], [5], spec, options={"learning_rate": [1e-3]})
    alone.run()
    assert together.is_finished
    np.testing.assert_allclose(together.stats.returns[:, 0], alone.stats.returns[:, 0])
    assert not np.array_equal(together.stats.metrics[-1, 0], together.stats.metrics[-1, 1])


def test_a_point_of_the_curve_is_the_mean_return_of_the_last_ten_episodes():
    stats = EpisodeStats(2, 100, 5, ["loss"], num_envs=2)
    assert np.isnan(stats.mean_returns()).all()
    returns = np.full((7, 2, 2), np.nan)
    returns[[0, 2], 0, [0, 1]] = 4.0, 8.0
    stats.add(returns)
    assert stats.mean_returns()[0] == 6.0
    assert np.isnan(stats.mean_returns()[1])
    stats.add(np.arange(24.0).reshape(12, 1, 2).repeat(2, axis=1))
    assert stats.mean_returns().tolist() == [18.5, 18.5]  # of 14 to 23
    stats.log_point({"loss": np.array([1.0, 2.0])})
    assert stats.steps(3).tolist() == [15]
    assert stats.returns[0].tolist() == [18.5, 18.5]
    row = {"seed": 8, "step": 15, "completed_episodes": 24, "loss": 2.0}
    assert stats.metric_rows([7, 8], 3)[1] == row
