"""What all runners share: their interface, and the state of R runs."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.errors import EngramError
from engram.types import Metrics


class RunKeys(NamedTuple):
    """Random keys of one run; the iteration or episode is folded in, so no key is used twice."""

    step: Key[Array, ""]
    """for `Agent.step`"""
    learn: Key[Array, ""]
    """for `Agent.learn`"""
    env: Key[Array, ""]
    """for `JaxEnv.step`"""
    reset: Key[Array, ""]
    """for `JaxEnv.reset`"""
    init: Key[Array, ""]
    """for `Agent.init`"""


class RunState(NamedTuple):
    """State of R agents that train together; all leaves but counters have a leading axis R."""

    agent: PyTree
    """the agents' states"""
    keys: RunKeys
    metric_sums: Metrics
    """each metric, summed since `pop_metrics`"""
    num_summed: Int[Array, ""]
    """iterations in `metric_sums`"""
    step: Int[Array, ""]
    """iterations so far, the same for all runs"""
    return_weight: Float[Array, "R E"]
    """sum over the episode's steps of the discount of the next reward in their return"""


class Runner(Protocol):
    """Trains R runs together; `start` or `restore` it before it can `advance`."""

    iteration: int
    """calls of `Agent.step` so far"""
    fault: EngramError | None
    """the environment's fault that stopped `advance`, if any; the state can still be saved"""

    @property
    def run_state(self) -> RunState: ...

    def start(self) -> None:
        """Initializes the agents and begins the first episodes."""
        ...

    def advance(
        self, iterations: int, stop: Callable[[], bool] = ...
    ) -> Float[np.ndarray, "T R E"]:
        """Trains for a number of iterations, or fewer if `stop()` turns true.

        Returns the true return of each episode where it ended, and NaN elsewhere.
        """
        ...

    def pop_metrics(self) -> dict[str, Float[np.ndarray, "R"]]:
        """Means of the metrics over the iterations since the last call."""
        ...

    def template(self) -> PyTree:
        """Shapes and dtypes of the arrays that `save` returns; the first part is a `RunState`."""
        ...

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        """The complete state: arrays, and notes that can be written as JSON."""
        ...

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        """Continues from what `save` returned."""
        ...

    def close(self) -> None:
        """Closes the environments."""
        ...


def pop_metrics(run_state: RunState) -> tuple[RunState, dict[str, Float[np.ndarray, "R"]]]:
    """The state with metric sums of zero, and the means of the metrics until now."""
    count = max(int(run_state.num_summed), 1)
    means = {name: np.asarray(total) / count for name, total in run_state.metric_sums.items()}
    zeros = jax.tree.map(jnp.zeros_like, run_state.metric_sums)
    num_summed = jnp.zeros_like(run_state.num_summed)
    return run_state._replace(metric_sums=zeros, num_summed=num_summed), means
