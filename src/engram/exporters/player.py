"""Plays an agent that `engram export` wrote, with NumPy alone: copy this file wherever you like.

policy = Player("policy.npz")
action = policy.act(observation)  # and policy.reset() when an episode starts
"""

import json

import numpy as np


def image(x, shape, axes, channels_first):
    """The image of a flat observation, its channels last."""
    return x.reshape(shape).transpose(axes).reshape(channels_first).transpose(1, 2, 0)


def convolve(x, kernel, stride, weight, bias):
    """A convolution without padding; the rows of the weight are C x K x K pixels."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(0, 1))
    windows = windows[::stride, ::stride]
    return windows.reshape(*windows.shape[:2], -1) @ weight + bias


OPERATIONS = {
    "scale": lambda x, factor, offset, divisor: (factor * x - offset) / divisor,
    "standardize": lambda x, mean, weight: np.clip((x - mean) * weight, -5, 5),
    "linear": lambda x, weight, bias: x @ weight + bias,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: (1 + np.tanh(x / 2)) / 2,
    "gate": lambda x, gates: x * gates,
    "mean": lambda x: x.mean(axis=0),
    "ravel": np.ravel,
    "image": image,
    "convolve": convolve,
}


class Player:
    """A trained agent's greedy actions in one environment; call `reset` when an episode starts."""

    def __init__(self, file):
        with np.load(file, allow_pickle=False) as arrays:
            self.arrays = dict(arrays)
        self.meta = json.loads(str(self.arrays["meta"]))
        self.reset()

    def reset(self):
        """Starts an episode: the state of an LSTM or of a trajectory is zero."""
        self.state = np.zeros((2, self.meta["state_size"]), np.float32)

    def act(self, observation):
        """The environment's action for an observation of the environment."""
        action = self.act_flat(self.flatten(observation))
        if not self.meta["action_nvec"]:
            return action + self.meta["action_offset"]
        choices = np.array(np.unravel_index(action, self.meta["action_nvec"]))
        return (choices + self.meta["action_start"]).reshape(self.meta["action_shape"])

    def flatten(self, observation):
        """An observation as one row; discrete numbers are one-hot."""
        rows = []
        for path, nvec, start in self.meta["leaves"]:
            row = observation
            for key in path:
                row = row[key]
            row = np.ravel(row)
            if nvec:
                row = np.concatenate([np.eye(n)[i] for n, i in zip(nvec, row - start, strict=True)])
            rows.append(row)
        return np.concatenate(rows)

    def act_flat(self, row):
        """The action, counted from 0, for an observation as one row."""
        x = self.run("encoder", np.asarray(row, self.meta["dtype"]).astype(np.float32))
        if "features" in self.meta["networks"]:
            planned, values = self.plan(x)
            self.state = planned[:, np.argmax(values)]
        elif self.meta["num_memories"]:
            values = [self.read(m, x) for m in range(self.meta["num_memories"])]
        else:
            if self.meta["state_size"]:
                self.state = self.lstm(x, self.state)
                x = self.state[0]
            values = self.run("head", x)
        return int(np.argmax(values))

    def run(self, network, x):
        """The output of a network, which is a list of operations."""
        for i, (name, *arguments) in enumerate(self.meta["networks"][network]):
            prefix = f"{network}.{i}."
            arrays = [self.arrays[key] for key in self.arrays if key.startswith(prefix)]
            x = OPERATIONS[name](x, *arguments, *arrays)
        return x

    def lstm(self, x, state):
        """Hidden and cell state after an input, or after each of several."""
        gates = x @ self.arrays["lstm.input"] + state[0] @ self.arrays["lstm.hidden"]
        i, f, g, o = np.split(gates + self.arrays["lstm.bias"], 4, axis=-1)
        sigmoid = OPERATIONS["sigmoid"]
        c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        return np.stack([sigmoid(o) * np.tanh(c), c])

    def plan(self, x):
        """The trajectory after each action, and its value by memory and networks."""
        meta, networks, tau = self.meta, self.meta["networks"], self.state[0]
        features = np.tile(self.run("features", x), (meta["num_actions"], 1))
        pairs = np.hstack([features, np.eye(len(features), dtype=np.float32)])
        planned = self.lstm(pairs, self.state)
        values = np.array([self.read(0, after) for after in planned[0]])
        if "reward" in networks:
            values = self.run("reward", pairs)[:, 0] + meta["gamma"] * values
        if "head" in networks:
            inputs = np.concatenate([x, tau]) if meta["head_has_tau"] else x
            values = self.run("beta", tau) * values + self.run("head", inputs)
        return planned, values

    def read(self, memory, query):
        """The value of the K nearest keys of a memory; 0 if it is empty."""
        keys, values = (self.arrays[f"memory.{memory}.{name}"] for name in ("keys", "values"))
        if not len(keys):
            return 0.0
        squared = ((keys - query) ** 2).sum(axis=1)
        nearest = np.argsort(squared, kind="stable")[: self.meta["num_neighbours"]]
        squared, values = squared[nearest], values[nearest]
        if self.meta["kernel"] == "mean":  # but a known key, rounded as it may be, has its own
            return values[0] if squared[0] <= 1e-10 * (query @ query) else values.mean()
        distances = squared if self.meta["kernel"] == "squared" else np.sqrt(squared)
        weights = 1 / (distances + self.meta["delta"])
        return weights @ values / weights.sum()
