"""Shared by all tests: how they compile, and how Hypothesis draws."""

import jax
import pytest
from hypothesis import settings

# Compilation is nearly all the time of these tests, and XLA's optimisations are most of compilation.
jax.config.update("jax_disable_most_optimizations", True)
settings.register_profile("engram", deadline=None, derandomize=True)
settings.load_profile("engram")


@pytest.fixture(scope="module")
def optimised():
    """Compiles as users do, for the modules whose subject is how numbers round or where they lie in memory."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
