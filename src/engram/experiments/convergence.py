"""What the memory holds the start to be worth, against the truth, under a fixed policy and noisy rewards (Section 4.2)."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from engram import episodic, loop
from engram.agents import make
from engram.experiments.experiment import Claim, Experiment, Found
from engram.experiments.verdicts import against_bar, compare
from engram.networks import fresh
from engram.report.figures import plain_curves
from engram.tasks import find
from engram.types import Dynamics

TASK, STEPS, POINTS, STARTS, EPISODES = "cartpole-gaussian", 10_000, 20, 32, 4_000
WRITERS: dict[str, dict[str, int]] = {f"K_w={k}": {"write_neighbours": k, "chunk": 1} for k in (1, 5, 15)}
WRITERS["K_w=15, L=10"] = {"write_neighbours": 15, "chunk": 10}
"""every step is remembered, so that what differs is how it is written; and once as the paper's tasks have it, where the first memory of an
episode is its tenth step"""
ANY: dict[str, Any] = {"epsilon_start": 1.0, "epsilon_end": 1.0}
"""the fixed policy: every action alike"""
CLOSE = 0.1
"""of the true value: a mean error smaller than that counts as converged"""


def world() -> tuple[Dynamics, Any]:
    """The task in JAX, and its parameters."""
    task = find(TASK)
    assert task.dynamics is not None
    return task.dynamics, task.params


def starts(count: int) -> Float[Array, "count S"]:
    """First observations of episodes."""
    dynamics, params = world()
    return jax.vmap(lambda key: dynamics.reset(params, key)[1])(jax.random.split(jax.random.key(7), count))


def true_value(gamma: float, episodes: int) -> float:
    """The mean discounted un-noised return of the fixed policy from the start."""
    dynamics, params = world()
    limit = find(TASK).spec().limit

    def episode(key):
        state, _ = dynamics.reset(params, key)

        def step(carried, t):
            state, alive, total = carried
            draw = jax.random.fold_in(key, t)
            action = jax.random.randint(draw, (), 0, 2)
            state, outcome = dynamics.step(params, state, action, jax.random.fold_in(draw, 1))
            total = total + alive * gamma ** t.astype(jnp.float32) * outcome.true_reward
            return (state, alive * (1.0 - (outcome.terminated | outcome.truncated)), total), None

        return lax.scan(step, (state, 1.0, 0.0), jnp.arange(limit))[0][2]

    return float(jnp.mean(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), episodes))))


def held(agent, seeds: int, steps: int, value) -> list[list[float]]:
    """For each seed, at points on its way, what its memory holds the start to be worth."""
    task = find(TASK, steps)
    driver: Any = loop.driver(agent, *loop.every_seed([task], range(seeds)), task.spec(1, steps))
    driver.start()
    judge, found = jax.jit(jax.vmap(value)), []
    for _ in range(POINTS):
        driver.advance(steps // POINTS)
        found.append(np.asarray(judge(driver.carry.agent)))
    driver.close()
    return np.stack(found, axis=1).round(4).tolist()


def by_trajectories(agent, spec):
    """The mean over first observations and actions of what the trajectory's memory says."""
    seen = starts(STARTS)

    def value(life):
        plan = episodic.imagine(life.mind, agent, seen, fresh(STARTS, agent.trajectory), spec.actions)
        near = episodic.recall(life.mind, agent, episodic.keys(life.mind, plan.tau.h).reshape(-1, agent.trajectory))
        return jnp.mean(plan.reward.reshape(-1) + agent.gamma * episodic.read(life.mind, agent, near))

    return value


def by_states(agent, spec):
    """The same of MFEC's tables, which keep the best return ever."""
    seen = starts(STARTS)
    return lambda state: jnp.mean(agent.values(state, spec, seen))


def compute(quick: bool) -> dict[str, Any]:
    seeds, steps = (2, 400) if quick else (10, STEPS)
    spec = find(TASK, steps).spec(1, steps)
    found = {}
    for label, options in WRITERS.items():
        agent: Any = make("mbec", "paper", p_refine=0.0, **options, **ANY)
        found[label] = held(agent, seeds, steps, by_trajectories(agent, spec))
    mfec: Any = make("mfec", "paper", **ANY)
    found["MFEC, max"] = held(mfec, seeds, steps, by_states(mfec, spec))
    return {"held": found, "true": true_value(mfec.gamma, 200 if quick else EPISODES), "steps": steps, "seeds": list(range(seeds))}


def mean_errors(found: Found, label: str) -> np.ndarray:
    """Over the last quarter of the run, relative to the truth; signed."""
    true = found.numbers["true"]
    return np.array([np.mean(seed[-POINTS // 4 :]) for seed in found.numbers["held"][label]]) / true - 1


def draw(found: Found, path: Path) -> None:
    steps = np.arange(1, POINTS + 1) * (found.numbers["steps"] // POINTS)
    held = {label: (steps, np.array(values)) for label, values in found.numbers["held"].items()}
    true = np.full((1, POINTS), found.numbers["true"])
    plain_curves({"value of the start": held | {"true": (steps, true)}}, path, "agent steps", "discounted return")


CONVERGENCE = Experiment(
    name="convergence",
    paper="Figure on the memory's value of the starting state, stochastic Cart Pole under a fixed policy",
    compute=compute,
    draw=draw,
    claims=(
        Claim(
            6,
            "With K_w > 1 the value of the start converges to the true one despite noise.",
            lambda found: [against_bar(f"{CLOSE} − error, K_w = {k}", np.abs(mean_errors(found, f"K_w={k}")), CLOSE, -1) for k in (5, 15)],
            "0.1 less the relative error over the last quarter",
        ),
        Claim(
            6,
            "It converges better with K_w > 1 than with K_w = 1.",
            lambda found: [
                compare(f"error K_w = 1 − K_w = {k}", np.abs(mean_errors(found, "K_w=1")), np.abs(mean_errors(found, f"K_w={k}")))
                for k in (5, 15)
            ],
            "relative errors over the last quarter",
        ),
        Claim(
            6,
            "The max rule of MFEC overestimates.",
            lambda found: [against_bar("MFEC − 0.1", mean_errors(found, "MFEC, max"), CLOSE)],
            "its relative error, with its sign, less 0.1",
        ),
    ),
)
