"""Run folders side by side are labelled by their agent, and by what differs."""

import math

import pytest
from run_dir_helpers import sentence, write_run

from engram.errors import EngramError
from engram.run_dir import create
from engram.run_labels import read_runs

RETURNS = {0: [1.0, 2.0]}


def labels(*paths):
    return [run.label for run in read_runs(paths)]


def test_a_run_is_labelled_by_its_agent_if_that_is_clear(tmp_path):
    a = write_run(tmp_path / "a", RETURNS, gamma=0.9)
    b = write_run(tmp_path / "b", RETURNS, agent="ppo", gamma=0.5)
    c = write_run(tmp_path / "c", RETURNS, task="acrobot", gamma=0.99)
    assert labels(a, b, c) == ["dqn", "ppo", "dqn"]


def test_options_that_differ_on_a_task_are_named_on_every_task(tmp_path):
    a = write_run(tmp_path / "a", RETURNS, gamma=0.9, n_step=1, double_q=True)
    b = write_run(tmp_path / "b", RETURNS, gamma=0.99, n_step=1, double_q=False)
    c = write_run(tmp_path / "c", RETURNS, task="acrobot", gamma=0.99, n_step=5, double_q=True)
    assert labels(a, b, c) == [
        "dqn gamma=0.9 double_q=True",
        "dqn gamma=0.99 double_q=False",
        "dqn gamma=0.99 double_q=True",
    ]


def test_runs_with_equal_options_are_told_apart_by_their_folders(tmp_path):
    a, b = (write_run(tmp_path / name, RETURNS, gamma=0.9) for name in "ab")
    c = write_run(tmp_path / "c", RETURNS, gamma=0.5)
    assert labels(a, b) == ["dqn (a)", "dqn (b)"]
    assert labels(a, b, c) == ["dqn gamma=0.9 (a)", "dqn gamma=0.9 (b)", "dqn gamma=0.5"]


def test_folders_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    a, b = (write_run(tmp_path / name / "run", RETURNS) for name in "ab")
    assert labels(a, b) == [f"dqn ({a})", f"dqn ({b})"]


def test_many_differing_options_are_not_spelt(tmp_path):
    runs = [
        write_run(tmp_path / name, RETURNS, **{f"option_{i}": name for i in range(4)})
        for name in "ab"
    ]
    assert labels(*runs) == ["dqn (a)", "dqn (b)"]


def test_a_task_is_named_with_the_arguments_of_its_environment(tmp_path):
    kwargs = {"size": 7, "trap": True}
    path = write_run(tmp_path / "a", RETURNS, task="maze3", env_kwargs=kwargs)
    (run,) = read_runs([path])
    assert run.task == "maze3 size=7 trap=True"
    assert run.curves[0][1].tolist() == [1.0, 2.0]


def test_a_folder_named_twice_is_refused(tmp_path):
    path = write_run(tmp_path / "a", RETURNS)
    with pytest.raises(EngramError) as excinfo:
        read_runs([path, tmp_path / "a" / ".." / "a"])
    sentence(excinfo, "is named twice", "leave one of them out")


def test_runs_without_a_return_are_refused(tmp_path):
    fresh = create(tmp_path / "new", {"agent": "dqn", "task": "t", "steps": 1, "options": {}})
    with pytest.raises(EngramError) as excinfo:
        read_runs([fresh.path])
    sentence(excinfo, "has no curves.csv yet", "engram resume")
    path = write_run(tmp_path / "none", {0: [math.nan], 1: [math.nan]})
    with pytest.raises(EngramError) as excinfo:
        read_runs([path])
    sentence(excinfo, "No episode of", "engram resume")


def test_damaged_and_missing_runs_are_refused(tmp_path):
    damaged = create(tmp_path / "damaged", {"agent": "dqn"})
    with pytest.raises(EngramError) as excinfo:
        read_runs([damaged.path])
    sentence(excinfo, "config.json lacks or garbles 'task'")
    with pytest.raises(EngramError) as excinfo:
        read_runs([])
    sentence(excinfo, "no run folder")
