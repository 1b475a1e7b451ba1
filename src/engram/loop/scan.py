"""Tasks written in JAX: acting, the environments and learning are one compiled loop."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.errors import EngramError
from engram.loop.program import Carry, Keys, Options, Program, means
from engram.tasks import Task
from engram.types import Agent, Spec, TimeStep


class World(NamedTuple):
    """Environments written in JAX; leaves have leading axes R and E."""

    state: PyTree
    timestep: TimeStep
    score: Float[Array, "R E"]
    episode: Int[Array, "R E"]


class Scan:
    """Whole chunks of training in one compiled call."""

    def __init__(self, agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec, options: Options = None):
        assert tasks[0].dynamics is not None
        self.program, self.spec = Program(agent, spec, len(seeds), options), spec
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
            # All has been decided before anything is learnt: else what both use, as networks, would be copied in every step.
            carry, action = lax.optimization_barrier(self.program.act(carry, world.timestep))
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
        self.carry, since = means(self.carry)
        return since

    def template(self) -> PyTree:
        return jax.eval_shape(self._init, self.seeds)

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        return (self.carry, self.world), {}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.carry, self.world = tree
        self.iteration = int(self.carry.step)

    def close(self) -> None:
        pass
