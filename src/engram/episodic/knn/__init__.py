"""Exact K nearest neighbours by Euclidean distance: the search behind every episodic memory.

Three implementations agree: `cpp` (a C++ kernel for CPUs), `pallas` (kernels for GPUs) and
`portable` (XLA, for any device). ENGRAM_NATIVE=0 selects the portable one.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from engram.devices import platform
from engram.episodic.knn import cpp, pallas
from engram.episodic.knn.portable import (
    blockwise_topk,
    portable_knn,
    search_all,
    to_answer,
    topk_within_blocks,
)

FEW_NEIGHBOURS = 8
"""up to so many neighbours a GPU searches without storing distances"""
FEW_IN_MANY_SLOTS, MANY_SLOTS = 16, 8_192
"""the same in at least so many slots"""
ROUNDING = 1e-5
"""distance, as a share of the query's norm, that counts as 0 in an ONNX graph, since there a key is
rounded otherwise than where it was stored"""


def nearest_neighbours(
    keys: Float[Array, "N H"], size: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of the `k` nearest keys among the first `size` slots, nearest first.

    Missing neighbours have distance infinity and slot 0, and so have queries that are NaN, which
    cost nothing on a CPU. No gradient flows: take it through `keys[slots]`.
    """
    keys, queries = lax.stop_gradient((keys, queries))
    device = platform()
    if device == "onnx":
        distances, slots = search_all(keys, size, queries, k)
        norms = jnp.linalg.norm(queries, axis=-1, keepdims=True)
        return jnp.where(distances <= ROUNDING * norms, 0, distances), slots
    if device == "cpu" and cpp.is_available():
        return cpp.nearest_neighbours(keys, size, queries, k)
    limit = FEW_IN_MANY_SLOTS if keys.shape[0] >= MANY_SLOTS else FEW_NEIGHBOURS
    is_few = k <= limit and keys.shape[1] <= pallas.MAX_KEY_SIZE
    if device == "gpu" and pallas.is_available(is_few):
        search = few_neighbours if is_few else many_neighbours
        return search(keys, size, queries, k)
    return portable_knn(keys, size, queries, k)


def search_name() -> str:
    """What searches on this device: the kernel in C++, those of Pallas, or XLA."""
    device = platform()
    if device == "cpu" and cpp.is_available():
        return "C++"
    return "Pallas" if device == "gpu" and pallas.is_available(is_few=True) else "XLA"


def many_neighbours(
    keys: Float[Array, "N H"],
    size: Int[Array, ""],
    queries: Float[Array, "Q H"],
    k: int,
    interpret: bool = False,
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """GPU search for many neighbours: a kernel for distances, then the best blocks."""
    squared, minima = pallas.squared_distances(keys, size, queries, interpret)
    blocks = squared.reshape(*minima.shape, pallas.BLOCK)
    return to_answer(*topk_within_blocks(blocks, minima, min(k, squared.shape[1])), k)


def few_neighbours(
    keys: Float[Array, "N H"],
    size: Int[Array, ""],
    queries: Float[Array, "Q H"],
    k: int,
    interpret: bool = False,
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """GPU search for few neighbours, by two kernels that store no distances."""
    return to_answer(*pallas.few_nearest(keys, size, queries, k, interpret), k)


__all__ = [
    "blockwise_topk",
    "few_neighbours",
    "many_neighbours",
    "nearest_neighbours",
    "portable_knn",
    "search_name",
]
