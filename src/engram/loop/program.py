"""What both drivers share: their face, and the agent's functions over R runs. Here, and only here, stands `vmap` over runs."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.errors import EngramError
from engram.options import replace
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
    weight: Float[Array, "R E"]
    """how often the next reward counts in the discounted returns of the episode's steps so far, its own included"""


Options = Mapping[str, Sequence[float]] | None
"""options of the agent that differ from run to run: for each a number a run"""


def may_differ(agent: Agent, name: str) -> bool:
    """Whether an option may differ between runs of one program: if it is a plain number, no shape, switch or None."""
    kind = get_type_hints(type(agent)).get(name)
    return kind is float or (kind == float | None and getattr(agent, name) is not None)


def checked(agent: Agent, options: Options, runs: int) -> dict[str, list[float]]:
    """The options as lists; one sentence if they cannot differ between the runs, or a run cannot have them."""
    lists = {name: np.ravel(values).tolist() for name, values in (options or {}).items()}
    for name, values in lists.items():
        if len(values) != runs:
            raise EngramError(f"{name} needs one value for each of the {runs} runs, not {len(values)}.")
    for run in zip(*lists.values(), strict=True):
        replace(agent, **dict(zip(lists, run, strict=True)))
    for name in lists:
        if not may_differ(agent, name):
            raise EngramError(f"{name} cannot differ between the runs of one program, as only real numbers can: train them apart.")
    return lists


class Program:
    """The agent's functions over R runs. Where they play games with unlike numbers of actions, `allowed` has that of each."""

    def __init__(self, agent: Agent, spec: Spec, runs: int, options: Options = None, allowed: Sequence[int] | None = None):
        self.agent, self.spec = agent, spec
        self.allowed = None if allowed is None else jnp.array(allowed, jnp.int32)
        self.options = {name: jnp.array(values, jnp.float32) for name, values in checked(agent, options, runs).items()}

    def _agent(self, options: Mapping[str, Float[Array, ""]]) -> Agent:
        """The agent of one run; not by `replace`, since a number that is still to be traced has no value to check."""
        agent = copy.copy(self.agent)
        for name, value in options.items():
            object.__setattr__(agent, name, value)
        return agent

    def _spec(self, allowed: Int[Array, ""] | None) -> Spec:
        return self.spec if allowed is None else dataclasses.replace(self.spec, allowed=allowed)

    def init(self, seeds: Int[Array, "R"]) -> Carry:
        runs = seeds.shape[0]
        keys = jax.vmap(lambda seed: Keys(*jax.random.split(jax.random.key(seed), len(Keys._fields))))(seeds)
        states = jax.vmap(lambda options, key: self._agent(options).init(key, self.spec))(self.options, keys.birth)
        none = jnp.zeros((), jnp.int32)
        sums = {name: jnp.zeros(runs) for name in self.metric_names}
        return Carry(states, keys, sums, none, none, jnp.zeros((runs, self.spec.envs)))

    @cached_property
    def metric_names(self) -> list[str]:
        """By what one run would tell. Kept, since to trace an agent can take seconds."""

        def told():
            options, allowed, timestep = jax.tree.map(lambda x: x[0], (self.options, self.allowed, self.blank(1)))
            key, step = jax.random.key(0), jnp.int32(0)
            state = self._agent(options).init(key, self.spec)
            state, _, acting, _ = self._act(options, allowed, state, key, timestep, jnp.zeros(self.spec.envs), step)
            _, learning = self._learn(options, allowed, state, key, step)
            return acting | learning

        return list(jax.eval_shape(told))

    def blank(self, runs: int) -> TimeStep:
        shape = (runs, self.spec.envs)
        seen = jnp.zeros((*shape, *self.spec.shape), self.spec.dtype)
        final = jnp.zeros((*shape, 0), self.spec.dtype) if self.spec.stack else seen
        return TimeStep(seen, jnp.zeros(shape), jnp.zeros(shape, bool), jnp.zeros(shape, bool), final)

    def act(self, carry: Carry, timestep: TimeStep) -> tuple[Carry, Int[Array, "R E"]]:
        runs = self.options, self.allowed, carry.agent, carry.keys.act, timestep, carry.weight
        state, action, metrics, weight = jax.vmap(self._act, (*[0] * len(runs), None))(*runs, carry.step)
        return carry._replace(agent=state, sums=_add(carry.sums, metrics), weight=weight), action

    def _act(self, options, allowed, state, key, timestep, weight, step):
        """One run."""
        agent = self._agent(options)
        state, action, metrics = agent.act(state, self._spec(allowed), timestep, step, jax.random.fold_in(key, step))
        weight, earned = earn(getattr(agent, "gamma", 0.0), weight, timestep)
        return state, action, metrics | ({"earned": earned} if "value" in metrics else {}), weight

    def learn(self, carry: Carry) -> Carry:
        runs = self.options, self.allowed, carry.agent, carry.keys.learn
        state, metrics = jax.vmap(self._learn, (*[0] * len(runs), None))(*runs, carry.step)
        return carry._replace(agent=state, sums=_add(carry.sums, metrics), since=carry.since + 1, step=carry.step + 1)

    def _learn(self, options, allowed, state, key, step):
        """One run."""
        return self._agent(options).learn(state, self._spec(allowed), step, jax.random.fold_in(key, step))


def earn(gamma: float | Float[Array, ""], weight: Float[Array, "E"], timestep: TimeStep) -> tuple[Float[Array, "E"], Float[Array, ""]]:
    """The weights of the rewards to come, and by how much this step's add to the discounted returns of all steps, per step. Over many
    steps that is the mean return that was earned from each of them on; an agent that says more of their values overestimates them."""
    over = timestep.terminated | timestep.truncated
    return 1 + gamma * jnp.where(over, 0.0, weight), jnp.mean(timestep.reward * weight)


def means(carry: Carry) -> tuple[Carry, dict[str, Float[np.ndarray, "R"]]]:
    """The means of the metrics, and a carry that begins to sum them anew."""
    since = max(int(carry.since), 1)
    means = {name: np.asarray(value) / since for name, value in carry.sums.items()}
    return carry._replace(sums=jax.tree.map(jnp.zeros_like, carry.sums), since=jnp.zeros_like(carry.since)), means


def _add(sums: Metrics, metrics: Metrics) -> Metrics:
    return sums | {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
