"""Playing trained agents greedily, in environments of their own."""

import os

import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Float

from engram.errors import EngramError
from engram.loop.games import judging_seed, scores
from engram.policy import Policy
from engram.tasks import Task, blame

TOGETHER = 10
"""environments played at once"""
LONGEST = 2_000
"""frames of a film of an Atari game"""


def play(policy: Policy, task: Task, episodes: int, seed: int = 0, limit: int = 100_000) -> Float[np.ndarray, "episodes"]:
    """The un-noised returns of greedy episodes. Each environment plays a fixed share: to count those that finish first would favour
    short ones. An episode without end is left after `limit` steps. Atari's games are played as their protocol says."""
    if task.arcade is not None:
        states = jax.tree.map(lambda x: x[None], policy.state)
        return scores(policy.agent, policy.spec, states, [task], [seed], episodes)[0]
    envs = [task.make() for _ in range(min(episodes, TOGETHER))]
    numbers = [list(range(e, episodes, len(envs))) for e in range(len(envs))]  # of the episodes each environment plays
    returns, ages = np.zeros(episodes), np.zeros(len(envs), int)
    seen = np.stack([_begin(env, task.name, seed, own[0]) for env, own in zip(envs, numbers, strict=True)])
    policy.seed(seed)
    policy.reset()
    while any(numbers):
        actions = policy.choose(seen)
        begun = np.zeros(len(envs), bool)
        for e, env in enumerate(envs):
            if not numbers[e]:
                continue
            with blame(task.name, "step"):
                seen[e], reward, terminated, truncated, info = env.step(int(actions[e]))
            returns[numbers[e][0]] += info.get("true_reward", reward)
            ages[e] += 1
            if terminated or truncated or ages[e] >= limit:
                numbers[e].pop(0)
                ages[e], begun[e] = 0, True
                if numbers[e]:
                    seen[e] = _begin(env, task.name, seed, numbers[e][0])
        policy.reset(begun)
    for env in envs:
        env.close()
    return returns


def to_film(task: Task) -> gym.Env:
    """An environment that shows what happens in it."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures only: no window, and no complaint where there is no screen
    return task.make(render_mode="rgb_array")


def record(policy: Policy, task: Task, seed: int = 0, limit: int = 10_000) -> tuple[list[np.ndarray], float]:
    """The frames of one greedy episode, and how many a second show it at its own pace."""
    env = to_film(task)
    seen = _begin(env, task.name, seed, 0)
    policy.seed(seed)
    policy.reset()
    frames, over = [_frame(env, task.name)], False
    epsilon, life_ends, lives = 0.0, False, 0
    if task.arcade is not None:  # games are long, and an agent that never presses the button would wait for ever
        limit, epsilon, life_ends = min(limit, LONGEST), task.arcade.protocol.epsilon, task.arcade.protocol.life_ends
    while not over and len(frames) < limit:
        action = int(policy.choose(np.asarray(seen)[None], epsilon)[0])
        with blame(task.name, "step"):
            seen, _, terminated, truncated, info = env.step(action)
        frames.append(_frame(env, task.name))
        over = terminated or truncated
        if life_ends and info["lives"] < lives:  # a trajectory ends where it does in training
            policy.reset()
        lives = info.get("lives", 0)
    fps = env.metadata.get("render_fps", 30)
    env.close()
    return frames, fps


def _begin(env: gym.Env, name: str, seed: int, episode: int) -> np.ndarray:
    with blame(name, "reset"):
        return np.asarray(env.reset(seed=judging_seed(seed, episode))[0])


def _frame(env: gym.Env, name: str) -> np.ndarray:
    with blame(name, "render"):
        frame = env.render()
    if not isinstance(frame, np.ndarray):
        raise EngramError(f"{name} cannot be filmed: its render() gave no picture with render_mode='rgb_array'.")
    return frame
