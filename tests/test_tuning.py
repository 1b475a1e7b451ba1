"""The search for the baselines' options: what is chosen, that it goes on where it stopped, and that its results are the preset."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from engram import loop
from engram.agents import make
from engram.errors import EngramError, Interrupted
from engram.experiments import choosing, running, tuning
from engram.options import replace

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "tuning"
CANDIDATES = {"dqn": [{"rate": 0.1}, {"rate": 0.2}], "nec": [{"rate": 0.1, "size": 4}]}
RANDOM = dict.fromkeys(choosing.TASKS, 0.0) | {"mountaincar-gaussian": -200.0}


def file(agent, setting, **areas):
    """A file of one setting, with one or more areas for each task, named as in cartpole_gaussian."""
    tasks = {task.replace("_", "-"): {"auc": list(seeds)} for task, seeds in areas.items()}
    return {"agent": agent, "settings": [{"options": setting, "tasks": tasks}]}


# What is chosen


def test_the_scale_has_random_at_0_and_the_best_setting_of_any_agent_at_1():
    files = [
        file("dqn", {"rate": 0.1}, cartpole_gaussian=(40, 60), mountaincar_gaussian=(-180,)),
        file("dqn", {"rate": 0.2}, cartpole_gaussian=(20, 30), mountaincar_gaussian=(-150,)),
        file("nec", {"size": 4, "rate": 0.1}, cartpole_gaussian=(100, 100), mountaincar_gaussian=(-160,)),
    ]
    found = choosing.tried(files, CANDIDATES, RANDOM)
    assert [one.scaled for one in found["dqn"]] == [
        {"cartpole-gaussian": 0.5, "mountaincar-gaussian": 0.4},
        {"cartpole-gaussian": 0.25, "mountaincar-gaussian": 1.0},
    ]
    assert found["nec"][0].scaled == {"cartpole-gaussian": 1.0, "mountaincar-gaussian": 0.8}
    # 0.45 against 0.625; a setting for each task would have 0.5 and 1
    assert choosing.best(found["dqn"]).setting == {"rate": 0.2}
    assert choosing.best_per_task(found["dqn"]) == 0.75
    assert choosing.chosen(files, CANDIDATES, RANDOM) == {"dqn": {"rate": 0.2}, "nec": {"rate": 0.1, "size": 4}}


def test_settings_are_compared_on_shared_tasks_alone():
    files = [
        file("dqn", {"rate": 0.1}, cartpole_gaussian=(50,), cartpole_bernoulli=(10,)),
        file("dqn", {"rate": 0.1}, mountaincar_gaussian=(-200,)),
        file("dqn", {"rate": 0.2}, cartpole_gaussian=(40,), mountaincar_gaussian=(-150,)),
    ]
    found = choosing.tried(files, CANDIDATES, RANDOM)["dqn"]
    assert choosing.shared(found) == ["cartpole-gaussian", "mountaincar-gaussian"]
    assert choosing.best(found).setting == {"rate": 0.2}
    assert choosing.chosen(files[:1], CANDIDATES, RANDOM) == {"dqn": {"rate": 0.1}}


def test_nothing_is_chosen_where_settings_share_no_task():
    files = [file("dqn", {"rate": 0.1}, cartpole_gaussian=(50,)), file("dqn", {"rate": 0.2}, mountaincar_gaussian=(-150,))]
    assert choosing.chosen(files, CANDIDATES, RANDOM) == {}


def test_a_task_on_which_nothing_beat_random_decides_nothing():
    files = [
        file("dqn", {"rate": 0.1}, cartpole_gaussian=(50,), mountaincar_gaussian=(-210,)),
        file("dqn", {"rate": 0.2}, cartpole_gaussian=(40,), mountaincar_gaussian=(-200,)),
    ]
    found = choosing.tried(files, CANDIDATES, RANDOM)["dqn"]
    assert [one.scaled["mountaincar-gaussian"] for one in found] == [0, 0]
    assert choosing.best(found).setting == {"rate": 0.1}


def test_what_no_grid_names_is_left_out():
    files = [file("dqn", {"rate": 0.1}, cartpole_gaussian=(50,)), file("dqn", {"rate": 0.3}, cartpole_gaussian=(500,))]
    assert choosing.tried(files, CANDIDATES, RANDOM)["dqn"][0].scaled == {"cartpole-gaussian": 1.0}


def test_a_table_has_the_best_in_bold_and_says_what_is_missing():
    files = [
        file("dqn", {"rate": 0.1}, cartpole_gaussian=(50,), cartpole_bernoulli=(5,), cartpole_transition=(5,)),
        file("dqn", {"rate": 0.2}, cartpole_gaussian=(40,)),
    ]
    text = choosing.section("dqn", choosing.tried(files, CANDIDATES, RANDOM)["dqn"], CANDIDATES["dqn"], RANDOM)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| 0.")]
    assert [row[:3] + row[-1:] for row in rows] == [["0.1", "**50.0**", "**5.0**", "**1.000**"], ["0.2", "40.0", "–", "0.800"]]
    unrun = choosing.section("dqn", choosing.tried(files[:1], CANDIDATES, RANDOM)["dqn"], CANDIDATES["dqn"], RANDOM)
    assert "| 0.2 |" + " – |" * 10 in unrun
    assert "Not run yet: 1 of 2 settings on cartpole, 2 of 2 settings on mountaincar, 2 of 2 settings on lunarlander." in text


# The grids


@pytest.mark.parametrize("name", tuning.GRIDS)
def test_a_grid_has_only_settings_that_its_agent_can_have(name):
    for setting in tuning.settings(tuning.GRIDS[name]):
        replace(make(name), **setting)


def test_a_grid_is_narrowed_by_name_and_value():
    assert tuning.narrowed("nec", ["hidden=64,128", "learning_rate=1e-3"]) == {
        "neighbours": (3, 5, 11, 25),
        "hidden": [64, 128],
        "learning_rate": [1e-3],
    }
    for words in ("hidden=65", "hidden", "width=64", "hidden=many"):
        with pytest.raises(EngramError, match=f"The grid of nec has no {words}: "):
            tuning.narrowed("nec", [words])
    with pytest.raises(EngramError, match=r"There is no grid for 'dqm'. Did you mean dqn"):
        tuning.narrowed("dqm", [])


def test_seeds_of_reported_results_are_never_searched(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "FIRST_SEED", 9)
    with pytest.raises(AssertionError):
        tuning.Run(("dqn",), ("cartpole",), steps=4, out=tmp_path)()


# The search


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(tuning.GRIDS, "dqn", {"hidden": (4, 8), "epsilon_decay": (1.0, 1e6)})


def search(folder, only, **more):
    tuning.Run(("dqn",), ("cartpole",), only, seeds=2, steps=50, out=folder / "out", scratch=folder / "scratch", **more)()
    return {path.name: json.loads(path.read_text()) for path in (folder / "out").glob("*.json")}


def stop_soon(monkeypatch):
    """A clock that goes on a second whenever it is looked at."""
    ticks = itertools.count()
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: next(ticks)))


def test_a_search_that_was_stopped_goes_on_and_repeats_nothing(small, tmp_path, monkeypatch):
    whole = search(tmp_path / "whole", ("hidden=4",))["cartpole-dqn-hidden=4.json"]
    with monkeypatch.context() as patch:
        stop_soon(patch)
        with pytest.raises(Interrupted, match=r"stopped at step .*; the same command goes on"):
            search(tmp_path, ("hidden=4",), minutes=0.5)
        with pytest.raises(Interrupted, match="No time left to begin"):
            search(tmp_path, ("hidden=4",), minutes=0)
    assert not (tmp_path / "out").exists()
    (found,) = search(tmp_path, ("hidden=4",)).values()
    assert found["settings"] == whole["settings"]
    assert [entry["options"] for entry in found["settings"]] == [{"hidden": 4, "epsilon_decay": decay} for decay in (1.0, 1e6)]
    assert found["settings"][0]["tasks"] != found["settings"][1]["tasks"]
    assert found["options"]["hidden"] == 4
    assert (found["steps"], found["seeds"], found["runs_in_one_program"]) == (50, [1000, 1001], 12)
    assert not list((tmp_path / "scratch").rglob("*.safetensors"))

    monkeypatch.setattr(tuning, "train", lambda label, *_: pytest.fail(f"{label} is there already"))
    search(tmp_path, ("hidden=4",))
    search(tmp_path, ("hidden=4", "epsilon_decay=1"))


def test_each_part_of_a_grid_has_a_file_of_its_own(small):
    decays = tuning.settings({"epsilon_decay": (1.0, 1e6)})
    assert tuning.title("dqn", "cartpole", {"hidden": 4}, decays) == "cartpole dqn hidden=4"
    assert tuning.title("dqn", "cartpole", {"hidden": 4}, decays[:1]) == "cartpole dqn hidden=4 epsilon_decay=1"
    assert tuning.title("mfec", "cartpole", {"neighbours": 11}, [{}]) == "cartpole mfec neighbours=11"


def test_a_search_is_not_continued_with_another_protocol(small, tmp_path):
    (tmp_path / "out").mkdir()
    made = {"agent": "dqn", "family": "cartpole", "steps": 9, "seeds": [1000, 1001], "settings": [{"options": {"hidden": 4}}]}
    (tmp_path / "out" / "cartpole-dqn-hidden=4.json").write_text(json.dumps(made))
    with pytest.raises(EngramError, match=r"hidden=4\.json was made with other steps: move it away"):
        search(tmp_path, ("hidden=4",))


def test_one_program_has_the_real_numbers_of_a_grid():
    assert loop.may_differ(make("dqn"), "learning_rate")
    assert not loop.may_differ(make("dqn"), "hidden")


# What is published


def test_a_preset_that_is_not_what_was_chosen_is_named():
    assert tuning.differing({"dqn": {"hidden": 16, "batch": 8}, "mbec": {"batch": 8}}, "debug") == ["mbec"]
    assert tuning.differing({"dqn": {"hidden": 16}}, "no such preset") == ["dqn"]


def test_the_preset_tuned_is_what_the_search_chose():
    path = OUT / "chosen.json"
    assert tuning.differing(json.loads(path.read_text()) if path.exists() else {}) == []


def test_the_page_and_the_choice_are_those_of_the_files():
    files = list(tuning.load(OUT).values())
    if files:
        given = files, tuning.candidates(), tuning.random_areas(ROOT / "results" / "classic")
        assert (OUT / "README.md").read_text(encoding="utf-8") == choosing.page(*given)
        assert json.loads((OUT / "chosen.json").read_text()) == choosing.chosen(*given)
    assert (OUT / "chosen.json").exists() == bool(files)
