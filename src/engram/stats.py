"""Statistics over seeds: means, bootstrap intervals, paired tests, areas under learning curves."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import permutation_test, trim_mean

from engram.errors import EngramError
from engram.run_dir import Curves

MIN_SEEDS = 5
"""with fewer seeds a bootstrap interval is much too narrow, so comparisons show the seeds"""


def mean(returns: ArrayLike, axis: int | None = None) -> Any:
    """The mean of all returns, or along one axis."""
    return np.asarray(returns, float).mean(axis=axis)


def iqm(returns: ArrayLike, axis: int | None = None) -> Any:
    """The interquartile mean of all returns, or along one axis; NaN if a return is NaN."""
    return trim_mean(returns, 0.25, axis=axis)  # pyright: ignore[reportArgumentType]


def interval(
    returns: ArrayLike,
    statistic: Callable[..., Any] = iqm,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic over seeds.

    Rows are tasks; seeds are resampled within each task (stratified bootstrap)."""
    table = np.atleast_2d(np.asarray(returns, float))
    tasks, seeds = table.shape
    indices = np.random.default_rng(seed).integers(seeds, size=(resamples, tasks, seeds))
    samples = table[np.arange(tasks)[:, None], indices].reshape(resamples, -1)
    low, high = np.quantile(statistic(samples, axis=-1), _quantiles(level))
    return float(low), float(high)


def permutation_p(
    differences: ArrayLike, alternative: Literal["two-sided", "greater", "less"] = "two-sided"
) -> float:
    """The p-value of a paired permutation test, which flips the signs of the differences."""
    differences = np.asarray(differences, float)
    if not np.any(differences):
        return 1.0
    if len(differences) == 1:  # SciPy needs two
        return 0.5 if alternative == ("greater" if differences[0] > 0 else "less") else 1.0
    result = permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        alternative=alternative,
        rng=0,
        vectorized=True,
    )
    return float(result.pvalue)


def probability_of_improvement(returns: ArrayLike, baseline: ArrayLike) -> float:
    """The share of pairs of a return and a baseline's that the return wins; a tie is half a win."""
    differences = np.subtract.outer(np.asarray(returns, float), np.asarray(baseline, float))
    return float(np.mean((np.sign(differences) + 1) / 2))


def running_mean(returns: Float[np.ndarray, "T"], points: int) -> Float[np.ndarray, "T"]:
    """The mean of each point and up to `points` - 1 before it; NaN before the first return."""
    smooth = np.full(len(returns), np.nan)
    is_known = ~np.isnan(returns)
    known = returns[is_known]
    first = np.maximum(np.arange(len(known)) - points + 1, 0)
    sums = np.concatenate([[0.0], np.cumsum(known)])
    smooth[is_known] = (sums[1:] - sums[first]) / (np.arange(len(known)) - first + 1)
    return smooth


def area(steps: Float[np.ndarray, "T"], returns: Float[np.ndarray, "T"]) -> float:
    """Area under the curve divided by its range of steps, so in the unit of the return.

    Points before the end of the first episode are NaN and skipped; NaN if there is no other."""
    is_known = ~np.isnan(returns)
    steps, returns = np.asarray(steps, float)[is_known], np.asarray(returns, float)[is_known]
    if len(returns) < 2:
        return float(returns[0]) if len(returns) else float("nan")
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def summary(curves: Curves, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> dict:
    """The final return and area under the curve per seed (ascending), with mean and interval."""
    if not curves or any(len(steps) == 0 for steps, _ in curves.values()):
        raise EngramError("There is nothing to sum up: no return was recorded yet; train longer.")
    ordered = [curves[seed] for seed in sorted(curves)]
    final = np.array([returns[-1] for _, returns in ordered], float)
    auc = np.array([area(*curve) for curve in ordered], float)
    return {
        "final": _describe(final, level, resamples, seed),
        "auc": _describe(auc, level, resamples, seed),
    }


def mean_curve(
    curves: Curves, level: float = 0.95, resamples: int = 1000, points: int = 400, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, the mean over seeds there, and the lower and upper end of its bootstrap interval.

    It covers the steps at which every seed has a return, because a mean over a changing set of
    seeds would jump; seeds that never had one are left out."""
    known = []
    for steps, returns in curves.values():
        is_known = ~np.isnan(returns)
        if is_known.any():
            known.append((steps[is_known], returns[is_known]))
    steps = np.unique(np.concatenate([s for s, _ in known])) if known else np.empty(0)
    if known:
        first, last = max(s[0] for s, _ in known), min(s[-1] for s, _ in known)
        steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) == 0:
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    steps = steps[np.linspace(0, len(steps) - 1, min(len(steps), points)).astype(int)]
    returns = np.stack([np.interp(steps, *curve) for curve in known])
    seeds = len(returns)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    low, high = np.quantile(weights @ returns, _quantiles(level), axis=0)
    return steps, returns.mean(axis=0), low, high


def format_interval(low: float, high: float) -> str:
    """Two bounds in words."""
    return f"{format_return(low)} to {format_return(high)}"


def format_return(x: float) -> str:
    """A number with one decimal, or with three digits if it is small; a dash for NaN."""
    if math.isnan(x):
        return "–"
    return f"{x:.1f}" if abs(x) >= 10 or x == 0 else f"{x:.3g}"


def _describe(
    returns: Float[np.ndarray, "seeds"], level: float, resamples: int, seed: int
) -> dict[str, Any]:
    return {
        "mean": float(mean(returns)),
        "std": float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0,
        "iqm": float(iqm(returns)),
        f"ci{100 * level:.0f}": list(interval(returns, mean, level, resamples, seed)),
        "per_seed": returns.tolist(),
    }


def _quantiles(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2
