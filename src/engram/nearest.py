"""Exact K nearest neighbours by Euclidean distance, among the filled slots of a table: the search behind every episodic memory."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int, Shaped

from engram import gpu, native
from engram.devices import platform
from engram.gpu import BLOCK, SLIM

SHORTEST = 4096
"""slots below which a table is searched whole"""
FEW = 8
"""neighbours up to which a GPU searches by two kernels"""


def nearest(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of the `k` keys nearest to each query, nearest first, among the first `filled` slots.

    Where fewer than `k` are filled the rest have distance infinity, and slot 0; so has, and at no cost on a CPU, a query that is no
    number (NaN). No gradient flows: who needs one takes it through `keys[slots]`.
    """
    keys, queries = lax.stop_gradient((keys, queries))
    device = platform()
    if device == "cpu" and native.is_available():
        return native.nearest(keys, filled, queries, k)
    is_small = k <= FEW and keys.shape[1] <= SLIM
    if device == "gpu" and gpu.is_available(is_small):
        return (two_kernels if is_small else blockwise)(keys, filled, queries, k)
    return portable(keys, filled, queries, k)


def blockwise(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int, interpret: bool = False
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """The search for many neighbours on a GPU."""
    squares, minima = gpu.squares(keys, filled, queries, interpret)
    blocks = squares.reshape(*minima.shape, BLOCK)
    return _answer(*_inside(blocks, minima, min(k, squares.shape[1])), k)


def two_kernels(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int, interpret: bool = False
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """The search for few neighbours on a GPU, which writes no distances."""
    return _answer(*gpu.few(keys, filled, queries, k, interpret), k)


def portable(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """The search for any device."""

    @custom_vmap
    def search(keys, filled, queries):
        return _as_far_as_filled(keys, filled, queries, k)

    @search.def_vmap
    def _(size, is_batched, *arrays):  # the leading axes of `vmap` are kept, so that all tables can be looked at together
        arrays = (x if known else jnp.broadcast_to(x, (size, *x.shape)) for x, known in zip(arrays, is_batched, strict=True))
        return search(*arrays), (True, True)

    return search(keys, filled, queries)


def _as_far_as_filled(
    keys: Float[Array, "*B N H"], filled: Int[Array, "*B"], queries: Float[Array, "*B Q H"], k: int
) -> tuple[Float[Array, "*B Q k"], Int[Array, "*B Q k"]]:
    """Large tables are searched by the shortest of a few programs that goes as far as the fullest of them is filled."""
    search = partial(_search, k=k)
    for _ in filled.shape:
        search = jax.vmap(search)
    slots = keys.shape[-2]
    sizes = [slots, *(slots >> halved for halved in range(1, 5) if slots >> halved >= SHORTEST)]
    enough = sum(jnp.max(filled) <= size for size in sizes[1:])  # the sizes are nested
    return lax.switch(enough, [lambda size=size: search(keys[..., :size, :], filled, queries) for size in sizes])


def _search(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    keys = jnp.pad(keys, ((0, -keys.shape[0] % BLOCK), (0, 0)))  # cheaper than to do so with the distances
    is_there = (jnp.arange(keys.shape[0]) < filled) & ~jnp.isnan(queries[:, :1])
    return _answer(*smallest(jnp.where(is_there, _squares(keys, queries), jnp.inf), min(k, keys.shape[0])), k)


def _answer(best: Float[Array, "Q b"], slots: Int[Array, "Q b"], k: int) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots as `nearest` gives them, of the smallest squares, of which there may be less than `k`."""
    slots = jnp.where(jnp.isfinite(best), slots, 0)
    missing = ((0, 0), (0, k - best.shape[-1]))
    return jnp.sqrt(jnp.pad(best, missing, constant_values=jnp.inf)), jnp.pad(slots, missing)


def _squares(keys: Float[Array, "N H"], queries: Float[Array, "Q H"]) -> Float[Array, "Q N"]:
    """Squared distances by differences: a matrix product loses digits where distances are small, and small distances weigh most."""
    total = jnp.zeros((queries.shape[0], keys.shape[0]))
    columns = lax.optimization_barrier(keys.T)  # laid out so that neighbours in memory are neighbours in the loop
    for h in range(keys.shape[1]):  # unrolled, so that it becomes one loop over queries and keys and no array of differences
        total += (queries[:, h, None] - columns[h]) ** 2
    return total


def smallest(x: Shaped[Array, "Q N"], k: int) -> tuple[Shaped[Array, "Q k"], Int[Array, "Q k"]]:
    """The `k` smallest numbers of each row and where they stand. They lie in the `k` blocks with the smallest minima, which are found in
    the same way, so only few are ever sorted."""
    rows, size = x.shape
    if size < 2 * BLOCK * k:
        best, slots = lax.top_k(-x, k)
        return -best, slots
    if size % BLOCK:
        x = jnp.pad(x, ((0, 0), (0, -size % BLOCK)), constant_values=_largest(x))
    blocks = lax.optimization_barrier(x).reshape(rows, -1, BLOCK)
    return _inside(blocks, lax.optimization_barrier(blocks.min(axis=-1)), k)


def _inside(blocks: Shaped[Array, "Q M B"], minima: Shaped[Array, "Q M"], k: int) -> tuple[Shaped[Array, "Q k"], Int[Array, "Q k"]]:
    """The `k` smallest of all numbers in the blocks, whose smallest are known; a block with the largest number there is holds nothing."""
    low, nearest = smallest(minima, min(k, minima.shape[1]))
    inside = jnp.take_along_axis(blocks, nearest[..., None], axis=-2)
    inside = jnp.where(low[..., None] < _largest(low), inside, _largest(low)).reshape(blocks.shape[0], -1)
    best, order = lax.top_k(-lax.optimization_barrier(inside), k)
    return -best, jnp.take_along_axis(nearest, order // BLOCK, axis=-1) * BLOCK + order % BLOCK


def _largest(x: Shaped[Array, "..."]) -> float | int:
    return jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else int(jnp.iinfo(x.dtype).max)
