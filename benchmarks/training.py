"""Engram's side: a trainer that is compiled, warm and ready to be timed."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contenders import Contender, Timing
from engram import agents, runners
from engram.envs import registry
from engram.episodic.memory import Memory


def timed(run: Callable[[], Any]) -> Timing:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


class Trainer:
    """A runner after its compilation; every call trains on, and says how long it took."""

    def __init__(self, contender: Contender):
        self.contender = contender
        task = registry.get_task(contender.task)
        agent = agents.make(contender.agent, "paper", **contender.options)
        runs = runners.cross_seeds([task], range(contender.runs))
        self.runner: Any = runners.make_runner(agent, *runs, task.spec(contender.envs, contender.replay), use_gym=contender.host)
        self.runner.start()
        if contender.memory == "full":
            self.runner.run_state = fill(self.runner.run_state)
        self.runner.advance(contender.iterations)
        if contender.memory == "filling":
            self.runner.start()

    def __call__(self) -> Timing:
        if self.contender.memory == "anew":
            self.runner.start()
            jax.block_until_ready(self.runner.run_state)
        return timed(lambda: self.runner.advance(self.contender.iterations))

    def bytes_per_run(self) -> dict[str, int]:
        """Of everything, and of the episodic memory alone."""
        memories = jax.tree.leaves(self.runner.run_state, is_leaf=_is_memory)
        sizes = {"state": self.runner.save()[0], "memory": [x for x in memories if _is_memory(x)]}
        return {name: sum(x.nbytes for x in jax.tree.leaves(tree)) // self.contender.runs for name, tree in sizes.items()}


def fill(carry: Any) -> Any:
    """The same, with every memory full of random keys and values, used at random times."""

    def full(memory):
        keys = jax.random.uniform(jax.random.key(0), memory.keys.shape, minval=-1)
        values = jax.random.uniform(jax.random.key(1), memory.values.shape, maxval=100)
        slots = memory.keys.shape[-2]
        used = jax.random.randint(jax.random.key(2), memory.used.shape, -slots, 0)
        return memory._replace(keys=keys, values=values, used=used, written=jnp.full_like(memory.written, slots))

    return jax.tree.map(lambda x: full(x) if _is_memory(x) else x, carry, is_leaf=_is_memory)


def _is_memory(x: Any) -> bool:
    return isinstance(x, Memory)
