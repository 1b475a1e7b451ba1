"""As few arrays as may be into a compiled function and out of it: on a GPU each costs a call 5 microseconds, and 50 if it comes from the
host."""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jaxtyping import Array, Float, PyTree

from engram.networks import width
from engram.types import Spec, TimeStep

Arrays = tuple[Array, ...]


class Packing:
    """A tree as a tuple of plain arrays and back: to flatten modules and keys in Python at every call costs more than an update."""

    def __init__(self, structure: PyTree):
        self.leaves, self.tree = jax.tree.flatten(structure)

    def pack(self, tree: PyTree) -> Arrays:
        return tuple(jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(tree))

    def unpack(self, arrays: Arrays) -> PyTree:
        pairs = zip(self.leaves, arrays, strict=True)
        return jax.tree.unflatten(self.tree, [jax.random.wrap_key_data(x) if _is_key(leaf) else x for leaf, x in pairs])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class InPlace:
    """A function from a tuple of arrays and further ones to such a tuple and further ones, compiled. What it changes in the tuple is
    changed in place; what it leaves as it is does not come out again, and what it does not need does not go in."""

    def __init__(self, function: Callable[..., tuple[Arrays, Arrays]]):
        self.function = function
        self.changes: list[bool] = []
        self.reads: list[bool] = []
        """of what it leaves as it is"""

    def __call__(self, arrays: Arrays, *more: Any) -> tuple[Arrays, Arrays]:
        self._trace_once(arrays, more)
        new, further = self.run(*self._sides(arrays), more)
        changed = iter(new)
        return tuple(next(changed) if changes else x for x, changes in zip(arrays, self.changes, strict=True)), further

    def compiler(self, arrays: Arrays, *more: Any) -> Callable[[], Any]:
        """What compiles it for arrays like these, in whatever thread; the first call needs not do so then."""
        self._trace_once(arrays, more)
        return self.run.lower(*self._sides(arrays), more).compile

    def _sides(self, arrays: Arrays) -> tuple[list[Array], list[Array]]:
        """What is changed, and what is only read."""
        return list(compress(arrays, self.changes)), list(compress(arrays, self.reads))

    def _trace_once(self, arrays: Arrays, more: tuple[Any, ...]) -> None:
        if self.changes:
            return
        program, count = jax.make_jaxpr(self.function)(arrays, *more), len(arrays)
        into, out = program.jaxpr.invars[:count], program.jaxpr.outvars
        self.changes = [before is not after for before, after in zip(into, out[:count], strict=True)]
        read = [*(x for step in program.jaxpr.eqns for x in step.invars), *compress(out, self.changes), *out[count:]]
        needed = set(map(id, read))
        self.reads = [id(x) in needed and not changes for x, changes in zip(into, self.changes, strict=True)]
        kinds = _kinds(self._sides(arrays))

        def run(changing, reading, more):
            # Compiled anew for other shapes, it would still be the program of the first ones. It looks only then, so calls are no slower.
            if _kinds((changing, reading)) != kinds:
                raise ValueError("These arrays are unlike those that this was traced for: what is changed in place must keep its shape.")
            sides = iter(changing), iter(reading)
            which = zip(self.changes, self.reads, strict=True)
            given = [next(sides[0]) if changes else next(sides[1]) if reads else None for changes, reads in which]
            found = eval_jaxpr(program.jaxpr, program.consts, *given, *more)
            return list(compress(found, self.changes)), tuple(found[count:])

        self.run = jax.jit(run, donate_argnums=0)


def _kinds(sides: Iterable[Sequence[Array]]) -> list[tuple[Any, ...]]:
    return [(x.shape, x.dtype) for side in sides for x in side]


def joined(timestep: TimeStep) -> tuple[np.ndarray, ...]:
    """A timestep of NumPy arrays with axes R and E; in one, but where observations are bytes."""
    told = np.stack([timestep.reward, timestep.terminated, timestep.truncated], axis=-1, dtype=np.float32)
    seen = np.asarray(timestep.observation), np.asarray(timestep.final)
    if seen[0].dtype != np.float32:
        return *(x for x in seen if x.size), told
    flat = (x.reshape(*told.shape[:2], -1) for x in seen)
    return (np.concatenate([*flat, told], axis=-1),)


def parted(spec: Spec, arrays: Sequence[Array]) -> TimeStep:
    """What was joined."""
    *seen, told = arrays
    if not seen:
        size = width(spec)
        told, seen = told[..., 2 * size :], [told[..., :size], told[..., size : 2 * size]]
        seen = [x.reshape(*told.shape[:2], *spec.shape) for x in seen]
    reward, terminated, truncated = jnp.moveaxis(told, -1, 0)
    final: Float[Array, "R E ..."] = seen[1] if len(seen) > 1 else jnp.zeros((*reward.shape, 0), spec.dtype)
    return TimeStep(seen[0], reward, terminated > 0, truncated > 0, final)
