"""The appendix's mathematics, checked by computing: writes and refinements converge, and refining is a contraction."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Key, PyTree

from engram import memory as mem
from engram.experiments.experiment import Claim, Experiment, Found
from engram.experiments.verdicts import against_bar
from engram.report.figures import plain_curves

SEEDS, SLOTS, NOISE, RATE = 10, 30, 1.0, 0.5
GAMMA, NEIGHBOURS = 0.9, (1, 5, 15)
CLOSE = 0.1
"""of the noise's deviation: nearer than that counts as there"""
POINTS = 20


def rates(n: Float[Array, ""], decaying: Bool[Array, ""]) -> Float[Array, ""]:
    """Decaying rates have an infinite sum and a finite sum of squares."""
    return jnp.where(decaying, RATE * 1_000 / (1_000 + n), RATE)


def some_memory(key: Key[Array, ""]) -> tuple[mem.Memory, Float[Array, "M"]]:
    """Keys all over a square, and the true value of each, which is smooth."""
    keys = jax.random.uniform(key, (SLOTS, 2))
    true = jnp.sin(3 * keys[:, 0]) + keys[:, 1] ** 2
    full = mem.empty(SLOTS, 2)._replace(keys=keys, written=jnp.int32(SLOTS))
    return full, true


def in_stretches(step: Callable, state: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """The state after `count` steps, and after each of as many equal stretches as there are points."""

    def stretch(state, first):
        after, _ = lax.scan(step, state, first + jnp.arange(count // POINTS))
        return after, after

    return lax.scan(stretch, state, jnp.arange(POINTS) * (count // POINTS))


def writing(key: Key[Array, ""], k: int, decaying: Bool[Array, ""], writes: int) -> Float[Array, "P"]:
    """Noisy returns of stored trajectories, drawn evenly, are written; the largest distance of a value from the limit that the appendix
    derives, a mean of its neighbours' true values. At a constant rate, that of the values' running mean."""
    memory, true = some_memory(key)
    near = mem.recall(memory, memory.keys, k)
    weights = jnp.zeros((SLOTS, SLOTS)).at[jnp.arange(SLOTS)[:, None], near.slots].set(near.weights)  # of slot i when j is written: [j, i]
    limit = (true @ weights) / jnp.sum(weights, axis=0)

    def one(carried, n):
        memory, running = carried
        draw = jax.random.fold_in(key, n)
        j = jax.random.randint(draw, (), 0, SLOTS)
        value = true[j] + NOISE * jax.random.normal(jax.random.fold_in(draw, 1))
        at_j = mem.Neighbours(*(x[j][None] for x in near))
        memory = mem.refine(memory, at_j, value[None], rates(n, decaying))
        share = 1 / jnp.maximum(n - writes // POINTS, 1)  # without the first stretch, in which the beginning fades
        return (memory, running + share * (memory.values - running)), None

    _, (memories, running) = in_stretches(one, (memory, jnp.zeros(SLOTS)), writes)
    return jnp.max(jnp.abs(jnp.where(decaying, memories.values, running) - limit), axis=1)


def refining(key: Key[Array, ""], k: int, decaying: Bool[Array, ""], refinements: int) -> Float[Array, "P"]:
    """Of a world of as many places as there are memories, with two ways from each: how far values are from where they end."""
    memory, reward = some_memory(key)
    near = mem.recall(memory, memory.keys, k)
    ways = jax.random.randint(jax.random.fold_in(key, 1), (SLOTS, 2), 0, SLOTS)

    def one(memory, n):
        x = jax.random.randint(jax.random.fold_in(jax.random.fold_in(key, 2), n), (), 0, SLOTS)
        value = jnp.max(reward[x] + GAMMA * mem.read(memory, near)[ways[x]])
        at_x = mem.Neighbours(*(v[x][None] for v in near))
        return mem.refine(memory, at_x, value[None], rates(n, decaying)), None

    last, memories = in_stretches(one, memory, refinements)
    return jnp.max(jnp.abs(memories.values - last.values), axis=1)


def contraction(seed: int, k: int) -> float:
    """The greatest ratio of two value functions' distances after and before the appendix's operator H, over many pairs, in a random world
    of 12 places and 3 actions."""
    draw = np.random.default_rng(seed)
    moves = draw.dirichlet(np.full(12, 0.2), (12, 3))
    reward = draw.normal(size=(12, 3))

    def h(value: np.ndarray) -> np.ndarray:
        return np.max(reward + GAMMA * moves @ value, axis=1) / k + value * (k - 1) / k

    ratios = []
    for _ in range(2_000):
        a = draw.normal(size=12) * 10
        gap = draw.normal(size=12) if draw.random() < 0.5 else np.full(12, draw.normal())  # a constant gap is the hardest
        b = a + gap
        ratios.append(np.max(np.abs(h(a) - h(b))) / np.max(np.abs(a - b)))
    return float(max(ratios))


def compute(quick: bool) -> dict[str, Any]:
    count, seeds = (2_000, 2) if quick else (1_000_000, SEEDS)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))

    def of_all(process):
        found = {}
        for k in NEIGHBOURS:
            seeds_of = jax.jit(jax.vmap(lambda key, decaying, k=k: process(key, k, decaying, count), (0, None)))
            for kind, decays in (("decaying", True), ("constant", False)):  # by one program
                found[f"K={k}, {kind}"] = np.asarray(seeds_of(keys, jnp.array(decays))).round(6).tolist()
        return found

    return {
        "write": of_all(writing),
        "refine": of_all(refining),
        "ratio": {f"K={k}": [contraction(seed, k) for seed in range(seeds)] for k in NEIGHBOURS},
        "count": count,
        "seeds": list(range(seeds)),
    }


def comes_close(process: str, kind: str):
    """Whether the last error is smaller than a tenth of the noise; of refinements, which end at 0 by definition, the error at three
    quarters of the way."""
    place = -1 if process == "write" else -POINTS // 4 - 1

    def tests(found: Found):
        errors = found.numbers[process]
        return [against_bar(f"{CLOSE} − error, K = {k}", [seed[place] for seed in errors[f"K={k}, {kind}"]], CLOSE, -1) for k in NEIGHBOURS]

    return tests


def contracts(found: Found):
    bounds = {k: (GAMMA + k - 1) / k for k in NEIGHBOURS}
    rounding = 1e-9
    return [
        against_bar(f"{bounds[k]:.4f} − ratio, K = {k}", found.numbers["ratio"][f"K={k}"], bounds[k] + rounding, -1) for k in NEIGHBOURS
    ]


def draw(found: Found, path: Path) -> None:
    count = found.numbers["count"]
    steps = np.arange(1, POINTS + 1) * (count // POINTS)
    panels = {
        process: {label: (steps, np.array(errors)) for label, errors in found.numbers[process].items()} for process in ("write", "refine")
    }
    plain_curves(panels, path, "updates", "largest distance from the limit")


MATHEMATICS = Experiment(
    name="mathematics",
    paper="Appendix: convergence of write and refine",
    compute=compute,
    draw=draw,
    claims=(
        Claim(0, "Writing converges under decaying rates.", comes_close("write", "decaying"), "0.1 less the error after the last write"),
        Claim(
            0,
            "Under a constant rate it converges in the mean.",
            comes_close("write", "constant"),
            "0.1 less the error of the values' running mean after the last write",
        ),
        Claim(
            0,
            "Refining converges under decaying rates.",
            comes_close("refine", "decaying"),
            "0.1 less the distance, at three quarters of the way, from where the values end",
        ),
        Claim(
            0, "Refining contracts by (γ + K − 1)/K.", contracts, "that bound less the greatest ratio met in 2,000 pairs of value functions"
        ),
    ),
)
