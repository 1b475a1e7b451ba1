"""Squared distances on a GPU. The kernel reads each key once for all queries, and only the keys and queries that there are.

ENGRAM_NATIVE=0 does without it.
"""

import os
from functools import cache

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 16
"""neighbouring slots whose smallest distance is found at once"""
NUMBERS = 8192
"""of the keys that one program of the kernel holds"""


@cache
def is_available() -> bool:
    """Whether the kernel runs on this machine's GPU: it takes a recent one, and a JAX that still has Triton."""
    if os.environ.get("ENGRAM_NATIVE") == "0":
        return False
    try:
        one = jax.ShapeDtypeStruct((1, 1), jnp.float32)
        jax.jit(squares).lower(one, jax.ShapeDtypeStruct((), jnp.int32), one).compile()
    except Exception:  # whatever the reason, there is another way
        return False
    return True


def squares(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], interpret: bool = False
) -> tuple[Float[Array, "Q M"], Float[Array, "Q M/BLOCK"]]:
    """Squared distances of each query to all keys, and the smallest of each BLOCK of them. N is rounded up to M. Infinity stands for slots
    that are not filled and for queries that are no numbers, in the smallest of a block; what stands for them in the first is undefined.
    """
    from jax.experimental import pallas as pl  # here: who has no GPU need not wait for them, nor have them
    from jax.experimental.pallas import triton

    (slots, dim), count = keys.shape, queries.shape[0]
    columns = pl.next_power_of_2(dim)
    rows = max(BLOCK, min(512, NUMBERS // columns))
    programs = pl.cdiv(slots, rows)

    def kernel(keys, filled, queries, squares, smallest):
        first = pl.program_id(0) * rows

        @pl.when(first < filled[0])
        def _():
            row, column = first + jnp.arange(rows), jnp.arange(columns)
            is_there, is_real = row < filled[0], column < dim
            mine = triton.load(keys.at[row[:, None], column[None]], mask=is_there[:, None] & is_real[None], other=0.0)

            def one(q, _):
                @pl.when(queries[q, 0] == queries[q, 0])
                def _():
                    query = triton.load(queries.at[q, column], mask=is_real, other=0.0)
                    distance = jnp.where(is_there, jnp.sum((mine - query[None]) ** 2, axis=1), jnp.inf)
                    squares[q, pl.ds(first, rows)] = distance
                    smallest[q, pl.ds(first // BLOCK, rows // BLOCK)] = jnp.min(distance.reshape(-1, BLOCK), axis=1)

            lax.fori_loop(0, count, one, None)

    sizes = programs * rows, programs * rows // BLOCK
    distances, smallest = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct((count, size), jnp.float32) for size in sizes],
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="squares",
    )(keys, filled[None], queries)
    is_there = (jnp.arange(sizes[1]) * BLOCK < filled) & ~jnp.isnan(queries[:, :1])
    return distances, jnp.where(is_there, smallest, jnp.inf)


WIDE = 128
"""keys of which the first kernel of `few` finds the nearest"""


def few(
    keys: Float[Array, "N H"], filled: Int[Array, ""], queries: Float[Array, "Q H"], k: int, interpret: bool = False
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Squared distances and slots of the `k` nearest among the filled, nearest first, of equals the lower slot first; infinity where there
    are none. One kernel finds how near the nearest of each WIDE keys is to each query; no distance is written. The `k` nearest lie in the
    `k` stretches that come nearest, and the other kernel finds them there.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (slots, dim), count = keys.shape, queries.shape[0]
    columns = keys.T  # so that neighbours in memory are read together
    rows, asked = 4 * WIDE, 16
    stretches = pl.cdiv(slots, rows) * (rows // WIDE)

    def distances(columns, queries, slot, query, is_there, is_asked):
        total = jnp.zeros(jnp.broadcast_shapes(slot.shape, query.shape), jnp.float32)
        for h in range(dim):
            key = triton.load(columns.at[h, slot], mask=is_there, other=0.0)
            ask = triton.load(queries.at[query, h], mask=is_asked, other=0.0)
            total += (key - ask) ** 2
        return jnp.where(is_there & (total == total), total, jnp.inf)  # a query that is no number has no neighbours

    def coarse(columns, filled, queries, minima):
        first = pl.program_id(0) * rows
        query = (pl.program_id(1) * asked + jnp.arange(asked))[:, None]

        @pl.when(first < filled[0])
        def _():
            slot = (first + jnp.arange(rows))[None]
            total = distances(columns, queries, slot, query, slot < filled[0], query < count)
            lowest = jnp.min(total.reshape(asked, rows // WIDE, WIDE), axis=2)
            stretch = (first // WIDE + jnp.arange(rows // WIDE))[None]
            triton.store(minima.at[query, stretch], lowest, mask=jnp.broadcast_to(query < count, lowest.shape))

    def fine(columns, filled, queries, minima, best, where):
        query = pl.program_id(0)
        stretch = jnp.arange(pl.next_power_of_2(stretches))
        lowest = triton.load(minima.at[query, stretch], mask=stretch * WIDE < filled[0], other=jnp.inf)
        rank = jnp.arange(pl.next_power_of_2(k))
        chosen = jnp.full(rank.shape, -1, jnp.int32)
        for j in range(k):
            low = jnp.min(lowest)
            at = jnp.min(jnp.where(lowest == low, stretch, stretches))
            chosen = jnp.where((rank == j) & (low < jnp.inf), at, chosen)
            lowest = jnp.where(stretch == at, jnp.inf, lowest)
        slot = chosen[:, None] * WIDE + jnp.arange(WIDE)[None]
        is_there = (chosen[:, None] >= 0) & (slot < filled[0])
        total = distances(columns, queries, slot, jnp.full(slot.shape, query), is_there, slot == slot)
        for j in range(k):
            low = jnp.min(total)
            at = jnp.min(jnp.where(total == low, slot, slots))
            best[query, j] = low
            where[query, j] = at
            total = jnp.where(slot == at, jnp.inf, total)

    minima = pl.pallas_call(
        coarse,
        out_shape=jax.ShapeDtypeStruct((count, stretches), jnp.float32),
        grid=(pl.cdiv(slots, rows), pl.cdiv(count, asked)),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        name="coarse",
        interpret=interpret,
    )(columns, filled[None], queries)
    best, where = pl.pallas_call(
        fine,
        out_shape=[jax.ShapeDtypeStruct((count, k), jnp.float32), jax.ShapeDtypeStruct((count, k), jnp.int32)],
        grid=(count,),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        name="fine",
        interpret=interpret,
    )(columns, filled[None], queries, minima)
    return best, where
