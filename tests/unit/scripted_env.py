"""An environment whose every return value can be chosen."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ZEROS = np.zeros(3, np.float32)


class ScriptedEnv(gym.Env):
    """Returns the given values at every reset and step; by default they are valid."""

    def __init__(
        self,
        observation=ZEROS,
        reward=1.0,
        terminated=False,
        truncated=False,
        info=None,
        reset_observation=None,
        observation_space=None,
        action_space=None,
    ):
        box, actions = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
        self.observation_space = box if observation_space is None else observation_space
        self.action_space = actions if action_space is None else action_space
        self.reset_observation = observation if reset_observation is None else reset_observation
        self.result = (observation, reward, terminated, truncated, {} if info is None else info)
        self.actions = []
        self.num_resets = 0

    def reset(self, *, seed=None, options=None):
        self.num_resets += 1
        return self.reset_observation, {}

    def step(self, action):
        self.actions.append(action)
        return self.result
