"""Learning curves while they grow."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

EPISODES = 10
"""a score is the mean return of so many last episodes"""


class Scores:
    """The curves of R runs while they grow, in arrays of fixed size so that a checkpoint holds them exactly."""

    def __init__(self, runs: int, iterations: int, interval: int, metrics: Sequence[str]):
        points = -(-iterations // interval)
        self.interval, self.iterations, self.names = interval, iterations, list(metrics)
        self.curve = np.full((points, runs), np.nan)
        self.metrics = np.full((points, runs, len(self.names)), np.nan)
        self.recent = np.full((runs, EPISODES), np.nan)
        self.points = np.zeros((), np.int64)

    def tree(self) -> tuple[np.ndarray, ...]:
        return self.curve, self.metrics, self.recent, self.points

    def restore(self, tree: tuple[np.ndarray, ...]) -> None:
        self.curve, self.metrics, self.recent, self.points = (np.array(x) for x in tree)

    def keep(self, runs: Sequence[int]) -> None:
        """The curves of some of the runs go on."""
        at = np.array(runs)
        self.curve, self.metrics, self.recent = self.curve[:, at], self.metrics[:, at], self.recent[at]

    def add(self, returns: Float[np.ndarray, "T R E"]) -> None:
        """Takes in the returns of episodes that ended."""
        for r, ended in enumerate(returns.transpose(1, 0, 2).reshape(returns.shape[1], -1)):
            new = ended[~np.isnan(ended)]
            self.recent[r] = np.concatenate([self.recent[r], new])[-EPISODES:]

    def now(self) -> Float[np.ndarray, "R"]:
        known = ~np.isnan(self.recent)
        total = np.where(known, self.recent, 0).sum(axis=1)
        return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)

    def mark(self, metrics: dict[str, Float[np.ndarray, "R"]]) -> None:
        """Adds a point to the curves."""
        self.curve[self.points] = self.now()
        for i, name in enumerate(self.names):
            self.metrics[self.points, :, i] = metrics[name]
        self.points += 1

    def steps(self, envs: int) -> np.ndarray:
        marks = np.minimum((np.arange(int(self.points)) + 1) * self.interval, self.iterations)
        return marks * envs
