"""The memory's value of one starting state under a fixed policy and noisy rewards (Section 4.2)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram import runners
from engram.agents import make
from engram.envs import Task, get_task
from engram.episodic import control
from engram.figures import plot_series
from engram.networks import zero_state
from engram.paper.experiment import Claim, Experiment, ExperimentResults
from engram.paper.verdicts import compare, compare_to_threshold
from engram.types import Agent, EnvStep, JaxEnv, Spec

TASK, STEPS, POINTS, EPISODES = "cartpole-gaussian", 10_000, 20, 4_000
WRITE_RULES: dict[str, dict[str, int]] = {
    "K_w=1": {"num_write_neighbours": 1, "chunk": 1},
    "K_w=5": {"num_write_neighbours": 5, "chunk": 1},
    "K_w=15": {"num_write_neighbours": 15, "chunk": 1},
    "K_w=15, L=10": {"num_write_neighbours": 15, "chunk": 10},
}
"""With L = 1 every step is stored, so only K_w differs; with L = 10, the value of the paper's
tasks, the first entry of an episode is its tenth step."""
RANDOM_POLICY: dict[str, Any] = {"epsilon_end": 1.0}
TOLERANCE = 0.1
"""relative error below which a value counts as converged"""


@dataclass(frozen=True)
class FixedStart:
    """An environment all of whose episodes start in the same state.

    Otherwise no state would be met twice, and MFEC would never take a maximum."""

    env: JaxEnv
    seed: int = 7

    def reset(self, params: PyTree, key: Key[Array, ""]) -> tuple[PyTree, Float[Array, "..."]]:
        return self.env.reset(params, jax.random.key(self.seed))

    def step(
        self, params: PyTree, state: PyTree, action: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[PyTree, EnvStep]:
        return self.env.step(params, state, action, key)


def fixed_start_task(steps: int) -> Task:
    task = get_task(TASK, steps)
    assert task.jax_env is not None
    return replace(task, jax_env=FixedStart(task.jax_env))


def true_value(task: Task, gamma: float, episodes: int) -> float:
    """Mean discounted return, without noise, of the random policy from the fixed start."""
    env, params = task.jax_env, task.env_params
    assert env is not None
    limit = task.spec().max_episode_steps
    assert limit is not None

    def step(carry, key_and_t):
        state, alive, total = carry
        key, t = key_and_t
        action_key, noise_key = jax.random.split(key)
        action = jax.random.randint(action_key, (), 0, 2)
        state, result = env.step(params, state, action, noise_key)
        total = total + alive * gamma**t * result.true_reward
        return (state, alive * (1.0 - (result.terminated | result.truncated)), total), None

    def episode(key):
        state, _ = env.reset(params, key)
        inputs = jax.random.split(key, limit), jnp.arange(limit, dtype=jnp.float32)
        return lax.scan(step, (state, 1.0, 0.0), inputs)[0][2]

    returns = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), episodes))
    return float(jnp.mean(returns))


def train_and_evaluate(agent: Agent, seeds: int, task: Task, value_of_start) -> list[list[float]]:
    """For each seed, the memory's value of the start at equally spaced points of training."""
    spec = task.spec(1, task.steps)
    runner: Any = runners.make_runner(agent, *runners.cross_seeds([task], range(seeds)), spec)
    runner.start()
    evaluate, values = jax.jit(jax.vmap(value_of_start)), []
    for _ in range(POINTS):
        runner.advance(task.steps // POINTS)
        values.append(np.asarray(evaluate(runner.run_state.agent), float))
    runner.close()
    return np.stack(values, axis=1).round(4).tolist()


def mbec_value(agent: Any, spec: Spec, start: Float[Array, "1 S"]):
    """MBEC's planned value of the start, averaged over actions as the random policy takes them."""

    def value(state):
        episodic, no_steps = state.episodic, zero_state(1, agent.trajectory_dim)
        plan = control.plan(episodic, start, no_steps, spec.num_actions)
        near = control.lookup(episodic, agent, plan.tau.h.reshape(-1, agent.trajectory_dim))
        next_values = control.read(episodic, agent, near)
        return jnp.mean(plan.reward.reshape(-1) + agent.gamma * next_values)

    return value


def mfec_value(agent: Any, spec: Spec, start: Float[Array, "1 S"]):
    """MFEC's value of the start, whose entries keep the maximum return, averaged over actions."""
    return lambda state: jnp.mean(agent.q_values(state, spec, start))


def compute(quick: bool) -> dict[str, Any]:
    seeds, steps = (2, 400) if quick else (10, STEPS)
    task = fixed_start_task(steps)
    spec, env = task.spec(1, steps), task.jax_env
    assert env is not None
    start = env.reset(task.env_params, jax.random.key(0))[1][None]
    values = {}
    for label, options in WRITE_RULES.items():
        mbec = make("mbec", "paper", store_final=True, p_refine=0.0, **options, **RANDOM_POLICY)
        values[label] = train_and_evaluate(mbec, seeds, task, mbec_value(mbec, spec, start))
    mfec: Any = make("mfec", "paper", memory_size=steps, **RANDOM_POLICY)  # a slot for every step
    values["MFEC, max"] = train_and_evaluate(mfec, seeds, task, mfec_value(mfec, spec, start))
    return {
        "values": values,
        "true": true_value(task, mfec.gamma, 200 if quick else EPISODES),
        "start": np.asarray(start[0], float).round(6).tolist(),
        "steps": steps,
        "seeds": list(range(seeds)),
    }


def relative_errors(results: ExperimentResults, label: str) -> np.ndarray:
    """Signed, per seed, averaged over the last quarter of the run."""
    values = [np.mean(seed[-POINTS // 4 :]) for seed in results.numbers["values"][label]]
    return np.array(values) / results.numbers["true"] - 1


def absolute_errors(results: ExperimentResults, k: int) -> np.ndarray:
    return np.abs(relative_errors(results, f"K_w={k}"))


def converges(results: ExperimentResults):
    return [
        compare_to_threshold(
            f"{TOLERANCE} − error, K_w = {k}", absolute_errors(results, k), TOLERANCE, sign=-1
        )
        for k in (5, 15)
    ]


def converges_with_chunks(results: ExperimentResults):
    errors = np.abs(relative_errors(results, "K_w=15, L=10"))
    return [compare_to_threshold(f"{TOLERANCE} − error, L = 10", errors, TOLERANCE, sign=-1)]


def more_neighbours_converge_better(results: ExperimentResults):
    one = absolute_errors(results, 1)
    return [
        compare(f"error K_w = 1 − K_w = {k}", one, absolute_errors(results, k)) for k in (5, 15)
    ]


def max_overestimates(results: ExperimentResults):
    errors = relative_errors(results, "MFEC, max")
    return [compare_to_threshold(f"MFEC − {TOLERANCE}", errors, TOLERANCE)]


def draw(results: ExperimentResults, path: Path) -> None:
    steps = np.arange(1, POINTS + 1) * (results.numbers["steps"] // POINTS)
    series = {label: (steps, np.array(seeds)) for label, seeds in results.numbers["values"].items()}
    series["true"] = steps, np.full((1, POINTS), results.numbers["true"])
    plot_series({"value of the start": series}, path, "agent steps", "discounted return")


CONVERGENCE = Experiment(
    name="convergence",
    paper="Figure on the memory's value of the starting state: stochastic Cart Pole, fixed policy",
    compute=compute,
    draw=draw,
    presets="mbec: preset `paper` without refine; mfec: preset `paper`; both act at random",
    claims=(
        Claim(
            6,
            "With K_w > 1 the value of the start converges to the true one despite noise.",
            converges,
            "0.1 minus the relative error over the last quarter; every episode starts in one "
            "state, and every step is stored (L = 1)",
        ),
        Claim(
            6,
            "The same with L = 10, the paper's on classic control.",
            converges_with_chunks,
            "0.1 minus the relative error over the last quarter; the first entry of an episode is "
            "its tenth step",
        ),
        Claim(
            6,
            "It converges better with K_w > 1 than with K_w = 1.",
            more_neighbours_converge_better,
            "relative errors over the last quarter",
        ),
        Claim(
            6,
            "The max rule of MFEC overestimates.",
            max_overestimates,
            "its signed relative error minus 0.1; every episode starts in the same state, so that "
            "MFEC meets its key again and takes the maximum",
        ),
    ),
)
