"""Evaluation checks what environments return as training does."""

import gymnasium as gym
import numpy as np
import pytest
from probes import TapeEnv
from training_helpers import error_of, scripted

import engram
from engram.agents import Random
from engram.envs import get_task
from engram.evaluation import record_episode
from engram.training import load, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return train(Random(), scripted(), 1, 20, out=out).folder


class FaultyEnv(TapeEnv):
    """The first steps are right, as `engram.evaluate` looks at three; the fourth is changed."""

    def __init__(self, **changes):
        super().__init__(rewards=(1.0,) * 9)
        self.changes = changes
        self.metadata = {"render_modes": ["rgb_array"]}

    def step(self, action):
        result = super().step(action)
        names = ("observation", "reward", "terminated", "truncated", "info")
        changes = self.changes if self.num_steps >= 4 else {}
        return tuple(changes.get(name, x) for name, x in zip(names, result, strict=True))

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


FAULTS = {
    "observation[0] is nan": {"observation": np.array([np.nan, 0.0], np.float32)},
    "observation has shape (3,)": {"observation": np.zeros(3, np.float32)},
    "reward is nan": {"reward": np.nan},
    "reward is None": {"reward": None},
    "info is a NoneType, not a dict": {"info": None},
    "terminated is 'no', not a bool": {"terminated": "no"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_environment_ends_the_evaluation_with_a_sentence(run, fault):
    def make(render_mode=None):
        return FaultyEnv(**FAULTS[fault])

    sentence = error_of(engram.evaluate, run, task=make, episodes=2)
    assert sentence.startswith("The environment make is at fault in step: ")
    assert fault in sentence
    assert fault in error_of(record_episode, load(run), get_task(make))


class WholeNumbersAtReset(gym.Env):
    """The last observation of an episode is what `reset` shows, and half; reset shows integers."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.array([1, 2]), {}

    def step(self, action):
        self.t += 1
        return np.array([0.5, 1.5]), 1.0, self.t == 3, False, {}


def test_observations_are_not_rounded_to_the_dtype_of_the_first(run, monkeypatch):
    seen = []
    act_batch = engram.policy.Policy.act_batch

    def record(policy, observations, *arguments):
        seen.append(observations.tolist())
        return act_batch(policy, observations, *arguments)

    monkeypatch.setattr(engram.policy.Policy, "act_batch", record)
    engram.evaluate(run, task=WholeNumbersAtReset, episodes=1)
    assert seen == [[[1.0, 2.0]], [[0.5, 1.5]], [[0.5, 1.5]]]
