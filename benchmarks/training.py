"""Engram's training, compiled and warm, ready to be timed."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders import Contender, Timing
from engram import agents, runners
from engram.envs import Task, get_task
from engram.episodic.memory import Memory
from engram.runners import RunState
from engram.runners.autoreset import autoreset


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


def random_steps(task: Task, num_envs: int, steps: int) -> Callable[[], Timing]:
    """A function that takes random steps in environments in JAX, reset where episodes end."""
    spec, params = task.spec(num_envs, steps), task.env_params
    assert task.jax_env is not None
    env = autoreset(task.jax_env, spec)

    def one_step(states, key):
        keys = jax.random.split(key, num_envs + 1)
        actions = jax.random.randint(keys[0], (num_envs,), 0, spec.num_actions)
        states, (timestep, _) = jax.vmap(env.step, in_axes=(None, 0, 0, 0, 0))(
            params, states, actions, keys[1:], keys[1:]
        )
        # All of the result is used, or the compiler would leave it out.
        used = jnp.sum(timestep.reward) + jnp.sum(timestep.observation.astype(jnp.float32))
        return states, used

    @jax.jit
    def many_steps(key):
        keys = jax.random.split(key, num_envs)
        states, _ = jax.vmap(env.reset, in_axes=(None, 0))(params, keys)
        return jnp.sum(lax.scan(one_step, states, jax.random.split(key, steps))[1])

    def call():
        many_steps(jax.random.key(0)).block_until_ready()

    call()
    return lambda: timed(call)
