"""Part `maze`: mazes in JAX with random actions, and MBEC in them."""

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contenders import Timing, interleave
from benchmarks.options import Options
from benchmarks.tables import Table, number
from benchmarks.training import random_steps, timed
from engram.agents import make
from engram.envs import get_task
from engram.runners.jax_env import JaxRunner

PROTOCOL = (
    "One process uses the whole device. Compilation and the first call are not timed. Then all are "
    "measured in turn. Speeds are medians over the turns. MBEC's memory is full."
)
NUM_MAZES, ENV_STEPS = 256, 1_000
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "position, 3 x 3": ("maze3", {}),
    "position, 20 x 20": ("maze3", {"size": 20}),
    "position and trap, 3 x 3": ("maze3-trap", {}),
    "512 features, 3 x 3": ("maze3-noisy", {}),
    "image, 3 x 3": ("maze3", {"observation": "image"}),
    "image, a new maze in every episode, 3 x 3": ("maze3-dynamic", {}),
}
AGENT_STEPS, WARM_UP = 500, 1_000
MEMORY_SIZES, RUNS = (1_000, 5_000, 20_000), (1, 20, 64)


def measure(options: Options) -> dict:
    rounds = 2 if options.quick else 7
    environments = {
        name: random_steps(get_task(task, env_kwargs=env_kwargs), NUM_MAZES, ENV_STEPS)
        for name, (task, env_kwargs) in ENVS.items()
    }
    agents = {}
    for runs in RUNS[: 1 if options.quick else None]:
        for memory_size in MEMORY_SIZES:
            for reencode in (True, False):
                name = f"{runs} runs, N = {memory_size:,}" + (", keys fixed" * (not reencode))
                options.log(f"compiling MBEC, {name}")
                agents[name] = _train(runs, memory_size, reencode)
    measured = {}
    for title, calls, steps in (
        ("environment", environments, NUM_MAZES * ENV_STEPS),
        ("MBEC", agents, AGENT_STEPS),
    ):
        times = interleave(calls, rounds, options.log)
        for name in calls:
            runs = int(name.split()[0]) if title == "MBEC" else 1
            walls = [time["wall"] for time in times[name]]
            measured[name] = {"part": title, "steps": runs * steps, "wall": walls}
    return {"protocol": PROTOCOL, "settings": {"rounds": rounds}, "measured": measured}


def _train(runs: int, memory_size: int, reencode: bool) -> Callable[[], Timing]:
    """A function that trains MBEC for 500 steps more, from 1,000 steps on, with a full memory."""
    agent = make("mbec", memory_size=memory_size, reencode=reencode, weigh_inputs=reencode)
    task = get_task("maze3", 100_000)
    runner = JaxRunner(agent, [task] * runs, range(runs), task.spec(1, 100_000))
    runner.start()
    state = runner.run_state.agent
    keys = jax.random.uniform(jax.random.key(0), state.episodic.memory.keys.shape, minval=-1)
    filled = jnp.full_like(state.episodic.memory.num_inserted, memory_size)
    memory = state.episodic.memory._replace(keys=keys, num_inserted=filled)
    state = state._replace(episodic=state.episodic._replace(memory=memory))
    runner.run_state = runner.run_state._replace(agent=state)
    for _ in range(WARM_UP // AGENT_STEPS):
        runner.advance(AGENT_STEPS)
    return lambda: timed(lambda: runner.advance(AGENT_STEPS))


def tables(result: dict) -> list[Table]:
    measured = result["measured"]
    speed = {name: x["steps"] / statistics.median(x["wall"]) for name, x in measured.items()}
    parts = {name: x["part"] for name, x in measured.items()}
    env_rows = [[name, number(speed[name])] for name in speed if parts[name] == "environment"]
    agent_rows = [
        [name, number(speed[name]), f"{speed[f'{name}, keys fixed'] / speed[name] - 1:+.0%}"]
        for name in speed
        if f"{name}, keys fixed" in speed
    ]
    return [
        Table(
            f"{NUM_MAZES} mazes in JAX, random actions",
            ["observation", "environment steps/s"],
            env_rows,
            result["protocol"],
        ),
        Table(
            "MBEC on maze3",
            ["", "agent steps/s", "faster with fixed keys"],
            agent_rows,
            result["protocol"],
        ),
    ]
