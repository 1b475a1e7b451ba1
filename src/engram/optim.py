"""Gradient steps: Adam with clipped gradients, alike for every agent."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from engram.batching import sequential_over_runs


def make_optimizer(
    learning_rate: float | Array,
    max_grad_norm: float,
    eps: float = 1e-8,
    weight_decay: float | Array = 0.0,
) -> optax.GradientTransformation:
    """Adam, or with weight decay AdamW, on gradients of a global norm up to `max_grad_norm`."""
    adam = optax.adam(learning_rate, eps=eps)
    if not isinstance(weight_decay, int | float) or weight_decay:  # a traced one may not be 0
        adam = optax.adamw(learning_rate, eps=eps, weight_decay=weight_decay)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), adam)


def gradient_step(
    optimizer: optax.GradientTransformation,
    loss: Callable[..., Any],
    params: PyTree,
    opt_state: PyTree,
    *data: Any,
    has_aux: bool = False,
    sequential: bool = False,
) -> tuple[PyTree, PyTree, Any]:
    """One step on `loss(params, *data)`: new parameters, new optimizer state, the loss before it.

    With `has_aux` the last is the pair of loss and auxiliary output. With `sequential` gradients
    are computed run by run under `vmap`.
    """
    loss_and_gradients = jax.value_and_grad(loss, has_aux=has_aux)
    if sequential:
        value, gradients = sequential_over_runs(loss_and_gradients, params, *data, on_gpu=True)
    else:
        value, gradients = loss_and_gradients(params, *data)
    return *apply_gradients(optimizer, gradients, params, opt_state), value


def apply_gradients(
    optimizer: optax.GradientTransformation, gradients: PyTree, params: PyTree, opt_state: PyTree
) -> tuple[PyTree, PyTree]:
    """New parameters and new optimizer state."""
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def clip_norm(x: Float[Array, "..."], max_norm: float) -> Float[Array, "..."]:
    """`x`, scaled down to norm `max_norm` if it is longer."""
    return x * jnp.minimum(1.0, max_norm / jnp.maximum(jnp.linalg.norm(x), 1e-12))
