"""The nearest-neighbour search alone, beside `lax.top_k` over all distances."""

import os

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders import interleave, seconds
from benchmarks.tables import Table, number
from benchmarks.training import timed
from engram.episodic.knn import blockwise, nearest, two_kernels

PROTOCOL = (
    "Both compile and warm up untimed, then they take turns, each of as many calls as last about 50 ms. Medians over the "
    "turns. Keys have 16 numbers, the memory is full. Q is 98 for MBEC++ on Cart Pole, 608 for 18 actions and a batch of 32; K 50 is NEC's."
)
CASES = [(1, 98, 3_000, 15), (10, 98, 3_000, 15), (256, 98, 3_000, 15), (1, 608, 50_000, 7), (8, 608, 50_000, 7), (1, 100, 100_000, 50)]
GPU_WAYS = {"blockwise": blockwise, "two kernels": two_kernels}
"""of which Engram takes one on a GPU, by K"""


def plain(keys, filled, queries, k):
    """All distances, then the k blockwise_topk."""
    squared = jnp.sum(queries**2, -1)[:, None] + jnp.sum(keys**2, -1) - 2 * jnp.matmul(queries, keys.T, precision="highest")
    squared = jnp.where(jnp.arange(keys.shape[0]) < filled, squared, jnp.inf)
    best, slots = lax.top_k(-squared, k)
    return jnp.sqrt(jnp.maximum(-best, 0)), slots


def measure(quick: bool, say) -> dict:
    rounds = 3 if quick else 15
    measured = []
    for runs, queries, size, k in CASES:
        case = {"runs": runs, "queries": queries, "slots": size, "k": k}
        if 4 * 4 * runs * queries * size > _free_bytes() or (quick and runs * queries * size > 30_000_000):
            measured.append(case | {"failed": "left out with --quick" if quick else "too little memory"})
            continue
        pairs = {}
        ways = {"engram": nearest, "plain": plain}
        if jax.default_backend() == "gpu":
            ways |= GPU_WAYS
        for name, search in ways.items():
            say(f"compiling {name} for {case}")
            pairs[name] = _caller(search, runs, queries, size, k)
        times = interleave(pairs, rounds, say)
        measured += [case | {"search": name, "wall": [time["wall"] for time in times[name]]} for name in pairs]
    return {"protocol": PROTOCOL, "settings": {"rounds": rounds}, "measured": measured}


def _caller(search, runs: int, queries: int, size: int, k: int):
    """Times calls enough to be measured, and gives the time of one."""
    keys = jax.random.uniform(jax.random.key(0), (runs, size, 16), minval=-1)
    asked = jax.random.uniform(jax.random.key(1), (runs, queries, 16), minval=-1)
    filled = jnp.full(runs, size, jnp.int32)
    compiled = jax.jit(jax.vmap(lambda keys, filled, asked: search(keys, filled, asked, k)))

    def calls(n):
        return timed(lambda: jax.block_until_ready([compiled(keys, filled, asked) for _ in range(n)][-1]))

    calls(2)
    n = max(1, int(0.05 / calls(1)["wall"]))
    calls(n)
    return lambda: {key: value / n for key, value in calls(n).items()}


def _free_bytes() -> int:
    if stats := jax.devices()[0].memory_stats():
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def tables(result: dict) -> list[Table]:
    by_case: dict[tuple, dict[str, dict]] = {}
    for m in result["measured"]:
        by_case.setdefault((m["runs"], m["queries"], m["slots"], m["k"]), {})[m.get("search", "failed")] = m
    rows, ways = [], [name for name in GPU_WAYS if any(name in found for found in by_case.values())]
    for case, found in by_case.items():
        if "failed" in found:
            rows.append([*map(number, case), "not measured: " + found["failed"]["failed"], "", "", *("" for _ in ways)])
        else:
            ours, theirs = (1e3 * seconds(found[name]) for name in ("engram", "plain"))
            others = [f"{1e3 * seconds(found[name]):.3f}" if name in found else "–" for name in ways]
            rows.append([*map(number, case), f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.1f}", *others])
    columns = ["runs", "queries Q", "slots N", "K", "Engram, ms", "top_k, ms", "times faster", *(f"{name}, ms" for name in ways)]
    return [Table("Search for the nearest neighbours", columns, rows, result["protocol"])]
