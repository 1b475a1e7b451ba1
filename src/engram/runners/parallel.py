"""The agent's functions over R runs: the one place with `vmap` over runs."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from engram.config import replace
from engram.errors import EngramError
from engram.pytrees import signature
from engram.runners.base import RunKeys, RunState
from engram.types import Agent, Metrics, Spec, TimeStep

PerRunOptions = Mapping[str, Sequence[float]] | None
"""options of the agent that differ between runs: for each, one number per run"""


def is_vmappable(agent: Agent, name: str) -> bool:
    """Whether an option may differ between runs: a real number, not a size, a switch or None."""
    kind = get_type_hints(type(agent)).get(name)
    return kind is float or (kind == float | None and getattr(agent, name) is not None)


class VmappedAgent:
    """The agent's functions over R runs, which may differ in options and numbers of actions."""

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        num_runs: int,
        options: PerRunOptions = None,
        num_valid_actions: Sequence[int] | None = None,
    ):
        self.agent = agent
        self.spec = spec
        self.options = {
            name: jnp.array(values, jnp.float32)
            for name, values in _check_options(agent, options, num_runs).items()
        }
        self.num_valid_actions = (
            None if num_valid_actions is None else jnp.array(num_valid_actions, jnp.int32)
        )

    def init(self, seeds: Int[Array, "R"]) -> RunState:
        """The state of one run for each seed, before the first step."""
        num_runs = seeds.shape[0]
        keys = jax.vmap(_split_seed)(seeds)
        states = jax.vmap(self._init_one)(self.options, keys.init)
        metric_sums = {name: jnp.zeros(num_runs) for name in self.metric_names}
        zero = jnp.zeros((), jnp.int32)
        return_weight = jnp.zeros((num_runs, self.spec.num_envs))
        return RunState(states, keys, metric_sums, zero, zero, return_weight)

    def step(self, run_state: RunState, timestep: TimeStep) -> tuple[RunState, Int[Array, "R E"]]:
        """`Agent.step` of all runs."""
        per_run = (
            *(self.options, self.num_valid_actions),
            *(run_state.agent, run_state.keys.step, timestep, run_state.return_weight),
        )
        in_axes = (*[0] * len(per_run), None)
        states, actions, metrics, return_weight = jax.vmap(self._step_one, in_axes)(
            *per_run, run_state.step
        )
        sums = _add_metrics(run_state.metric_sums, metrics)
        run_state = run_state._replace(agent=states, metric_sums=sums, return_weight=return_weight)
        return run_state, actions

    def learn(self, run_state: RunState) -> RunState:
        """`Agent.learn` of all runs, which ends the iteration."""
        per_run = self.options, self.num_valid_actions, run_state.agent, run_state.keys.learn
        in_axes = (*[0] * len(per_run), None)
        states, metrics = jax.vmap(self._learn_one, in_axes)(*per_run, run_state.step)
        return run_state._replace(
            agent=states,
            metric_sums=_add_metrics(run_state.metric_sums, metrics),
            num_summed=run_state.num_summed + 1,
            step=run_state.step + 1,
        )

    def act_greedy(
        self,
        states: PyTree,
        observation: Array,
        episode_start: Bool[Array, "R E"],
        keys: Key[Array, "R"],
        step: Int[Array, ""],
        epsilon: Float[Array, "R"],
    ) -> tuple[PyTree, Int[Array, "R E"]]:
        """`Agent.act_greedy` of all runs."""
        per_run = (
            *(self.options, self.num_valid_actions),
            *(states, observation, episode_start, keys, epsilon),
        )
        return jax.vmap(self._act_greedy_one, (*[0] * len(per_run), None))(*per_run, step)

    def zero_timestep(self, num_runs: int) -> TimeStep:
        """A timestep of zeros, with axes R and E."""
        shape = (num_runs, self.spec.num_envs)
        observation = jnp.zeros((*shape, *self.spec.shape), self.spec.dtype)
        is_stack = bool(self.spec.frame_stack)
        final = jnp.zeros((*shape, 0), self.spec.dtype) if is_stack else observation
        not_done = jnp.zeros(shape, bool)
        return TimeStep(observation, jnp.zeros(shape), not_done, not_done, final)

    @cached_property
    def metric_names(self) -> list[str]:
        """Names of all metrics; cached, since tracing an agent can take seconds."""
        return list(jax.eval_shape(self._metrics_of_first_iteration))

    def _metrics_of_first_iteration(self) -> Metrics:
        options, num_valid_actions, timestep = jax.tree.map(
            lambda x: x[0], (self.options, self.num_valid_actions, self.zero_timestep(1))
        )
        key = jax.random.key(0)
        step = jnp.int32(0)
        weight = jnp.zeros(self.spec.num_envs)
        initial = self._init_one(options, key)
        state, _, step_metrics, _ = self._step_one(
            options, num_valid_actions, initial, key, timestep, weight, step
        )
        _check_same_arrays(self.agent, "step", initial, state)
        state, learn_metrics = self._learn_one(options, num_valid_actions, state, key, step)
        _check_same_arrays(self.agent, "learn", initial, state)
        return step_metrics | learn_metrics

    # Functions of one run, over which the methods above map.

    def _init_one(self, options, key):
        return self._agent_of(options).init(key, self.spec)

    def _step_one(self, options, num_valid_actions, state, key, timestep, weight, step):
        agent = self._agent_of(options)
        spec = self._spec_of(num_valid_actions)
        key = jax.random.fold_in(key, step)
        state, action, metrics = agent.step(state, spec, timestep, step, key)
        weight, realized = realized_return(agent.gamma, weight, timestep)
        if metrics.keys() & {"q_max", "value"}:
            metrics = metrics | {"realized_return": realized}
        return state, action, metrics, weight

    def _learn_one(self, options, num_valid_actions, state, key, step):
        spec = self._spec_of(num_valid_actions)
        key = jax.random.fold_in(key, step)
        return self._agent_of(options).learn(state, spec, step, key)

    def _act_greedy_one(
        self, options, num_valid_actions, state, observation, episode_start, key, epsilon, step
    ):
        agent = self._agent_of(options)
        spec = self._spec_of(num_valid_actions)
        key = jax.random.fold_in(key, step)
        return agent.act_greedy(state, spec, observation, episode_start, key, epsilon)

    def _agent_of(self, options: Mapping[str, Float[Array, ""]]) -> Agent:
        """The agent with one run's options."""
        agent = copy.copy(self.agent)
        for name, value in options.items():
            # Not by `replace`, which checks values: those of a traced number are unknown.
            object.__setattr__(agent, name, value)
        return agent

    def _spec_of(self, num_valid_actions: Int[Array, ""] | None) -> Spec:
        """The spec with one run's number of actions."""
        if num_valid_actions is None:
            return self.spec
        return dataclasses.replace(self.spec, num_valid_actions=num_valid_actions)


def realized_return(
    gamma: float | Float[Array, ""], weight: Float[Array, "E"], timestep: TimeStep
) -> tuple[Float[Array, "E"], Float[Array, ""]]:
    """Next return weights, and what this step's rewards add to the returns of all earlier steps.

    Averaged over many steps, the second is the mean discounted return that followed each step. An
    agent whose values are above it overestimates.
    """
    next_weight = 1 + gamma * jnp.where(timestep.done, 0.0, weight)
    return next_weight, jnp.mean(timestep.reward * weight)


def _check_same_arrays(agent: Agent, function: str, initial: PyTree, state: PyTree) -> None:
    """Raises if a function of the agent changes shape or dtype of an array in its state."""
    before, after = (
        {jax.tree_util.keystr(path): signature(x) for path, x in leaves}
        for leaves in map(jax.tree.leaves_with_path, (initial, state))
    )
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            raise EngramError(
                f"{type(agent).__name__}.{function} returned state{path} as "
                f"{after.get(path, 'nothing')}, but init made it {before.get(path, 'nothing')}: "
                "keep shapes and dtypes, for example with .astype."
            )


def _split_seed(seed: Int[Array, ""]) -> RunKeys:
    return RunKeys(*jax.random.split(jax.random.key(seed), len(RunKeys._fields)))


def _add_metrics(sums: Metrics, metrics: Metrics) -> Metrics:
    return sums | {name: sums.get(name, 0.0) + value for name, value in metrics.items()}


def _check_options(agent: Agent, options: PerRunOptions, num_runs: int) -> dict[str, list[float]]:
    """The options as lists; raises if they cannot differ between runs, or one is invalid."""
    lists = {name: np.ravel(values).tolist() for name, values in (options or {}).items()}
    for name, values in lists.items():
        if len(values) != num_runs:
            raise EngramError(
                f"{name} needs one value for each of the {num_runs} runs, not {len(values)}."
            )
    for values in zip(*lists.values(), strict=True):
        replace(agent, **dict(zip(lists, values, strict=True)))
    for name in lists:
        if not is_vmappable(agent, name):
            raise EngramError(
                f"{name} cannot differ between the runs of one program, since only real numbers "
                "can: train these runs separately."
            )
    return lists
