"""Learning curves of several runs: mean returns of recent episodes, and the agents' metrics."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

EPISODES = 10
"""number of last episodes whose mean return is a point of the curve"""


class EpisodeStats:
    """The learning curves of R runs, in arrays of fixed size so that a checkpoint holds them."""

    def __init__(
        self,
        runs: int,
        iterations: int,
        interval: int,
        metrics: Sequence[str],
        max_episode_steps: int | None = None,
        num_envs: int = 1,
    ):
        points = -(-iterations // interval)
        self.iterations = iterations
        self.interval = interval
        """iterations between two log points"""
        self.names = list(metrics)
        self.returns = np.full((points, runs), np.nan)
        """mean return of the last episodes at each log point"""
        self.metrics = np.full((points, runs, len(self.names)), np.nan)
        self.completed = np.zeros((points, runs), np.int64)
        """episodes that ended before the time limit, up to each log point"""
        self.return_sums = np.zeros((points, runs))
        """sums of the returns of episodes that ended before each log point, after the one before"""
        self.num_returns = np.zeros((points, runs), np.int64)
        self.max_episode_steps = max_episode_steps or np.inf
        self.num_completed = np.zeros(runs, np.int64)
        self.episode_steps = np.zeros((runs, num_envs), np.int64)
        """steps of the current episodes"""
        self.recent_returns = np.full((runs, EPISODES), np.nan)
        self.points = np.zeros((), np.int64)
        """number of log points so far"""

    def state(self) -> tuple[np.ndarray, ...]:
        """The arrays for a checkpoint."""
        return (
            *(self.returns, self.metrics, self.completed, self.return_sums, self.num_returns),
            *(self.num_completed, self.episode_steps, self.recent_returns, self.points),
        )

    def restore(self, state: tuple[np.ndarray, ...]) -> None:
        """Goes back to a saved state."""
        arrays = [np.array(x) for x in state]
        self.returns, self.metrics, self.completed, self.return_sums, self.num_returns = arrays[:5]
        self.num_completed, self.episode_steps, self.recent_returns, self.points = arrays[5:]

    def add(self, returns: Float[np.ndarray, "T R E"]) -> None:
        """Adds the returns of episodes that ended; NaN where none did."""
        per_run = returns.transpose(1, 0, 2).reshape(returns.shape[1], -1)
        for r, ended in enumerate(per_run):
            new = ended[~np.isnan(ended)]
            self.recent_returns[r] = np.concatenate([self.recent_returns[r], new])[-EPISODES:]
            self.return_sums[self.points, r] += new.sum()
            self.num_returns[self.points, r] += len(new)
        for ended in ~np.isnan(returns):
            self.episode_steps += 1
            is_completed = ended & (self.episode_steps < self.max_episode_steps)
            self.num_completed += is_completed.sum(axis=1)
            self.episode_steps[ended] = 0

    @property
    def num_ended(self) -> int:
        """Recent episodes of all runs that have ended; 0 before the first."""
        return int(np.sum(~np.isnan(self.recent_returns)))

    def mean_returns(self) -> Float[np.ndarray, "R"]:
        """Mean return of each run's last episodes; NaN before one has ended."""
        return mean_without_nan(self.recent_returns)

    def mean_return_since(self, iteration: int) -> Float[np.ndarray, "R"]:
        """Mean return of all episodes that ended after an iteration, to the next log point.

        NaN for a run in which none has.
        """
        since = slice(iteration // self.interval, int(self.points))
        count = self.num_returns[since].sum(axis=0)
        total = self.return_sums[since].sum(axis=0)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def log_point(self, metrics: dict[str, Float[np.ndarray, "R"]]) -> None:
        """Adds a point to the curves."""
        self.returns[self.points] = self.mean_returns()
        self.completed[self.points] = self.num_completed
        for i, name in enumerate(self.names):
            self.metrics[self.points, :, i] = metrics[name]
        self.points += 1

    def steps(self, num_envs: int) -> Int[np.ndarray, "P"]:
        """Environment steps of a run at each log point so far."""
        iterations = (np.arange(int(self.points)) + 1) * self.interval
        return np.minimum(iterations, self.iterations) * num_envs

    def metrics_at(self, point: int, run: int) -> dict[str, float]:
        """The metrics of a run at a log point."""
        values = map(float, self.metrics[point, run])
        return dict(zip(self.names, values, strict=True))

    def curve_rows(self, seeds: Sequence[int], num_envs: int) -> Iterator[tuple[int, int, str]]:
        """For each seed and log point the seed, the step and the mean return, all digits kept."""
        steps = self.steps(num_envs)
        for r, seed in enumerate(seeds):
            for step, value in zip(steps, self.returns[:, r], strict=False):
                yield seed, int(step), repr(float(value))

    def metric_rows(self, seeds: Sequence[int], num_envs: int) -> list[dict[str, float]]:
        """Rows of a seed, a step, the episodes completed until then, and the agent's metrics."""
        return [
            {"seed": seed, "step": int(step), "completed_episodes": int(self.completed[p, r])}
            | self.metrics_at(p, r)
            for r, seed in enumerate(seeds)
            for p, step in enumerate(self.steps(num_envs))
        ]


def mean_without_nan(values: Float[np.ndarray, "*P R"]) -> Float[np.ndarray, "*P"]:
    """The mean over the last axis of the values that are numbers; NaN where none is."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
