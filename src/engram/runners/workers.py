"""Gymnasium environments in worker processes, which step in parallel and in lockstep.

Runs are those of `GymRunner`, bit for bit. Observations come back through shared memory. A step
that ends an episode and the reset after it are one request, so that workers reset in parallel.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Int, Shaped

from engram.envs.env_checker import (
    ENV_EXCEPTIONS,
    describe_exception,
    reset_error,
    step_error,
)
from engram.errors import EngramError
from engram.runners.gym_env import EnvId, GymRunner
from engram.types import Spec

CLOSE_SECONDS = 5.0
"""after which a worker that does not end by itself is terminated"""


class WorkerRunner(GymRunner):
    """Trains R runs on Gymnasium environments that step in worker processes."""

    workers: "Sequence[Worker]" = ()
    num_workers: int | None = None
    """processes; one per processor if None"""

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def _make_envs(self) -> None:
        num_workers = min(len(self.env_ids), self.num_workers or multiprocessing.cpu_count())
        self.workers = [
            Worker({(r, e): self.tasks[r].make for r, e in self.env_ids[i::num_workers]}, self.spec)
            for i in range(num_workers)
        ]
        remote: dict[EnvId, Any] = {
            env_id: RemoteEnv(worker, env_id)
            for worker in self.workers
            for env_id in worker.env_ids
        }
        num_runs, num_envs = len(self.seeds), self.spec.num_envs
        self.envs = [[remote[r, e] for e in range(num_envs)] for r in range(num_runs)]

    def _fault_of(self, error: BaseException, run: int, method: str) -> EngramError:
        if isinstance(error, RemoteError):
            return self._environment_fault(run, f"{method} raised {error}")
        if not isinstance(error, WorkerDeath):
            return super()._fault_of(error, run, method)
        if error.env_id is None:
            return EngramError(
                f"A process for environments ended with exit code {error.exitcode} before it made "
                "one: see what it printed. A script that trains must do so under "
                "`if __name__ == '__main__':`, since these processes import it."
            )
        fault = f"{method} ended its process with exit code {error.exitcode}"
        if error.exitcode is not None and error.exitcode < 0:
            name = signal.Signals(-error.exitcode).name
            fault = f"its process was ended by {name} during {method}"
            if name == "SIGKILL":
                fault += ", as a system does that runs out of memory"
        return self._environment_fault(error.env_id[0], fault)

    def _send(self, actions: Int[np.ndarray, "R E"]) -> None:
        for run, env in self.env_ids:
            remote: Any = self.envs[run][env]
            if remote.next_seed is None:
                index = self.episode_index[run, env] + 1
                remote.next_seed = self._reset_seed((run, env), index)
            remote.send(int(actions[run, env]))
        for worker in self.workers:
            worker.flush()


class Request(NamedTuple):
    """What an environment is to do."""

    env_id: EnvId
    action: int | None
    """None for a reset"""
    seed: int | None
    """of a reset, or of the episode to begin if this one ends; None to begin none"""


class Answer(NamedTuple):
    """What the environment's methods returned, or a `Failure`."""

    step: Any = None
    reset: Any = None


class RemoteEnv:
    """Stands for an environment in a worker."""

    def __init__(self, worker: "Worker", env_id: EnvId):
        self.worker = worker
        self.env_id = env_id
        self.next_seed: int | None = None
        """of the next episode, which begins with the end of this one"""
        self._first: Any = None

    def send(self, action: int) -> None:
        """Asks for a step, whose result the next `step` returns."""
        self.worker.requests.append(Request(self.env_id, action, self.next_seed))

    def step(self, action: int) -> Any:
        if not self.worker.is_busy:  # nothing was sent: an episode is replayed
            self.worker.requests.append(Request(self.env_id, action, None))
        answer = self.worker.answer(self.env_id)
        self._first = answer.reset
        return _raise_if_failed(answer.step)

    def reset(self, seed: int) -> Any:
        first, self._first = self._first, None
        if first is None or seed != self.next_seed:
            self.worker.requests.append(Request(self.env_id, None, seed))
            first = self.worker.answer(self.env_id).reset
        self.next_seed = None
        return _raise_if_failed(first)


class Worker:
    """A process with some of the environments, which answers all requests of a batch at once."""

    def __init__(self, makes: Mapping[EnvId, Callable[[], gym.Env]], spec: Spec):
        context = multiprocessing.get_context("spawn")  # a fork of JAX's threads can hang
        self.env_ids = list(makes)
        self.requests: list[Request] = []
        self._answers: dict[EnvId, Answer] = {}
        self._is_waiting = False
        self._at_work = context.RawValue("i", -1)
        item_bytes = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
        buffer = context.RawArray("b", 2 * len(makes) * item_bytes)
        self._observations = _as_observations(buffer, spec)
        self._pipe, end = context.Pipe()
        arguments = end, makes, spec, buffer, self._at_work
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        try:
            with _ctrl_c_held_back():
                self._process.start()
        except Exception as error:
            raise EngramError(
                f"The environment cannot be sent to a worker process ({error}): make it by a "
                "function at the top level of a module."
            ) from error
        end.close()

    @property
    def is_busy(self) -> bool:
        """Whether there are answers that nobody has fetched."""
        return self._is_waiting or bool(self._answers)

    def flush(self) -> None:
        """Sends all requests."""
        requests, self.requests = self.requests, []
        with suppress(OSError):  # of a dead worker, of which `answer` tells
            self._pipe.send(requests)
        self._is_waiting = True

    def answer(self, env_id: EnvId) -> Answer:
        """The answer to an environment's request, which is sent if it was not yet."""
        if self.requests:
            self.flush()
        if self._is_waiting:
            self._is_waiting = False
            try:
                answers = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise self._death() from error
            self._answers |= {i: self._complete(i, answer) for i, answer in answers.items()}
        return self._answers.pop(env_id)

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(CLOSE_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(CLOSE_SECONDS)
        if self._process.is_alive():
            self._process.kill()

    def _complete(self, env_id: EnvId, answer: Answer) -> Answer:
        """The answer with the observations in shared memory."""
        observations = self._observations[self.env_ids.index(env_id)]
        parts = [
            (observations[place].copy(), *part[1:]) if _is_shared(part) else part
            for place, part in enumerate(answer)
        ]
        return Answer(*parts)

    def _death(self) -> "WorkerDeath":
        self._process.join(CLOSE_SECONDS)
        place = self._at_work.value
        return WorkerDeath(self._process.exitcode, None if place < 0 else self.env_ids[place])


def _work(
    pipe: Connection,
    makes: Mapping[EnvId, Callable[[], gym.Env]],
    spec: Spec,
    buffer: Any,
    at_work: Any,
) -> None:
    """The worker's process: makes environments and answers requests until the pipe ends.

    `at_work` tells at which environment it is, should it end there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, on Windows too
    jax.config.update("jax_platforms", "cpu")  # the GPU is the trainer's
    observations = _as_observations(buffer, spec)
    envs: dict[EnvId, tuple[int, Any]] = {}
    for place, (env_id, make) in enumerate(makes.items()):
        at_work.value = place
        envs[env_id] = place, _attempt(make)
    with suppress(EOFError, OSError):
        while (requests := pipe.recv()) is not None:
            answers = {}
            for request in requests:
                at_work.value, env = envs[request.env_id]
                answers[request.env_id] = _fulfil(request, env, observations[at_work.value], spec)
            pipe.send(answers)
    for _, env in envs.values():
        with suppress(Exception):
            env.close()


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Ctrl-C reaches this process at the end, and never those that are started meanwhile.

    They inherit that the signal is blocked, and need not be ready to ignore it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fulfil(
    request: Request,
    env: "gym.Env | Failure",
    observations: Shaped[np.ndarray, "2 ..."],
    spec: Spec,
) -> Answer:
    """Steps or resets an environment as requested."""
    if isinstance(env, Failure):
        return Answer(env, env)
    step: Any = None
    is_over = True
    if request.action is not None:
        step = _attempt(lambda: env.step(request.action))
        is_valid = not isinstance(step, Failure) and step_error(step, spec) is None
        is_over = is_valid and any(step[2:4])  # pyright: ignore[reportIndexIssue]
        step = _share(step, observations[0], step_error, spec)
    reset = None
    if is_over and request.seed is not None:
        reset = _attempt(lambda: env.reset(seed=request.seed))
        reset = _share(reset, observations[1], reset_error, spec)
    return Answer(step, reset)


def _attempt(call: Callable[[], Any]) -> Any:
    """The result, or what was raised."""
    try:
        return call()
    except ENV_EXCEPTIONS as error:
        return Failure(describe_exception(error))


def _share(result: Any, place: np.ndarray, find_error: Callable[..., Any], spec: Spec) -> Any:
    """The result without its observation, which is put in shared memory if it has no error."""
    if isinstance(result, Failure) or find_error(result, spec) is not None:
        return result
    place[...] = result[0]
    return Place.SHARED_MEMORY, *result[1:]


def _is_shared(result: Any) -> bool:
    return isinstance(result, tuple) and bool(result) and result[0] is Place.SHARED_MEMORY


class Place(Enum):
    """Stands for an observation that is elsewhere."""

    SHARED_MEMORY = auto()


@dataclass(frozen=True)
class Failure:
    """An exception, described where it was raised; stands for a result or an environment."""

    text: str


class RemoteError(Exception):
    """An exception of an environment in a worker, described there."""


class WorkerDeath(Exception):
    """A worker ended, at work for an environment or before it made one."""

    def __init__(self, exitcode: int | None, env_id: EnvId | None):
        super().__init__(exitcode, env_id)
        self.exitcode, self.env_id = exitcode, env_id


def _raise_if_failed(result: Any) -> Any:
    if isinstance(result, Failure):
        raise RemoteError(result.text)
    return result


def _as_observations(buffer: Any, spec: Spec) -> Shaped[np.ndarray, "N 2 ..."]:
    """Of each environment the last observation and the first of the next episode."""
    return np.frombuffer(buffer, spec.dtype).reshape(-1, 2, *spec.shape)
