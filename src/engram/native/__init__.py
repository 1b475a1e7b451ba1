"""The search compiled for this CPU, where the machine has a C++ compiler; else Engram does without, a few times slower.

It is compiled once, at first use, into the user's cache. ENGRAM_NATIVE=0 does without it.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib.version
from jaxtyping import Array, Float, Int

SOURCE = Path(__file__).parent / "nearest.cc"
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-w")


@cache
def is_available() -> bool:
    """Whether the compiled search can be used; compiles it if need be."""
    if os.environ.get("ENGRAM_NATIVE") == "0":
        return False
    try:
        library = ctypes.CDLL(str(_built()))
        jax.ffi.register_ffi_target("engram_nearest", jax.ffi.pycapsule(library.EngramNearest), platform="cpu")
    except (OSError, AttributeError, subprocess.SubprocessError):
        return False
    return True


def nearest(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """As `engram.nearest.nearest`."""
    shape = (queries.shape[0], k)
    answer = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)
    return jax.ffi.ffi_call("engram_nearest", answer, vmap_method="broadcast_all")(keys, filled, queries)  # pyright: ignore


def _built() -> Path:
    """The library, compiled unless an earlier run did."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise OSError("no C++ compiler")
    made_of = (SOURCE.read_text(), jaxlib.version.__version__, compiler, *FLAGS, _processor())
    library = _cache() / f"nearest-{hashlib.sha256(''.join(made_of).encode()).hexdigest()[:16]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # another process may be compiling too: the last one wins
            fresh = Path(folder) / library.name
            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", str(SOURCE), "-o", str(fresh)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(fresh, library)
    return library


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "engram"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="engram-"))


def _processor() -> str:
    """What `-march=native` stands for: a home folder may be shared by different machines."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        return next(line for line in text.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() + platform.machine()
