"""Gradient steps: Adam with clipped gradients, alike for every agent."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import eval_jaxpr
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, PyTree

from engram.devices import platform


def make_optimizer(
    learning_rate: float | Array, max_grad_norm: float, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam on gradients whose global norm is at most `max_grad_norm`."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate, eps=eps))


def gradient_step(
    optimizer: optax.GradientTransformation,
    loss: Callable[..., Any],
    params: PyTree,
    opt_state: PyTree,
    *data: Any,
    has_aux: bool = False,
) -> tuple[PyTree, PyTree, Any]:
    """One step on `loss(params, *data)`: new parameters, new optimizer state, the loss before it.

    With `has_aux` the last is the pair of loss and auxiliary output.
    """
    value, gradients = jax.value_and_grad(loss, has_aux=has_aux)(params, *data)
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


def sequential_over_runs(function: Callable[..., Any], *data: Any) -> Any:
    """`function(*data)`, computed run by run under `vmap` on a CPU.

    An LSTM's weights then stay in the cache from step to step.
    """
    if platform() != "cpu":
        return function(*data)
    # Nothing that differs between runs may enter by closure.
    program, shape = jax.make_jaxpr(function, return_shape=True)(*data)

    @sequential_vmap
    def one_run(data, constants):
        return eval_jaxpr(program.jaxpr, constants, *jax.tree.leaves(data))

    return jax.tree.unflatten(jax.tree.structure(shape), one_run(data, program.consts))
