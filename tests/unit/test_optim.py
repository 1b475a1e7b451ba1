"""Gradient steps, clipping, and computation run by run."""

import jax
import jax.numpy as jnp
import numpy as np

from engram.batching import sequential_over_runs
from engram.optim import clip_norm, gradient_step, make_optimizer


def test_clip_norm_scales_down_to_the_norm():
    x = jnp.array([[3.0, 0.0], [0.0, 4.0]])
    assert clip_norm(x, 10.0).tolist() == x.tolist()
    np.testing.assert_allclose(clip_norm(x, 1.0), [[0.6, 0.0], [0.0, 0.8]], rtol=1e-6)
    assert clip_norm(jnp.zeros(3), 1.0).tolist() == [0.0, 0.0, 0.0]


def test_a_gradient_step_returns_the_loss_before_it_and_the_auxiliary_output():
    optimizer = make_optimizer(0.1, 1.0)
    params = jnp.array([3.0, 4.0])

    def loss(params, scale):
        return jnp.sum(params * scale), 2 * scale

    opt_state = optimizer.init(params)
    after, _, (value, aux) = gradient_step(optimizer, loss, params, opt_state, 2.0, has_aux=True)
    assert (float(value), aux) == (14.0, 4.0)
    # Adam's first step is the learning rate, whatever the gradient.
    np.testing.assert_allclose(after, [2.9, 3.9], rtol=1e-5)


def test_sequential_over_runs_equals_vmap_even_for_closed_over_arrays():
    scale, data = jnp.arange(1.0, 4), jnp.arange(6.0).reshape(3, 2)

    def one_run(scale, data, apply):
        def work(data):
            return {"sum": jnp.sum(scale * data), "product": scale * data}

        return apply(work, data)

    def direct(work, data):
        return work(data)

    expected = jax.vmap(lambda *x: one_run(*x, direct))(scale, data)
    result = jax.jit(jax.vmap(lambda *x: one_run(*x, sequential_over_runs)))(scale, data)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    assert result["sum"].tolist() == expected["sum"].tolist() == [1.0, 10.0, 27.0]
    assert result["product"].tolist() == expected["product"].tolist()
