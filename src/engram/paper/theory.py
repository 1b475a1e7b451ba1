"""The appendix's convergence theorems, checked numerically: write, refine and its contraction."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Key, PyTree

from engram.episodic import memory as mem
from engram.figures import plot_series
from engram.paper.experiment import Claim, Experiment, ExperimentResults
from engram.paper.verdicts import Comparison, compare_to_threshold

SEEDS, MEMORY_SIZE, NOISE, RATE = 10, 30, 1.0, 0.5
GAMMA, NEIGHBOURS = 0.9, (1, 5, 15)
TOLERANCE = 0.1
"""error, in standard deviations of the noise, below which values count as converged"""
POINTS = 20


def write_rate(n: Float[Array, ""], decaying: Bool[Array, ""]) -> Float[Array, ""]:
    """The rate of update n; decaying rates have an infinite sum but a finite sum of squares."""
    return jnp.where(decaying, RATE * 1_000 / (1_000 + n), RATE)


def random_memory(key: Key[Array, ""]) -> tuple[mem.Memory, Float[Array, "N"]]:
    """A full memory with uniform keys in the unit square, and a smooth true value of each key."""
    keys = jax.random.uniform(key, (MEMORY_SIZE, 2))
    true = jnp.sin(3 * keys[:, 0]) + keys[:, 1] ** 2
    full = mem.init_memory(MEMORY_SIZE, 2)._replace(keys=keys, num_inserted=jnp.int32(MEMORY_SIZE))
    return full, true


def scan_in_segments(step: Callable, state: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """The state after `count` steps, and after each of POINTS equal segments of them."""

    def segment(state, first):
        state, _ = lax.scan(step, state, first + jnp.arange(count // POINTS))
        return state, state

    return lax.scan(segment, state, jnp.arange(POINTS) * (count // POINTS))


def write_errors(
    key: Key[Array, ""], decaying: Bool[Array, ""], k: int, count: int
) -> Float[Array, "P"]:
    """Writes noisy returns of uniformly drawn keys, and gives the largest error of a value.

    The error is the distance from the limit that the appendix derives, a mean of the neighbours'
    true values; under a constant rate, that of the running mean of the values."""
    memory, true = random_memory(key)
    near = mem.lookup(memory, memory.keys, k)
    slots = jnp.arange(MEMORY_SIZE)
    # weights[j, i]: weight of slot i when the key of slot j is written
    weights = jnp.zeros((MEMORY_SIZE, MEMORY_SIZE)).at[slots[:, None], near.slots].set(near.weights)
    limit = (true @ weights) / jnp.sum(weights, axis=0)

    def write(carry, n):
        memory, running_mean = carry
        step_key = jax.random.fold_in(key, n)
        j = jax.random.randint(step_key, (), 0, MEMORY_SIZE)
        noisy = true[j] + NOISE * jax.random.normal(jax.random.fold_in(step_key, 1))
        neighbours = mem.Neighbours(*(x[j][None] for x in near))
        memory = mem.refine(memory, neighbours, noisy[None], write_rate(n, decaying))
        # The running mean leaves out the first segment, in which initial values fade.
        share = 1 / jnp.maximum(n - count // POINTS, 1)
        return (memory, running_mean + share * (memory.values - running_mean)), None

    start = memory, jnp.zeros(MEMORY_SIZE)
    _, (memories, running_means) = scan_in_segments(write, start, count)
    values = jnp.where(decaying, memories.values, running_means)
    return jnp.max(jnp.abs(values - limit), axis=1)


def refine_errors(
    key: Key[Array, ""], decaying: Bool[Array, ""], k: int, count: int
) -> Float[Array, "P"]:
    """Refines the values of a random MDP, and gives the largest distance from the last values.

    The MDP has one state per memory entry and two deterministic actions."""
    memory, reward = random_memory(key)
    near = mem.lookup(memory, memory.keys, k)
    next_states = jax.random.randint(jax.random.fold_in(key, 1), (MEMORY_SIZE, 2), 0, MEMORY_SIZE)
    state_key = jax.random.fold_in(key, 2)

    def refine(memory, n):
        state = jax.random.randint(jax.random.fold_in(state_key, n), (), 0, MEMORY_SIZE)
        value = jnp.max(reward[state] + GAMMA * mem.read(memory, near)[next_states[state]])
        neighbours = mem.Neighbours(*(x[state][None] for x in near))
        return mem.refine(memory, neighbours, value[None], write_rate(n, decaying)), None

    last, memories = scan_in_segments(refine, memory, count)
    return jnp.max(jnp.abs(memories.values - last.values), axis=1)


def largest_ratio(seed: int, k: int) -> float:
    """The largest ratio of two value functions' distances after and before the operator H.

    Over 2,000 pairs, in a random MDP of 12 states and 3 actions."""
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.full(12, 0.2), (12, 3))
    reward = rng.normal(size=(12, 3))

    def apply(value: np.ndarray) -> np.ndarray:
        backup = np.max(reward + GAMMA * transitions @ value, axis=1)
        return backup / k + value * (k - 1) / k

    ratios = []
    for _ in range(2_000):
        a = rng.normal(size=12) * 10
        # A constant difference is the hardest case.
        gap = rng.normal(size=12) if rng.random() < 0.5 else np.full(12, rng.normal())
        b = a + gap
        ratios.append(np.max(np.abs(apply(a) - apply(b))) / np.max(np.abs(a - b)))
    return float(max(ratios))


def compute(quick: bool) -> dict[str, Any]:
    count, seeds = (2_000, 2) if quick else (1_000_000, SEEDS)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    errors: dict[str, dict[str, Any]] = {"write": {}, "refine": {}}
    for name, process in (("write", write_errors), ("refine", refine_errors)):
        for k in NEIGHBOURS:
            one_seed = partial(process, k=k, count=count)
            all_seeds = jax.jit(jax.vmap(one_seed, (0, None)))
            for kind in ("decaying", "constant"):  # one program for both
                values = np.asarray(all_seeds(keys, jnp.array(kind == "decaying")))
                errors[name][f"K={k}, {kind}"] = values.round(6).tolist()
    ratios = {f"K={k}": [largest_ratio(seed, k) for seed in range(seeds)] for k in NEIGHBOURS}
    return errors | {"ratio": ratios, "count": count, "seeds": list(range(seeds))}


def converges(process: str, kind: str, results: ExperimentResults) -> list[Comparison]:
    """Compares the last error with a tenth of the noise.

    The distance of refinements from their last values is taken at three quarters of the way."""
    point = -1 if process == "write" else -POINTS // 4 - 1
    errors = results.numbers[process]
    return [
        compare_to_threshold(
            f"{TOLERANCE} − error, K = {k}",
            [seed[point] for seed in errors[f"K={k}, {kind}"]],
            TOLERANCE,
            -1,
        )
        for k in NEIGHBOURS
    ]


def contracts(results: ExperimentResults) -> list[Comparison]:
    bounds = {k: (GAMMA + k - 1) / k for k in NEIGHBOURS}
    rounding = 1e-9
    ratios = results.numbers["ratio"]
    return [
        compare_to_threshold(
            f"{bound:.4f} − ratio, K = {k}", ratios[f"K={k}"], bound + rounding, -1
        )
        for k, bound in bounds.items()
    ]


def draw(results: ExperimentResults, path: Path) -> None:
    updates = np.arange(1, POINTS + 1) * (results.numbers["count"] // POINTS)
    panels = {
        process: {
            label: (updates, np.array(errors)) for label, errors in results.numbers[process].items()
        }
        for process in ("write", "refine")
    }
    plot_series(panels, path, "updates", "largest distance from the limit")


THEORY = Experiment(
    name="theory",
    paper="Appendix: convergence of write and refine",
    compute=compute,
    draw=draw,
    presets="none: memory operators without an agent",
    claims=(
        Claim(
            0,
            "Writing converges under decaying rates.",
            partial(converges, "write", "decaying"),
            "0.1 minus the error after the last write",
        ),
        Claim(
            0,
            "Under a constant rate it converges in the mean.",
            partial(converges, "write", "constant"),
            "0.1 minus the error of the values' running mean after the last write",
        ),
        Claim(
            0,
            "Refining converges under decaying rates.",
            partial(converges, "refine", "decaying"),
            "0.1 minus the distance from the last values at three quarters of the way",
        ),
        Claim(
            0,
            "Refining contracts by (γ + K − 1)/K.",
            contracts,
            "that bound minus the largest ratio over 2,000 pairs of value functions",
        ),
    ),
)
