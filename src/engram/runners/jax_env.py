"""Environments written in JAX: they and the agents are one compiled loop."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram import periodic
from engram.devices import platform
from engram.envs import Task
from engram.errors import EngramError
from engram.runners.autoreset import autoreset
from engram.runners.base import RunKeys, RunState, pop_metrics
from engram.runners.parallel import PerRunOptions, VmappedAgent
from engram.types import Agent, Spec, TimeStep

MIN_ITERATIONS_OF_TWO_PROGRAMS = 100_000
"""of runs that are worth the time to compile a program without branches, too"""
MIN_SEGMENT = 20
"""mean length, among these, of segments that are worth a call each"""


class EnvState(NamedTuple):
    """State of the environments of all runs; leaves have leading axes R and E."""

    state: PyTree
    """of the environment that resets itself"""
    timestep: TimeStep
    episode_return: Float[Array, "R E"]
    """true return of the episode until now"""
    episode_index: Int[Array, "R E"]
    """episodes that have ended"""


class JaxRunner:
    """Trains R runs on environments written in JAX, many iterations per compiled call."""

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        spec: Spec,
        options: PerRunOptions = None,
    ):
        assert tasks[0].jax_env is not None
        self.agents = VmappedAgent(agent, spec, len(seeds), options)
        self.spec = spec
        self.seeds = jnp.array(seeds, jnp.uint32)
        self.env = autoreset(tasks[0].jax_env, spec)
        all_params = [task.env_params for task in tasks]
        self.env_params = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *all_params)
        self.run_state: RunState
        self.env_state: EnvState
        self.iteration = 0
        self.fault: EngramError | None = None
        self.max_iterations = 1
        """the most iterations of any call of `advance`; a call with more compiles again"""
        self.has_branchless_program = (
            platform() == "gpu" and spec.num_iterations >= MIN_ITERATIONS_OF_TWO_PROGRAMS
        )
        """whether iterations whose updates are those of most have a program without branches"""
        self._run = jax.jit(self._loop, donate_argnums=(0, 1), static_argnums=(3, 4))

    @cached_property
    def _schedules(self) -> list[periodic.IsDue]:
        """The conditions of the agent's periodic updates."""
        run_state = jax.eval_shape(self.agents.init, self.seeds)
        with periodic.record_schedules() as schedules:
            jax.eval_shape(self.agents.learn, run_state)
        return schedules

    @cached_property
    def _common_pattern(self) -> periodic.Pattern | None:
        """The updates that are due in most iterations, None if these are not worth a program.

        It depends on the run alone, so that a resumed one has the same programs.
        """
        if not self.has_branchless_program:
            return None
        last = self.spec.num_iterations
        pattern = periodic.common_pattern(self._schedules, last)
        if pattern is None:
            return None
        steps = np.arange(max(0, last - periodic.LAST_ITERATIONS), last, dtype=np.int32)
        num_segments = len(self._split(pattern, steps))
        return pattern if num_segments * MIN_SEGMENT <= len(steps) else None

    def start(self) -> None:
        self.iteration = 0
        self.run_state, self.env_state = jax.jit(self._init)(self.seeds)

    def advance(
        self, iterations: int, stop: Callable[[], bool] = lambda: False
    ) -> Float[np.ndarray, "T R E"]:
        self.max_iterations = max(self.max_iterations, iterations)
        parts = []
        for length, pattern in self._segments(iterations):
            self.run_state, self.env_state, returns = self._run(
                *(self.run_state, self.env_state, np.int32(length)), self.max_iterations, pattern
            )
            parts.append((returns, length))
        self.iteration += iterations
        return np.concatenate([np.asarray(returns)[:length] for returns, length in parts])

    def _segments(self, iterations: int) -> list[tuple[int, periodic.Pattern | None]]:
        """The next iterations in segments: their lengths, and the pattern of those of most."""
        if self._common_pattern is None or not iterations:
            return [(iterations, None)]
        steps = self.iteration + np.arange(iterations, dtype=np.int32)
        return self._split(self._common_pattern, steps)

    def _split(
        self, pattern: periodic.Pattern, steps: Int[np.ndarray, "N"]
    ) -> list[tuple[int, periodic.Pattern | None]]:
        """Segments of steps: their lengths, and the pattern of those that have it."""
        has_pattern = np.all(
            periodic.patterns_at(self._schedules, steps) == np.array(pattern), axis=-1
        )
        starts = np.flatnonzero(np.diff(has_pattern, prepend=~has_pattern[:1]))
        ends = np.append(starts[1:], len(steps))
        return [
            (int(end - start), pattern if has_pattern[start] else None)
            for start, end in zip(starts, ends, strict=True)
        ]

    def pop_metrics(self) -> dict[str, Float[np.ndarray, "R"]]:
        self.run_state, means = pop_metrics(self.run_state)
        return means

    def template(self) -> PyTree:
        return jax.eval_shape(self._init, self.seeds)

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.run_state, self.env_state), {}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.run_state, self.env_state = tree
        self.iteration = int(self.run_state.step)

    def close(self) -> None:
        pass

    def _init(self, seeds: Int[Array, "R"]) -> tuple[RunState, EnvState]:
        num_runs = seeds.shape[0]
        run_state = self.agents.init(seeds)
        index = jnp.zeros((num_runs, self.spec.num_envs), jnp.int32)
        state, observation = jax.vmap(self._reset)(self.env_params, run_state.keys.reset, index)
        timestep = self.agents.zero_timestep(num_runs)
        timestep = timestep._replace(observation=observation)
        if not self.spec.frame_stack:
            timestep = timestep._replace(final_observation=observation)
        return run_state, EnvState(state, timestep, jnp.zeros(index.shape), index)

    def _loop(
        self,
        run_state: RunState,
        env_state: EnvState,
        iterations: Int[Array, ""],
        max_iterations: int,
        pattern: periodic.Pattern | None,
    ) -> tuple[RunState, EnvState, Float[Array, "T R E"]]:
        """A number of iterations up to `max_iterations`: one program for all lengths.

        With a pattern it is one without branches, for iterations with just these updates.
        """

        def iterate(i, loop_state):
            run_state, env_state, returns = loop_state
            # Actions are selected before anything learns: without the barrier, XLA copies the
            # networks, which both use, at every step.
            run_state, actions = lax.optimization_barrier(
                self.agents.step(run_state, env_state.timestep)
            )
            env_state, ended = jax.vmap(self._step, in_axes=(0, 0, 0, 0, None))(
                env_state, self.env_params, run_state.keys, actions, run_state.step
            )
            with periodic.fixed_schedule(pattern) if pattern else nullcontext():
                run_state = self.agents.learn(run_state)
            return run_state, env_state, returns.at[i].set(ended)

        returns = jnp.full((max_iterations, *env_state.episode_return.shape), jnp.nan)
        return lax.fori_loop(0, iterations, iterate, (run_state, env_state, returns))

    def _reset(
        self, params: PyTree, key: Key[Array, ""], index: Int[Array, "E"]
    ) -> tuple[PyTree, Float[Array, "E ..."]]:
        """The first states of one run's episodes."""
        keys = self._reset_keys(key, index)
        return jax.vmap(self.env.reset, in_axes=(None, 0))(params, keys)

    def _step(
        self,
        env_state: EnvState,
        params: PyTree,
        keys: RunKeys,
        actions: Int[Array, "E"],
        step: Int[Array, ""],
    ) -> tuple[EnvState, Float[Array, "E"]]:
        """Steps one run's environments, and resets those whose episode has ended."""
        numbers = step * self.spec.num_envs + jnp.arange(self.spec.num_envs)
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(keys.env, numbers)
        reset_keys = self._reset_keys(keys.reset, env_state.episode_index + 1)
        state, (timestep, true_reward) = jax.vmap(self.env.step, in_axes=(None, 0, 0, 0, 0))(
            params, env_state.state, actions, step_keys, reset_keys
        )
        done = timestep.done
        episode_return = env_state.episode_return + true_reward
        next_return = jnp.where(done, 0.0, episode_return)
        env_state = EnvState(state, timestep, next_return, env_state.episode_index + done)
        return env_state, jnp.where(done, episode_return, jnp.nan)

    def _reset_keys(self, key: Key[Array, ""], index: Int[Array, "E"]) -> Key[Array, "E"]:
        """Keys of one run's episodes, which depend on seed and episode index alone."""
        numbers = index * self.spec.num_envs + jnp.arange(self.spec.num_envs)
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)
