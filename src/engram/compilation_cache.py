"""JAX's persistent compilation cache, in the user's cache folder: most of a start is compilation.

ENGRAM_CACHE=0 disables it.
"""

import glob
import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax

from engram import user_cache
from engram.devices import platform
from engram.errors import EngramWarning

MAX_BYTES = 1_000_000_000
"""of all entries together, for all versions and machines; beyond, the least recently used go"""
MIN_COMPILE_SECONDS = 0.05
"""programs that compile faster are not kept"""
DIGEST_SIZE = hashlib.sha256().digest_size


def enable() -> None:
    """Keeps compiled programs between processes, unless the user has configured JAX's cache."""
    is_configured = jax.config.jax_compilation_cache_dir is not None  # pyright: ignore
    if is_configured or os.environ.get("ENGRAM_CACHE") == "0":
        return
    try:
        folder = user_cache.folder("compiled", machine_name())
    except user_cache.SharedFolderError as error:
        warnings.warn(
            f"Programs are compiled anew at every start, because {error}: make the folder yours "
            "alone (chmod 700), name another by XDG_CACHE_HOME, or set ENGRAM_CACHE=0.",
            EngramWarning,
            stacklevel=3,
        )
    except OSError:  # a read-only or full disk, or no home folder
        pass
    else:
        evict(folder.parent)
        use(folder)


def machine_name() -> str:
    """Names what compiled programs depend on: versions, backend, processor and threads.

    A program for another processor may crash, and one for more threads may round differently.
    """
    versions = f"jax-{jax.__version__}-python-{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(user_cache.processor().encode()).hexdigest()[:8]
    return f"{versions}-{platform()}-{digest}-{_num_threads()}"


def use(folder: Path) -> None:
    """Lets JAX keep its compiled programs in a folder, with checksums."""
    try:
        from jax._src import compilation_cache as jax_cache

        get_file_cache = jax_cache.get_file_cache
    except (ImportError, AttributeError):  # a JAX to which no checksums can be added
        return
    jax_cache.get_file_cache = partial(_get_file_cache, get_file_cache, str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    # XLA's own caches for GPUs have no checksums, and make keys depend on where the folder lies.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_compilation_cache_dir", str(folder))


class CheckedCache:
    """JAX's cache of a folder with a checksum in each entry; what cannot be read is missing.

    JAX alone warns of a damaged entry at every start and never replaces it. If programs are
    compressed by zstd, it even runs most of those that are damaged.
    """

    def __init__(self, cache: Any, path: str):
        self._cache = cache
        self._path = path

    def get(self, key: str) -> bytes | None:
        """The program of a key; a damaged one is removed, so that it is written again."""
        with suppress(OSError):
            entry = self._cache.get(key)
            if entry is None:
                return None
            program, digest = entry[:-DIGEST_SIZE], entry[-DIGEST_SIZE:]
            if digest == _digest(key, program):
                for file in self._files(key):
                    os.utime(file)
                return program
            self._remove(key)
        return None

    def put(self, key: str, program: bytes) -> None:
        """Writes the program of a key, if there is room on the disk."""
        try:
            self._cache.put(key, program + _digest(key, program))
        except OSError:
            self._remove(key)

    def _remove(self, key: str) -> None:
        with suppress(OSError):
            for file in self._files(key):
                file.unlink(missing_ok=True)

    def _files(self, key: str) -> list[Path]:
        return list(Path(self._path).glob(f"{glob.escape(key)}*"))


def evict(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Removes the least recently used entries of all caches in a folder, beyond that size."""
    files = []
    for file in folder.glob("*/*"):
        with suppress(OSError):  # another process may remove it too
            status = file.stat()
            files.append((status.st_mtime, status.st_size, file))
    size = 0
    for _, file_size, file in sorted(files, reverse=True):
        size += file_size
        if size > max_bytes:
            with suppress(OSError):
                file.unlink()


def _get_file_cache(
    get_file_cache: Callable[[str], tuple[Any, str] | None], checked_path: str, path: str
) -> tuple[Any, str] | None:
    """What JAX opens for a path; with checksums if it is that of `use`."""
    opened = get_file_cache(path)
    if opened is None or path != checked_path:
        return opened
    return CheckedCache(opened[0], path), path


def _digest(key: str, program: bytes) -> bytes:
    """The checksum of an entry, which also tells whether it is that of the key."""
    return hashlib.sha256(key.encode() + program).digest()


def _num_threads() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
