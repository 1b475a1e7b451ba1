"""K nearest neighbours in C++, for CPUs with a C++ compiler; three to four times as fast as XLA.

It is compiled once, at first use, into the user's cache. ENGRAM_NATIVE=0 disables it.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib.version
from jaxtyping import Array, Float, Int

from engram import user_cache

SOURCE = Path(__file__).parent / "nearest.cc"
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-w")


@cache
def is_available() -> bool:
    """Whether the kernel can be used; compiles it at first use."""
    if os.environ.get("ENGRAM_NATIVE") == "0":
        return False
    try:
        library = ctypes.CDLL(str(_library()))
        jax.ffi.register_ffi_target(
            "engram_nearest", jax.ffi.pycapsule(library.EngramNearest), platform="cpu"
        )
    except (OSError, AttributeError, subprocess.SubprocessError):
        return False
    return True


def nearest_neighbours(
    keys: Float[Array, "N H"], size: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of the K nearest keys, as `knn.nearest_neighbours` gives them."""
    shape = (queries.shape[0], k)
    answer = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.int32)
    return jax.ffi.ffi_call("engram_nearest", answer, vmap_method="broadcast_all")(
        keys, size, queries
    )  # pyright: ignore


def _library() -> Path:
    """The compiled library."""
    compiler = (
        os.environ.get("CXX")
        or shutil.which("c++")
        or shutil.which("g++")
        or shutil.which("clang++")
    )
    if compiler is None:
        raise OSError("no C++ compiler")
    sources = (
        SOURCE.read_text(),
        jaxlib.version.__version__,
        compiler,
        *FLAGS,
        user_cache.processor(),
    )
    library = (
        _cache_dir() / f"nearest-{hashlib.sha256(''.join(sources).encode()).hexdigest()[:16]}.so"
    )
    if not library.exists():
        with tempfile.TemporaryDirectory(
            dir=library.parent
        ) as folder:  # another process may be compiling too: the last one wins
            compiled = Path(folder) / library.name
            command = [
                compiler,
                *FLAGS,
                f"-I{jax.ffi.include_dir()}",
                str(SOURCE),
                "-o",
                str(compiled),
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(compiled, library)
    return library


def _cache_dir() -> Path:
    try:
        folder = user_cache.folder()
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="engram-"))
