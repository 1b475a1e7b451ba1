"""Compiled functions that update their state in place and pass few arrays.

On a GPU each array costs a call 5 microseconds, and 50 if it comes from the host.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jaxtyping import Array, PyTree

from engram.networks import obs_size
from engram.pytrees import is_key
from engram.types import Spec, TimeStep

Arrays = tuple[Array, ...]


class FlatPytree:
    """A pytree as a tuple of plain arrays, and back.

    A call with the tree itself would flatten modules and keys in Python, which takes longer than a
    gradient step.
    """

    def __init__(self, structure: PyTree):
        self.leaves, self.treedef = jax.tree.flatten(structure)

    def flatten(self, tree: PyTree) -> Arrays:
        return tuple(jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree))

    def unflatten(self, arrays: Arrays) -> PyTree:
        leaves = [
            jax.random.wrap_key_data(x) if is_key(leaf) else x
            for leaf, x in zip(self.leaves, arrays, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)


class DonatedFunction:
    """Compiles `function(state, *inputs) -> (state, outputs)`, whose state is a tuple of arrays.

    Arrays that it changes are donated, so that they are updated in place. Arrays that it returns
    unchanged are not passed out again, and those that it does not use are not passed in.
    """

    def __init__(self, function: Callable[..., tuple[Arrays, Arrays]]):
        self.function = function
        self.is_changed: list[bool] = []
        """for each array of the state, whether the function changes it"""
        self.is_read: list[bool] = []
        """for each array of the state, whether the function uses it but returns it unchanged"""

    def __call__(self, state: Arrays, *inputs: Any) -> tuple[Arrays, Arrays]:
        self._trace_once(state, inputs)
        new, outputs = self._compiled(*self._select(state), inputs)
        changed = iter(new)
        merged = zip(state, self.is_changed, strict=True)
        return tuple(next(changed) if is_changed else x for x, is_changed in merged), outputs

    def compiler(self, state: Arrays, *inputs: Any) -> Callable[[], Any]:
        """Traces the function, and returns a call that compiles it, in any thread."""
        self._trace_once(state, inputs)
        return self._compiled.lower(*self._select(state), inputs).compile

    def _select(self, state: Arrays) -> tuple[list[Array], list[Array]]:
        """The arrays that are changed, and those that are only read."""
        return list(compress(state, self.is_changed)), list(compress(state, self.is_read))

    def _trace_once(self, state: Arrays, inputs: tuple[Any, ...]) -> None:
        if self.is_changed:
            return
        program = jax.make_jaxpr(self.function)(state, *inputs)
        size = len(state)
        invars = program.jaxpr.invars[:size]
        outvars = program.jaxpr.outvars
        self.is_changed = [x is not y for x, y in zip(invars, outvars[:size], strict=True)]
        in_equations = [x for equation in program.jaxpr.eqns for x in equation.invars]
        used = {*map(id, in_equations), *map(id, compress(outvars, self.is_changed))}
        used |= set(map(id, outvars[size:]))
        self.is_read = [
            id(x) in used and not is_changed
            for x, is_changed in zip(invars, self.is_changed, strict=True)
        ]
        types = _array_types(self._select(state))

        def run(changed, read, inputs):
            # This runs only when JAX traces for new shapes, for which the program would be wrong.
            if _array_types((changed, read)) != types:
                raise ValueError(
                    "The arrays differ in shape or dtype from those that the function was traced "
                    "for: arrays that are updated in place must keep both."
                )
            return self._evaluate(program, changed, read, inputs)

        self._compiled = jax.jit(run, donate_argnums=0)

    def _evaluate(
        self, program: Any, changed: list[Array], read: list[Array], inputs: Any
    ) -> tuple[list[Array], Arrays]:
        """Evaluates the traced program; arrays that it does not use are left out."""
        next_changed, next_read = iter(changed), iter(read)
        state = [
            next(next_changed) if is_changed else next(next_read) if is_read else None
            for is_changed, is_read in zip(self.is_changed, self.is_read, strict=True)
        ]
        results = eval_jaxpr(program.jaxpr, program.consts, *state, *inputs)
        return list(compress(results, self.is_changed)), tuple(results[len(state) :])


def pack_timestep(timestep: TimeStep) -> tuple[np.ndarray, ...]:
    """A timestep of NumPy arrays with axes R and E as one array, or a few for byte observations."""
    scalars = [timestep.reward, timestep.terminated, timestep.truncated]
    packed = np.stack(scalars, axis=-1, dtype=np.float32)
    observations = np.asarray(timestep.observation), np.asarray(timestep.final_observation)
    if observations[0].dtype != np.float32:
        return *(x for x in observations if x.size), packed
    flat = (x.reshape(*packed.shape[:2], -1) for x in observations)
    return (np.concatenate([*flat, packed], axis=-1),)


def unpack_timestep(spec: Spec, arrays: Sequence[Array]) -> TimeStep:
    """The inverse of `pack_timestep`."""
    *observations, packed = arrays
    if not observations:
        size = obs_size(spec)
        flat = packed[..., :size], packed[..., size : 2 * size]
        observations = [x.reshape(*packed.shape[:2], *spec.shape) for x in flat]
        packed = packed[..., 2 * size :]
    reward, terminated, truncated = jnp.moveaxis(packed, -1, 0)
    has_final = len(observations) > 1
    final = observations[1] if has_final else jnp.zeros((*reward.shape, 0), spec.dtype)
    return TimeStep(observations[0], reward, terminated > 0, truncated > 0, final)


def _array_types(groups: Iterable[Sequence[Array]]) -> list[tuple[Any, ...]]:
    return [(x.shape, x.dtype) for group in groups for x in group]
