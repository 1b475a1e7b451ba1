"""How good a set of runs is, and how sure of it we may be: interquartile means and bootstrap intervals over seeds."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import trim_mean

from engram.errors import EngramError
from engram.records import Curves


def mean(scores: ArrayLike, axis: int | None = None) -> Any:
    """The mean of all scores, or along one axis."""
    return np.asarray(scores, float).mean(axis=axis)


def iqm(scores: ArrayLike, axis: int | None = None) -> Any:
    """The mean of the middle half of all scores, or along one axis; NaN where a score is NaN."""
    return trim_mean(scores, 0.25, axis=axis)  # pyright: ignore[reportArgumentType]


def interval(
    scores: ArrayLike,
    statistic: Callable[..., Any] = iqm,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of `statistic` over seeds; of several tasks (rows) each is resampled for itself."""
    table = np.atleast_2d(np.asarray(scores, float))
    tasks, seeds = table.shape
    drawn = np.random.default_rng(seed).integers(seeds, size=(resamples, tasks, seeds))
    values = statistic(table[np.arange(tasks)[:, None], drawn].reshape(resamples, -1), axis=-1)
    low, high = np.quantile(values, _tails(level))
    return float(low), float(high)


def area(steps: Float[np.ndarray, "T"], returns: Float[np.ndarray, "T"]) -> float:
    """Area under a curve divided by its range of steps, so in the unit of the return. Points without a return (NaN, before the
    first episode has ended) are skipped: the range begins at the first that has one. NaN where none has."""
    known = ~np.isnan(returns)
    steps, returns = np.asarray(steps, float)[known], np.asarray(returns, float)[known]
    if len(returns) < 2:
        return float(returns[0]) if len(returns) else float("nan")
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def summary(curves: Curves, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> dict:
    """The last return and the area under the curve of every seed (ascending), their spread, and their mean's interval."""
    if not curves or any(len(steps) == 0 for steps, _ in curves.values()):
        raise EngramError("There is nothing to sum up: no return was recorded yet, so let the run go on.")
    runs = [curves[seed] for seed in sorted(curves)]
    scores = {"final": [returns[-1] for _, returns in runs], "auc": [area(*run) for run in runs]}
    return {name: _describe(np.array(values, float), level, resamples, seed) for name, values in scores.items()}


def mean_curve(
    curves: Curves, level: float = 0.95, resamples: int = 1000, points: int = 400, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, the mean of the seeds there, and the lower and upper end of its bootstrap interval. It covers the steps at which
    every seed has a return (seeds that never had one are left out), since a mean over changing seeds would jump."""
    known = [(steps[~np.isnan(returns)], returns[~np.isnan(returns)]) for steps, returns in curves.values()]
    known = [(steps, returns) for steps, returns in known if len(steps)]
    steps = np.unique(np.concatenate([steps for steps, _ in known])) if known else np.empty(0)
    if known:
        steps = steps[(steps >= max(s[0] for s, _ in known)) & (steps <= min(s[-1] for s, _ in known))]
    if len(steps) == 0:
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    steps = steps[np.linspace(0, len(steps) - 1, min(len(steps), points)).astype(int)]
    returns = np.stack([np.interp(steps, *run) for run in known])
    seeds = len(returns)
    weights = np.random.default_rng(seed).multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    low, high = np.quantile(weights @ returns, _tails(level), axis=0)
    return steps, returns.mean(axis=0), low, high


def _describe(scores: Float[np.ndarray, "seeds"], level: float, resamples: int, seed: int) -> dict:
    return {
        "mean": float(mean(scores)),
        "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
        "iqm": float(iqm(scores)),
        f"ci{100 * level:.0f}": list(interval(scores, mean, level, resamples, seed)),
        "per_seed": scores.tolist(),
    }


def _tails(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2
