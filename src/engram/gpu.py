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
