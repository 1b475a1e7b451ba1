"""A checkpoint survives kills and full disks, and damage to it is detected."""

import errno
import json
import math
import os
import subprocess
import sys
import time
import tracemalloc
import zlib
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from run_dir_helpers import sentence
from safetensors import safe_open
from safetensors.numpy import save_file

from engram import checkpoint, files
from engram.errors import EngramError
from engram.pytrees import is_key
from engram.run_dir import create


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
    a, b = (
        jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree) for tree in (a, b)
    )
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(x).dtype == np.asarray(y).dtype
        and np.shape(x) == np.shape(y)
        and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in pairs
    )


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_checkpoint_restores_every_bit_from_shapes_alone(folder, impl):
    folder.save(state(impl=impl), {"step": 3, "recent": [1.5, math.inf]})
    tree, meta = folder.restore(jax.eval_shape(lambda: state(impl=impl)))
    assert same(tree, state(impl=impl))
    assert meta == folder.meta() == {"step": 3, "recent": [1.5, math.inf]}
    assert jax.random.uniform(tree.key[1]) == jax.random.uniform(state(impl=impl).key[1])


def test_numpy_and_python_leaves_keep_their_types(folder):
    tree = {
        "a": np.arange(6.0).reshape(2, 3).T,
        "b": np.float32(2),
        "c": 5,
        "d": True,
        "e": jnp.float32(1),
        "none": None,
    }
    folder.save(tree, {})
    back, _ = folder.restore(tree)
    assert same(back, tree)
    assert {name: type(x) for name, x in back.items()} == {
        name: type(x) for name, x in tree.items()
    }
    back["a"][0, 0] = 9.0  # a NumPy array that cannot be written is of little use


dtypes = st.sampled_from(
    [
        "bool",
        "uint8",
        "int8",
        "int32",
        "uint32",
        "float16",
        "float32",
        "float64",
        "int64",
        "complex64",
    ]
)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
keys = st.builds(
    lambda seed, impl: jax.random.key(seed, impl=impl),
    st.integers(0, 2**31),
    st.sampled_from(["threefry2x32", "rbg"]),
)
halves = st.lists(st.floats(width=16), max_size=3).map(lambda xs: jnp.array(xs, jnp.bfloat16))
trees = st.recursive(
    arrays | keys | halves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    trees,
    st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False) | st.none()),
)
@example([], {})
def test_any_tree_survives_a_round_trip_and_safetensors_reads_it(tree, meta):
    with TemporaryDirectory() as path:
        folder = create(path, {})
        folder.save(tree, meta)
        back, meta_back = folder.restore(tree)
        assert same(back, tree)
        assert meta_back == meta
        with safe_open(folder.checkpoint, "numpy") as file:
            for name, leaf in zip(*checkpoint.flatten(tree)[:2], strict=True):
                raw = jax.random.key_data(leaf) if is_key(leaf) else leaf
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
def test_a_full_disk_leaves_only_the_old_checkpoint(folder, monkeypatch, moment):
    folder.save(state(1.0), {"step": 1})
    before = folder.checkpoint.read_bytes()
    if moment.startswith("write"):
        room = 0 if moment == "write header" else int.from_bytes(before[:8], "little") + 8 + 10
        monkeypatch.setattr(files, "open", lambda *args: FullDisk(open(*args), room), raising=False)  # noqa: SIM115
    else:
        monkeypatch.setattr(os, moment, fail)
    with pytest.raises(EngramError) as excinfo:
        folder.save(state(2.0), {"step": 2})
    monkeypatch.undo()
    sentence(excinfo, str(folder.path), "No space left", "untouched")
    assert folder.checkpoint.read_bytes() == before
    assert same(folder.restore(state())[0], state(1.0))
    assert os.listdir(folder.checkpoint.parent) == ["state.safetensors"]


def test_a_folder_that_cannot_be_synced_is_not_an_error(folder, monkeypatch):
    fsync, calls = os.fsync, []
    monkeypatch.setattr(
        os, "fsync", lambda fd: (calls.append(fd), fail() if len(calls) > 1 else fsync(fd))
    )
    folder.save(state(), {"step": 1})
    assert len(calls) == 2
    assert folder.meta() == {"step": 1}


def test_the_new_checkpoint_is_on_disk_before_it_replaces_the_old(folder, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd):
        events.append(("fsync", os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(
        os, "replace", lambda a, b: (events.append(("replace", str(a), str(b))), replace(a, b))
    )
    folder.save(state(), {})
    temporary, final = f"{folder.checkpoint}.new", str(folder.checkpoint)
    assert events[0] == ("fsync", temporary, folder.checkpoint.stat().st_size)
    assert events[1] == ("replace", temporary, final)
    assert events[2][:2] == ("fsync", str(folder.checkpoint.parent))


def test_an_interrupt_while_saving_leaves_the_old_checkpoint(folder, monkeypatch):
    folder.save(state(1.0), {})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        folder.save(state(2.0), {})
    assert same(folder.restore(state())[0], state(1.0))
    assert os.listdir(folder.checkpoint.parent) == ["state.safetensors"]


SAVER = """
import sys
import numpy as np
from engram.run_dir import RunDir
folder, n = RunDir.load(sys.argv[1]), 0
while True:
    n += 1
    folder.save({"x": np.full(200_000, n), "y": np.full(200_000, -n)}, {"n": n})
    print(n, flush=True)
"""


def test_a_kill_while_saving_leaves_a_whole_checkpoint(folder):
    template = {"x": np.zeros(200_000, int), "y": np.zeros(200_000, int)}
    child = subprocess.Popen(
        [sys.executable, "-c", SAVER, folder.path], stdout=subprocess.PIPE, text=True
    )
    for line in child.stdout:
        if int(line) == 5:
            break
    temporary = folder.checkpoint.with_name("state.safetensors.new")
    deadline = time.monotonic() + 5
    while (
        not temporary.exists() and time.monotonic() < deadline
    ):  # so that the kill falls into a save
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    tree, meta = folder.restore(template)
    assert meta["n"] >= 5
    assert set(tree["x"]) == {meta["n"]}
    assert set(tree["y"]) == {-meta["n"]}
    folder.save(template, {"n": 0})  # what the kill left behind is in nobody's way
    assert os.listdir(folder.checkpoint.parent) == ["state.safetensors"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small checkpoint, its bytes and a folder to damage it in."""
    folder = create(tmp_path_factory.mktemp("saved") / "run", {})
    folder.save(state(), {"step": 12})
    return folder, folder.checkpoint.read_bytes()


def test_a_truncated_checkpoint_is_refused(saved):
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
def test_any_flipped_bit_is_detected_or_harmless(saved, data):
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


def test_a_flipped_bit_in_arrays_offsets_or_metadata_is_detected(saved):
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
@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda text: len(text).to_bytes(8, "little") + text)
)
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


def test_another_safetensors_file_is_refused(folder):
    folder.checkpoint.parent.mkdir()
    for metadata in (None, {"format": "pt"}):
        save_file({"weights": np.zeros(3)}, folder.checkpoint, metadata)
        with pytest.raises(EngramError) as excinfo:
            folder.restore(state())
        sentence(excinfo, str(folder.checkpoint), "not a checkpoint of Engram's")


def test_a_checkpoint_of_a_newer_engram_is_refused(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
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
def test_a_checkpoint_of_another_structure_is_refused_and_the_difference_named(
    folder, other, difference
):
    folder.save(state(), {})
    with pytest.raises(EngramError) as excinfo:
        folder.restore(other)
    sentence(
        excinfo,
        str(folder.checkpoint),
        "another agent",
        difference if difference != ".weights" else "['",
    )


def test_a_missing_checkpoint_is_named(folder):
    for read in (folder.meta, lambda: folder.restore(state())):
        with pytest.raises(EngramError) as excinfo:
            read()
        sentence(excinfo, str(folder.path), "no checkpoint yet")


def test_metadata_can_be_read_without_the_arrays(folder):
    folder.save(state(), {"step": 5})
    content = folder.checkpoint.read_bytes()
    folder.checkpoint.write_bytes(content[: 8 + int.from_bytes(content[:8], "little")])
    assert folder.meta() == {"step": 5}


def test_a_checkpoint_holds_a_checksum_of_each_array(folder):
    folder.save({"x": np.array([1, 2], np.uint8)}, {})
    with safe_open(folder.checkpoint, "numpy") as file:
        assert json.loads(file.metadata()["body"])["crc32"] == [zlib.crc32(b"\x01\x02")]


def test_part_of_a_checkpoint_can_be_restored(folder):
    folder.save((state(), {"returns": np.arange(3.0)}, {"hook": np.ones(2)}), {})
    tree, _ = folder.restore((state(), {"returns": np.zeros(3)}), partial=True)
    assert same(tree, (state(), {"returns": np.arange(3.0)}))
    with pytest.raises(EngramError, match="missing here"):
        folder.restore((state(), {"returns": np.zeros(3)}))
    with pytest.raises(EngramError, match="missing there"):
        folder.restore((state(), {"lengths": np.zeros(3)}), partial=True)


@pytest.mark.parametrize(
    "size",
    [checkpoint.COMPRESS_FROM - 1, checkpoint.COMPRESS_FROM, 3 * checkpoint.CHUNK_BYTES // 2],
)
def test_frames_are_compressed_without_loss(tmp_path, size):
    folder = create(tmp_path / "run", {})
    frames = np.repeat(np.arange(-(-size // 100), dtype=np.uint8), 100)[:size].reshape(1, -1)
    tree = {"frames": jnp.asarray(frames), "also": jnp.arange(3.0)}
    folder.save(tree, {"step": 1})
    assert (folder.checkpoint.stat().st_size < size / 10) == (size >= checkpoint.COMPRESS_FROM)
    found, _ = folder.restore(jax.eval_shape(lambda: tree))
    np.testing.assert_array_equal(found["frames"], frames)
    np.testing.assert_array_equal(found["also"], tree["also"])


def test_damage_in_compressed_frames_is_detected(tmp_path):
    folder = create(tmp_path / "run", {})
    tree = {"frames": jnp.zeros(checkpoint.COMPRESS_FROM, jnp.uint8)}
    folder.save(tree, {})
    damage = bytearray(folder.checkpoint.read_bytes())
    damage[-5] ^= 1
    folder.checkpoint.write_bytes(damage)
    with pytest.raises(EngramError, match="damaged"):
        folder.restore(tree)
