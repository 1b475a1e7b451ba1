"""Periodic updates that all runs share: a branch in the program, or none if it is known beforehand.

`lax.cond` on a GPU blocks the dispatching thread until the predicate is known. So the pattern of
updates that most steps have is compiled into a program without branches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

Step = Int[Array, ""] | int
"""an iteration, traced or a plain number"""
IsDue = Callable[[Step], Bool[Array, ""] | bool]
"""whether an update is due at a step"""
Pattern = tuple[bool, ...]
"""for each periodic update of a program, in the order of its trace, whether it is due"""

LAST_ITERATIONS = 1_000
"""at the end of a run, of which the most common pattern is taken"""

_fixed: ContextVar[Iterator[bool] | None] = ContextVar("fixed", default=None)
_recorded: ContextVar[list[IsDue] | None] = ContextVar("recorded", default=None)


def periodically(
    is_due: IsDue, step: Int[Array, ""], update: Callable[[], Any], skip: Callable[[], Any]
) -> Any:
    """`update()` if `is_due(step)`, else `skip()`.

    `step` is the same for all runs, so this stays a branch under `vmap`. Updates are identified by
    their order, so a call must stand neither inside another one's `update` nor in a loop.
    `is_due` depends on its argument alone.
    """
    if (recorded := _recorded.get()) is not None:
        recorded.append(is_due)
    if (fixed := _fixed.get()) is not None:
        if (due := next(fixed, None)) is None:
            raise RuntimeError(
                "The program has more periodic updates than its pattern: "
                "`periodically` must stand neither inside another one's update nor in a loop."
            )
        return update() if due else skip()
    return lax.cond(is_due(step), update, skip)


@contextmanager
def record_schedules() -> Iterator[list[IsDue]]:
    """Collects the conditions of all periodic updates that are traced inside the block."""
    schedules: list[IsDue] = []
    token = _recorded.set(schedules)
    try:
        yield schedules
    finally:
        _recorded.reset(token)


@contextmanager
def fixed_schedule(pattern: Pattern) -> Iterator[None]:
    """Programs traced inside the block have no branches: their updates follow `pattern`."""
    remaining = iter(pattern)
    token = _fixed.set(remaining)
    try:
        yield
        if next(remaining, None) is not None:
            raise RuntimeError(
                "The program has fewer periodic updates than its pattern: "
                "`periodically` must not stand inside another one's update."
            )
    finally:
        _fixed.reset(token)


def pattern_at(schedules: Sequence[IsDue], step: int) -> Pattern:
    """Which of the periodic updates are due at a step."""
    return tuple(bool(is_due(step)) for is_due in schedules)


def patterns_at(schedules: Sequence[IsDue], steps: Int[np.ndarray, "N"]) -> Bool[np.ndarray, "N P"]:
    """Which of the P periodic updates are due at each of the steps."""
    due = np.zeros((len(steps), len(schedules)), bool)
    for i, is_due in enumerate(schedules):
        due[:, i] = jax.vmap(lambda step, f=is_due: jnp.asarray(f(step)))(steps)
    return due


def common_pattern(schedules: Sequence[IsDue], num_iterations: int) -> Pattern | None:
    """The pattern of most iterations at the end of a run, by when all updates have started.

    None if there are no periodic updates, or one depends on more than the step.
    """
    steps = np.arange(max(0, num_iterations - LAST_ITERATIONS), num_iterations, dtype=np.int32)
    try:
        patterns = patterns_at(schedules, steps)
    except (jax.errors.UnexpectedTracerError, jax.errors.ConcretizationTypeError):
        return None
    kinds, counts = np.unique(patterns, axis=0, return_counts=True)
    return tuple(kinds[np.argmax(counts)].tolist()) if schedules else None
