"""Running mean and variance agree with those of all batches, and normalize features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import running_stats
from engram.running_stats import RunningStats


def stats_of(batches):
    stats = running_stats.init(batches[0].shape[1])
    return jax.jit(lambda batches: update_all(stats, batches))(jnp.asarray(batches))


def update_all(stats, batches):
    def one_batch(stats, batch):
        return running_stats.update(stats, batch), None

    return jax.lax.scan(one_batch, stats, batches)[0]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([1, 2, 12]),
    size=st.sampled_from([1, 5]),
    level=st.floats(-50, 50),
)
def test_the_first_batches_have_equal_weight(seed, count, size, level):
    rng = np.random.default_rng(seed)
    batches = rng.normal(level, 3.0, (count, size, 2)).astype(np.float32)
    stats, numbers = stats_of(batches), batches.reshape(-1, 2).astype(float)
    np.testing.assert_allclose(stats.mean, numbers.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stats.variance, numbers.var(axis=0), rtol=1e-3, atol=1e-3)


def test_older_batches_have_less_weight(monkeypatch):
    monkeypatch.setattr(running_stats, "WINDOW", 2)
    # 0 and 4 with weight 1/2: mean 2, variance 4. Then 2 and 6 with weight 1/2: mean 3,
    # variance 4 within and 0.25 * 2^2 = 1 between.
    stats = stats_of(np.array([[[0.0], [0.0]], [[4.0], [4.0]], [[2.0], [6.0]]]))
    np.testing.assert_allclose([stats.mean[0], stats.variance[0]], [3.0, 5.0])
    assert stats.num_batches == 2  # not 3: of a long run it would not fit into half precision


def test_normalized_numbers_are_clipped_deviations_from_the_mean():
    stats = RunningStats(jnp.ones(()), jnp.array([10.0, 10.0]), jnp.array([4.0, 4.0]))
    normalized = running_stats.normalize(stats, jnp.array([[13.0, -1_000.0]]))
    np.testing.assert_allclose(normalized, [[1.5, -5.0]])


@pytest.mark.parametrize("level", [0.0, 0.1, -3e4])
def test_constant_numbers_are_normalized_to_0_with_a_finite_gradient(level):
    stats = stats_of(np.full((50, 3, 1), level, np.float32))
    x = jnp.full((2, 1), level)
    np.testing.assert_array_equal(running_stats.normalize(stats, x), 0)
    gradient = jax.grad(lambda x: running_stats.normalize(stats, x).sum())(x)
    assert np.isfinite(gradient).all()
