"""A trained agent to act with: greedy, learning nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from engram.errors import EngramError
from engram.types import Agent, Part, Spec


class Policy:
    """Acts for one environment or several; call `reset` where an episode begins, since agents with a memory carry a trajectory."""

    def __init__(self, agent: Agent, spec: Spec, state: Callable[[], PyTree]):
        self.agent, self.spec, self._state = agent, spec, state
        self.seed(0)
        self.reset()

    @cached_property
    def state(self) -> PyTree:
        """All that the agent knows, and the trajectories it is following."""
        return self._state()

    def seed(self, number: int) -> None:
        """Begins anew what is random in its choices."""
        self._key, self._step = jax.random.key(number), 0

    def reset(self, which: np.ndarray | None = None) -> None:
        """An episode begins: in all environments, or in those that `which` marks."""
        self._first = which

    def act(self, observation: Any) -> int | np.ndarray:
        """The action for an observation of the environment, or the actions for a batch of them as vector environments give it; both as the
        environment counts them."""
        seen = row(self.spec.parts, observation) if self.spec.parts else numbers(observation)
        is_one = seen.shape == self.spec.shape
        if not is_one and seen.shape[1:] != self.spec.shape:
            raise EngramError(f"An observation must have shape {self.spec.shape}, or (n, *that) for several, not {seen.shape}.")
        if not np.isfinite(seen).all():
            raise EngramError("An observation must be of finite numbers, but one of them is not.")
        actions = self.choose(seen[None] if is_one else seen) + self.spec.first_action
        return int(actions[0]) if is_one else actions

    def choose(self, batch: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """The actions for a batch of observations, both as agents see them; with probability epsilon any."""
        # Another number of environments than before can only be other environments, where episodes begin.
        known = self._first is not None and np.size(self._first) in (1, len(batch))
        first = np.broadcast_to(np.asarray(self._first), len(batch)) if known else np.ones(len(batch), bool)
        key = jax.random.fold_in(self._key, self._step)
        self.state, actions = _play(self.agent, self.spec, epsilon)(self.state, batch.astype(self.spec.dtype), first, key)
        self._step += 1
        self._first = np.zeros(len(batch), bool)
        return np.asarray(actions)


def without_learning(agent: Agent, state: PyTree) -> PyTree:
    """What of an agent's state playing needs: neither replay, which may be gigabytes, nor what else only learning uses; of networks and
    their target copies those that act."""
    fields = getattr(state, "_fields", ())
    copies = ("q", "semantic") if getattr(agent, "act_by_target", False) else ("q_target", "target")
    needless = "replay", "optimiser", "images", "waiting", *copies
    state = state._replace(**{name: None for name in needless if name in fields}) if fields else state
    within = {name: without_learning(agent, getattr(state, name)) for name in ("life", "encoder") if name in fields}
    return state._replace(**within) if within else state


def numbers(observation: Any, name: str = "An observation") -> np.ndarray:
    """What an environment showed."""
    with suppress(ValueError):  # of parts that are unlike each other
        found = np.asarray(observation)
        if found.dtype.kind in "biuf":
            return found
    raise EngramError(f"{name} must be of numbers: give the first thing that reset() or step() returns.")


def row(parts: Sequence[Part], observation: Any) -> np.ndarray:
    """What an environment shows as agents see it: one part behind the other."""
    rows = []
    for part in parts:
        name = "An observation" + "".join(f"[{key!r}]" for key in part.path)
        seen = numbers(_within(observation, part.path, name), name)
        several = seen.shape[: seen.ndim - len(part.shape)]
        if (*several, *part.shape) != seen.shape:
            raise EngramError(f"{name} must have shape {part.shape}, or (n, *that) for several, not {seen.shape}.")
        seen = seen.reshape(*several, math.prod(part.shape))
        rows.append(one_hot(part, seen, name) if part.counts else seen)
    if len({seen.shape[:-1] for seen in rows}) > 1:
        raise EngramError("All parts of an observation must be of one environment, or of as many.")
    return np.concatenate(rows, axis=-1)


def _within(observation: Any, path: tuple[str | int, ...], name: str) -> Any:
    """What lies there. Only dictionaries and tuples hold parts: a list is what somebody takes for a batch."""
    key: Any
    for key in path:
        is_part = isinstance(observation, tuple) and key in range(len(observation))
        is_entry = isinstance(observation, Mapping) and key in observation
        if not is_part and not is_entry:
            raise EngramError(f"{name} must be there: give the first thing that reset() or step() returns, or what vector environments do.")
        observation = observation[key]
    return observation


def one_hot(part: Part, counted: np.ndarray, name: str) -> np.ndarray:
    """Numbers along the last axis, each of which counts something, as agents see them."""
    places = counted.astype(int) - np.array(part.starts) if counted.dtype.kind in "biu" else np.array(-1)
    if np.any((places < 0) | (places >= part.counts)):
        what = " and ".join(f"{start} to {start + count - 1}" for start, count in zip(part.starts, part.counts, strict=True))
        raise EngramError(f"{name} must be of whole numbers from {what}, not {' '.join(str(counted).split())}.")
    return np.concatenate([np.eye(count, dtype=np.float32)[places[..., i]] for i, count in enumerate(part.counts)], axis=-1)


@cache
def _play(agent: Agent, spec: Spec, epsilon: float):
    """Compiled once for all policies of one agent on one task."""
    return jax.jit(lambda state, observation, first, key: agent.play(state, spec, jnp.asarray(observation), first, key, epsilon))
