"""Engram's training, compiled and warm, ready to be timed."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contenders import Contender, Timing
from engram import agents, runners
from engram.envs import get_task
from engram.episodic.memory import Memory
from engram.runners import RunState


def timed(call: Callable[[], Any]) -> Timing:
    """Seconds that a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


class Trainer:
    """A contender's runner after compilation; every call trains on and returns its time."""

    def __init__(self, contender: Contender):
        self.contender = contender
        task = get_task(contender.task)
        agent = agents.make(contender.agent, "paper", **contender.options)
        tasks, seeds = runners.cross_seeds([task], range(contender.runs))
        spec = task.spec(contender.envs, contender.replay)
        self.runner: Any = runners.make_runner(agent, tasks, seeds, spec, use_gym=contender.host)
        self.runner.start()
        if contender.memory == "full":
            self.runner.run_state = fill_memories(self.runner.run_state)
        self.runner.advance(contender.iterations)
        if contender.memory == "filling":
            self.runner.start()

    def __call__(self) -> Timing:
        if self.contender.memory == "anew":
            self.runner.start()
            jax.block_until_ready(self.runner.run_state)
        return timed(lambda: self.runner.advance(self.contender.iterations))

    def bytes_per_run(self) -> dict[str, int]:
        """Bytes of the complete state, and of episodic memory alone."""
        leaves = jax.tree.leaves(self.runner.run_state, is_leaf=_is_memory)
        memories = [leaf for leaf in leaves if _is_memory(leaf)]
        trees = {"state": self.runner.save()[0], "memory": memories}
        return {
            name: sum(array.nbytes for array in jax.tree.leaves(tree)) // self.contender.runs
            for name, tree in trees.items()
        }


def fill_memories(run_state: RunState) -> RunState:
    """The state with random keys, values and times of last use in every slot of its memories."""
    return jax.tree.map(lambda x: _fill(x) if _is_memory(x) else x, run_state, is_leaf=_is_memory)


def _fill(memory: Memory) -> Memory:
    size = memory.keys.shape[-2]
    last_used = jax.random.randint(jax.random.key(2), memory.last_used.shape, -size, 0)
    return Memory(
        keys=jax.random.uniform(jax.random.key(0), memory.keys.shape, minval=-1),
        values=jax.random.uniform(jax.random.key(1), memory.values.shape, maxval=100),
        last_used=last_used,
        num_inserted=jnp.full_like(memory.num_inserted, size),
    )


def _is_memory(x: Any) -> bool:
    return isinstance(x, Memory)
