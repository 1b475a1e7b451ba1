"""Small agents, tasks of scripted rewards, and comparisons of runs, for tests of training."""

import gymnasium as gym
import jax
import numpy as np
import pytest
from probes import TapeEnv

from engram.agents import make
from engram.errors import EngramError
from engram.pytrees import is_key
from engram.training import load_training

MBECPP_SMALL = make("mbec++", "debug")
DQN_SMALL = make("dqn", "debug")
SEEDS = [3, 1]


def scripted(**options):
    def make_scripted(render_mode=None):
        return gym.wrappers.TimeLimit(TapeEnv(**options), 50)

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
