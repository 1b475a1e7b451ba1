"""Drives environments and agents; knows nothing of files. Two drivers with one face:

`Scan` trains tasks written in JAX, a whole chunk of steps in one compiled call. `Host` trains any Gymnasium environment: R runs of E
environments in lockstep, the environments stepping while the device learns. Here, and only here, stands `vmap` over runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.errors import EngramError
from engram.tasks import Task
from engram.tasks.checks import in_brief, reset_fault, step_fault
from engram.types import Agent, Metrics, Spec, TimeStep


class Driver(Protocol):
    """Trains R runs together. Made cheaply, it must `start` or `restore` before it can `advance`."""

    iteration: int
    """how often the agents have acted"""
    fault: EngramError | None
    """what stopped it, if an environment broke; its state is then still whole"""

    def start(self) -> None: ...

    def advance(self, iterations: int, stop: Callable[[], bool] = ...) -> Float[np.ndarray, "T R E"]:
        """Trains, and gives the un-noised return of each episode that ended, else NaN. Fewer iterations where `stop` says so."""
        ...

    def metrics(self) -> dict[str, Float[np.ndarray, "R"]]:
        """Means over the iterations since this was last asked."""
        ...

    def template(self) -> PyTree:
        """The shapes of the arrays that `save` gives. The first part of both is a `Carry`."""
        ...

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        """Everything: arrays, and what is kept as JSON."""
        ...

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class EnvironmentFault(EngramError):
    """An environment raised, or gave something no agent can use."""


def driver(agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec, host: bool = False) -> Driver:
    """The fastest driver for one run a seed, each on its task; all tasks must share one spec."""
    dynamics = tasks[0].dynamics
    if host or dynamics is None or any(task.dynamics != dynamics for task in tasks):
        return Host(agent, tasks, seeds, spec)
    return Scan(agent, tasks, seeds, spec)


class Keys(NamedTuple):
    """Sources of random numbers of one run; those of an iteration are folded in, so no key is ever used twice."""

    act: Key[Array, ""]
    learn: Key[Array, ""]
    world: Key[Array, ""]
    episodes: Key[Array, ""]
    birth: Key[Array, ""]


class Carry(NamedTuple):
    """What the compiled functions pass on; leaves have a leading axis R, but for `step`."""

    agent: PyTree
    keys: Keys
    sums: Metrics
    """of the metrics since the last report"""
    since: Int[Array, ""]
    """iterations since then"""
    step: Int[Array, ""]
    """iterations so far, the same for all runs"""


class Program:
    """The agent's functions over R runs."""

    def __init__(self, agent: Agent, spec: Spec):
        self.agent, self.spec = agent, spec

    def init(self, seeds: Int[Array, "R"]) -> Carry:
        runs = seeds.shape[0]
        keys = jax.vmap(lambda seed: Keys(*jax.random.split(jax.random.key(seed), len(Keys._fields))))(seeds)
        states = jax.vmap(lambda key: self.agent.init(key, self.spec))(keys.birth)
        carry = Carry(states, keys, {}, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        names = jax.eval_shape(lambda carry: self.act(carry, self.blank(runs))[0].sums | self.learn(carry).sums, carry)
        return carry._replace(sums={name: jnp.zeros(runs) for name in names})

    def blank(self, runs: int) -> TimeStep:
        shape = (runs, self.spec.envs)
        seen = jnp.zeros((*shape, *self.spec.shape), self.spec.dtype)
        return TimeStep(seen, jnp.zeros(shape), jnp.zeros(shape, bool), jnp.zeros(shape, bool), seen)

    def act(self, carry: Carry, timestep: TimeStep) -> tuple[Carry, Int[Array, "R E"]]:
        def one(state, key, timestep):
            return self.agent.act(state, self.spec, timestep, carry.step, jax.random.fold_in(key, carry.step))

        state, action, metrics = jax.vmap(one)(carry.agent, carry.keys.act, timestep)
        return carry._replace(agent=state, sums=_add(carry.sums, metrics)), action

    def learn(self, carry: Carry) -> Carry:
        def one(state, key):
            return self.agent.learn(state, self.spec, carry.step, jax.random.fold_in(key, carry.step))

        state, metrics = jax.vmap(one)(carry.agent, carry.keys.learn)
        return carry._replace(agent=state, sums=_add(carry.sums, metrics), since=carry.since + 1, step=carry.step + 1)


def _means(carry: Carry) -> tuple[Carry, dict[str, Float[np.ndarray, "R"]]]:
    """The means of the metrics, and a carry that begins to sum them anew."""
    since = max(int(carry.since), 1)
    means = {name: np.asarray(value) / since for name, value in carry.sums.items()}
    return carry._replace(sums=jax.tree.map(jnp.zeros_like, carry.sums), since=jnp.zeros_like(carry.since)), means


def _add(sums: Metrics, metrics: Metrics) -> Metrics:
    return sums | {name: sums.get(name, 0.0) + value for name, value in metrics.items()}


class Packing:
    """A carry as a tuple of plain arrays and back: to flatten modules and keys in Python at every call costs more than an update."""

    def __init__(self, structure: Carry):
        self.leaves, self.tree = jax.tree.flatten(structure)

    def pack(self, carry: Carry) -> tuple[Array, ...]:
        return tuple(jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(carry))

    def unpack(self, arrays: tuple[Array, ...]) -> Carry:
        pairs = zip(self.leaves, arrays, strict=True)
        return jax.tree.unflatten(self.tree, [jax.random.wrap_key_data(x) if _is_key(leaf) else x for leaf, x in pairs])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class World(NamedTuple):
    """Environments written in JAX; leaves have leading axes R and E."""

    state: PyTree
    timestep: TimeStep
    score: Float[Array, "R E"]
    episode: Int[Array, "R E"]


class Scan:
    """Whole chunks of training in one compiled call."""

    def __init__(self, agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec):
        assert tasks[0].dynamics is not None
        self.program, self.spec = Program(agent, spec), spec
        self.seeds = jnp.array(seeds, jnp.uint32)
        self.dynamics = tasks[0].dynamics
        self.params = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *(task.params for task in tasks))
        self._run = jax.jit(self._chunk, donate_argnums=(0, 1), static_argnums=3)
        self.iteration, self.most = 0, 1
        self.fault: EngramError | None = None

    def start(self) -> None:
        self.carry, self.world = jax.jit(self._init)(self.seeds)

    def _init(self, seeds: Int[Array, "R"]) -> tuple[Carry, World]:
        carry = self.program.init(seeds)
        episode = jnp.zeros((seeds.shape[0], self.spec.envs), jnp.int32)
        state, observation = jax.vmap(self._reset)(self.params, carry.keys.episodes, episode)
        timestep = self.program.blank(seeds.shape[0])._replace(observation=observation, final=observation)
        return carry, World(state, timestep, jnp.zeros(episode.shape), episode)

    def _reset(self, params: PyTree, key: Key[Array, ""], episode: Int[Array, "E"]):
        """The beginnings of the given episodes of one run's environments; each depends on the run's seed and its number alone."""

        def one(env, number):
            return self.dynamics.reset(params, jax.random.fold_in(key, number * self.spec.envs + env))

        return jax.vmap(one)(jnp.arange(self.spec.envs), episode)

    def _step(self, world: World, params: PyTree, keys: Keys, action: Int[Array, "E"], step: Int[Array, ""]):
        """One run's environments answer; those whose episode is over begin the next."""
        numbers = step * self.spec.envs + jnp.arange(self.spec.envs)
        noise = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(keys.world, numbers)
        state, outcome = jax.vmap(self.dynamics.step, in_axes=(None, 0, 0, 0))(params, world.state, action, noise)
        done = outcome.terminated | outcome.truncated
        score = world.score + outcome.true_reward
        episode = world.episode + done
        fresh, first = self._reset(params, keys.episodes, episode)

        def choose(new, old):
            return jnp.where(done.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        seen = choose(first, outcome.observation)
        timestep = TimeStep(seen, outcome.reward, outcome.terminated, outcome.truncated, outcome.observation)
        world = World(jax.tree.map(choose, fresh, state), timestep, jnp.where(done, 0.0, score), episode)
        return world, jnp.where(done, score, jnp.nan)

    def _chunk(self, carry: Carry, world: World, iterations: Int[Array, ""], most: int):
        """`iterations` steps, at most `most`: one program serves chunks of any length."""

        def body(i, loop):
            carry, world, returns = loop
            carry, action = self.program.act(carry, world.timestep)
            world, ended = jax.vmap(self._step, in_axes=(0, 0, 0, 0, None))(world, self.params, carry.keys, action, carry.step)
            return self.program.learn(carry), world, returns.at[i].set(ended)

        returns = jnp.full((most, *world.score.shape), jnp.nan)
        return lax.fori_loop(0, iterations, body, (carry, world, returns))

    def advance(self, iterations: int, stop: Callable[[], bool] = lambda: False) -> Float[np.ndarray, "T R E"]:
        self.most = max(self.most, iterations)
        self.carry, self.world, returns = self._run(self.carry, self.world, np.int32(iterations), self.most)
        self.iteration += iterations
        return np.asarray(returns)[:iterations]

    def metrics(self) -> dict[str, Float[np.ndarray, "R"]]:
        self.carry, means = _means(self.carry)
        return means

    def template(self) -> PyTree:
        return jax.eval_shape(self._init, self.seeds)

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.carry, self.world), {}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.carry, self.world = tree
        self.iteration = int(self.carry.step)

    def close(self) -> None:
        pass


class Host:
    """Real Gymnasium environments. A checkpoint cannot hold them, so it holds the actions of the episodes being lived: replayed from
    the same reset seed, they bring each environment back to where it was."""

    def __init__(self, agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec):
        self.spec, self.seeds, self.tasks = spec, list(seeds), list(tasks)
        self.program = Program(agent, spec)
        self.packing = Packing(self._shape())
        self._act = jax.jit(self._packed_act, donate_argnums=0)
        self._learn = jax.jit(self._packed_learn, donate_argnums=0)
        self.envs: list[list[gym.Env]] = []
        self.places = [(r, e) for r in range(len(self.seeds)) for e in range(spec.envs)]
        shape = (len(self.seeds), spec.envs)
        self.score, self.episode = np.zeros(shape), np.zeros(shape, np.int64)
        self.taken: dict[tuple[int, int], list[int]] = {place: [] for place in self.places}
        self.timestep: Any = _copy(self.program.blank(len(self.seeds)))
        self.iteration = 0
        self.fault: EngramError | None = None

    def _shape(self) -> Carry:
        return jax.eval_shape(self.program.init, jnp.array(self.seeds, jnp.uint32))

    def _packed_act(self, arrays: tuple[Array, ...], timestep: TimeStep):
        carry, action = self.program.act(self.packing.unpack(arrays), timestep)
        return self.packing.pack(carry), action

    def _packed_learn(self, arrays: tuple[Array, ...]):
        return self.packing.pack(self.program.learn(self.packing.unpack(arrays)))

    @property
    def carry(self) -> Carry:
        return self.packing.unpack(self.arrays)

    @carry.setter
    def carry(self, carry: Carry) -> None:
        self.arrays = self.packing.pack(carry)

    def start(self) -> None:
        self.carry = jax.jit(self.program.init)(jnp.array(self.seeds, jnp.uint32))
        self._make()
        for place in self.places:
            self.timestep.observation[place] = self.timestep.final[place] = self._reset(place)

    def _make(self) -> None:
        self.envs = [[task.make() for _ in range(self.spec.envs)] for task in self.tasks]

    def _reset(self, place: tuple[int, int]) -> np.ndarray:
        """Begins the environment's next episode; how depends on the run's seed and the episode's number alone."""
        r, e = place
        seed = int(np.random.SeedSequence([self.seeds[r], e, int(self.episode[place])]).generate_state(1)[0])
        answer = self._call(r, "reset", lambda: self.envs[r][e].reset(seed=seed))
        return self._checked(r, answer, reset_fault(answer, self.spec))

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
        step = self.iteration * self.spec.envs
        return EnvironmentFault(f"The environment {self.tasks[r].name} broke with seed {self.seeds[r]} at step {step}: {what}.")

    def advance(self, iterations: int, stop: Callable[[], bool] = lambda: False) -> Float[np.ndarray, "T R E"]:
        returns = np.full((iterations, len(self.seeds), self.spec.envs), np.nan, np.float32)
        for i in range(iterations):
            arrays, actions = self._act(self.arrays, self.timestep)
            chosen = np.asarray(actions)
            self.arrays = self._learn(arrays)  # dispatched, not waited for: the environments step meanwhile
            self._step(chosen, returns[i])
            self.iteration += 1
            if self.fault or stop():
                return returns[: i + 1]
        return returns

    def _step(self, actions: Int[np.ndarray, "R E"], returns: Float[np.ndarray, "R E"]) -> None:
        # In new arrays: the device may still be reading those of the last step.
        self.timestep = _copy(self.timestep)
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
        self.carry, means = _means(self.carry)
        return means

    def template(self) -> PyTree:
        return self._shape(), self.timestep, self.score, self.episode

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.carry, self.timestep, self.score, self.episode), {"taken": list(self.taken.values())}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.carry, self.timestep, self.score, self.episode = tree
        self.iteration = int(self.carry.step)
        self.taken = dict(zip(self.places, notes["taken"], strict=True))
        self._make()
        for place in self.places:
            seen = self._repeat(place)
            if not self.taken[place]:
                self.timestep.observation[place] = seen
            elif not np.array_equal(seen, self.timestep.observation[place]):
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


def _copy(timestep: TimeStep) -> Any:
    """A timestep of NumPy arrays of its own."""
    return TimeStep(*map(np.array, timestep))  # pyright: ignore[reportArgumentType]


def every_seed(tasks: Sequence[Task], seeds: Sequence[int]) -> tuple[list[Task], list[int]]:
    """Every seed on every task: the tasks and the seeds of all runs."""
    return [task for task in tasks for _ in seeds], [seed for _ in tasks for seed in seeds]
