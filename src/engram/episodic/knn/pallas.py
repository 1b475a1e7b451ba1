"""K nearest neighbours on a GPU, by Pallas kernels in Triton.

A kernel reads each key once for all queries, and only filled slots. ENGRAM_NATIVE=0 disables it.
"""

import os
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 16
"""adjacent slots whose smallest distance is found at once"""
KERNEL_NUMBERS = 8192
"""numbers of the keys that one program of the kernel holds"""
QUERIES = 16
"""queries that one program goes through"""
MAX_KEY_SIZE = 32
"""largest key of `few_nearest`: keys and queries must fit into a multiprocessor"""


@cache
def is_available(is_few: bool) -> bool:
    """Whether the kernels for few or for many neighbours compile on this GPU."""
    if os.environ.get("ENGRAM_NATIVE") == "0":
        return False
    try:
        one = jax.ShapeDtypeStruct((1, MAX_KEY_SIZE if is_few else 1), jnp.float32)
        jax.jit(partial(few_nearest, k=1) if is_few else squared_distances).lower(
            one, jax.ShapeDtypeStruct((), jnp.int32), one
        ).compile()
    except Exception:  # whatever the reason, there is another way
        return False
    return True


def squared_distances(
    keys: Float[Array, "N H"],
    size: Int[Array, ""],
    queries: Float[Array, "Q H"],
    interpret: bool = False,
    queries_each: int = QUERIES,
) -> tuple[Float[Array, "Q M"], Float[Array, "Q M/BLOCK"]]:
    """Squared distances of each query to all keys, and the minimum of each BLOCK of them.

    N is rounded up to M. The minima are infinity for slots that are empty and queries that are NaN;
    the distances there are undefined.
    """
    from jax.experimental import pallas as pl  # here, since machines without a GPU may lack it
    from jax.experimental.pallas import triton

    (slots, dim), count = keys.shape, queries.shape[0]
    columns = pl.next_power_of_2(dim)
    rows = max(BLOCK, min(512, KERNEL_NUMBERS // columns))
    programs = pl.cdiv(slots, rows)

    def kernel(keys, size, queries, squared, minima):
        first, first_query = pl.program_id(0) * rows, pl.program_id(1) * queries_each

        @pl.when(first < size[0])
        def _():
            row, column = first + jnp.arange(rows), jnp.arange(columns)
            is_filled, is_column = row < size[0], column < dim
            block = triton.load(
                keys.at[row[:, None], column[None]],
                mask=is_filled[:, None] & is_column[None],
                other=0.0,
            )

            def one(q, _):
                @pl.when(queries[q, 0] == queries[q, 0])
                def _():
                    query = triton.load(queries.at[q, column], mask=is_column, other=0.0)
                    distance = jnp.where(
                        is_filled, jnp.sum((block - query[None]) ** 2, axis=1), jnp.inf
                    )
                    squared[q, pl.ds(first, rows)] = distance
                    minima[q, pl.ds(first // BLOCK, rows // BLOCK)] = jnp.min(
                        distance.reshape(-1, BLOCK), axis=1
                    )

            last_query = jnp.minimum(first_query + queries_each, count)
            lax.fori_loop(first_query, last_query, one, None)

    sizes = programs * rows, programs * rows // BLOCK
    distances, minima = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct((count, size), jnp.float32) for size in sizes],
        grid=(programs, pl.cdiv(count, queries_each)),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="squared_distances",
    )(keys, size[None], queries)
    is_filled = (jnp.arange(sizes[1]) * BLOCK < size) & ~jnp.isnan(queries[:, :1])
    return distances, jnp.where(is_filled, minima, jnp.inf)


SEGMENT = 128
"""keys whose distance to a query is bounded together"""


def few_nearest(
    keys: Float[Array, "N H"],
    size: Int[Array, ""],
    queries: Float[Array, "Q H"],
    k: int,
    interpret: bool = False,
    tiles: int = 1,
    query_block: int = 64,
    warps: tuple[int, int] = (4, 4),
    stages: int = 3,
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Squared distances and slots of the `k` nearest keys, nearest first, ties by the lower slot.

    One kernel bounds, by tensor cores, how near any key of each SEGMENT can be to each query; it
    stores no distance. The other takes differences in the segments with the lowest bounds, and then
    in others for as long as they can hold a nearer key. A program of the first kernel holds `tiles`
    segments and goes through all queries in blocks.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (slots, dim), count = keys.shape, queries.shape[0]
    width = max(16, pl.next_power_of_2(dim))  # the least that tensor cores take
    programs, blocks = pl.cdiv(slots, tiles * SEGMENT), pl.cdiv(count, query_block)
    num_segments, lookups = programs * tiles, max(8, pl.next_power_of_2(k))
    slack = _slack(dim)
    centre = jnp.nan_to_num(
        jnp.nanmean(queries, axis=0)
    )  # whence the queries visit shortest, so that products lose fewest digits
    high, low, norm = _parts(
        jnp.pad(queries - centre, ((0, blocks * query_block - count), (0, width - dim)))
    )

    def coarse(keys, size, centre, high, low, minima):
        first, column = pl.program_id(0) * tiles, jnp.arange(width)

        @pl.when(first * SEGMENT < size[0])
        def _():
            tiles_held = []
            for tile in range(tiles):
                slot = (first + tile) * SEGMENT + jnp.arange(SEGMENT)
                is_filled = (slot < size[0])[:, None] & (column < dim)[None]
                key = triton.load(keys.at[slot[:, None], column[None]], mask=is_filled, other=0.0)
                offset = triton.load(centre.at[column], mask=column < dim, other=0.0)
                *key, norm = _parts(jnp.where(is_filled, key - offset[None], 0.0))
                norm = jnp.where(
                    norm < jnp.inf, (1 - slack) * norm, -jnp.inf
                )  # a key too far to be bounded may be anywhere
                tiles_held.append((*key, jnp.where(slot < size[0], norm, jnp.inf)))

            def ask(block, _):
                query = block * query_block + jnp.arange(query_block)
                high_query, low_query = (
                    triton.load(part.at[query[:, None], column[None]]) for part in (high, low)
                )
                for tile, (high_key, low_key, norm) in enumerate(tiles_held):
                    product = (
                        _product(high_query, low_key)
                        + _product(low_query, high_key)
                        + _product(high_query, high_key)
                    )
                    triton.store(
                        minima.at[query, first + tile], jnp.min(norm[None] - product, axis=1)
                    )

            lax.fori_loop(0, blocks, ask, None)

    def fine(columns, size, queries, norm, minima, best, where):
        query = pl.program_id(0)
        segment, rank = jnp.arange(pl.next_power_of_2(num_segments)), jnp.arange(lookups)
        is_filled = segment * SEGMENT < size[0]
        bound = norm[query] + triton.load(minima.at[query, segment], mask=is_filled, other=0.0)
        bound = jnp.where(
            bound < jnp.inf, jnp.maximum(bound, 0.0), 0.0
        )  # what is too large to be bounded is looked at
        bound = jnp.where(
            is_filled & (norm[query] == norm[query]), bound, jnp.inf
        )  # a query that is no number has no neighbours

        def lowest(bound):
            low = jnp.min(bound)
            return low, jnp.min(jnp.where(bound == low, segment, num_segments))

        def may_be_nearer(state):
            # Ties do no harm: bounds lie below distances, and segments of bound 0 come in order.
            _, low, _, _, _, worst = state
            return low < worst

        def visit(state):
            bound, low, at, near, near_slots, worst = state
            chosen = jnp.full(lookups, -1, jnp.int32)
            for j in range(lookups):
                chosen = jnp.where((rank == j) & (low < jnp.inf), at, chosen)
                bound = jnp.where(segment == at, jnp.inf, bound)
                low, at = lowest(bound)
            slot = chosen[:, None] * SEGMENT + jnp.arange(SEGMENT)[None]
            is_filled = (chosen[:, None] >= 0) & (slot < size[0])
            total = jnp.zeros(slot.shape, jnp.float32)
            for h in range(dim):
                total += (
                    triton.load(columns.at[h, slot], mask=is_filled, other=0.0) - queries[query, h]
                ) ** 2
            total = jnp.where(is_filled & (total == total), total, jnp.inf)
            old, old_slots = near, near_slots
            for j in range(k):  # the smallest of the earlier and the new ones
                worst = jnp.minimum(jnp.min(old), jnp.min(total))
                last = jnp.minimum(
                    jnp.min(jnp.where(old == worst, old_slots, slots)),
                    jnp.min(jnp.where(total == worst, slot, slots)),
                )
                old, total = (
                    jnp.where(old_slots == last, jnp.inf, old),
                    jnp.where(slot == last, jnp.inf, total),
                )
                near, near_slots = (
                    jnp.where(rank == j, worst, near),
                    jnp.where(rank == j, last, near_slots),
                )
            return bound, low, at, near, near_slots, worst

        no_neighbours = jnp.full(lookups, jnp.inf), jnp.full(lookups, slots), jnp.float32(jnp.inf)
        _, _, _, near, near_slots, _ = lax.while_loop(
            may_be_nearer, visit, (bound, *lowest(bound), *no_neighbours)
        )
        triton.store(best.at[query, rank], near, mask=rank < k)
        triton.store(where.at[query, rank], near_slots, mask=rank < k)

    minima = pl.pallas_call(
        coarse,
        out_shape=jax.ShapeDtypeStruct((blocks * query_block, num_segments), jnp.float32),
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=warps[0], num_stages=stages),
        name="coarse",
        interpret=interpret,
    )(keys, size[None], centre, 2 * high, 2 * low)
    best, where = pl.pallas_call(
        fine,
        out_shape=[
            jax.ShapeDtypeStruct((count, k), jnp.float32),
            jax.ShapeDtypeStruct((count, k), jnp.int32),
        ],
        grid=(count,),
        compiler_params=triton.CompilerParams(num_warps=warps[1], num_stages=1),
        name="fine",
        interpret=interpret,
    )(
        keys.T, size[None], queries, (1 - slack) * norm - 1e-30, minima
    )  # 1e-30 is more than underflow takes
    return best, where


def _slack(dim: int) -> float:
    """Bound on the relative error of |q|^2 + |k|^2 - 2 q.k by tensor cores.

    It is the part of |q|^2 + |k|^2, with q and k relative to a centre, by which that expression is
    at most above the squared distance by differences, both in float32.

    In units of 2^-24 the errors are: 4 for differences to the centre; 2 dim + 4 for the squared
    distance by differences; dim for |q|^2 and |k|^2; 8 for the parts of q and k (2 for what tensor
    cores cut off either low part, 4 for the product of the low parts); 9 dim + 9 for the sum of
    their products (tensor cores cut 3 dim products and, with every 4 or more of them, a sum so far
    and a new one, each after 23 bits of the largest); 7 for the final additions. This is
    12 dim + 32, and 32 are to spare.
    """
    return (12 * dim + 64) * 2.0**-24


def _parts(
    x: Float[Array, "n H"],
) -> tuple[Float[Array, "n H"], Float[Array, "n H"], Float[Array, "n"]]:
    """Rows as a sum of two, the first exact for tensor cores, and their squared norms.

    Rows too long to be squared are 0.
    """
    norm = jnp.sum(x**2, axis=1)
    x = jnp.where((norm < jnp.inf)[:, None], x, 0.0)
    high = lax.bitcast_convert_type(
        (lax.bitcast_convert_type(x, jnp.int32) + 4096) & -8192, jnp.float32
    )  # the nearest with 11 bits
    return high, x - high, norm


def _product(queries: Float[Array, "q H"], keys: Float[Array, "n H"]) -> Float[Array, "q n"]:
    return jnp.dot(
        queries, keys.T, precision=lax.Precision.HIGH
    )  # by tensor cores, which take 11 bits of a number
