"""K nearest neighbours in plain XLA, for any device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int, Shaped

from engram.episodic.knn.pallas import BLOCK

MIN_SEARCH_SIZE = 4096
"""a larger memory is searched only as far as it is filled, in halves down to this size"""


def portable_knn(
    keys: Float[Array, "N H"], size: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of the K nearest keys, as `knn.nearest_neighbours` gives them."""

    @custom_vmap
    def search(keys, size, queries):
        return _search_filled(keys, size, queries, k)

    @search.def_vmap
    def _(axis_size, is_batched, *arrays):
        # The axes of `vmap` are kept, so that the memories of all runs are searched together.
        arrays = (
            x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, batched in zip(arrays, is_batched, strict=True)
        )
        return search(*arrays), (True, True)

    return search(keys, size, queries)


def _search_filled(
    keys: Float[Array, "*B N H"],
    size: Int[Array, "*B"],
    queries: Float[Array, "*B Q H"],
    k: int,
) -> tuple[Float[Array, "*B Q k"], Int[Array, "*B Q k"]]:
    """Searches the shortest of a few prefixes that holds all filled slots of all runs."""
    search = partial(search_all, k=k)
    for _ in size.shape:
        search = jax.vmap(search)
    capacity = keys.shape[-2]
    halves = [capacity >> i for i in range(1, 5) if capacity >> i >= MIN_SEARCH_SIZE]
    index = sum(jnp.max(size) <= half for half in halves)  # the prefixes are nested
    branches = [
        lambda prefix=prefix: search(keys[..., :prefix, :], size, queries)
        for prefix in (capacity, *halves)
    ]
    return lax.switch(index, branches)


def search_all(
    keys: Float[Array, "N H"], size: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of the K nearest keys, by distances to all slots."""
    keys = jnp.pad(keys, ((0, -keys.shape[0] % BLOCK), (0, 0)))  # cheaper than padding distances
    is_filled = (jnp.arange(keys.shape[0]) < size) & ~jnp.isnan(queries[:, :1])
    squared = jnp.where(is_filled, _squared_distances(keys, queries), jnp.inf)
    return to_answer(*blockwise_topk(squared, min(k, keys.shape[0])), k)


def to_answer(
    squared: Float[Array, "Q b"], slots: Int[Array, "Q b"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of `k` neighbours from the b <= k smallest squared distances."""
    slots = jnp.where(jnp.isfinite(squared), slots, 0)
    missing = ((0, 0), (0, k - squared.shape[-1]))
    return jnp.sqrt(jnp.pad(squared, missing, constant_values=jnp.inf)), jnp.pad(slots, missing)


def _squared_distances(
    keys: Float[Array, "N H"], queries: Float[Array, "Q H"]
) -> Float[Array, "Q N"]:
    """By differences: a matrix product loses digits where distances are small and weigh most."""
    total = jnp.zeros((queries.shape[0], keys.shape[0]))
    columns = lax.optimization_barrier(keys.T)  # contiguous along the inner loop
    for h in range(keys.shape[1]):  # unrolled, so that no array of differences is stored
        total += (queries[:, h, None] - columns[h]) ** 2
    return total


def blockwise_topk(
    x: Shaped[Array, "Q N"], k: int
) -> tuple[Shaped[Array, "Q k"], Int[Array, "Q k"]]:
    """The `k` smallest numbers of each row and their positions.

    They lie in the `k` blocks with the smallest minima, which are found alike, so few are sorted.
    """
    rows, size = x.shape
    if size < 2 * BLOCK * k:
        best, slots = lax.top_k(-x, k)
        return -best, slots
    if size % BLOCK:
        x = jnp.pad(x, ((0, 0), (0, -size % BLOCK)), constant_values=_largest(x))
    blocks = lax.optimization_barrier(x).reshape(rows, -1, BLOCK)
    return topk_within_blocks(blocks, lax.optimization_barrier(blocks.min(axis=-1)), k)


def topk_within_blocks(
    blocks: Shaped[Array, "Q M B"], minima: Shaped[Array, "Q M"], k: int
) -> tuple[Shaped[Array, "Q k"], Int[Array, "Q k"]]:
    """The `k` smallest numbers of all blocks, given the minimum of each block.

    A block whose minimum is the largest number of its type is empty.
    """
    low, nearest = blockwise_topk(minima, min(k, minima.shape[1]))
    candidates = jnp.take_along_axis(blocks, nearest[..., None], axis=-2)
    is_filled = low[..., None] < _largest(low)
    candidates = jnp.where(is_filled, candidates, _largest(low)).reshape(blocks.shape[0], -1)
    best, order = lax.top_k(-lax.optimization_barrier(candidates), k)
    block = jnp.take_along_axis(nearest, order // BLOCK, axis=-1)
    return -best, block * BLOCK + order % BLOCK


def _largest(x: Shaped[Array, "..."]) -> float | int:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.inf if is_float else int(jnp.iinfo(x.dtype).max)
