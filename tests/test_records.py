"""Run folders lose nothing: not to a kill, a full disk or a flipped bit."""

import csv
import errno
import json
import math
import os
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import save_file

from engram import records
from engram.errors import EngramError
from engram.records import RunFolder, create


class State(NamedTuple):
    weights: jax.Array
    key: jax.Array
    done: jax.Array
    count: jax.Array


def state(scale=1.0, width=3, impl="threefry2x32"):
    return State(
        jnp.linspace(-scale, scale, 2 * width).reshape(2, width),
        jax.random.split(jax.random.key(7, impl=impl), 2),
        jnp.array([True, False]),
        jnp.uint32(2**32 - 1),
    )


def same(a, b):
    """Bit for bit, dtypes and all."""
    a, b = (jax.tree.map(lambda x: jax.random.key_data(x) if records.is_key(x) else x, tree) for tree in (a, b))
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(x).dtype == np.asarray(y).dtype and np.shape(x) == np.shape(y) and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in pairs
    )


def sentence(excinfo, *words):
    """The message is one sentence that says these words."""
    text = str(excinfo.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "run", {"agent": "dqn"})


# --- folders


def test_a_new_folder_holds_its_config_and_is_found_again(tmp_path):
    create(tmp_path / "a" / "b", {"agent": "dqn", "rate": np.float32(0.5), "limit": math.inf})
    assert RunFolder.load(tmp_path / "a" / "b").config == {"agent": "dqn", "rate": 0.5, "limit": None}
    assert os.listdir(tmp_path / "a" / "b") == ["config.json"]


def test_a_run_is_never_overwritten(folder):
    with pytest.raises(EngramError) as excinfo:
        create(folder.path, {"agent": "other"})
    sentence(excinfo, f"engram resume {folder.path}", "--out")
    assert RunFolder.load(folder.path).config == {"agent": "dqn"}


def test_a_run_whose_config_was_lost_is_not_overwritten(folder):
    folder.save(state(), {})
    (folder.path / "config.json").unlink()
    with pytest.raises(EngramError):
        create(folder.path, {})


def test_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(EngramError) as excinfo:
            create(path, {})
        sentence(excinfo, str(path), "--out")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_unwritable_folder_is_no_place_for_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root, who may run the tests, may write anywhere
    with pytest.raises(EngramError) as excinfo:
        create(tmp_path, {})
    sentence(excinfo, "not writable", "--out")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "[" * 100_000, "\x00"])
def test_a_folder_without_a_sound_config_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngramError) as excinfo:
        RunFolder.load(tmp_path)
    sentence(excinfo, "config.json", str(tmp_path))


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(EngramError) as excinfo:
        RunFolder.load(tmp_path / "none")
    sentence(excinfo, "not a run folder")


# --- checkpoints


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_checkpoint_gives_back_every_bit_from_shapes_alone(folder, impl):
    folder.save(state(impl=impl), {"step": 3, "recent": [1.5, math.inf]})
    tree, meta = folder.restore(jax.eval_shape(lambda: state(impl=impl)))
    assert same(tree, state(impl=impl))
    assert meta == folder.meta() == {"step": 3, "recent": [1.5, math.inf]}
    assert jax.random.uniform(tree.key[1]) == jax.random.uniform(state(impl=impl).key[1])


def test_numpy_and_python_leaves_come_back_as_they_were(folder):
    tree = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.float32(2), "c": 5, "d": True, "e": jnp.float32(1), "none": None}
    folder.save(tree, {})
    back, _ = folder.restore(tree)
    assert same(back, tree)
    assert {name: type(x) for name, x in back.items()} == {name: type(x) for name, x in tree.items()}
    back["a"][0, 0] = 9.0  # a NumPy array that cannot be written is of little use


dtypes = st.sampled_from(["bool", "uint8", "int8", "int32", "uint32", "float16", "float32", "float64", "int64", "complex64"])
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
keys = st.builds(lambda seed, impl: jax.random.key(seed, impl=impl), st.integers(0, 2**31), st.sampled_from(["threefry2x32", "rbg"]))
halves = st.lists(st.floats(width=16), max_size=3).map(lambda xs: jnp.array(xs, jnp.bfloat16))
trees = st.recursive(
    arrays | keys | halves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(trees, st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False) | st.none()))
@example([], {})
def test_any_tree_survives_the_round_trip_and_safetensors_can_read_it(tree, meta):
    with TemporaryDirectory() as path:
        folder = create(path, {})
        folder.save(tree, meta)
        back, meta_back = folder.restore(tree)
        assert same(back, tree)
        assert meta_back == meta
        with safe_open(folder.checkpoint, "numpy") as file:
            for name, leaf in zip(*records.flatten(tree)[:2], strict=True):
                raw = jax.random.key_data(leaf) if records.is_key(leaf) else leaf
                assert file.get_tensor(name).tobytes() == np.asarray(raw).tobytes()


def test_a_restored_state_can_be_donated(folder):
    folder.save({"x": jnp.arange(100_000.0)}, {})
    back, _ = folder.restore({"x": jax.ShapeDtypeStruct((100_000,), jnp.float32)})
    step = jax.jit(lambda tree: {"x": tree["x"] + 1}, donate_argnums=0)
    assert float(step(step(back))["x"][-1]) == 100_001.0


def test_saving_copies_no_array(folder):
    tree = {"frames": np.zeros((8, 1_000_000), np.uint8)}
    tracemalloc.start()
    folder.save(tree, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def fail(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


class FullDisk:
    """A file that takes some bytes and no more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.room -= len(data)
        return self.file.write(data) if self.room >= 0 else fail()


@pytest.mark.parametrize("moment", ["fsync", "replace", "write header", "write arrays"])
def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_else(folder, monkeypatch, moment):
    folder.save(state(1.0), {"step": 1})
    before = folder.checkpoint.read_bytes()
    if moment.startswith("write"):
        room = 0 if moment == "write header" else int.from_bytes(before[:8], "little") + 8 + 10
        monkeypatch.setattr(records, "open", lambda *args: FullDisk(open(*args), room), raising=False)  # noqa: SIM115
    else:
        monkeypatch.setattr(os, moment, fail)
    with pytest.raises(EngramError) as excinfo:
        folder.save(state(2.0), {"step": 2})
    monkeypatch.undo()
    sentence(excinfo, str(folder.path), "No space left", "untouched")
    assert folder.checkpoint.read_bytes() == before
    assert same(folder.restore(state())[0], state(1.0))
    assert os.listdir(folder.checkpoint.parent) == ["state.safetensors"]


def test_a_folder_that_cannot_be_synced_is_no_failure(folder, monkeypatch):
    fsync, calls = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(fd), fail() if len(calls) > 1 else fsync(fd)))
    folder.save(state(), {"step": 1})
    assert len(calls) == 2
    assert folder.meta() == {"step": 1}


def test_the_new_checkpoint_is_on_disk_before_it_replaces_the_old(folder, monkeypatch):
    happened = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd):
        happened.append(("fsync", os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", lambda a, b: (happened.append(("replace", str(a), str(b))), replace(a, b)))
    folder.save(state(), {})
    beside, final = f"{folder.checkpoint}.new", str(folder.checkpoint)
    assert happened[0] == ("fsync", beside, folder.checkpoint.stat().st_size)
    assert happened[1] == ("replace", beside, final)
    assert happened[2][:2] == ("fsync", str(folder.checkpoint.parent))


def test_an_interrupt_leaves_the_old_checkpoint(folder, monkeypatch):
    folder.save(state(1.0), {})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        folder.save(state(2.0), {})
    assert same(folder.restore(state())[0], state(1.0))
    assert os.listdir(folder.checkpoint.parent) == ["state.safetensors"]


SAVER = """
import sys
import numpy as np
from engram.records import RunFolder
folder, n = RunFolder.load(sys.argv[1]), 0
while True:
    n += 1
    folder.save({"x": np.full(200_000, n), "y": np.full(200_000, -n)}, {"n": n})
    print(n, flush=True)
"""


def test_a_kill_while_saving_leaves_a_whole_checkpoint(folder):
    template = {"x": np.zeros(200_000, int), "y": np.zeros(200_000, int)}
    child = subprocess.Popen([sys.executable, "-c", SAVER, folder.path], stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if int(line) == 5:
            break
    beside = folder.checkpoint.with_name("state.safetensors.new")
    deadline = time.monotonic() + 5
    while not beside.exists() and time.monotonic() < deadline:  # so that the kill falls into a save
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    tree, meta = folder.restore(template)
    assert meta["n"] >= 5
    assert set(tree["x"]) == {meta["n"]}
    assert set(tree["y"]) == {-meta["n"]}
    folder.save(template, {"n": 0})  # what the kill left beside is in nobody's way
    assert os.listdir(folder.checkpoint.parent) == ["state.safetensors"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small checkpoint, its bytes and a folder to damage it in."""
    folder = create(tmp_path_factory.mktemp("saved") / "run", {})
    folder.save(state(), {"step": 12})
    return folder, folder.checkpoint.read_bytes()


def test_a_checkpoint_cut_short_anywhere_is_refused(saved):
    folder, content = saved
    for length in range(len(content)):
        folder.checkpoint.write_bytes(content[:length])
        with pytest.raises(EngramError, match="damaged"):
            folder.restore(state())
    folder.checkpoint.write_bytes(content + b"\0")
    with pytest.raises(EngramError, match="damaged"):
        folder.restore(state())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(saved, data):
    folder, content = saved
    at, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    folder.checkpoint.write_bytes(damaged)
    try:
        tree, meta = folder.restore(state())
    except EngramError:
        return
    assert same(tree, state())
    assert meta == {"step": 12}


def test_a_flipped_bit_in_an_array_its_place_or_the_metadata_is_found(saved):
    folder, content = saved
    arrays = int.from_bytes(content[:8], "little") + 8
    for at in (*range(arrays, len(content)), content.index(b"12}"), content.index(b"[0, 24]") + 4):
        damaged = bytearray(content)
        damaged[at] ^= 1
        folder.checkpoint.write_bytes(damaged)
        with pytest.raises(EngramError) as excinfo:
            folder.restore(state())
        sentence(excinfo, str(folder.checkpoint), "damaged", "--out")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda text: len(text).to_bytes(8, "little") + text))
@example((200_000).to_bytes(8, "little") + b"[" * 200_000)
@example((21).to_bytes(8, "little") + b'{"__metadata__": [0]}')
@example((2).to_bytes(8, "little") + b"[]")
@example((2**63).to_bytes(8, "little") + b"{}")
def test_garbage_is_refused_in_one_sentence(saved, garbage):
    folder, _ = saved
    folder.checkpoint.write_bytes(garbage)
    with pytest.raises(EngramError) as excinfo:
        folder.restore(state())
    sentence(excinfo, str(folder.checkpoint))


def test_a_foreign_safetensors_file_is_refused(folder):
    folder.checkpoint.parent.mkdir()
    for metadata in (None, {"format": "pt"}):
        save_file({"weights": np.zeros(3)}, folder.checkpoint, metadata)
        with pytest.raises(EngramError) as excinfo:
            folder.restore(state())
        sentence(excinfo, str(folder.checkpoint), "not a checkpoint of Engram's")


def test_a_checkpoint_of_a_newer_engram_is_refused(folder, monkeypatch):
    monkeypatch.setattr(records, "FORMAT", records.FORMAT + 1)
    folder.save(state(), {})
    monkeypatch.undo()
    for read in (folder.meta, lambda: folder.restore(state())):
        with pytest.raises(EngramError) as excinfo:
            read()
        sentence(excinfo, str(folder.checkpoint), "newer", "upgrade")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (state(width=4), "float32[2,3] there, float32[2,4] here"),
        (state(impl="rbg"), "key<fry>[2] there, key<rbg>[2] here"),
        (state()._replace(count=jnp.int32(0)), "uint32[] there, int32[] here"),
        (state()._asdict(), ".weights"),
        ({"weights": state()}, "missing there"),
        (state()._replace(done=None), ".done is bool[2] there, missing here"),
    ],
)
def test_a_checkpoint_of_another_agent_is_refused_with_what_differs(folder, other, difference):
    folder.save(state(), {})
    with pytest.raises(EngramError) as excinfo:
        folder.restore(other)
    sentence(excinfo, str(folder.checkpoint), "another agent", difference if difference != ".weights" else "['")


def test_a_folder_without_a_checkpoint_says_so(folder):
    for read in (folder.meta, lambda: folder.restore(state())):
        with pytest.raises(EngramError) as excinfo:
            read()
        sentence(excinfo, str(folder.path), "no checkpoint yet")


def test_metadata_is_read_without_the_arrays(folder):
    folder.save(state(), {"step": 5})
    content = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(content[: 8 + int.from_bytes(content[:8], "little")])
    assert folder.meta() == {"step": 5}


def test_a_checkpoint_holds_the_sum_of_each_array(folder):
    folder.save({"x": np.array([1, 2], np.uint8)}, {})
    with safe_open(folder.checkpoint, "numpy") as file:
        assert json.loads(file.metadata()["body"])["crc32"] == [zlib.crc32(b"\x01\x02")]


# --- curves, metrics, summary


def test_curves_come_back_seed_by_seed(folder):
    folder.write_curves([(1, 10, math.nan), (0, 10, 0.1), (1, 20, np.float32(2.5)), (0, 20, -3)])
    assert (folder.path / "curves.csv").read_text() == "seed,step,return\n1,10,nan\n0,10,0.1\n1,20,2.5\n0,20,-3\n"
    curves = folder.read_curves()
    assert list(curves) == [0, 1]
    np.testing.assert_array_equal(curves[0], [[10, 20], [0.1, -3.0]])
    np.testing.assert_array_equal(curves[1], [[10, 20], [math.nan, 2.5]])
    assert curves[0][0].dtype.kind == "i"


def test_curves_without_a_point_are_empty(folder):
    folder.write_curves([])
    assert folder.read_curves() == {}


@pytest.mark.parametrize("text", [None, "", "a,b\n", "seed,step,return\n1,2\n", "seed,step,return\n1,2,x\n"])
def test_damaged_or_missing_curves_are_refused(folder, text):
    if text is not None:
        (folder.path / "curves.csv").write_text(text)
    with pytest.raises(EngramError) as excinfo:
        folder.read_curves()
    sentence(excinfo, "curves.csv", "engram resume")


def test_metrics_have_a_column_each(folder):
    folder.write_metrics([{"seed": 0, "step": 5, "loss": 0.5}, {"step": 6, "seed": 1, "beta": jnp.float32(2), "loss": 1}])
    with open(folder.path / "metrics.csv", newline="") as file:
        assert list(csv.reader(file)) == [["seed", "step", "loss", "beta"], ["0", "5", "0.5", ""], ["1", "6", "1", "2.0"]]


def test_a_summary_is_strict_json(folder):
    folder.write_summary({"mean": math.nan, 3: [np.float64(math.inf), np.int64(2)], "seeds": np.array([1.0, math.nan])})
    text = (folder.path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"mean": None, "3": [None, 2], "seeds": [1.0, None]}


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
    assert sorted(os.listdir(folder.path)) == sorted(["config.json", *writes])


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_disk_that_is_really_full_is_reported(folder):
    os.symlink("/dev/full", folder.path / "summary.json.new")  # where the new summary is written first
    with pytest.raises(EngramError, match="No space left"):
        folder.write_summary({"mean": 1.0})
    assert os.listdir(folder.path) == ["config.json"]


@pytest.mark.parametrize("size", [records.FILM - 1, records.FILM, 3 * records.PIECE // 2])
def test_frames_are_compressed_and_come_back_as_they_were(tmp_path, size):
    folder = create(tmp_path / "run", {})
    frames = np.repeat(np.arange(-(-size // 100), dtype=np.uint8), 100)[:size].reshape(1, -1)
    tree = {"frames": jnp.asarray(frames), "also": jnp.arange(3.0)}
    folder.save(tree, {"step": 1})
    assert (folder.checkpoint.stat().st_size < size / 10) == (size >= records.FILM)
    found, _ = folder.restore(jax.eval_shape(lambda: tree))
    np.testing.assert_array_equal(found["frames"], frames)
    np.testing.assert_array_equal(found["also"], tree["also"])


def test_damaged_frames_are_noticed(tmp_path):
    folder = create(tmp_path / "run", {})
    tree = {"frames": jnp.zeros(records.FILM, jnp.uint8)}
    folder.save(tree, {})
    damage = bytearray(folder.checkpoint.read_bytes())
    damage[-5] ^= 1
    folder.checkpoint.write_bytes(damage)
    with pytest.raises(EngramError, match="damaged"):
        folder.restore(tree)
