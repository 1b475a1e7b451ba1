"""Any Gymnasium environment: R runs of E environments in lockstep, the environments stepping while the device learns."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from engram import schedule
from engram.devices import named_device, platform
from engram.errors import EngramError
from engram.loop.packing import Arrays, InPlace, Packing, joined, parted
from engram.loop.program import Carry, Options, Program, means
from engram.tasks import Task
from engram.tasks.checks import in_brief, reset_fault, step_fault
from engram.types import Agent, Spec, TimeStep

LATE = 1_000
"""last steps of a run, by which it is told what work falls on most of them"""


class EnvironmentFault(EngramError):
    """An environment raised, or gave something no agent can use."""


class Host:
    """Real Gymnasium environments. A checkpoint cannot hold them, so it holds the actions of the episodes being lived: replayed from
    the same reset seed, they bring each environment back to where it was."""

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        spec: Spec,
        options: Options = None,
        allowed: Sequence[int] | None = None,
    ):
        self.spec, self.seeds, self.tasks = spec, list(seeds), list(tasks)
        self.program = Program(agent, spec, len(seeds), options, allowed)
        self.packing = Packing(self._shape())
        self._act, self._learn = InPlace(self._packed_act), InPlace(self._packed_learn)
        self._usual_learn = InPlace(self._packed_usual_learn)
        self.step = 0
        """the device's: how often it has learnt, or is about to"""
        self.work: list[schedule.Falls] = []
        self.usual: schedule.Known | None = None
        """which of the work falls on most steps, where these have a program of their own"""
        self.device = named_device()
        self.aside = ThreadPoolExecutor(1) if platform() == "gpu" else None
        self.envs: list[list[gym.Env]] = []
        self.places = [(r, e) for r in range(len(self.seeds)) for e in range(spec.envs)]
        shape = (len(self.seeds), spec.envs)
        self.score, self.episode = np.zeros(shape), np.zeros(shape, np.int64)
        self.taken: dict[tuple[int, int], list[int]] = {place: [] for place in self.places}
        self.timestep: Any = copied(self.program.blank(len(self.seeds)))
        self.uploaded: tuple[Any, tuple[Array, ...]] = None, ()
        """a timestep, and what the device has of it already"""
        self.iteration = 0
        self.fault: EngramError | None = None

    def _shape(self) -> Carry:
        return jax.eval_shape(self.program.init, jnp.array(self.seeds, jnp.uint32))

    def _packed_act(self, arrays: Arrays, *told: Array) -> tuple[Arrays, Arrays]:
        carry, action = self.program.act(self.packing.unpack(arrays), parted(self.spec, told))
        return self.packing.pack(carry), (action,)

    def _packed_learn(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        with schedule.noting() as self.work:
            return self.packing.pack(self.program.learn(self.packing.unpack(arrays))), ()

    def _packed_usual_learn(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        assert self.usual is not None
        with schedule.settled(self.usual):
            return self.packing.pack(self.program.learn(self.packing.unpack(arrays))), ()

    def act(self) -> Int[Array, "R E"]:
        """The agents see what their environments show, and choose."""
        of, told = self.uploaded
        self.arrays, (actions,) = self._act(self.arrays, *(told if of is self.timestep else joined(self.timestep)))
        return actions

    def learn(self) -> None:
        is_usual = self.usual is not None and schedule.of_step(self.work, self.step) == self.usual
        with jax.default_device(self.device):  # which each thread has its own of
            self.arrays, _ = (self._usual_learn if is_usual else self._learn)(self.arrays)
        self.step += 1

    @property
    def carry(self) -> Carry:
        return self.packing.unpack(self.arrays)

    @carry.setter
    def carry(self, carry: Carry) -> None:
        self.arrays, self.step = self.packing.pack(carry), int(carry.step)  # the host counts with the device

    def start(self) -> None:
        self.carry = jax.jit(self.program.init)(jnp.array(self.seeds, jnp.uint32))
        self.uploaded = None, ()
        with self._compiling():
            self._make()
            self._begin()

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """All programs are compiled in other threads: to make environments, and to bring them back, may take as long."""
        compilers = [self._act.compiler(self.arrays, *joined(self.timestep)), self._learn.compiler(self.arrays)]
        if self.aside is not None and self.work:
            self.usual = schedule.usual(self.work, range(max(0, self.spec.iterations - LATE), self.spec.iterations))
            compilers.append(self._usual_learn.compiler(self.arrays))
        pool = ThreadPoolExecutor(len(compilers))
        waiting = [pool.submit(compiler) for compiler in compilers]
        try:
            yield
            for one in waiting:
                one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Begins the first episodes."""
        for place in self.places:
            self.timestep.observation[place] = self.timestep.final[place] = self._reset(place)

    def _make(self) -> None:
        self.envs = [[task.make() for _ in range(self.spec.envs)] for task in self.tasks]

    def _reset(self, place: tuple[int, int]) -> np.ndarray:
        """Begins the environment's next episode; how depends on the run's seed and the episode's number alone."""
        r, e = place
        answer = self._call(r, "reset", lambda: self.envs[r][e].reset(seed=self._seed(place, self.episode[place])))
        return self._checked(r, answer, reset_fault(answer, self.spec))

    def _seed(self, place: tuple[int, int], number: int) -> int:
        """Of an environment's episode, by its number."""
        r, e = place
        return int(np.random.SeedSequence([self.seeds[r], e, int(number)]).generate_state(1)[0])

    def _call(self, r: int, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._broken(r, f"{what} raised {type(error).__name__} ({in_brief(error)})") from error

    def _checked(self, r: int, answer: Any, wrong: str | None) -> np.ndarray:
        """The observation in what an environment answered, if nothing is wrong with it."""
        if wrong:
            raise self._broken(r, wrong)
        return np.asarray(answer[0], self.spec.dtype)

    def _broken(self, r: int, what: str) -> EnvironmentFault:
        step = (self.iteration + 1) * self.spec.envs
        return EnvironmentFault(f"The environment {self.tasks[r].name} broke with seed {self.seeds[r]} at step {step:,}: {what}.")

    def advance(self, iterations: int, stop: Callable[[], bool] = lambda: False) -> Float[np.ndarray, "T R E"]:
        returns = np.full((iterations, len(self.seeds), self.spec.envs), np.nan, np.float32)
        for i in range(iterations):
            with self._learning(self.act()) as actions:
                self._step(actions, returns[i])
            self.iteration += 1
            if self.fault or stop():
                return returns[: i + 1]
        return returns

    @contextmanager
    def _learning(self, chosen: Int[Array, "R E"]) -> Iterator[Int[np.ndarray, "R E"]]:
        """Gives the actions, of which the environments know, to step them while the device learns."""
        if self.aside is None:
            self._send(actions := self._fetch(chosen))
            self.learn()
            yield actions
            return
        # A GPU's program that branches keeps whoever calls it waiting for most of its time, so another thread does; and the GPU goes on
        # to it without waiting for anybody. What the environments show is on its way to it before it has learnt. The program of most
        # steps does not branch, and the next action is asked for while the GPU still learns.
        learning = self.aside.submit(self.learn)
        try:
            self._send(actions := self._fetch(chosen))
            yield actions
            self._upload()
        finally:
            learning.result()

    def _fetch(self, chosen: Int[Array, "R E"]) -> Int[np.ndarray, "R E"]:
        """The actions, as soon as the device has chosen."""
        return np.asarray(chosen)

    def _upload(self) -> None:
        """What the environments show is on its way to the device."""
        self.uploaded = self.timestep, jax.device_put(joined(self.timestep))

    def _send(self, actions: Int[np.ndarray, "R E"]) -> None:
        """Tells environments that step alone what to do."""

    def _step(self, actions: Int[np.ndarray, "R E"], returns: Float[np.ndarray, "R E"]) -> None:
        # In new arrays: the device may still be reading those of the last step.
        self.timestep = copied(self.timestep)
        waiting = list(self.places)
        try:
            while waiting:
                self._step_one(waiting[0], int(actions[waiting[0]]), returns)
                waiting.pop(0)
        except EnvironmentFault as fault:
            self.fault = fault
            for place in waiting:  # what did not answer counts as cut, and begins anew when resumed
                if np.isnan(returns[place]):
                    self._cut(place)
                else:  # it did answer, and its episode is over, but the next could not begin: it is left out
                    self.episode[place] += 1

    def _step_one(self, place: tuple[int, int], action: int, returns: Float[np.ndarray, "R E"]) -> None:
        (r, e), now = place, self.timestep
        answer = self._call(r, "step", lambda: self.envs[r][e].step(action))
        seen = self._checked(r, answer, step_fault(answer, self.spec))
        _, reward, terminated, truncated, info = answer
        now.reward[place], now.terminated[place], now.truncated[place] = reward, terminated, truncated
        now.observation[place] = now.final[place] = seen
        self.score[place] += info.get("true_reward", reward)
        self.taken[place].append(action)
        if terminated or truncated:
            returns[place] = self.score[place]
            self._next(place)
            now.observation[place] = self._reset(place)

    def _next(self, place: tuple[int, int]) -> None:
        self.episode[place] += 1
        self.score[place] = 0
        self.taken[place] = []

    def _cut(self, place: tuple[int, int], reward: float = 0.0) -> None:
        """The episode counts as cut where it was last seen."""
        now = self.timestep
        now.reward[place], now.terminated[place], now.truncated[place] = reward, False, True
        now.final[place] = now.observation[place]
        self._next(place)

    def metrics(self) -> dict[str, Float[np.ndarray, "R"]]:
        self.carry, since = means(self.carry)
        return since

    def template(self) -> PyTree:
        return self._shape(), self.timestep, self.score, self.episode

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.carry, self.timestep, self.score, self.episode), {"taken": list(self.taken.values())}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.carry, self.timestep, self.score, self.episode = tree
        self.iteration = int(self.carry.step)
        self.taken = dict(zip(self.places, notes["taken"], strict=True))
        with self._compiling():
            self._make()
            self._return()

    def _return(self) -> None:
        """Brings the environments back to where they were."""
        for place in self.places:
            seen = self._repeat(place)
            if not self.taken[place]:
                self.timestep.observation[place] = seen
            elif seen is None or not np.array_equal(seen, self.timestep.observation[place]):
                # An environment that does not repeat itself cannot be brought back.
                self._cut(place, self.timestep.reward[place])
                self.timestep.observation[place] = self._reset(place)

    def _repeat(self, place: tuple[int, int]) -> np.ndarray | None:
        """Lives the episode again up to where it was, and sees what is seen there; None if it is over before that."""
        (r, e), seen = place, self._reset(place)
        for action in self.taken[place]:
            answer = self._call(r, "step", lambda: self.envs[r][e].step(action))  # noqa: B023
            seen = self._checked(r, answer, step_fault(answer, self.spec))
            if answer[2] or answer[3]:
                return None
        return seen

    def close(self) -> None:
        for env in (env for envs in self.envs for env in envs):
            env.close()


def copied(timestep: TimeStep) -> Any:
    """A timestep of NumPy arrays of its own."""
    return TimeStep(*map(np.array, timestep))  # pyright: ignore[reportArgumentType]
