"""How often an exported file chooses the action of the agent that it is of."""

from collections.abc import Generator
from contextlib import closing
from typing import Protocol

import numpy as np

from engram.envs import Task
from engram.envs.env_checker import checked_reset, checked_step
from engram.policy import Policy
from engram.types import Spec

NUM_OBSERVATIONS = 1_000
"""on which a file is compared with its agent"""
RANDOM_ACTIONS = 0.1
"""share of random actions in rollouts, which else might all look alike"""
EPISODE_STEPS = 20
"""of episodes whose observations are random"""

Rollout = Generator[tuple[np.ndarray, bool], int, None]
"""yields observations and whether an episode starts there; takes actions"""


class Copy(Protocol):
    """An exported agent."""

    def reset(self) -> None: ...

    def act_flat(self, row: np.ndarray) -> int: ...


def count_agreements(policy: Policy, copy: Copy, rollout: Rollout) -> int:
    """Of how many observations the actions agree.

    After a difference both start an episode, since their states would differ from there on.
    """
    agreed = 0
    agrees = True
    with closing(rollout):
        observation, _ = next(rollout)
        is_start = True
        for _ in range(NUM_OBSERVATIONS):
            if is_start or not agrees:
                policy.reset()
                copy.reset()
            action = int(policy.act_batch(observation[None])[0])
            agrees = copy.act_flat(observation.ravel()) == action
            agreed += agrees
            observation, is_start = rollout.send(action)
    return agreed


class PolicyCopy:
    """A policy that was written and read again."""

    def __init__(self, policy: Policy):
        self.policy = policy

    def reset(self) -> None:
        self.policy.reset()

    def act_flat(self, row: np.ndarray) -> int:
        return int(self.policy.act_batch(row.reshape(1, *self.policy.spec.shape))[0])


def rollout_in(task: Task | None, spec: Spec) -> Rollout:
    """Observations of a task or, of an environment that is not at hand, random ones."""
    return random_rollout(spec) if task is None else rollout_in_task(task, spec)


def rollout_in_task(task: Task, spec: Spec) -> Rollout:
    """Observations of an environment, in which some actions are random."""
    rng = np.random.default_rng(0)
    with closing(task.make()) as env:
        is_start = True
        observation = None
        while True:
            if is_start:
                seed = int(rng.integers(2**31))
                observation, _ = checked_reset(env, task.name, spec, seed)
            action = yield np.asarray(observation, spec.dtype), is_start
            if rng.random() < RANDOM_ACTIONS:
                action = int(rng.integers(spec.num_actions))
            result = checked_step(env, task.name, spec, action)
            observation, _, terminated, truncated, _ = result
            is_start = bool(terminated or truncated)


def random_rollout(spec: Spec) -> Rollout:
    """Observations drawn within their bounds; where there are none, around 0."""
    rng = np.random.default_rng(0)
    step = 0
    while True:
        yield draw_observation(spec, rng), step % EPISODE_STEPS == 0
        step += 1


def draw_observation(spec: Spec, rng: np.random.Generator) -> np.ndarray:
    """A random observation as agents see it."""
    if spec.dtype == "uint8":
        return rng.integers(spec.pixel_max + 1, size=spec.shape).astype(np.uint8)
    x = rng.normal(size=spec.shape).ravel()
    if spec.low:
        low, high = np.array(spec.low), np.array(spec.high)
        known = np.isfinite(low) & np.isfinite(high) & (high - low < 1e6)
        x[known] = rng.uniform(low[known], high[known])
    return x.reshape(spec.shape).astype(spec.dtype)
