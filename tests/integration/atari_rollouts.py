"""Small agents, and the timesteps of their runs on Atari games."""

import jax.numpy as jnp
import numpy as np
from probes import DriftVecEnv

from engram import runners
from engram.agents import make
from engram.envs import get_task

SMALL = {
    "hidden_size": 8,
    "num_layers": 1,
    "batch_size": 4,
    "buffer_size": 64,
    "learning_starts": 8,
    "encoder": "nature",
}
SMALL_DQN = make("dqn", **SMALL, epsilon_decay=100.0)
SMALL_MBECPP = make("mbec++", **SMALL, memory_size=64, num_neighbours=3, chunk=5)


def joint_spec(*names, num_envs=2, num_iterations=400):
    return runners.joint_spec([get_task(name) for name in names], num_envs, num_iterations)


def make_runner(agent, names, seeds, num_envs=2):
    tasks = [get_task(name) for name in names]
    return runners.make_runner(agent, tasks, seeds, joint_spec(*names, num_envs=num_envs))


def play(agent, names, seeds, iterations):
    """A runner after some iterations, its timesteps and its returns."""
    runner = make_runner(agent, names, seeds)
    runner.start()
    timesteps, returns = [runner.timestep], []
    for _ in range(iterations):
        returns.append(runner.advance(1)[0])
        timesteps.append(runner.timestep)
    return runner, timesteps, np.stack(returns)


def copy(x):
    """A copy of an array that a runner will write into."""
    return np.array(x) if isinstance(x, np.ndarray) else jnp.copy(x)


def disable_learning(monkeypatch, agent):
    """Replaces the agent's `learn`, so that its networks stay the same and less is compiled."""
    monkeypatch.setattr(type(agent), "learn", lambda self, state, *_: (state, {}))


def use_drift(monkeypatch, vec_env=DriftVecEnv):
    """Replaces ALE by a game of two actions."""
    make_vec = "engram.envs.atari.AtariGame.make_vec"
    monkeypatch.setattr(make_vec, lambda self, num_envs, *_, **__: vec_env(num_envs))
    monkeypatch.setattr("engram.envs.atari._num_actions", lambda game: 2)
