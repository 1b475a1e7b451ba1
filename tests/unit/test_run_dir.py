"""Run folders: config, curves, metrics and summary are whole after any failure."""

import csv
import errno
import json
import math
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from run_dir_helpers import sentence

from engram import files, run_dir
from engram.errors import EngramError
from engram.files import write_json
from engram.run_dir import RunDir, create


def fail(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_new_folder_holds_its_config_and_loads_again(tmp_path):
    create(tmp_path / "a" / "b", {"agent": "dqn", "rate": np.float32(0.5), "limit": math.inf})
    assert RunDir.load(tmp_path / "a" / "b").config == {"agent": "dqn", "rate": 0.5, "limit": None}
    assert sorted(os.listdir(tmp_path / "a" / "b")) == [".lock", "config.json"]


def test_create_never_overwrites_a_run(folder):
    with pytest.raises(EngramError) as excinfo:
        create(folder.path, {"agent": "other"})
    sentence(excinfo, f"engram resume {folder.path}", "--out")
    assert RunDir.load(folder.path).config == {"agent": "dqn"}


def test_create_never_overwrites_a_run_without_config(folder):
    folder.save(np.zeros(2), {})
    (folder.path / "config.json").unlink()
    with pytest.raises(EngramError):
        create(folder.path, {})


def test_of_two_that_create_a_folder_at_once_the_second_leaves_the_first_alone(
    tmp_path, monkeypatch
):
    path = tmp_path / "run"

    def write_while_another_creates(*arguments):
        monkeypatch.setattr(run_dir, "write_json", write_json)
        with pytest.raises(EngramError, match="Another process"):
            create(path, {"agent": "second"})
        write_json(*arguments)

    monkeypatch.setattr(run_dir, "write_json", write_while_another_creates)
    create(path, {"agent": "first"})
    assert RunDir.load(path).config == {"agent": "first"}


def test_a_folder_that_is_created_while_the_lock_is_awaited_is_left_alone(tmp_path, monkeypatch):
    lock = run_dir._lock

    def lock_after_another_created(file):
        (tmp_path / "config.json").write_text('{"agent": "first"}')
        return lock(file)

    monkeypatch.setattr(run_dir, "_lock", lock_after_another_created)
    with pytest.raises(EngramError, match="already holds a run"):
        create(tmp_path, {"agent": "second"})
    assert RunDir.load(tmp_path).config == {"agent": "first"}


def test_create_refuses_the_path_of_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(EngramError) as excinfo:
            create(path, {})
        sentence(excinfo, str(path), "--out")
    assert (tmp_path / "file").read_text() == "mine"


def test_create_refuses_an_unwritable_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "access", lambda *_: False
    )  # root, who may run the tests, may write anywhere
    with pytest.raises(EngramError) as excinfo:
        create(tmp_path, {})
    sentence(excinfo, "not writable", "--out")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "[" * 100_000, "\x00"])
def test_load_refuses_a_missing_or_damaged_config(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngramError) as excinfo:
        RunDir.load(tmp_path)
    sentence(excinfo, "config.json", str(tmp_path))


def test_load_refuses_a_missing_folder(tmp_path):
    with pytest.raises(EngramError) as excinfo:
        RunDir.load(tmp_path / "none")
    sentence(excinfo, "not a run folder")


def test_curves_are_read_back_by_seed(folder):
    folder.write_curves([(1, 10, math.nan), (0, 10, 0.1), (1, 20, np.float32(2.5)), (0, 20, -3)])
    assert (
        folder.path / "curves.csv"
    ).read_text() == "seed,step,return\n1,10,nan\n0,10,0.1\n1,20,2.5\n0,20,-3\n"
    curves = folder.read_curves()
    assert list(curves) == [0, 1]
    np.testing.assert_array_equal(curves[0], [[10, 20], [0.1, -3.0]])
    np.testing.assert_array_equal(curves[1], [[10, 20], [math.nan, 2.5]])
    assert curves[0][0].dtype.kind == "i"


def test_curves_without_points_are_empty(folder):
    folder.write_curves([])
    assert folder.read_curves() == {}


@pytest.mark.parametrize(
    "text", [None, "", "a,b\n", "seed,step,return\n1,2\n", "seed,step,return\n1,2,x\n"]
)
def test_damaged_or_missing_curves_are_refused(folder, text):
    if text is not None:
        (folder.path / "curves.csv").write_text(text)
    with pytest.raises(EngramError) as excinfo:
        folder.read_curves()
    sentence(excinfo, "curves.csv", "engram resume")


def test_each_metric_has_a_column(folder):
    folder.write_metrics(
        [
            {"seed": 0, "step": 5, "loss": 0.5},
            {"step": 6, "seed": 1, "beta": jnp.float32(2), "loss": 1},
        ]
    )
    with open(folder.path / "metrics.csv", newline="") as file:
        assert list(csv.reader(file)) == [
            ["seed", "step", "loss", "beta"],
            ["0", "5", "0.5", ""],
            ["1", "6", "1", "2.0"],
        ]


def test_a_summary_is_strict_json(folder):
    folder.write_summary(
        {
            "mean": math.nan,
            3: [np.float64(math.inf), np.int64(2)],
            "seeds": np.array([1.0, math.nan]),
        }
    )
    text = (folder.path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "mean": None,
        "3": [None, 2],
        "seeds": [1.0, None],
    }


def test_a_full_disk_leaves_curves_metrics_and_summary_as_they_were(folder, monkeypatch):
    writes = {
        "curves.csv": lambda x: folder.write_curves([(0, 1, x)]),
        "metrics.csv": lambda x: folder.write_metrics([{"seed": 0, "step": 1, "loss": x}]),
        "summary.json": lambda x: folder.write_summary({"mean": x}),
    }
    for write in writes.values():
        write(1.0)
    before = {name: (folder.path / name).read_bytes() for name in writes}
    monkeypatch.setattr(os, "fsync", fail)
    for name, write in writes.items():
        with pytest.raises(EngramError) as excinfo:
            write(2.0)
        sentence(excinfo, name, str(folder.path), "No space left", "untouched")
    assert {name: (folder.path / name).read_bytes() for name in writes} == before
    assert sorted(os.listdir(folder.path)) == sorted([".lock", "config.json", *writes])


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_full_device_is_reported(folder, monkeypatch):
    full = lambda *_: open("/dev/full", "wb")  # noqa: E731, SIM115
    monkeypatch.setattr(files, "open", full, raising=False)
    with pytest.raises(EngramError, match="No space left"):
        folder.write_summary({"mean": 1.0})
    assert sorted(os.listdir(folder.path)) == [".lock", "config.json"]


NAMES = (".lock", "config.json", "summary.json.new", "curves.csv", "checkpoint", "tensorboard")


@pytest.mark.parametrize("name", NAMES)
def test_links_in_a_run_folder_are_refused_and_not_followed(folder, tmp_path, name):
    target = tmp_path / "elsewhere"
    target.write_text("{}")
    (folder.path / name).unlink(missing_ok=True)
    os.symlink(target, folder.path / name)
    for use in (lambda: RunDir.load(folder.path), lambda: folder.lock().__enter__()):
        with pytest.raises(EngramError) as excinfo:
            use()
        sentence(excinfo, str(folder.path / name), "is a link", "remove it")
    assert target.read_text() == "{}"


def test_a_link_in_the_place_of_a_new_file_is_refused(folder, tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    folder.checkpoint.parent.mkdir()
    os.symlink(target, folder.path / "summary.json.new")
    os.symlink(target, folder.checkpoint.parent / "state.safetensors.new")
    with pytest.raises(EngramError, match=r"summary\.json\.new is a link"):
        folder.write_summary({})
    with pytest.raises(EngramError, match=r"state\.safetensors\.new is a link"):
        folder.save(np.zeros(2), {})
    assert target.read_text() == "mine"


def test_a_leftover_that_is_also_a_file_elsewhere_is_not_written_through(folder, tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    os.link(target, folder.path / "summary.json.new")
    (folder.path / ".lock").unlink()
    os.link(target, folder.path / ".lock")
    with folder.lock():
        folder.write_summary({"mean": 1})
    assert target.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", [".lock", "config.json", "curves.csv", "summary.json.new"])
def test_a_named_pipe_in_a_run_folder_is_refused_and_nobody_waits_for_it(folder, name):
    (folder.path / name).unlink(missing_ok=True)
    os.mkfifo(folder.path / name)
    for use in (lambda: RunDir.load(folder.path), lambda: folder.lock().__enter__()):
        with pytest.raises(EngramError, match="neither a file nor a folder"):
            use()


def test_a_run_folder_may_itself_be_a_link(folder, tmp_path):
    os.symlink(folder.path, tmp_path / "latest")
    assert RunDir.load(tmp_path / "latest").config == folder.config
