"""Work that falls on some steps and not on others, alike for all runs: a branch of the program, or none where it is known how it goes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jax import lax
from jaxtyping import Array, Bool, Int

Step = Int[Array, ""] | int
"""still to be traced, or known"""
Falls = Callable[[Step], Bool[Array, ""] | bool]
"""whether work falls on a step"""
Known = tuple[bool, ...]
"""of each piece of work, in the order in which a program comes to it, whether it falls on a step"""

_settled: ContextVar[Iterator[bool] | None] = ContextVar("settled", default=None)
_noted: ContextVar[list[Falls] | None] = ContextVar("noted", default=None)


def when(falls: Falls, step: Int[Array, ""], work: Callable[[], Any], rest: Callable[[], Any]) -> Any:
    """`work()` where `falls(step)`, else `rest()`. Under `vmap` this stays a branch, since `step` is the same for all runs. It must not
    stand inside other work, nor in a loop: pieces of work are known by their order."""
    if (noted := _noted.get()) is not None:
        noted.append(falls)
    if (known := _settled.get()) is not None:
        if (is_due := next(known, None)) is None:
            raise RuntimeError("There is more work than was noted: `when` must not stand inside other work, nor in a loop.")
        return work() if is_due else rest()
    return lax.cond(falls(step), work, rest)


@contextmanager
def noting() -> Iterator[list[Falls]]:
    """Notes what work a program that is traced within comes to."""
    token = _noted.set(work := [])
    try:
        yield work
    finally:
        _noted.reset(token)


@contextmanager
def settled(known: Known) -> Iterator[None]:
    """A program that is traced within has no branches: it does the work of steps of which this is known. A GPU's program that branches
    keeps whoever calls it waiting until the GPU is there."""
    token = _settled.set(left := iter(known))
    try:
        yield
        if next(left, None) is not None:
            raise RuntimeError("There is less work than was noted: `when` must not stand inside other work.")
    finally:
        _settled.reset(token)


def of_step(work: Sequence[Falls], step: int) -> Known:
    return tuple(bool(falls(step)) for falls in work)


def usual(work: Sequence[Falls], steps: Iterable[int]) -> Known:
    """What is so of most of these steps."""
    return Counter(of_step(work, step) for step in steps).most_common(1)[0][0]
