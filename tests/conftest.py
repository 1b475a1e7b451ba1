"""How all tests compile, and how Hypothesis draws."""

import atexit
import os
import shutil
import tempfile

import jax
import pytest
from hypothesis import settings

# Compilation is most of the time of these tests, and XLA's optimizations most of compilation.
jax.config.update("jax_disable_most_optimizations", True)
# A program that one test has compiled is loaded by the next. Each process has its own cache: two
# that write one file at once would warn, and warnings are errors.
cache_dir = tempfile.mkdtemp(prefix="engram-tests-")
atexit.register(shutil.rmtree, cache_dir, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", cache_dir)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
os.environ["ENGRAM_CACHE"] = "0"  # processes that tests start leave the user's cache alone
settings.register_profile("engram", deadline=None, derandomize=True)
settings.load_profile("engram")


@pytest.fixture(scope="module")
def optimized():
    """Compiles as users do, for tests of rounding or of where arrays lie in memory."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
