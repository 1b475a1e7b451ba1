"""Numbers by the mean and deviation of those met so far."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram import standard


def met(batches):
    norm = standard.unmet(batches[0].shape[1])
    for batch in batches:
        norm = standard.meet(norm, jnp.asarray(batch))
    return norm


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 5), st.floats(-50, 50))
def test_the_first_batches_count_alike(seed, count, size, level):
    batches = np.random.default_rng(seed).normal(level, 3.0, (count, size, 2)).astype(np.float32)
    norm, all_of_them = met(batches), batches.reshape(-1, 2).astype(float)
    np.testing.assert_allclose(norm.mean, all_of_them.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(norm.variance, all_of_them.var(axis=0), rtol=1e-3, atol=1e-3)


def test_older_batches_count_less(monkeypatch):
    monkeypatch.setattr(standard, "HORIZON", 2)
    # 0 and 4, half each: mean 2, variance 4. Then 2 and 6 for a half: mean 3, within 4, between 0.25 * 2^2 = 1.
    norm = met([np.full((2, 1), 0.0), np.full((2, 1), 4.0), np.array([[2.0], [6.0]])])
    np.testing.assert_allclose([norm.mean[0], norm.variance[0]], [3.0, 5.0])


def test_a_number_is_told_in_deviations_from_the_mean_but_never_too_far():
    norm = standard.Norm(jnp.ones(()), jnp.array([10.0, 10.0]), jnp.array([4.0, 4.0]))
    np.testing.assert_allclose(standard.in_deviations(norm, jnp.array([[13.0, -1_000.0]])), [[1.5, -5.0]])


@pytest.mark.parametrize("level", [0.0, 0.1, -3e4])
def test_what_is_always_the_same_tells_nothing(level):
    norm = met([np.full((3, 1), level, np.float32)] * 50)
    np.testing.assert_array_equal(standard.in_deviations(norm, jnp.full((2, 1), level)), 0)
    assert np.isfinite(jax.grad(lambda x: standard.in_deviations(norm, x).sum())(jnp.full((2, 1), level))).all()
