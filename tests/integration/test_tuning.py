"""Studies: what their trials are, that they go on after any end, and the file of the best."""

import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from training_helpers import error_of

import engram
from engram import tuning
from engram.cli import main
from engram.cli.arguments import read_command
from engram.errors import EngramError, Interrupted
from engram.run_labels import read_runs
from engram.study import REPORTS

SPACE = ["learning_rate=1e-4..1e-2:log", "n_step=1,3,5"]
FAKE = """
import sys, time
from types import SimpleNamespace
from engram import tuning

def train(agent, task, seeds, **_):
    time.sleep(float(sys.argv[2]))
    return SimpleNamespace(stopped=None, summary={"auc": {"iqm": agent.learning_rate}})

tuning.train = train
show = lambda trial: print(trial.state, flush=True)
space = ["learning_rate=1e-4..1e-2:log"]
tuning.tune("dqn", "cartpole", sys.argv[1], space, trials=9, on_trial=show)
"""


@pytest.fixture
def fake_train(monkeypatch):
    """Trainings that end at once; a number after so many trials is their error."""
    calls, errors = [], {}

    def train(agent, task, seeds, **_):
        calls.append((agent.learning_rate, agent.n_step, tuple(seeds)))
        if error := errors.get(len(calls)):
            raise error
        value = agent.n_step - agent.learning_rate
        return SimpleNamespace(stopped=None, summary={"auc": {"iqm": value}})

    monkeypatch.setattr(tuning, "train", train)
    return SimpleNamespace(calls=calls, errors=errors)


def start(folder, seconds):
    """A process that works on a study of nine trials, each of so many seconds."""
    command = [sys.executable, "-c", FAKE, str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def reporting_to(pairs):
    """In place of a study, one that keeps what a trial reports."""
    return SimpleNamespace(report=lambda trial, value, number: pairs.append((number, value)))


def test_the_first_trial_has_the_own_options_and_the_best_are_kept(fake_train, tmp_path):
    agent = engram.make("dqn", learning_rate=2e-3)
    result = engram.tune(agent, "cartpole", tmp_path, SPACE, trials=12)
    assert fake_train.calls[0] == (2e-3, 1, (100, 101, 102, 103, 104))
    assert [trial.number for trial in result.trials] == list(range(12))
    assert all(1e-4 <= rate <= 1e-2 and n in (1, 3, 5) for rate, n, _ in fake_train.calls)
    best = max(result.trials, key=lambda trial: trial.value)
    assert result.best == best
    assert result.agent == engram.make("dqn", **best.options)
    assert json.loads(result.config.read_text())["options"]["n_step"] == result.agent.n_step
    assert result.importance.keys() == {"learning_rate", "n_step"}
    assert "no run folder" in error_of(read_runs, [tmp_path])  # `engram plot runs/*` has it too


def test_an_interrupted_study_goes_on_as_if_it_had_not_been(fake_train, tmp_path):
    whole = engram.tune("dqn", "cartpole", tmp_path / "whole", SPACE, trials=14)
    fake_train.calls.clear()
    fake_train.errors[5] = Interrupted("Ctrl-C.")
    out = tmp_path / "parts"
    sentence = error_of(engram.tune, "dqn", "cartpole", out, SPACE, trials=14, kind=Interrupted)
    assert "the trials before are saved" in sentence
    engram.tune("dqn", "cartpole", out, SPACE, trials=9)
    parts = engram.tune("dqn", "cartpole", out, SPACE, trials=14)
    assert [(x.options, x.value) for x in parts.trials] == [
        (x.options, x.value) for x in whole.trials
    ]
    assert fake_train.calls[4] == fake_train.calls[5]


def test_equal_options_are_trained_once(fake_train, tmp_path):
    result = engram.tune("dqn", "cartpole", tmp_path, ["n_step=1,3"], trials=6)
    assert [n for _, n, _ in fake_train.calls] in ([1, 3], [1])
    assert len(result.trials) == 6
    assert {(x.options["n_step"], x.value) for x in result.trials} == {
        (n, n - rate) for rate, n, _ in fake_train.calls
    }


def test_failures_are_kept_with_their_sentence_and_three_first_ones_end(fake_train, tmp_path):
    fake_train.errors |= {n: EngramError(f"Number {n} is wrong.") for n in (1, 2, 4, 5, 6, 7)}
    result = engram.tune("dqn", "cartpole", tmp_path / "mixed", SPACE, trials=8)
    assert [x.state for x in result.trials].count("failed") == 6
    assert result.trials[1].error == "Number 2 is wrong."
    fake_train.calls.clear()
    fake_train.errors[3] = EngramError("Number 3 is wrong.")
    sentence = error_of(engram.tune, "dqn", "cartpole", tmp_path / "all", SPACE, trials=8)
    assert sentence == "The first 3 trials failed. Number 3 is wrong."


def test_other_settings_are_refused_and_nothing_is_lost(fake_train, tmp_path):
    engram.tune("dqn", "cartpole", tmp_path, SPACE, trials=2)
    for changes, words in (
        ({"steps": 7}, "was begun with steps 10000, not 7"),
        ({"seeds": 3}, "seeds [100, 101, 102, 103, 104], not [100, 101, 102]"),
        ({"objective": "final"}, "objective 'auc', not 'final'"),
        ({"space": SPACE[:1]}, "with space"),
        ({"agent": engram.DQN(gamma=0.5)}, "gamma 0.99, not 0.5"),
    ):
        arguments = {"agent": "dqn", "task": "cartpole", "out": tmp_path, "space": SPACE} | changes
        assert words in error_of(engram.tune, **arguments)
    assert len(engram.tune("dqn", "cartpole", tmp_path, SPACE, trials=2).trials) == 2
    assert len(fake_train.calls) == 2
    (tmp_path / "study.db").write_text("not a database")
    assert "cannot be read" in error_of(engram.tune, "dqn", "cartpole", tmp_path, SPACE)


def test_a_trial_in_another_process_is_left_alone_until_that_is_killed(fake_train, tmp_path):
    other = start(tmp_path, 60)
    assert other.stdout.readline() == "running\n"
    space = ["learning_rate=1e-4..1e-2:log"]
    result = engram.tune("dqn", "cartpole", tmp_path, space, trials=9)
    assert [x.state for x in result.trials] == ["running"] + 8 * ["complete"]
    own = result.trials[0].options
    other.kill()
    other.communicate()
    result = engram.tune("dqn", "cartpole", tmp_path, space, trials=9)
    assert [(x.number, x.state) for x in result.trials] == [(n, "complete") for n in range(1, 10)]
    assert result.trials[-1].options == own  # tried again


@pytest.mark.slow  # three imports of JAX
def test_processes_share_the_trials_of_a_study(tmp_path):
    workers = [start(tmp_path, 0.1) for _ in range(3)]
    outputs = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], outputs
    assert sum(out.count("complete") for out, _ in outputs) == 9


def test_the_last_report_of_a_trial_is_its_value():
    reports = {"auc": [], "final": []}
    hooks = [tuning.Report(reporting_to(x), None, objective) for objective, x in reports.items()]
    result = engram.train(engram.make("dqn", "debug"), "cartpole", (3, 4, 5), 250, hooks=hooks)
    for objective, pairs in reports.items():
        assert pairs[-1] == (REPORTS, pytest.approx(result.summary[objective]["iqm"]))
        assert [number for number, _ in pairs] == list(range(REPORTS + 1))[-len(pairs) :]


def test_a_trial_worse_than_others_is_pruned(monkeypatch, tmp_path):
    returns = iter([10, 11, 12, 13, 14, 1])

    def train(agent, task, seeds, hooks, **_):
        value, stopped = next(returns), None
        for number in range(1, REPORTS + 1):
            if hooks[0].study.report(hooks[0].trial, value, number):
                stopped = f"at {number}"
                break
        return SimpleNamespace(stopped=stopped, summary={"auc": {"iqm": value}})

    monkeypatch.setattr(tuning, "train", train)
    result = engram.tune("dqn", "cartpole", tmp_path, SPACE, trials=6)
    assert [trial.state for trial in result.trials] == 5 * ["complete"] + ["pruned"]
    assert result.best.value == 14


def test_a_trial_that_began_well_and_fell_is_pruned_by_its_value_at_the_same_step(
    monkeypatch, tmp_path
):
    curves = iter([[5.0] * REPORTS] * 5 + [[9.0] * 3 + [1.0] * (REPORTS - 3)])

    def train(agent, task, seeds, hooks, **_):
        curve, stopped = next(curves), None
        for number, value in enumerate(curve, 1):
            if stopped is None and hooks[0].study.report(hooks[0].trial, value, number):
                stopped = f"at {number}"
        return SimpleNamespace(stopped=stopped, summary={"auc": {"iqm": curve[-1]}})

    monkeypatch.setattr(tuning, "train", train)
    result = engram.tune("dqn", "cartpole", tmp_path, SPACE, trials=6)
    assert [trial.state for trial in result.trials] == 5 * ["complete"] + ["pruned"]


def test_the_order_of_a_space_does_not_matter(fake_train, tmp_path):
    engram.tune("dqn", "cartpole", tmp_path, ["gamma=0.9,0.8", "n_step=5,1,3"], trials=2)
    result = engram.tune("dqn", "cartpole", tmp_path, ["n_step=1,3,5", "gamma=0.8,0.9"], trials=3)
    assert len(result.trials) == 3


def test_a_run_and_a_study_do_not_share_a_folder(fake_train, tmp_path):
    run, study = tmp_path / "run", tmp_path / "study"
    engram.train("random", "cartpole", seeds=1, steps=20, out=run)
    engram.tune("dqn", "cartpole", study, SPACE, trials=1)
    assert "is a run folder" in error_of(engram.tune, "dqn", "cartpole", run, SPACE)
    with pytest.raises(EngramError, match="holds a study"):
        engram.train("random", "cartpole", seeds=1, steps=20, out=study)


def test_what_is_fixed_must_be_an_option(fake_train, tmp_path):
    error = error_of(engram.tune, "dqn", "cartpole", tmp_path / "study", fixed=["gama"])
    assert "no option 'gama'. Did you mean gamma" in error


def test_the_command_ends_with_a_file_that_trains_the_best(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = "cartpole --preset debug --steps 60 --trials 2 --seeds 2 --space learning_rate"
    main(["tune", "dqn", *words.split(), "--gamma=0.9"])
    printed = capsys.readouterr().out
    line = "engram train --config runs/tune-dqn-cartpole/best.json"
    assert printed.splitlines()[-1].endswith(line)
    assert "2 complete" in printed
    command = read_command(line.split()[1:])
    best = json.loads((tmp_path / "runs" / "tune-dqn-cartpole" / "best.json").read_text())
    assert dataclasses.asdict(command.options) == best["options"]
    assert (command.options.gamma, command.options.hidden_size) == (0.9, 16)
    assert (command.seeds, command.steps) == ("10", 60)  # not those of tuning, which begin with 100


def test_optuna_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    sentence = error_of(engram.tune, "dqn", "cartpole", tmp_path / "study")
    assert "pip install 'engram-rl[tune]'" in sentence
    assert not (tmp_path / "study").exists()
