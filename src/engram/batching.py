"""Computations that `vmap` over runs would slow down, and so are done run by run."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.custom_batching import sequential_vmap

from engram.devices import platform


def sequential_over_runs(function: Callable[..., Any], *data: Any, on_gpu: bool = False) -> Any:
    """`function(*data)`, computed run by run under `vmap` on a CPU, and if asked for on a GPU.

    An LSTM's weights then stay in a CPU's cache from step to step. A convolution with the weights
    of one run is a fast one on any device.
    """
    if platform() == "onnx" or (platform() != "cpu" and not on_gpu):
        return function(*data)
    # Nothing that differs between runs may enter by closure.
    program, shape = jax.make_jaxpr(function, return_shape=True)(*data)

    @sequential_vmap
    def one_run(data, constants):
        return eval_jaxpr(program.jaxpr, constants, *jax.tree.leaves(data))

    return jax.tree.unflatten(jax.tree.structure(shape), one_run(data, program.consts))
