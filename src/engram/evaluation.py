"""Evaluation of trained agents: returns of greedy episodes, in environments of their own."""

import os

import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Float

from engram.envs import Task, env_errors
from engram.envs.env_checker import checked_reset, checked_step, close_envs
from engram.errors import EngramError
from engram.policy import Policy
from engram.types import Spec
from engram.vec_evaluator import NUM_EVAL_ENVS, evaluate_atari, evaluation_seed

MAX_ATARI_FRAMES = 2_000
"""frames of a recorded Atari game"""


def evaluate_policy(
    policy: Policy, task: Task, episodes: int, seed: int = 0, max_episode_steps: int = 100_000
) -> Float[np.ndarray, "episodes"]:
    """True returns of greedy episodes; Atari games are played as their protocol says.

    Each environment plays a fixed share of the episodes: to take the first that end would favour
    short ones. An episode that does not end is left after `max_episode_steps`.
    """
    if task.atari is not None:
        states = jax.tree.map(lambda x: x[None], policy.state)
        return evaluate_atari(policy.agent, policy.spec, states, [task], [seed], episodes)[0]
    num_envs = min(episodes, NUM_EVAL_ENVS)
    envs = [task.make() for _ in range(num_envs)]
    queues = [list(range(e, episodes, num_envs)) for e in range(num_envs)]  # of episode indices
    returns = np.zeros(episodes)
    episode_steps = np.zeros(num_envs, int)
    first = [_reset(env, task.name, policy.spec, seed, e) for e, env in enumerate(envs)]
    observation = np.stack(first)
    policy.seed(seed)
    policy.reset()
    while any(queues):
        actions = policy.act_batch(observation)
        episode_start = np.zeros(num_envs, bool)
        for e, env in enumerate(envs):
            if not queues[e]:
                continue
            result = checked_step(env, task.name, policy.spec, int(actions[e]))
            observation[e], reward, terminated, truncated, info = result
            returns[queues[e][0]] += info.get("true_reward", reward)
            episode_steps[e] += 1
            if terminated or truncated or episode_steps[e] >= max_episode_steps:
                queues[e].pop(0)
                episode_steps[e] = 0
                episode_start[e] = True
                if queues[e]:
                    observation[e] = _reset(env, task.name, policy.spec, seed, queues[e][0])
        policy.reset(episode_start)
    close_envs(envs, task.name)
    return returns


def make_render_env(task: Task) -> gym.Env:
    """An environment that renders images."""
    # Without a window, and without a warning if there is no screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    return task.make(render_mode="rgb_array")


def record_episode(
    policy: Policy, task: Task, seed: int = 0, max_frames: int = 10_000
) -> tuple[list[np.ndarray], float]:
    """The frames of one greedy episode, and the frames per second of its own pace."""
    epsilon = 0.0
    terminal_on_life_loss = False
    if task.atari is not None:
        # Games are long, and a greedy agent that never starts one would wait forever.
        max_frames = min(max_frames, MAX_ATARI_FRAMES)
        epsilon = task.atari.protocol.eval_epsilon
        terminal_on_life_loss = task.atari.protocol.terminal_on_life_loss
    env = make_render_env(task)
    observation = _reset(env, task.name, policy.spec, seed, 0)
    policy.seed(seed)
    policy.reset()
    frames = [_render(env, task.name)]
    done = False
    lives = 0
    while not done and len(frames) < max_frames:
        action = int(policy.act_batch(np.asarray(observation)[None], epsilon)[0])
        result = checked_step(env, task.name, policy.spec, action)
        observation, _, terminated, truncated, info = result
        frames.append(_render(env, task.name))
        done = terminated or truncated
        if terminal_on_life_loss and info["lives"] < lives:  # a trajectory ends as in training
            policy.reset()
        lives = info.get("lives", 0)
    fps = env.metadata.get("render_fps", 30)
    close_envs([env], task.name)
    return frames, fps


def _reset(env: gym.Env, name: str, spec: Spec, seed: int, episode_index: int) -> np.ndarray:
    """The first observation of an episode, as agents see it."""
    observation, _ = checked_reset(env, name, spec, evaluation_seed(seed, episode_index))
    return np.asarray(observation, spec.dtype)


def _render(env: gym.Env, name: str) -> np.ndarray:
    with env_errors(name, "render"):
        frame = env.render()
    if not isinstance(frame, np.ndarray):
        raise EngramError(
            f"{name} cannot be recorded: its render() returned no image with "
            "render_mode='rgb_array'."
        )
    return frame
