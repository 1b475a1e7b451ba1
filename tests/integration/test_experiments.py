"""Experiments: runs share programs, results are never trained twice, and quick versions work."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from engram.agents import make
from engram.cli import main
from engram.errors import EngramError
from engram.paper import jobs, noisy_control, runs
from engram.paper.experiment import Claim, Experiment
from engram.paper.experiments import EXPERIMENTS
from engram.paper.runs import Run
from engram.paper.verdicts import MISSING, UNDECIDED, compare

ROOT = Path(__file__).parent.parent.parent
SMALL = make("dqn", "debug")


def small_run(label="small", agent=SMALL, task="cartpole", **options):
    return Run(label, agent, task, "folder", **{"steps": 120, "seeds": 2} | options)


def test_runs_share_a_program_unless_their_shapes_differ():
    run, noisy = small_run(), small_run("noisy", task="cartpole-gaussian")
    faster = small_run("faster", replace(SMALL, learning_rate=0.1, gamma=0.5))
    assert runs.group_by_program([run, faster, noisy]) == [[run, faster, noisy]]
    others = [
        small_run("batch", replace(SMALL, batch_size=9)),
        small_run("car", task="mountaincar"),
        small_run("long", steps=121),
    ]
    assert len(runs.group_by_program([run, *others])) == 4


def test_each_gymnasium_task_has_its_own_program():
    landers = [small_run(task=f"lunarlander-{noise}") for noise in ("gaussian", "bernoulli")]
    assert runs.group_by_program(landers) == [[lander] for lander in landers]


def test_fixed_weights_share_a_program_but_a_learned_one_does_not():
    fixed = [small_run(f"{b}", make("mbec++", "debug", fixed_beta=b)) for b in (0.0, 0.5)]
    learned = small_run("dynamic", make("mbec++", "debug"))
    assert runs.group_by_program([*fixed, learned]) == [fixed, [learned]]


def test_differing_options_are_given_per_seed():
    agent, options = runs.common([SMALL, replace(SMALL, gamma=0.5)], [2, 1])
    assert agent == SMALL
    assert options == {"gamma": [0.99, 0.99, 0.5]}
    assert runs.common([SMALL, SMALL], [2, 1]) == (SMALL, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs in one program, and the second of them alone."""
    together, alone = tmp_path_factory.mktemp("together"), tmp_path_factory.mktemp("alone")
    discounted = replace(SMALL, gamma=0.5)
    pair = [small_run(), small_run("discounted", discounted, task="cartpole-gaussian")]
    runs.train_group(pair, together, together / "scratch", np.inf)
    runs.train_group(pair[1:], alone, alone / "scratch", np.inf)
    return pair, together, alone


def test_run_among_others_equals_the_run_alone(trained):
    (first, second), together, alone = trained
    result, same = runs.load(second, together), runs.load(second, alone)
    assert result.summary["final"] == same.summary["final"]
    np.testing.assert_array_equal(result.curves[1], same.curves[1])
    assert result.summary["options"] == asdict(second.agent)
    assert result.summary["task"] == "cartpole-gaussian"
    assert result.summary["runs_in_one_program"] == 4
    assert runs.load(first, alone) is None
    keys = {("cartpole", "small"), ("cartpole-gaussian", "discounted")}
    assert set(runs.load_all(trained[0], together)) == keys


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": replace(SMALL, learning_rate=0.1)}, "learning_rate 0.0005"),
        ({"seeds": 3}, r"dqn cartpole 120 \[0, 1\]"),
        ({"seeds": (0, 2)}, r"dqn cartpole 120 \[0, 1\]"),
        ({"agent": make("random")}, "dqn cartpole 120"),
    ],
)
def test_result_of_another_run_is_refused(trained, changes, message):
    with pytest.raises(EngramError, match=message):
        runs.load(small_run(**changes), trained[1])


def test_option_missing_in_a_file_has_its_default(trained):
    (first, _), together, _ = trained
    file = first.file(together)
    text = file.read_text()
    stored = json.loads(text)
    del stored["options"]["gamma"]
    file.write_text(json.dumps(stored))
    assert runs.load(first, together) is not None
    with pytest.raises(EngramError, match=r"gamma 0\.99"):
        runs.load(small_run(agent=replace(SMALL, gamma=0.5)), together)
    file.write_text(text[:50])
    with pytest.raises(EngramError, match="cannot be read"):
        runs.load(first, together)
    file.write_text(text)


def test_complete_experiment_has_verdicts_and_is_not_trained_again(trained, tmp_path):
    pair, together, _ = trained

    def above(results):
        return [compare("", results.per_seed("cartpole", "small"), [-1.0, -1.0])]

    claim = Claim(1, "The area is above -1.", above, "area minus -1")
    experiment = Experiment("some", "nowhere", (claim,), tuple(pair))
    assert experiment.verdicts(tmp_path)[claim].verdict == MISSING
    assert len(experiment.missing(tmp_path)) == 2
    assert not experiment.missing(together)
    files = {file: file.stat().st_mtime_ns for file in together.rglob("*.json")}
    experiment.run(together, together / "scratch", np.inf, False, pytest.fail)
    assert {file: file.stat().st_mtime_ns for file in together.rglob("*.json")} == files
    # Two seeds, both above -1: one sign flip of four has a mean as large.
    assert experiment.verdicts(together)[claim].verdict == UNDECIDED


def test_without_time_nothing_starts(tmp_path):
    experiment = Experiment("some", "nowhere", runs=(small_run(),))
    with pytest.raises(EngramError, match="No time is left"):
        experiment.run(tmp_path, tmp_path / "scratch", -1.0, False, print)


@pytest.mark.parametrize("name", ["clean-control", pytest.param("theory", marks=pytest.mark.slow)])
def test_quick_version_runs_once(name, tmp_path, monkeypatch, capsys):
    """One experiment with runs and one with a computation; others differ in declarations only."""
    monkeypatch.chdir(tmp_path)
    main(["reproduce", name, "--quick"])
    results = tmp_path / "runs" / "quick"
    assert EXPERIMENTS[name].quick().is_done(results)
    assert (results / "report" / f"{name}.png").stat().st_size > 5_000
    capsys.readouterr()
    main(["reproduce", name, "--quick"])
    output = capsys.readouterr().out
    assert "done in" not in output
    assert "computed in" not in output


def test_missing_parts_are_listed_once_and_most_expensive_first(tmp_path):
    noisy, contributions = EXPERIMENTS["noisy-control"], EXPERIMENTS["contributions"]
    parts = jobs.missing([noisy, contributions, EXPERIMENTS["parameters"]], tmp_path)
    files = [run.file(tmp_path) for part in parts for run in part.runs]
    # The runs of the contributions are among those of the noisy tasks.
    assert len(files) == len(set(files)) == len(noisy_control.NOISY_CONTROL.runs)
    families = {run.task.partition("-")[0] for part in parts[:7] for run in part.runs}
    assert families == {"lunarlander"}
    assert [part.experiment for part in parts if not part.runs] == ["parameters"]
    assert len(jobs.missing([contributions], ROOT / "results")) == 0


def test_failing_part_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = []
    parts = [jobs.Part("parameters", 7, ()), jobs.Part("parameters", 0, ())]
    until = time.monotonic() + 600
    with pytest.raises(EngramError, match="1 of 2 parts are not done: repeat the command"):
        jobs.run(parts, 2, ["--quick"], tmp_path / "scratch", until, lines.append)
    error = "parameters has no part 7: name one of 0 to 0."
    assert any("part 7" in line and error in line for line in lines)
    assert EXPERIMENTS["parameters"].quick().is_done(tmp_path / "runs" / "quick")
    main(["reproduce", "parameters", "--quick", "--jobs", "2"])
    assert "0 of 0 parts" in capsys.readouterr().out


CHILDREN = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


@pytest.mark.skipif(not CHILDREN.exists(), reason="child processes cannot be listed here")
def test_terminated_parent_ends_its_parts(tmp_path):
    command = [sys.executable, "-m", "engram.cli", "reproduce", "consolidation", "--jobs", "2"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    parent = subprocess.Popen(command, cwd=tmp_path, **quiet)
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    children, until = [], time.monotonic() + 60
    while len(children) < 1 and time.monotonic() < until:
        children = listed.read_text().split()
        time.sleep(0.1)
    parent.terminate()
    assert parent.wait(60) == 130
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_list_names_every_experiment_and_claim(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(["reproduce"])
    listed = " ".join(capsys.readouterr().out.split())
    for name, experiment in EXPERIMENTS.items():
        assert name in listed
        for claim in experiment.claims:
            assert claim.text.split()[0] in listed
