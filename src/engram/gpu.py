"""Squared distances on a GPU. The kernel reads each key once for all queries, and only the keys and queries that there are.

ENGRAM_NATIVE=0 does without it.
"""

import os
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 16
"""neighbouring slots whose smallest distance is found at once"""
NUMBERS = 8192
"""of the keys that one program of the kernel holds"""
SLIM = 32
"""most numbers of a key that `few` takes: what it holds of keys and queries must fit into a multiprocessor's memory"""


@cache
def is_available(for_few: bool) -> bool:
    """Whether the kernels run on this machine's GPU, those for few neighbours or that for many: they take a recent one, and a JAX that
    still has Triton."""
    if os.environ.get("ENGRAM_NATIVE") == "0":
        return False
    try:
        one = jax.ShapeDtypeStruct((1, SLIM if for_few else 1), jnp.float32)
        jax.jit(partial(few, k=1) if for_few else squares).lower(one, jax.ShapeDtypeStruct((), jnp.int32), one).compile()
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
"""keys in a stretch"""


def few(
    keys: Float[Array, "N H"],
    filled: Int[Array, ""],
    queries: Float[Array, "Q H"],
    k: int,
    interpret: bool = False,
    tiles: int = 1,
    asked: int = 64,
    warps: tuple[int, int] = (4, 4),
    stages: int = 3,
) -> tuple[Float[Array, "Q k"], Int[Array, "Q k"]]:
    """Squared distances and slots of the `k` nearest among the filled, nearest first, of equals the lower slot first; infinity where there
    are none. One kernel bounds, by tensor cores, how near any of each stretch of WIDE keys can be to each query; no distance is written.
    The other takes differences in the stretches that can be nearest, and then in others for as long as they can hold a nearer key.

    A program of the first kernel holds `tiles` stretches and goes through all queries, `asked` at once.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (slots, dim), count = keys.shape, queries.shape[0]
    width = max(16, pl.next_power_of_2(dim))  # the least that tensor cores take
    programs, blocks = pl.cdiv(slots, tiles * WIDE), pl.cdiv(count, asked)
    stretches, taken = programs * tiles, max(8, pl.next_power_of_2(k))
    slack = _slack(dim)
    centre = jnp.nan_to_num(jnp.nanmean(queries, axis=0))  # whence the queries look shortest, so that products lose fewest digits
    high, rest, norm = _parts(jnp.pad(queries - centre, ((0, blocks * asked - count), (0, width - dim))))

    def coarse(keys, filled, centre, high, rest, minima):
        first, column = pl.program_id(0) * tiles, jnp.arange(width)

        @pl.when(first * WIDE < filled[0])
        def _():
            held = []
            for tile in range(tiles):
                slot = (first + tile) * WIDE + jnp.arange(WIDE)
                is_there = (slot < filled[0])[:, None] & (column < dim)[None]
                key = triton.load(keys.at[slot[:, None], column[None]], mask=is_there, other=0.0)
                middle = triton.load(centre.at[column], mask=column < dim, other=0.0)
                *key, norm = _parts(jnp.where(is_there, key - middle[None], 0.0))
                norm = jnp.where(norm < jnp.inf, (1 - slack) * norm, -jnp.inf)  # a key too far to be bounded may be anywhere
                held.append((*key, jnp.where(slot < filled[0], norm, jnp.inf)))

            def ask(block, _):
                query = block * asked + jnp.arange(asked)
                high_query, rest_query = (triton.load(part.at[query[:, None], column[None]]) for part in (high, rest))
                for tile, (high_key, rest_key, norm) in enumerate(held):
                    product = _product(high_query, rest_key) + _product(rest_query, high_key) + _product(high_query, high_key)
                    triton.store(minima.at[query, first + tile], jnp.min(norm[None] - product, axis=1))

            lax.fori_loop(0, blocks, ask, None)

    def fine(columns, filled, queries, norm, minima, best, where):
        query = pl.program_id(0)
        stretch, rank = jnp.arange(pl.next_power_of_2(stretches)), jnp.arange(taken)
        is_there = stretch * WIDE < filled[0]
        bound = norm[query] + triton.load(minima.at[query, stretch], mask=is_there, other=0.0)
        bound = jnp.where(bound < jnp.inf, jnp.maximum(bound, 0.0), 0.0)  # what is too large to be bounded is looked at
        bound = jnp.where(is_there & (norm[query] == norm[query]), bound, jnp.inf)  # a query that is no number has no neighbours

        def lowest(bound):
            low = jnp.min(bound)
            return low, jnp.min(jnp.where(bound == low, stretch, stretches))

        def may_be_nearer(state):  # equals are no matter: bounds lie below distances, and of stretches with bound 0 the lower come first
            _, low, _, _, _, worst = state
            return low < worst

        def look(state):
            bound, low, at, near, found, worst = state
            chosen = jnp.full(taken, -1, jnp.int32)
            for j in range(taken):
                chosen = jnp.where((rank == j) & (low < jnp.inf), at, chosen)
                bound = jnp.where(stretch == at, jnp.inf, bound)
                low, at = lowest(bound)
            slot = chosen[:, None] * WIDE + jnp.arange(WIDE)[None]
            is_there = (chosen[:, None] >= 0) & (slot < filled[0])
            total = jnp.zeros(slot.shape, jnp.float32)
            for h in range(dim):
                total += (triton.load(columns.at[h, slot], mask=is_there, other=0.0) - queries[query, h]) ** 2
            total = jnp.where(is_there & (total == total), total, jnp.inf)
            old, old_found = near, found
            for j in range(k):  # the smallest of those found before and now
                worst = jnp.minimum(jnp.min(old), jnp.min(total))
                last = jnp.minimum(jnp.min(jnp.where(old == worst, old_found, slots)), jnp.min(jnp.where(total == worst, slot, slots)))
                old, total = jnp.where(old_found == last, jnp.inf, old), jnp.where(slot == last, jnp.inf, total)
                near, found = jnp.where(rank == j, worst, near), jnp.where(rank == j, last, found)
            return bound, low, at, near, found, worst

        nothing = jnp.full(taken, jnp.inf), jnp.full(taken, slots), jnp.float32(jnp.inf)
        _, _, _, near, found, _ = lax.while_loop(may_be_nearer, look, (bound, *lowest(bound), *nothing))
        triton.store(best.at[query, rank], near, mask=rank < k)
        triton.store(where.at[query, rank], found, mask=rank < k)

    minima = pl.pallas_call(
        coarse,
        out_shape=jax.ShapeDtypeStruct((blocks * asked, stretches), jnp.float32),
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=warps[0], num_stages=stages),
        name="coarse",
        interpret=interpret,
    )(keys, filled[None], centre, 2 * high, 2 * rest)
    best, where = pl.pallas_call(
        fine,
        out_shape=[jax.ShapeDtypeStruct((count, k), jnp.float32), jax.ShapeDtypeStruct((count, k), jnp.int32)],
        grid=(count,),
        compiler_params=triton.CompilerParams(num_warps=warps[1], num_stages=1),
        name="fine",
        interpret=interpret,
    )(keys.T, filled[None], queries, (1 - slack) * norm - 1e-30, minima)  # 1e-30 is more than underflow takes
    return best, where


def _slack(dim: int) -> float:
    """Part of |q|^2 + |k|^2 by which |q|^2 + |k|^2 - 2 q.k of tensor cores, of q and k seen from a centre, is at most above the squared
    distance as differences give it, both in float32.

    In units of 2^-24: the centre's differences err by 4, the squared distance by differences by 2 dim + 4, |q|^2 and |k|^2 by dim, the
    parts of q and k by 8 (2 for what tensor cores cut off either rest, 4 for the product of the rests), their products' sum by 9 dim + 9
    (tensor cores cut 3 dim products and, with every 4 or more of them, a sum so far and a new one, each after 23 bits of the largest),
    what is added at the end by 7. This is 12 dim + 32, and 32 are to spare.
    """
    return (12 * dim + 64) * 2.0**-24


def _parts(x: Float[Array, "n H"]) -> tuple[Float[Array, "n H"], Float[Array, "n H"], Float[Array, "n"]]:
    """Rows as a sum of two, of which tensor cores take the first as it is, and their squared lengths. Rows too long to be squared are 0."""
    norm = jnp.sum(x**2, axis=1)
    x = jnp.where((norm < jnp.inf)[:, None], x, 0.0)
    high = lax.bitcast_convert_type((lax.bitcast_convert_type(x, jnp.int32) + 4096) & -8192, jnp.float32)  # the nearest with 11 bits
    return high, x - high, norm


def _product(queries: Float[Array, "q H"], keys: Float[Array, "n H"]) -> Float[Array, "q n"]:
    return jnp.dot(queries, keys.T, precision=lax.Precision.HIGH)  # by tensor cores, which take 11 bits of a number
