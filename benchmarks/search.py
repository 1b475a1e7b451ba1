"""Part `search`: the nearest-neighbour search next to `lax.top_k` over all distances."""

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders import Timing, interleave, seconds
from benchmarks.options import Options
from benchmarks.tables import Table, number
from benchmarks.training import timed
from engram.episodic.knn import few_neighbours, many_neighbours, nearest_neighbours

PROTOCOL = (
    "Compilation and warm-up are not timed. Then all are measured in turn, in each turn as many "
    "calls as take about 50 ms. Times are medians over the turns. Keys have 16 numbers, the memory "
    "is full. Q is 98 for MBEC++ on Cart Pole, 608 for 18 actions and a batch of 32. K is 50 for "
    "NEC."
)
CASES = [
    (1, 98, 3_000, 15),
    (10, 98, 3_000, 15),
    (256, 98, 3_000, 15),
    (1, 608, 50_000, 7),
    (8, 608, 50_000, 7),
    (1, 100, 100_000, 50),
]
"""runs, queries Q, slots N and neighbours K"""
GPU_SEARCHES = {"blockwise": many_neighbours, "two kernels": few_neighbours}
"""of which Engram takes one on a GPU, by K; names as in result files"""
CASE_KEYS = ("runs", "queries", "slots", "k")
QUICK_DISTANCES = 30_000_000
"""the most distances of a case with --quick"""


def top_k_search(keys, size, queries, k):
    """The search in plain JAX: all distances, then `lax.top_k`."""
    products = jnp.matmul(queries, keys.T, precision="highest")
    squared = jnp.sum(queries**2, -1)[:, None] + jnp.sum(keys**2, -1) - 2 * products
    squared = jnp.where(jnp.arange(keys.shape[0]) < size, squared, jnp.inf)
    best, slots = lax.top_k(-squared, k)
    return jnp.sqrt(jnp.maximum(-best, 0)), slots


def measure(options: Options) -> dict:
    rounds = 3 if options.quick else 15
    searches = {"engram": nearest_neighbours, "plain": top_k_search}
    if jax.default_backend() == "gpu":
        searches |= GPU_SEARCHES
    measured = []
    for runs, queries, slots, k in CASES:
        case = dict(zip(CASE_KEYS, (runs, queries, slots, k), strict=True))
        distances = runs * queries * slots
        if options.quick and distances > QUICK_DISTANCES:
            measured.append(case | {"failed": "left out with --quick"})
            continue
        if 4 * 4 * distances > _free_bytes():
            measured.append(case | {"failed": "too little memory"})
            continue
        calls = {}
        for name, search in searches.items():
            options.log(f"compiling {name} for {case}")
            calls[name] = _make_call(search, runs, queries, slots, k)
        times = interleave(calls, rounds, options.log)
        measured += [
            case | {"search": name, "wall": [time["wall"] for time in times[name]]}
            for name in calls
        ]
    return {"protocol": PROTOCOL, "settings": {"rounds": rounds}, "measured": measured}


def _make_call(
    search: Callable, runs: int, num_queries: int, slots: int, k: int
) -> Callable[[], Timing]:
    """A function that searches for about 50 ms and returns the time per search."""
    keys = jax.random.uniform(jax.random.key(0), (runs, slots, 16), minval=-1)
    queries = jax.random.uniform(jax.random.key(1), (runs, num_queries, 16), minval=-1)
    sizes = jnp.full(runs, slots, jnp.int32)
    compiled = jax.jit(jax.vmap(lambda keys, size, queries: search(keys, size, queries, k)))

    def search_times(count: int) -> None:
        jax.block_until_ready([compiled(keys, sizes, queries) for _ in range(count)][-1])

    search_times(2)
    count = max(1, int(0.05 / timed(lambda: search_times(1))["wall"]))
    search_times(count)

    def call() -> Timing:
        total = timed(lambda: search_times(count))
        return {name: value / count for name, value in total.items()}

    return call


def _free_bytes() -> int:
    """Free memory of the device; of a CPU half of its memory."""
    if stats := jax.devices()[0].memory_stats():
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def tables(result: dict) -> list[Table]:
    by_case: dict[tuple, dict[str, dict]] = {}
    for m in result["measured"]:
        case = tuple(m[key] for key in CASE_KEYS)
        by_case.setdefault(case, {})[m.get("search", "failed")] = m
    extra = [name for name in GPU_SEARCHES if any(name in found for found in by_case.values())]
    columns = [
        *("runs", "queries Q", "slots N", "K", "Engram, ms", "top_k, ms", "times faster"),
        *(f"{name}, ms" for name in extra),
    ]
    rows = [[*map(number, case), *_cells(found, extra)] for case, found in by_case.items()]
    return [Table("Search for the nearest neighbours", columns, rows, result["protocol"])]


def _cells(found: dict[str, dict], extra: list[str]) -> list[str]:
    """Milliseconds of the searches of one case, by name, or why there are none."""
    if "failed" in found:
        return ["not measured: " + found["failed"]["failed"], "", "", *("" for _ in extra)]
    times = {name: 1e3 * seconds(m) for name, m in found.items()}
    return [
        *(f"{times[name]:.3f}" for name in ("engram", "plain")),
        f"{times['plain'] / times['engram']:.1f}",
        *(f"{times[name]:.3f}" if name in times else "–" for name in extra),
    ]
