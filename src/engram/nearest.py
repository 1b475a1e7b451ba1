"""Exact K nearest neighbours by Euclidean distance, among the filled slots of a table: the search behind every episodic memory."""

from functools import cache

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

BLOCK = 16
"""slots whose smallest distance is looked at first"""
SPARE = 4
"""candidates beyond K, so that rounding in the fast distances cannot push out a true neighbour"""


def nearest(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Distances and slots of the `k` keys nearest to each query, nearest first, among the first `filled` slots.

    Where fewer than `k` are filled the rest have distance infinity. No gradient flows: who needs one takes it through `keys[slots]`.
    """
    keys, queries = lax.stop_gradient((keys, queries))
    return _search(k)(keys, filled, queries)


def _is_cpu() -> bool:
    device = jax.config.jax_default_device
    return (device.platform if isinstance(device, jax.Device) else device or jax.default_backend()) == "cpu"


@cache
def _search(k: int):
    """The search for one run. Batched over runs, it is still one search, over the slots that the fullest memory has filled:
    a prefix must be chosen by a number common to all runs, or `vmap` would compute every choice."""

    @custom_vmap
    def search(keys, filled, queries):
        distances, slots = _prefix_search(keys[None], filled[None], queries[None], k)
        return distances[0], slots[0]

    @search.def_vmap
    def _(runs, batched, keys, filled, queries):
        many = [
            x if is_many else jnp.broadcast_to(x, (runs, *x.shape)) for x, is_many in zip((keys, filled, queries), batched, strict=True)
        ]
        return _prefix_search(many[0], many[1], many[2], k), (True, True)

    return search


def _prefix_search(keys: Float[Array, "R N H"], filled: Int[Array, "R"], queries: Float[Array, "R Q H"], k: int):
    size = keys.shape[1]
    sizes = [n for n in (size // 16, size // 4) if n >= max(128, k)] + [size] if _is_cpu() else [size]
    over = [lambda keys, filled, queries, n=n: _block_search(keys[:, :n], filled, queries, k) for n in sizes]
    chosen = jnp.sum(jnp.array(sizes[:-1], jnp.int32) < filled.max()) if len(sizes) > 1 else 0
    return lax.switch(chosen, over, keys, filled, queries)


def _block_search(keys: Float[Array, "R N H"], filled: Int[Array, "R"], queries: Float[Array, "R Q H"], k: int):
    """Candidates by fast, slightly rounded distances; the best of them by exact ones."""
    runs, size, _ = keys.shape
    candidates = _smallest(_farness(keys, filled, queries), min(k + SPARE, size))
    # The matrix product loses digits where distances are small, and small distances weigh most: take differences anew.
    chosen = keys[jnp.arange(runs)[:, None, None], candidates]
    distances = jnp.sqrt(jnp.sum((queries[:, :, None] - chosen) ** 2, axis=-1))
    distances = jnp.where(candidates < filled[:, None, None], distances, jnp.inf)
    best, order = lax.top_k(-distances, min(k, size))
    slots = jnp.take_along_axis(candidates, order, axis=-1)
    missing = ((0, 0), (0, 0), (0, k - best.shape[-1]))
    return jnp.pad(-best, missing, constant_values=jnp.inf), jnp.pad(slots, missing)


def _farness(keys: Float[Array, "R N H"], filled: Int[Array, "R"], queries: Float[Array, "R Q H"]) -> Float[Array, "R Q M"]:
    """Squared distances less each query's own squared norm, which changes no order; infinite for empty slots and for the padding
    to whole blocks."""
    keys = jnp.pad(keys, ((0, 0), (0, -keys.shape[1] % BLOCK), (0, 0)))
    norms = jnp.where(jnp.arange(keys.shape[1]) < filled[:, None], jnp.sum(keys**2, axis=-1), jnp.inf)
    return norms[:, None] - 2 * jnp.einsum("rqh,rnh->rqn", queries, keys, precision=lax.Precision.HIGHEST)


def _smallest(x: Float[Array, "R Q M"], k: int) -> Int[Array, "R Q k"]:
    """Where the `k` smallest numbers of each row stand: they lie in the `k` blocks with the smallest minima, so only those are sorted."""
    *rows, size = x.shape
    if size < 2 * BLOCK * k:
        return lax.top_k(-x, k)[1]
    blocks = lax.optimization_barrier(x).reshape(*rows, size // BLOCK, BLOCK)
    best = lax.top_k(-lax.optimization_barrier(blocks.min(axis=-1)), k)[1]
    inside = jnp.take_along_axis(blocks, best[..., None], axis=-2).reshape(*rows, k * BLOCK)
    order = lax.top_k(-lax.optimization_barrier(inside), k)[1]
    return jnp.take_along_axis(best, order // BLOCK, axis=-1) * BLOCK + order % BLOCK
