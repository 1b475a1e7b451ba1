"""Small agents, a scripted environment, and comparisons of runs, for tests of training."""

import gymnasium as gym
import jax
import numpy as np
import pytest

from engram.agents import make
from engram.checkpoint import is_key
from engram.errors import EngramError
from engram.training import load_training

MBECPP_SMALL = make("mbec++", "debug")
DQN_SMALL = make("dqn", "debug")
SEEDS = [3, 1]


class ScriptedRewards(gym.Env):
    """Gives a list of rewards, then terminates; observes its step and a number drawn at reset."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rewards=(1.0, 2.0, 3.0), errors=None, is_seeded=True):
        self.rewards, self.is_seeded = rewards, is_seeded
        self.errors = errors or {}
        """what is raised at which of all steps"""
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.drawn = (self.np_random if self.is_seeded else np.random.default_rng()).normal()
        return self.observe(), {}

    def observe(self):
        return np.array([self.t, self.drawn], np.float32)

    def step(self, action):
        self.num_steps += 1
        if self.num_steps in self.errors:
            raise self.errors[self.num_steps]
        reward = self.rewards[self.t]
        self.t += 1
        return self.observe(), reward, self.t == len(self.rewards), False, {}


def scripted(**options):
    def make_scripted(render_mode=None):
        return gym.wrappers.TimeLimit(ScriptedRewards(**options), 50)

    return make_scripted


def error_of(call, *arguments, kind=EngramError, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


def read_checkpoint(path):
    """Runner state, statistics and metadata of a run folder."""
    run = load_training(path, needs_env=False)
    template = run.runner.template(), run.stats.state()
    (tree, stats), meta = run.folder.restore(template, partial=True)
    return tree, stats, meta


def arrays(tree):
    leaves = jax.tree.leaves(tree)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


def assert_same_bits(a, b):
    for x, y in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def assert_same_run(whole, parts):
    for seed in SEEDS:
        np.testing.assert_array_equal(whole.curves[seed], parts.curves[seed])
        assert np.isfinite(whole.curves[seed][1]).any()
    assert whole.metrics == parts.metrics
    assert_same_bits(read_checkpoint(whole.folder)[:2], read_checkpoint(parts.folder)[:2])
    for name in ("curves.csv", "metrics.csv"):
        assert (whole.folder / name).read_bytes() == (parts.folder / name).read_bytes()
