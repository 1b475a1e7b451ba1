"""Shared by all tests: how they compile, and how Hypothesis draws."""

import atexit
import shutil
import tempfile

import jax
import pytest
from hypothesis import settings

# Compilation is nearly all the time of these tests, and XLA's optimisations are most of compilation.
jax.config.update("jax_disable_most_optimizations", True)
# What one test has compiled another loads. Each process has its own: two that write one file at once would warn, and warnings are errors.
compiled = tempfile.mkdtemp(prefix="engram-tests-")
atexit.register(shutil.rmtree, compiled, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", compiled)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
settings.register_profile("engram", deadline=None, derandomize=True)
settings.load_profile("engram")


@pytest.fixture(scope="module")
def optimised():
    """Compiles as users do, for the modules whose subject is how numbers round or where they lie in memory."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
