"""The page "Write an agent": its code trains, resumes, loads, evaluates and acts as it says."""

import importlib
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import engram
from engram.agents import AGENTS
from engram.errors import Interrupted

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "write-an-agent.md"
AGENT, USAGE = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

GAMMA = 0.9
OPTIMAL_Q = np.array([[0.729, 0.81], [0.729, 0.9], [0.81, 1.0], [0.0, 0.0]])
"""of the corridor, by hand: the goal is 3 - s steps to the right of state s"""


class Corridor(gym.Env):
    """States 0 to 3; action 1 goes right, 0 left. State 3 is terminal and entering it pays 1."""

    observation_space = gym.spaces.Discrete(4)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, interrupts=None):
        self.interrupts = [] if interrupts is None else interrupts
        self.num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return self.position, {}

    def step(self, action):
        self.num_steps += 1
        if self.num_steps in self.interrupts:
            self.interrupts.remove(self.num_steps)  # once, since a second Ctrl-C ends at once
            signal.raise_signal(signal.SIGINT)
        self.position = min(self.position + 1, 3) if action == 1 else max(self.position - 1, 0)
        at_goal = self.position == 3
        return self.position, float(at_goal), at_goal, False, {}


def corridor(interrupts=None):
    """Truncated after five steps, so that most episodes of a random policy miss the goal."""
    return gym.wrappers.TimeLimit(Corridor(interrupts), 5)


@pytest.fixture
def my_agents(tmp_path, monkeypatch):
    """The page's module, in the folder where the test runs."""
    (tmp_path / "my_agents.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("my_agents")
    AGENTS.pop("tabular-q", None)
    sys.modules.pop("my_agents", None)


def test_tabular_q_finds_the_optimal_values_of_a_corridor(my_agents):
    agent = my_agents.TabularQ(gamma=GAMMA, step_size=1.0, epsilon=1.0)
    result = engram.train(agent, corridor, seeds=2, steps=600, out="runs/corridor")
    for policy in result.policies.values():
        np.testing.assert_allclose(policy.state.q, OPTIMAL_Q, atol=1e-5)
    policy = engram.load("runs/corridor", seed=1)
    assert [policy.act(position) for position in range(3)] == [1, 1, 1]
    returns = engram.evaluate("runs/corridor", task=corridor, episodes=3)
    assert {seed: list(values) for seed, values in returns.items()} == {0: [1.0] * 3, 1: [1.0] * 3}


def test_an_interrupted_run_of_the_agent_resumes_exactly(my_agents):
    agent = my_agents.TabularQ(gamma=GAMMA, step_size=0.1)
    whole = engram.train(agent, corridor, seeds=2, steps=400)
    with pytest.raises(Interrupted):
        engram.train(agent, partial(corridor, [200]), seeds=2, steps=400, out="runs/resumed")
    half = engram.load("runs/resumed", seed=1)
    assert not np.array_equal(half.state.q, whole.policies[1].state.q)
    resumed = engram.resume("runs/resumed", task=corridor)
    for seed, policy in resumed.policies.items():
        np.testing.assert_array_equal(policy.state.q, whole.policies[seed].state.q)


def test_several_environments_share_one_table(my_agents):
    agent = my_agents.TabularQ(gamma=GAMMA, step_size=1.0, epsilon=1.0)
    spec = gym_spec(num_envs=2)
    state = agent.init(None, spec)
    timestep = engram.types.TimeStep(
        observation=np.eye(4)[[0, 0]],
        reward=np.array([1.0, 0.0]),
        terminated=np.array([True, False]),
        truncated=np.array([False, False]),
        final_observation=np.eye(4)[[3, 0]],
    )
    state = state._replace(index=np.array([2, 2]), action=np.array([1, 1]))
    q = agent.update(state, spec, timestep, step=1)
    assert float(q[2, 1]) == 0.5  # the mean of the targets 1 and 0
    unchanged = agent.update(state, spec, timestep, step=0)
    assert not np.any(unchanged)


def gym_spec(num_envs):
    return engram.types.Spec(shape=(4,), num_actions=2, num_envs=num_envs)


def test_the_usage_of_the_page_runs(my_agents):
    names: dict = {}
    exec(compile(USAGE, str(PAGE), "exec"), names)
    assert names["result"].agent == my_agents.TabularQ(step_size=0.2)
    assert names["returns"].keys() == {0, 1}
    assert all(len(values) == 5 for values in names["returns"].values())
    assert names["action"] in range(4)


def test_the_command_line_trains_an_agent_by_module_and_name(my_agents, tmp_path):
    command = [sys.executable, "-m", "engram", "train", "my_agents:tabular-q", "gym:FrozenLake-v1"]
    options = ["--seeds", "2", "--steps", "300", "--step-size", "0.3", "--out", "runs/cli"]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    policy = engram.load(tmp_path / "runs" / "cli", seed=1)
    assert policy.agent == my_agents.TabularQ(step_size=0.3)
    assert policy.act(0) in range(4)
