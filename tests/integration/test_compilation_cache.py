"""Compiled programs are kept between runs, and change nothing but the time to start."""

import os
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache as jax_cache
from training_helpers import DQN_SMALL, MBECPP_SMALL, SEEDS, assert_same_run

from engram import compilation_cache, user_cache
from engram.compilation_cache import CheckedCache, enable, evict
from engram.errors import EngramWarning
from engram.training import train

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)
KEY = "jit_f-0123"


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    """JAX as a new process of a new user finds it, with an empty cache home."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    home = tmp_path / "cache"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.delenv("ENGRAM_CACHE", raising=False)
    monkeypatch.setattr(jax_cache, "get_file_cache", jax_cache.get_file_cache)
    jax.config.update("jax_compilation_cache_dir", None)
    jax_cache.reset_cache()
    yield home
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


@pytest.fixture
def cache(tmp_path):
    return CheckedCache(jax_cache.LRUCache(str(tmp_path), max_size=-1), str(tmp_path))


@pytest.fixture
def hits(monkeypatch):
    """The keys of programs that were loaded, as they come."""
    keys = []
    get = CheckedCache.get

    def record(self, key):
        program = get(self, key)
        if program is not None:
            keys.append(key)
        return program

    monkeypatch.setattr(CheckedCache, "get", record)
    return keys


def entries(home):
    return sorted((home / "engram/compiled").glob("*/*-cache"))


def flip_a_byte(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


# Entries


def test_an_entry_is_read_as_it_was_written(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, b"program")
    assert cache.get(KEY) == b"program"


def test_damage_anywhere_in_an_entry_is_found_and_the_entry_replaced(cache, tmp_path):
    cache.put(KEY, b"program")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(len(whole))]
    for data in [*damaged, whole + b"\0", bytes(len(whole))]:
        file.write_bytes(data)
        assert cache.get(KEY) is None
        cache.put(KEY, b"program")
        assert cache.get(KEY) == b"program"


def test_an_entry_in_place_of_another_is_found(cache, tmp_path):
    cache.put(KEY, b"program")
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / file.name.replace(KEY, "jit_g-4567"))
    assert cache.get("jit_g-4567") is None


def test_what_cannot_be_read_or_written_is_missing(tmp_path):
    class FullDisk:
        def get(self, key):
            raise PermissionError(key)

        def put(self, key, program):
            (tmp_path / f"{key}-cache").write_bytes(program[:3])
            raise OSError("No space left on device")

    cache = CheckedCache(FullDisk(), str(tmp_path))
    cache.put(KEY, b"program")
    assert not list(tmp_path.iterdir())
    assert cache.get(KEY) is None


def test_the_least_recently_used_entries_of_all_machines_go_first(tmp_path):
    for i, machine in enumerate("abab"):
        file = tmp_path / machine / f"{i}-cache"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(10))
        os.utime(file, (i, i))
    first = tmp_path / "a"
    CheckedCache(jax_cache.LRUCache(str(first), max_size=-1), str(first)).put(KEY, b"program")
    evict(tmp_path, 10**9)
    assert len(list(tmp_path.glob("*/*"))) == 5
    evict(tmp_path, 60)
    kept = {file.name for file in tmp_path.glob("*/*")}
    assert kept == {f"{KEY}-cache", "3-cache", "2-cache"}


def test_an_entry_that_is_read_counts_as_used(cache, tmp_path):
    cache.put(KEY, b"program")
    (file,) = tmp_path.iterdir()
    os.utime(file, (1, 1))
    cache.get(KEY)
    assert file.stat().st_mtime > 1


# When it is used


def test_the_folder_is_that_of_this_machine_in_the_users_cache(cache_home):
    enable()
    folder = cache_home / "engram/compiled" / compilation_cache.machine_name()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert jax.__version__ in folder.name


def test_a_cache_that_the_user_has_configured_stays(cache_home, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    enable()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert not list(cache_home.iterdir())


def test_engram_cache_0_disables_it(cache_home, monkeypatch):
    monkeypatch.setenv("ENGRAM_CACHE", "0")
    enable()
    assert jax.config.jax_compilation_cache_dir is None
    assert not list(cache_home.iterdir())


def test_a_folder_that_others_may_change_is_not_used_and_named(cache_home):
    cache_home.chmod(0o777)
    with pytest.warns(EngramWarning, match=f"other users may write into {cache_home}: make"):
        enable()
    assert jax.config.jax_compilation_cache_dir is None


def test_without_a_folder_programs_are_compiled_as_ever(cache_home, monkeypatch):
    def fail(*names):
        raise OSError("Read-only file system")

    monkeypatch.setattr(user_cache, "folder", fail)
    enable()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_jax_without_the_place_for_checksums_is_left_alone(cache_home, monkeypatch):
    monkeypatch.delattr(jax_cache, "get_file_cache")
    enable()
    assert jax.config.jax_compilation_cache_dir is None


def test_another_cache_of_the_same_process_has_no_checksums(cache_home, tmp_path):
    enable()
    opened, _ = jax_cache.get_file_cache(str(tmp_path / "other"))
    assert not isinstance(opened, CheckedCache)


# What it changes


def test_a_program_is_loaded_where_it_was_compiled_before(cache_home, hits, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MIN_COMPILE_SECONDS", 0.0)
    enable()
    x = jnp.arange(5.0)
    for expected in (0, 1):
        hits.clear()
        assert (jax.jit(lambda x: 3 * x + 1)(x) == 3 * x + 1).all()
        assert len([key for key in hits if "lambda" in key]) == expected


@pytest.mark.parametrize(
    "agent", [DQN_SMALL, pytest.param(MBECPP_SMALL, marks=pytest.mark.slow)], ids=["dqn", "mbec++"]
)
def test_a_training_is_the_same_with_a_new_a_used_and_a_damaged_cache(
    agent, cache_home, hits, tmp_path
):
    """MBEC++ has the custom call of the memory search."""

    def train_into(name):
        hits.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return train(agent, "cartpole-gaussian", SEEDS, 150, out=tmp_path / name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGRAM_CACHE", "0")
        without = train_into("without")
    assert not entries(cache_home)
    assert_same_run(without, train_into("new"))
    assert not hits
    written = {file: file.read_bytes() for file in entries(cache_home)}
    assert_same_run(without, train_into("used"))
    assert len(set(hits)) == len(written) > 1
    for file, data in written.items():
        file.write_bytes(flip_a_byte(data))
    assert_same_run(without, train_into("damaged"))
    assert not hits
    assert all(file.read_bytes() != flip_a_byte(data) for file, data in written.items())
