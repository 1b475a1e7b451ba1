"""Rollouts of MBEC through scripted rewards and ends of episodes."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents import make
from engram.episodic import control
from engram.networks import zero_state
from engram.types import Spec, TimeStep

# The paper's MBEC. gamma is 1/2, L is 2, and the memory is not refined.
AGENT = make(
    "mbec",
    "paper",
    gamma=0.5,
    chunk=2,
    memory_size=16,
    num_neighbours=1,
    p_refine=0.0,
    trajectory_dim=3,
)
SPEC = Spec((2,), 2, max_episode_steps=6, num_iterations=40)
TERMINATED, TRUNCATED = "terminated", "truncated"
FIVE_STEPS = [[(1.0, "")], [(2.0, "")], [(4.0, "")], [(8.0, "")], [(16.0, TERMINATED)]]
"""an episode of one environment"""


class Rollout(NamedTuple):
    """Of every iteration, the agent's state and each environment's state-action pair."""

    states: list[Any]
    pairs: list[list[np.ndarray]]
    """by environment and iteration"""

    def tau(self, start: int, end: int, env: int = 0) -> np.ndarray:
        """The trajectory vector of an episode from iteration `start` to the one before `end`."""
        model = self.states[-1].episodic.trajectory_model
        tau = zero_state(model.cell.hidden_size)
        for pair in self.pairs[env][start:end]:
            tau = model(tau, pair)
        return np.asarray(tau.h)


def programs(agent, spec):
    """Compiled `init` and `step` of an agent."""
    return _programs(agent, spec, control.WRITE_LR)


@cache
def _programs(agent, spec, write_lr):
    """They contain the constant, so a test that patches it needs programs of its own."""
    init = jax.jit(lambda: agent.init(jax.random.key(0), spec))
    step = jax.jit(lambda state, *inputs: agent.step(state, spec, *inputs))
    return init, step


def rollout(agent, spec, script, extra=8):
    """Steps an agent through a script, then through `extra` iterations without reward.

    The script has for each iteration and environment a reward and how the episode ended, if at all.
    """
    init, step = programs(agent, spec)
    state, rng = init(), np.random.default_rng(0)
    no_reward = [[(0.0, "")] * spec.num_envs]
    states, pairs = [], [[] for _ in range(spec.num_envs)]
    for iteration, outcomes in enumerate(no_reward + script + no_reward * extra):
        rewards, ends = zip(*outcomes, strict=True)
        obs, final_obs = rng.normal(size=(2, spec.num_envs, 2)).astype(np.float32)
        timestep = TimeStep(
            obs,
            np.array(rewards, np.float32),
            np.array([end == TERMINATED for end in ends]),
            np.array([end == TRUNCATED for end in ends]),
            final_obs,
        )
        key = jax.random.key(iteration)
        state, action, _ = step(state, timestep, jnp.int32(iteration), key)
        states.append(state)
        for env in range(spec.num_envs):
            one_hot = np.eye(2)[int(action[env])]
            pairs[env].append(np.concatenate([obs[env], one_hot]).astype(np.float32))
    return Rollout(states, pairs)


def assert_stored(state, expected):
    """The memory holds these pairs of a key and a value, in any order."""
    memory = state.episodic.memory
    assert int(memory.size) == len(expected)
    keys, values = np.asarray(memory.keys), np.asarray(memory.values)
    for key, value in expected:
        slot = np.abs(keys - key).sum(axis=1).argmin()
        np.testing.assert_allclose(keys[slot], key, atol=1e-6)
        assert values[slot] == pytest.approx(value, rel=1e-5, abs=1e-6)
