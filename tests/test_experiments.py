"""Experiments: lines share programs, what is there is not trained again, verdicts follow from numbers, and every quick version runs."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.agents import make
from engram.cli import main
from engram.errors import EngramError
from engram.experiments import apart, catalogue, classic, control, lines, reporting, research, verdicts
from engram.experiments.experiment import Claim, Experiment
from engram.experiments.lines import Line
from engram.experiments.verdicts import FAILS, HOLDS, MISSING, UNDECIDED, compare, holm, verdict

ROOT = Path(__file__).parent.parent
SMALL = make("dqn", "debug")


def line(label="small", agent=SMALL, task="cartpole", **more):
    return Line(label, agent, task, "lines", **{"steps": 120, "seeds": 2} | more)


# Lines


def test_lines_share_a_program_unless_their_shapes_differ():
    faster, wider = replace(SMALL, learning_rate=0.1, gamma=0.5), replace(SMALL, hidden=17)
    noisy = line("noisy", task="cartpole-gaussian")
    assert lines.groups([line(), line("faster", faster), noisy]) == [[line(), line("faster", faster), noisy]]
    assert len(lines.groups([line(), line("wider", wider), line("car", task="mountaincar"), line("long", steps=121)])) == 4
    landers = [line(task=f"lunarlander-{noise}") for noise in ("gaussian", "bernoulli")]
    assert lines.groups(landers) == [[lander] for lander in landers]  # Gymnasium's environments: a processor for each task
    weights = [line(f"{beta}", make("mbec++", "debug", fixed_beta=beta)) for beta in (0.0, 0.5)]
    assert lines.groups([*weights, line("dynamic", make("mbec++", "debug"))]) == [weights, [line("dynamic", make("mbec++", "debug"))]]


def test_what_runs_differ_in_is_told_to_each_of_its_seeds():
    agent, options = lines.common([SMALL, replace(SMALL, gamma=0.5)], [2, 1])
    assert agent == SMALL
    assert options == {"gamma": [0.99, 0.99, 0.5]}
    assert lines.common([SMALL, SMALL], [2, 1]) == (SMALL, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two lines in one program, and the second of them alone."""
    together, alone = tmp_path_factory.mktemp("together"), tmp_path_factory.mktemp("alone")
    pair = [line(), line("discounted", replace(SMALL, gamma=0.5), task="cartpole-gaussian")]
    lines.train_group(pair, together, together / "scratch", np.inf)
    lines.train_group(pair[1:], alone, alone / "scratch", np.inf)
    return pair, together, alone


def test_a_line_among_others_comes_to_what_it_comes_to_alone(trained):
    (first, second), together, alone = trained
    found, same = lines.load(second, together), lines.load(second, alone)
    assert found.summary["final"] == same.summary["final"]
    np.testing.assert_array_equal(found.curves[1], same.curves[1])
    assert found.summary["options"] == asdict(second.agent)
    assert (found.summary["task"], found.summary["runs_in_one_program"]) == ("cartpole-gaussian", 4)
    assert lines.load(first, alone) is None
    assert set(lines.load_all(trained[0], together)) == {("cartpole", "small"), ("cartpole-gaussian", "discounted")}


def test_what_is_there_must_be_what_is_declared(trained):
    (first, _), together, _ = trained
    for other, words in (
        (line(agent=replace(SMALL, learning_rate=0.1)), "learning_rate 0.0005"),
        (line(seeds=3), r"dqn cartpole 120 \[0, 1\]"),
        (line(agent=make("random")), "dqn cartpole 120"),
    ):
        with pytest.raises(EngramError, match=words):
            lines.load(other, together)
    file = first.file(together)
    text = file.read_text()
    found = json.loads(text)
    del found["options"]["multi_step"]  # a file from before there was this option
    file.write_text(json.dumps(found))
    assert lines.load(first, together) is not None
    with pytest.raises(EngramError, match="multi_step 1"):
        lines.load(line(agent=replace(SMALL, multi_step=2)), together)
    file.write_text(text[:50])
    with pytest.raises(EngramError, match="cannot be read"):
        lines.load(first, together)
    file.write_text(text)


def test_all_that_is_published_is_what_is_declared():
    for experiment in catalogue.EXPERIMENTS.values():
        experiment.missing(ROOT / "results")  # raises if a file is of something else


# Verdicts


def test_a_comparison_by_hand():
    """Of eight sign flips of (1, 2, 4) only the one that changes nothing has so great a mean."""
    test = compare("a − b", [2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (test.middle, test.for_it, test.against) == (pytest.approx(7 / 3), pytest.approx(1 / 8), 1.0)
    assert test.low >= 1
    assert test.high <= 4
    assert compare("all alike", [1.0, 2.0], [1.0, 2.0])[-2:] == (1.0, 1.0)


def test_seeds_on_either_side_of_a_bar_are_counted():
    """Of ten seeds nine reach it: 1 + 10 of 1,024 ways to be as good by chance."""
    test = verdicts.against_bar("", [195.0] * 9 + [0.0], 195.0)
    assert (test.for_it, test.against) == (pytest.approx(11 / 1024), pytest.approx(1 - 1 / 1024))
    assert test.middle == pytest.approx(-19.5)
    below = verdicts.against_bar("", [195.0] * 9 + [0.0], 195.0, -1)
    assert (below.for_it, below.against) == (test.against, test.for_it)


def test_holm_by_hand():
    # sorted: 0.01 x 3, 0.02 x 2, and 0.03, which must not be smaller than the one before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@settings(max_examples=50)
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_what_its_steps_reject(values):
    """Down from the smallest: each is compared with alpha over the number of those left, until one fails."""
    rejected = set()
    for rank, i in enumerate(np.argsort(values, kind="stable")):
        if values[i] * (len(values) - rank) >= verdicts.ALPHA:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(values)) if p < verdicts.ALPHA} == rejected


def test_a_verdict_needs_all_to_hold_and_one_to_fail():
    seeds = np.arange(10.0)
    better, worse, alike = seeds + 1, seeds - 1, seeds + np.tile([1, -1], 5)
    known = {"up": compare("", better, seeds), "down": compare("", worse, seeds), "even": compare("", alike, seeds)}
    expected = {"up": HOLDS, "down": FAILS, "even": UNDECIDED}
    for a, b in product(known, known):
        both = FAILS if "down" in (a, b) else UNDECIDED if "even" in (a, b) else HOLDS
        assert verdict([known[a], known[b]]) == both
        assert verdict([known[a]]) == expected[a]
    assert verdict([]) == MISSING


def test_a_number_without_chance_holds_or_does_not():
    assert verdict([verdicts.exactly("", 43.0, 43.0)]) == HOLDS
    assert verdict([verdicts.exactly("", 43.0, 43.0), verdicts.exactly("", 22.0, 43.0)]) == FAILS


# Experiments


def test_a_claim_is_judged_once_all_is_there_and_what_is_there_is_kept(trained, tmp_path):
    pair, together, _ = trained
    claim = Claim(1, "It is there.", lambda found: [compare("", found.per_seed("cartpole", "small"), [-1.0, -1.0])], "it less -1")
    experiment = Experiment("some", "nowhere", (claim,), tuple(pair))
    assert experiment.verdicts(tmp_path)[claim] == (MISSING, ())
    assert len(experiment.missing(tmp_path)) == 2
    assert not experiment.missing(together)
    files = {file: file.stat().st_mtime_ns for file in together.rglob("*.json")}
    experiment.run(together, together / "scratch", np.inf, False, lambda words: pytest.fail("there is nothing to do"))
    assert {file: file.stat().st_mtime_ns for file in together.rglob("*.json")} == files
    # two seeds, both above -1: one flip of four is as great
    assert experiment.verdicts(together)[claim][0] == UNDECIDED


def test_without_time_nothing_is_begun_and_the_way_on_is_told(tmp_path):
    experiment = Experiment("some", "nowhere", lines=(line(),))
    with pytest.raises(EngramError, match="the same command goes on"):
        experiment.run(tmp_path, tmp_path / "scratch", -1.0, False, print)


@pytest.mark.parametrize("name", [name for name, one in catalogue.EXPERIMENTS.items() if not (one.later or one.by)])
def test_every_experiment_has_a_quick_version_that_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["reproduce", name, "--quick"])
    experiment = catalogue.EXPERIMENTS[name].quick()
    results = tmp_path / "runs" / "quick"
    assert experiment.is_done(results)
    if experiment.draw is not None:
        assert (results / "report" / f"{name}.png").stat().st_size > 5_000
    capsys.readouterr()
    main(["reproduce", name, "--quick"])
    said = capsys.readouterr().out
    assert "done in" not in said
    assert "computed in" not in said
    main(["reproduce", "--quick"])
    assert name in capsys.readouterr().out


def test_experiments_are_chosen_by_name_or_together(capsys):
    names = lambda *given: [experiment.name for experiment in catalogue.experiments(given)]  # noqa: E731
    assert names("all") == list(catalogue.EXPERIMENTS)
    assert set(names("all")) - set(names("paper")) == {"engram-preset", "engram-pieces"}
    assert names("ablations", "noisy-control", "ablations") == ["noisy-control", "ablations"]
    for command in ("reproduce paper --part 0", "reproduce ablations --quick parameters"):
        with pytest.raises(SystemExit):
            main(command.split())
    said = " ".join(capsys.readouterr().err.split())
    assert "name one experiment, not 11." in said
    assert "`engram reproduce parameters [options]`: the name comes first." in said


def test_parts_that_are_missing_are_named_once_and_the_dearest_first(tmp_path):
    parts = apart.missing([control.NOISY_TASKS, control.CONTRIBUTIONS, catalogue.EXPERIMENTS["parameters"]], tmp_path)
    files = [line.file(tmp_path) for part in parts for line in part.lines]
    assert len(files) == len(set(files)) == len(control.NOISY_TASKS.lines)  # the contributions' lines are among them
    assert {line.task.partition("-")[0] for part in parts[:7] for line in part.lines} == {"lunarlander"}
    assert [part.experiment for part in parts if not part.lines] == ["parameters"]
    assert len(apart.missing([control.CONTRIBUTIONS], ROOT / "results")) == 0


def test_parts_run_side_by_side_and_one_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = []
    parts = [apart.Part("parameters", 7, ()), apart.Part("parameters", 0, ())]
    with pytest.raises(EngramError, match="1 of 2 parts are not done; the same command goes on"):
        apart.run(parts, 2, ["--quick"], tmp_path / "scratch", time.monotonic() + 600, said.append)
    assert any("part 7" in words and "parameters has no part 7: name one of 0 to 0." in words for words in said)
    assert catalogue.EXPERIMENTS["parameters"].quick().is_done(tmp_path / "runs" / "quick")
    main(["reproduce", "parameters", "--quick", "--jobs", "2"])
    assert "0 of 0 parts" in capsys.readouterr().out


@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="cannot see who a process's children are")
def test_who_is_told_to_end_ends_its_parts_too(tmp_path):
    command = [sys.executable, "-m", "engram.cli", "reproduce", "consolidation", "--jobs", "2"]
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    listed, children, until = Path(f"/proc/{parent.pid}/task/{parent.pid}/children"), [], time.monotonic() + 60
    while len(children) < 2 and time.monotonic() < until:
        children = listed.read_text().split()
        time.sleep(0.1)
    parent.terminate()
    assert parent.wait(60) == 130
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_the_list_names_every_experiment_and_claim(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(["reproduce"])
    listed = " ".join(capsys.readouterr().out.split())
    for name, experiment in catalogue.EXPERIMENTS.items():
        assert name in listed
        for claim in experiment.claims:
            assert claim.says.split()[0] in listed
    with pytest.raises(SystemExit):
        main(["reproduce", "noisy-contrl"])
    assert "Did you mean noisy-control" in capsys.readouterr().err


# The report


def test_the_report_is_that_of_the_files():
    results = ROOT / "results"
    blocks = reporting.page(results)
    assert (results / "report" / "README.md").read_text(encoding="utf-8") == reporting.to_markdown(blocks, results / "report")
    page = reporting.to_html(blocks, reporting.TITLE)
    assert 'src="data:image/png;base64,' in page
    assert 'src="http' not in page  # it needs no network


def test_a_page_is_the_same_in_both_languages(tmp_path):
    picture = tmp_path / "one.png"
    picture.write_bytes(b"picture")
    from engram.report.page import Heading, Picture, Table, Text, to_html, to_markdown

    blocks = [Heading("A & B", 1), Text("*so* `it` is"), Table(["x"], [["1 < 2"]], folded="more"), Picture(picture, "a picture")]
    assert to_markdown(blocks, tmp_path) == (
        "# A & B\n\n*so* `it` is\n\n<details><summary>more</summary>\n\n| x |\n|---|\n| 1 < 2 |\n\n</details>\n\n![a picture](one.png)\n"
    )
    page = to_html(blocks, "A & B")
    for part in (
        "<h1>A &amp; B</h1>",
        "<em>so</em> <code>it</code> is",
        "<td>1 &lt; 2</td>",
        "<summary>more</summary>",
        "base64,cGljdHVyZQ==",
    ):
        assert part in page


def test_published_numbers_name_their_machine_and_commit():
    for file in sorted((ROOT / "results" / "analyses").glob("*.json")):
        told = json.loads(file.read_text())
        assert told["commit"]
        assert told["device"]


# Trials


def test_a_trial_leaves_a_row_for_every_combination(tmp_path):
    out = tmp_path / "trials.json"
    trial = research.Run(
        "dqn", ("cartpole",), ("hidden=8", "batch=4", "double=true"), ("gamma=0.5,0.9",), 2, 120, out, scratch=tmp_path / "scratch"
    )
    trial()
    before = out.read_bytes()
    trial()  # is known
    assert out.read_bytes() == before
    found = json.loads(before)
    assert [row["options"]["gamma"] for row in found["trials"]] == [0.5, 0.9]
    first, *_, last = found["trials"]
    assert first["options"] == {"hidden": 8, "batch": 4, "double": True, "gamma": 0.5}
    assert (first["family"], first["agent"], first["steps"], first["device"]) == ("cartpole", "dqn", 120, "cpu")
    assert np.shape(last["area"]) == np.shape(last["final"]) == (3, 2)
    assert "| dqn | hidden 8, batch 4, double, gamma 0.5 | 120 | 2 |" in research.tables(found)
    with pytest.raises(EngramError, match="write option=value"):
        research.Run("dqn", set=("hidden",))()


def test_the_nine_tasks_can_be_trained_by_family(tmp_path):
    run = classic.Run(("cartpole",), ("random",), ("clean", "gaussian"), 2, 60, out=tmp_path / "classic", scratch=tmp_path / "scratch")
    run()
    found = classic.load(tmp_path / "classic")
    assert {task: list(agents) for task, agents in found.items()} == {"cartpole": ["random"], "cartpole-gaussian": ["random"]}
    assert "| cartpole-gaussian | final |" in classic.page(found)
