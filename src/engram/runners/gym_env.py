"""Any Gymnasium environment: R runs of E environments, which step while the device learns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from engram.envs import Task
from engram.envs.env_checker import (
    ENV_EXCEPTIONS,
    close_envs,
    describe_exception,
    reset_error,
    step_error,
)
from engram.errors import EngramError
from engram.runners.base import RunState, pop_metrics
from engram.runners.device_agent import DeviceAgent
from engram.runners.parallel import PerRunOptions, VmappedAgent
from engram.types import Agent, Spec, TimeStep

EnvId = tuple[int, int]
"""the run and the environment in it"""


class EnvironmentFault(EngramError):
    """An environment raised an exception, or returned a value that agents cannot use."""


class GymRunner:
    """Trains R runs on Gymnasium environments.

    A checkpoint cannot hold an environment. It holds the actions of the current episodes instead:
    replayed from the same reset seed, they lead each environment back to its state.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        spec: Spec,
        options: PerRunOptions = None,
        num_valid_actions: Sequence[int] | None = None,
    ):
        self.tasks = list(tasks)
        self.seeds = list(seeds)
        self.spec = spec
        agents = VmappedAgent(agent, spec, len(seeds), options, num_valid_actions)
        self.device_agent = DeviceAgent(agents, seeds)
        self.iteration = 0
        self.fault: EngramError | None = None
        self.envs: list[list[gym.Env]] = []
        self.env_ids = [(r, e) for r in range(len(seeds)) for e in range(spec.num_envs)]
        shape = (len(seeds), spec.num_envs)
        self.timestep: Any = _copy(agents.zero_timestep(len(seeds)))
        self.episode_return = np.zeros(shape)
        self.episode_index = np.zeros(shape, np.int64)
        self.episode_actions: dict[EnvId, list[int]] = {env_id: [] for env_id in self.env_ids}

    @property
    def run_state(self) -> RunState:
        return self.device_agent.run_state

    @run_state.setter
    def run_state(self, run_state: RunState) -> None:
        self.device_agent.run_state = run_state

    def start(self) -> None:
        self.device_agent.init()
        with self.device_agent.compile_in_threads(self.timestep):
            self._make_envs()
            self._reset_all()

    def advance(
        self, iterations: int, stop: Callable[[], bool] = lambda: False
    ) -> Float[np.ndarray, "T R E"]:
        shape = (iterations, len(self.seeds), self.spec.num_envs)
        returns = np.full(shape, np.nan, np.float32)
        for i in range(iterations):
            with self._learn_meanwhile(self.select_actions()) as actions:
                self._step(actions, returns[i])
            self.iteration += 1
            if self.fault or stop():
                return returns[: i + 1]
        return returns

    def pop_metrics(self) -> dict[str, Float[np.ndarray, "R"]]:
        self.run_state, means = pop_metrics(self.run_state)
        return means

    def template(self) -> PyTree:
        return self._tree(self.device_agent.template())

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        notes = {"episode_actions": list(self.episode_actions.values())}
        return self._tree(self.run_state), notes

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.run_state, self.timestep, self.episode_return, self.episode_index = tree
        self.iteration = int(self.run_state.step)
        actions = notes["episode_actions"]
        self.episode_actions = dict(zip(self.env_ids, actions, strict=True))
        with self.device_agent.compile_in_threads(self.timestep):
            self._make_envs()
            self._restore_envs()

    def close(self) -> None:
        close_envs([env for envs in self.envs for env in envs], self.tasks[0].name)

    def select_actions(self) -> Int[Array, "R E"]:
        """Actions for the current timestep, which may still be under way on the device."""
        return self.device_agent.select_actions(self.timestep)

    @contextmanager
    def _learn_meanwhile(self, actions: Int[Array, "R E"]) -> Iterator[Int[np.ndarray, "R E"]]:
        """Yields the actions on the host; the environments step in the block while agents learn.

        `lax.cond` on a GPU blocks the dispatching thread until the predicate is known, so that
        another thread dispatches `learn`. The next timestep is uploaded before learning ends.
        """
        thread = self.device_agent.learner_thread
        if thread is None:
            host_actions = self._fetch(actions)
            self._send(host_actions)
            self.device_agent.learn()
            yield host_actions
            return
        learning = thread.submit(self.device_agent.learn)
        try:
            host_actions = self._fetch(actions)
            self._send(host_actions)
            yield host_actions
            self._upload()
        finally:
            learning.result()

    def _fetch(self, actions: Int[Array, "R E"]) -> Int[np.ndarray, "R E"]:
        """The actions on the host, once the device has selected them."""
        return np.asarray(actions)

    def _send(self, actions: Int[np.ndarray, "R E"]) -> None:
        """Sends the actions to environments that step in threads of their own."""

    def _upload(self) -> None:
        """Starts to copy the timestep to the device."""
        self.device_agent.upload(self.timestep)

    def _make_envs(self) -> None:
        self.envs = [[task.make() for _ in range(self.spec.num_envs)] for task in self.tasks]

    def _reset_all(self) -> None:
        """Begins the first episodes."""
        for env_id in self.env_ids:
            observation = self._reset(env_id)
            self.timestep.observation[env_id] = observation
            self._set_final_observation(env_id, observation)

    def _reset(self, env_id: EnvId) -> np.ndarray:
        """Begins an episode, whose seed depends on the run's seed and the episode's index alone."""
        run, env = env_id
        seed = self._reset_seed(env_id, self.episode_index[env_id])
        result = self._call(run, "reset", lambda: self.envs[run][env].reset(seed=seed))
        return self._checked_observation(run, result, reset_error(result, self.spec))

    def _reset_seed(self, env_id: EnvId, episode_index: int) -> int:
        run, env = env_id
        sequence = np.random.SeedSequence([self.seeds[run], env, int(episode_index)])
        return int(sequence.generate_state(1)[0])

    def _step(self, actions: Int[np.ndarray, "R E"], returns: Float[np.ndarray, "R E"]) -> None:
        """Steps all environments; an environment's fault is kept for `advance`."""
        # In new arrays: the device may still be reading those of the last step.
        self.timestep = _copy(self.timestep)
        remaining = list(self.env_ids)
        try:
            while remaining:
                self._step_env(remaining[0], int(actions[remaining[0]]), returns)
                remaining.pop(0)
        except EnvironmentFault as fault:
            self.fault = fault
            for env_id in remaining:
                if np.isnan(returns[env_id]):  # it did not step: its episode is truncated
                    self._truncate(env_id)
                else:  # its episode ended but the next could not begin, so that one is left out
                    self.episode_index[env_id] += 1

    def _step_env(self, env_id: EnvId, action: int, returns: Float[np.ndarray, "R E"]) -> None:
        run, env = env_id
        result = self._call(run, "step", lambda: self.envs[run][env].step(action))
        observation = self._checked_observation(run, result, step_error(result, self.spec))
        _, reward, terminated, truncated, info = result
        timestep = self.timestep
        timestep.observation[env_id] = observation
        self._set_final_observation(env_id, observation)
        timestep.reward[env_id] = reward
        timestep.terminated[env_id] = terminated
        timestep.truncated[env_id] = truncated
        self.episode_return[env_id] += info.get("true_reward", reward)
        self.episode_actions[env_id].append(action)
        if terminated or truncated:
            returns[env_id] = self.episode_return[env_id]
            self._start_next_episode(env_id)
            timestep.observation[env_id] = self._reset(env_id)

    def _start_next_episode(self, env_id: EnvId) -> None:
        """Counts an episode, and clears what is kept of it."""
        self.episode_index[env_id] += 1
        self.episode_return[env_id] = 0
        self.episode_actions[env_id] = []

    def _truncate(self, env_id: EnvId, reward: float = 0.0) -> None:
        """Ends an episode as truncated at its last observation."""
        timestep = self.timestep
        timestep.reward[env_id] = reward
        timestep.terminated[env_id] = False
        timestep.truncated[env_id] = True
        self._set_final_observation(env_id, timestep.observation[env_id])
        self._start_next_episode(env_id)

    def _set_final_observation(self, env_id: EnvId, observation: np.ndarray) -> None:
        """Of stacks of frames there is none: replay has the frames."""
        if not self.spec.frame_stack:
            self.timestep.final_observation[env_id] = observation

    def _restore_envs(self) -> None:
        """Leads all environments back to the states in which they were saved."""
        for env_id in self.env_ids:
            observation = self._replay_episode(env_id)
            saved = self.timestep.observation[env_id]
            if not self.episode_actions[env_id]:
                self.timestep.observation[env_id] = observation
            elif observation is None or not np.array_equal(observation, saved):
                # An environment that is not deterministic given its seed cannot be led back.
                self._truncate(env_id, self.timestep.reward[env_id])
                self.timestep.observation[env_id] = self._reset(env_id)

    def _replay_episode(self, env_id: EnvId) -> np.ndarray | None:
        """The observation after the episode's actions; None if it ends before the last one."""
        run, env = env_id
        observation = self._reset(env_id)
        for action in self.episode_actions[env_id]:
            result = self._call(run, "step", lambda: self.envs[run][env].step(action))  # noqa: B023
            observation = self._checked_observation(run, result, step_error(result, self.spec))
            if result[2] or result[3]:
                return None
        return observation

    def _tree(self, run_state: RunState) -> PyTree:
        return run_state, self.timestep, self.episode_return, self.episode_index

    def _call(self, run: int, method: str, call: Callable[[], Any]) -> Any:
        """Calls a run's environment, whose exceptions become an `EnvironmentFault`."""
        try:
            return call()
        except ENV_EXCEPTIONS as error:
            raise self._fault_of(error, run, method) from error

    def _fault_of(self, error: BaseException, run: int, method: str) -> EngramError:
        return self._environment_fault(run, f"{method} raised {describe_exception(error)}")

    def _checked_observation(self, run: int, result: Any, fault: str | None) -> np.ndarray:
        """The observation in what `reset` or `step` returned; raises its fault, if any."""
        if fault:
            raise self._environment_fault(run, fault)
        return np.asarray(result[0], self.spec.dtype)

    def _environment_fault(self, run: int, fault: str) -> EnvironmentFault:
        step = (self.iteration + 1) * self.spec.num_envs
        return EnvironmentFault(
            f"The environment {self.tasks[run].name} failed with seed {self.seeds[run]} "
            f"at step {step:,}: {fault}."
        )


def _copy(timestep: TimeStep) -> Any:
    """A timestep of new NumPy arrays."""
    return TimeStep(*map(np.array, timestep))  # pyright: ignore[reportArgumentType]
