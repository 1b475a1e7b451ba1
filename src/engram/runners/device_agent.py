"""R agents on the device, called from the host once per iteration to step and once to learn."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from engram import periodic
from engram.devices import named_device, platform
from engram.runners.base import RunState
from engram.runners.donation import (
    Arrays,
    DonatedFunction,
    FlatPytree,
    pack_timestep,
    unpack_timestep,
)
from engram.runners.parallel import VmappedAgent
from engram.types import TimeStep


class DeviceAgent:
    """Steps and trains R agents whose state is updated in place on the device."""

    def __init__(self, agents: VmappedAgent, seeds: Sequence[int]):
        self.agents = agents
        self.seeds = jnp.array(seeds, jnp.uint32)
        self.flat_state = FlatPytree(self.template())
        self.arrays: Arrays = ()
        """the flattened `RunState`"""
        self.step_function = DonatedFunction(self._step)
        self.learn_function = DonatedFunction(self._learn)
        self.common_learn_function = DonatedFunction(self._learn_common_pattern)
        self.learn_step = 0
        """`RunState.step` as the host counts it, without a wait for the device"""
        self.schedules: list[periodic.IsDue] = []
        self.common_pattern: periodic.Pattern | None = None
        """the updates that are due at most steps, if these have a program without branches"""
        self.device = named_device()
        self.learner_thread = ThreadPoolExecutor(1) if platform() == "gpu" else None
        self.uploaded: tuple[TimeStep | None, tuple[Array, ...]] = (None, ())
        """a timestep, and its arrays on the device"""

    def init(self) -> None:
        self.run_state = jax.jit(self.agents.init)(self.seeds)
        self.uploaded = (None, ())

    def template(self) -> RunState:
        return jax.eval_shape(self.agents.init, self.seeds)

    @property
    def run_state(self) -> RunState:
        return self.flat_state.unflatten(self.arrays)

    @run_state.setter
    def run_state(self, run_state: RunState) -> None:
        self.arrays = self.flat_state.flatten(run_state)
        self.learn_step = int(run_state.step)

    def select_actions(self, timestep: TimeStep) -> Int[Array, "R E"]:
        """`Agent.step` of all runs."""
        of, arrays = self.uploaded
        inputs = arrays if of is timestep else pack_timestep(timestep)
        self.arrays, (actions,) = self.step_function(self.arrays, *inputs)
        return actions

    def learn(self) -> None:
        """`Agent.learn` of all runs, by the program without branches if it fits this step."""
        is_common = (
            self.common_pattern is not None
            and periodic.pattern_at(self.schedules, self.learn_step) == self.common_pattern
        )
        function = self.common_learn_function if is_common else self.learn_function
        with jax.default_device(self.device):  # a new thread does not inherit it
            self.arrays, _ = function(self.arrays)
        self.learn_step += 1

    def upload(self, timestep: TimeStep) -> None:
        """Starts to copy a timestep to the device."""
        self.uploaded = timestep, jax.device_put(pack_timestep(timestep))

    @contextmanager
    def compile_in_threads(self, timestep: Any) -> Iterator[None]:
        """Compiles all programs while the block runs, and waits for them at its end."""
        compilers = [
            self.step_function.compiler(self.arrays, *pack_timestep(timestep)),
            self.learn_function.compiler(self.arrays),
        ]
        if self.learner_thread is not None:
            num_iterations = self.agents.spec.num_iterations
            self.common_pattern = periodic.common_pattern(self.schedules, num_iterations)
        if self.common_pattern is not None:
            compilers.append(self.common_learn_function.compiler(self.arrays))
        pool = ThreadPoolExecutor(len(compilers))
        futures = [pool.submit(compiler) for compiler in compilers]
        try:
            yield
            for future in futures:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    # The functions that are compiled, from arrays to arrays.

    def _step(self, arrays: Arrays, *inputs: Array) -> tuple[Arrays, Arrays]:
        timestep = unpack_timestep(self.agents.spec, inputs)
        run_state, actions = self.agents.step(self.flat_state.unflatten(arrays), timestep)
        return self.flat_state.flatten(run_state), (actions,)

    def _learn(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        with periodic.record_schedules() as self.schedules:
            return self._learn_flat(arrays)

    def _learn_common_pattern(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        assert self.common_pattern is not None
        with periodic.fixed_schedule(self.common_pattern):
            return self._learn_flat(arrays)

    def _learn_flat(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        run_state = self.agents.learn(self.flat_state.unflatten(arrays))
        return self.flat_state.flatten(run_state), ()
