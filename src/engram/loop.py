"""Drives environments and agents; knows nothing of files. Two drivers with one face:

`Scan` trains tasks written in JAX, a whole chunk of steps in one compiled call. `Host` trains any Gymnasium environment: R runs of E
environments in lockstep, the environments stepping while the device learns. Here, and only here, stands `vmap` over runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.errors import EngramError
from engram.tasks import Task, observation_fault, reward_fault
from engram.types import Agent, Metrics, Spec, TimeStep


class Report(NamedTuple):
    """What happened in some iterations."""

    returns: Float[np.ndarray, "T R E"]
    """the un-noised return of each episode that ended, else NaN"""
    metrics: dict[str, Float[np.ndarray, "R"]]
    """means over the iterations"""


class Driver(Protocol):
    """Trains R runs together."""

    def advance(self, iterations: int) -> Report: ...

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        """Everything: arrays, and what is to be kept as JSON."""
        ...

    def template(self) -> PyTree:
        """The shapes of what `save` gives."""
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
        carry = Carry(states, keys, {}, jnp.zeros((), jnp.int32))
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
        return carry._replace(agent=state, sums=_add(carry.sums, metrics), step=carry.step + 1)


def _add(sums: Metrics, metrics: Metrics) -> Metrics:
    return sums | {name: sums.get(name, 0.0) + value for name, value in metrics.items()}


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
        self.program, self.spec, self.seeds = Program(agent, spec), spec, list(seeds)
        self.dynamics = tasks[0].dynamics
        self.params = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *(task.params for task in tasks))
        self.carry, self.world = jax.jit(self._init)(jnp.array(self.seeds, jnp.uint32))
        self._run = jax.jit(self._chunk, donate_argnums=(0, 1), static_argnums=3)

    def _init(self, seeds: Int[Array, "R"]) -> tuple[Carry, World]:
        carry = self.program.init(seeds)
        episode = jnp.zeros((len(self.seeds), self.spec.envs), jnp.int32)
        state, observation = jax.vmap(self._reset)(self.params, carry.keys.episodes, episode)
        timestep = self.program.blank(len(self.seeds))._replace(observation=observation, final=observation)
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

    def advance(self, iterations: int) -> Report:
        most = max(iterations, getattr(self, "_most", 0))
        self._most = most
        carry, world, returns = self._run(self.carry, self.world, np.int32(iterations), most)
        metrics = {name: np.asarray(value) / iterations for name, value in carry.sums.items()}
        self.carry = carry._replace(sums=jax.tree.map(jnp.zeros_like, carry.sums))
        self.world = world
        return Report(np.asarray(returns)[:iterations], metrics)

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.carry, self.world), {}

    def template(self) -> PyTree:
        return jax.eval_shape(lambda: (self.carry, self.world))

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.carry, self.world = tree

    def close(self) -> None:
        pass


class Host:
    """Real Gymnasium environments. A checkpoint cannot hold them, so it holds the actions of the episodes being lived: replayed from
    the same reset seed, they bring each environment back to where it was."""

    def __init__(self, agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec):
        self.spec, self.seeds, self.tasks = spec, list(seeds), list(tasks)
        self.program = Program(agent, spec)
        self.carry = jax.jit(self.program.init)(jnp.array(self.seeds, jnp.uint32))
        self._act = jax.jit(self.program.act, donate_argnums=0)
        self._learn = jax.jit(self.program.learn, donate_argnums=0)
        self.envs = [[task.make() for _ in range(spec.envs)] for task in tasks]
        shape = (len(self.seeds), spec.envs)
        self.score = np.zeros(shape)
        self.episode = np.zeros(shape, np.int64)
        self.taken: list[list[list[int]]] = [[[] for _ in range(spec.envs)] for _ in self.seeds]
        self.iteration = 0
        seen = np.stack([[self._reset(r, e) for e in range(spec.envs)] for r in range(len(self.seeds))])
        self.timestep = TimeStep(
            seen, np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, bool), seen.copy()
        )

    def _reset(self, r: int, e: int) -> np.ndarray:
        seed = int(np.random.SeedSequence([self.seeds[r], e, int(self.episode[r, e])]).generate_state(1)[0])
        observation = self._call(r, "reset", lambda: self.envs[r][e].reset(seed=seed)[0])
        return self._checked(r, observation, 0.0)

    def _call(self, r: int, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EngramError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise EnvironmentFault(f"{self._place(r)}: {what} raised {reason}. Mend the environment, then resume.") from error

    def _checked(self, r: int, observation: Any, reward: Any) -> np.ndarray:
        wrong = observation_fault(observation, self.spec.shape, self.spec.dtype) or reward_fault(reward)
        if wrong:
            raise EnvironmentFault(f"{self._place(r)}: {wrong}. Mend the environment, then resume.")
        return np.asarray(observation, self.spec.dtype)

    def _place(self, r: int) -> str:
        return f"Environment {self.tasks[r].name}, seed {self.seeds[r]}, step {self.iteration * self.spec.envs}"

    def advance(self, iterations: int) -> Report:
        returns = np.full((iterations, len(self.seeds), self.spec.envs), np.nan, np.float32)
        for i in range(iterations):
            carry, actions = self._act(self.carry, self.timestep)
            chosen = np.asarray(actions)
            self.carry = self._learn(carry)  # dispatched, not waited for: the environments step meanwhile
            self._step(chosen, returns[i])
            self.iteration += 1
        metrics = {name: np.asarray(value) / iterations for name, value in self.carry.sums.items()}
        self.carry = self.carry._replace(sums=jax.tree.map(jnp.zeros_like, self.carry.sums))
        return Report(returns, metrics)

    def _step(self, actions: np.ndarray, returns: np.ndarray) -> None:
        # The device may still read the last timestep's buffers, so a new one is made.
        seen, reward, terminated, truncated, final = (np.array(x) for x in self.timestep)
        for r, envs in enumerate(self.envs):
            for e, env in enumerate(envs):
                action = int(actions[r, e])
                answer = self._call(r, "step", lambda env=env, action=action: env.step(action))
                observation, reward[r, e], terminated[r, e], truncated[r, e], info = answer
                final[r, e] = seen[r, e] = self._checked(r, observation, answer[1])
                self.score[r, e] += info.get("true_reward", answer[1])
                self.taken[r][e].append(action)
                if terminated[r, e] or truncated[r, e]:
                    returns[r, e] = self.score[r, e]
                    self.score[r, e] = 0
                    self.episode[r, e] += 1
                    self.taken[r][e].clear()
                    seen[r, e] = self._reset(r, e)
        self.timestep = TimeStep(seen, reward, terminated, truncated, final)

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.carry, self.timestep, self.score, self.episode), {"taken": self.taken, "iteration": self.iteration}

    def template(self) -> PyTree:
        return jax.eval_shape(lambda: self.carry), self.timestep, self.score, self.episode

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        carry, timestep, score, episode = tree
        self.carry = carry
        self.timestep = TimeStep(*(np.asarray(x) for x in timestep))
        self.score, self.episode = np.array(score), np.array(episode)
        self.taken, self.iteration = notes["taken"], notes["iteration"]
        for r, envs in enumerate(self.envs):
            for e, env in enumerate(envs):
                seen = self._reset(r, e)
                for action in self.taken[r][e]:
                    seen, *_ = self._call(r, "step", lambda env=env, action=action: env.step(action))
                if not np.array_equal(np.asarray(seen, self.spec.dtype), self.timestep.observation[r, e], equal_nan=True):
                    self._begin_anew(r, e)

    def _begin_anew(self, r: int, e: int) -> None:
        """An environment that does not repeat itself cannot be brought back: its episode counts as cut."""
        self.episode[r, e] += 1
        self.score[r, e] = 0
        self.taken[r][e].clear()
        self.timestep.truncated.flags.writeable or setattr(self, "timestep", TimeStep(*(np.array(x) for x in self.timestep)))
        self.timestep.truncated[r, e] = True
        self.timestep.observation[r, e] = self._reset(r, e)

    def close(self) -> None:
        for env in (env for envs in self.envs for env in envs):
            env.close()


def runs_of(tasks: Task | Sequence[Task], seeds: Sequence[int]) -> tuple[list[Task], list[int]]:
    """Every seed on every task."""
    tasks = [tasks] if isinstance(tasks, Task) else list(tasks)
    return [task for task in tasks for _ in seeds], [seed for _ in tasks for seed in seeds]
