"""What agents see of an environment, found out by a check and some seconds of random play."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from engram.encoders import channels_first, is_image
from engram.envs import Task, env_errors
from engram.envs.env_checker import env_error, step_error
from engram.types import ObsLeaf, Spec

SECONDS = 2.0
"""of random play"""
MAX_EPISODES, REPEATED_STEPS = 1_000, 100
NOT_REPEATABLE = "do not repeat an episode, so that a resumed run starts new ones"


def report(task: Task, seconds: float = SECONDS) -> Mapping[str, str]:
    """Names and what is to be said of each; raises if agents cannot use the environment."""
    spec = task.inspect(warn=True)
    env = task.make()
    try:
        with env_errors(task.name, "step"):
            played = _play(env, task.name, spec, seconds)
            is_repeatable = _trajectory(env, spec) == _trajectory(env, spec)
    finally:
        env.close()
    return {
        "observations": _describe_observations(spec),
        "actions": _describe_actions(spec),
        "time limit": _describe_limit(spec),
        "rewards": f"{min(played.rewards):g} to {max(played.rewards):g} at random",
        "episodes": _describe_episodes(played),
        "seeds": "repeat an episode" if is_repeatable else NOT_REPEATABLE,
        "speed": f"{len(played.rewards) / played.seconds:,.0f} steps/s of one environment",
        "in JAX": "yes, it trains inside the compiled program" if task.jax_env else "no",
    }


@dataclass(frozen=True)
class _Played:
    """What random play showed."""

    rewards: list[float]
    lengths: list[int]
    """of the episodes that ended, in steps"""
    seconds: float


def _play(env: gym.Env, name: str, spec: Spec, seconds: float) -> _Played:
    """Plays at random for some seconds, and checks every step."""
    rng, rewards, lengths, length = np.random.default_rng(0), [], [], 0
    env.reset(seed=0)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds and len(lengths) < MAX_EPISODES:
        result = env.step(int(rng.integers(spec.num_actions)))
        if cause := step_error(result, spec):
            raise env_error(name, "step", cause)
        _, reward, terminated, truncated, _ = result
        rewards.append(float(reward))
        length += 1
        if terminated or truncated:
            lengths.append(length)
            length = 0
            env.reset()
    return _Played(rewards, lengths, time.perf_counter() - began)


def _trajectory(env: gym.Env, spec: Spec) -> list[Any]:
    """What an episode from a seed shows, step by step."""
    rng = np.random.default_rng(1)
    seen: list[Any] = [np.asarray(env.reset(seed=1)[0]).tobytes()]
    for _ in range(REPEATED_STEPS):
        action = int(rng.integers(spec.num_actions))
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((np.asarray(observation).tobytes(), float(reward)))
        if terminated or truncated:
            break
    return seen


def _describe_observations(spec: Spec) -> str:
    size = " x ".join(map(str, spec.shape)) or "1"
    if is_image(spec):
        channels, height, width = channels_first(spec.shape)[0]
        frames = f", {spec.frame_stack} frames" if spec.frame_stack else ""
        what = f"images of {height} x {width} with {channels} channels{frames}, bytes"
        what += f" up to {spec.pixel_max}"
    else:
        what = f"{size} numbers, {spec.dtype}{_describe_bounds(spec)}"
    parts = [_describe_leaf(leaf) for leaf in spec.obs_leaves if leaf.path or leaf.nvec]
    if spec.obs_path:
        parts = [f"the part {spec.obs_path[0]}", *parts]
    return f"{what} ({'; '.join(parts)})" if parts else what


def _describe_leaf(leaf: ObsLeaf) -> str:
    name = "".join(f"[{key!r}]" for key in leaf.path)
    kind = f"one-hot codes of {' and '.join(map(str, leaf.nvec))} values" if leaf.nvec else ""
    return " ".join(filter(None, (name, kind or f"shape {leaf.shape}")))


def _describe_bounds(spec: Spec) -> str:
    low, high = np.array(spec.low or [-np.inf]), np.array(spec.high or [np.inf])
    if np.isfinite(low).all() and np.isfinite(high).all():
        return f", from {low.min():g} to {high.max():g}"
    return ", not all of them bounded" if np.isfinite(low).any() else ", without bounds"


def _describe_actions(spec: Spec) -> str:
    if spec.action_nvec:
        choices = " x ".join(map(str, spec.action_nvec))
        return f"{spec.num_actions}, the combinations of {choices}"
    start = f", which the environment counts from {spec.action_offset}"
    return f"{spec.num_actions}{start if spec.action_offset else ''}"


def _describe_limit(spec: Spec) -> str:
    if spec.max_episode_steps is None:
        return "none: give one (--max-episode-steps) if episodes may never end"
    end = "which counts as terminal" if spec.truncation_is_terminal else "bootstrapped"
    return f"{spec.max_episode_steps:,} steps, {end}"


def _describe_episodes(played: _Played) -> str:
    if not played.lengths:
        return f"none has ended in {len(played.rewards):,} random steps"
    mean = np.mean(played.lengths)
    return f"{len(played.lengths):,} at random, of {mean:,.0f} steps in the mean"
