"""Verdicts: whether a claim holds, decided by tests that are stated beside it and never by hand."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binomtest, permutation_test

from engram.report.statistics import interval, mean

HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold", "undecided", "not run yet"
ALPHA = 0.05
RULE = (
    "Each comparison is tested both ways: paired, by seed unless said otherwise, by flipping the signs of the differences (all flips of up "
    "to 13, else 9,999 drawn ones); with a fixed bar, by counting the seeds, or games where that is said, on either side of it (exact "
    "binomial test). p-values are "
    f"corrected by Holm's method over the comparisons of the claim. It *{HOLDS}* if every comparison comes out as claimed with p < "
    f"{ALPHA}, it *{FAILS}* if one comes out the other way with p < {ALPHA}, and is *{UNDECIDED}* else. Intervals are 95% bootstrap "
    "intervals of the mean over seeds, or over games where these are counted."
)


class Test(NamedTuple):
    """One comparison: positive is what is claimed."""

    what: str
    middle: float
    low: float
    high: float
    for_it: float
    """p-value of a mean as great if there were no difference"""
    against: float
    """p-value of one as small"""


def compare(what: str, ours: ArrayLike, theirs: ArrayLike) -> Test:
    """Whether `ours` are greater than `theirs`, seed by seed."""
    gaps = np.asarray(ours, float) - np.asarray(theirs, float)
    low, high = interval(gaps, mean)
    return Test(what, float(gaps.mean()), low, high, _p(gaps, "greater"), _p(gaps, "less"))


def against_bar(what: str, scores: ArrayLike, bar: float, sign: int = 1) -> Test:
    """Whether most seeds lie above a bar; or below it, with the sign -1. Counted, since distances from a bar near a score's own limit are
    not symmetric."""
    gaps = sign * (np.asarray(scores, float) - bar)
    low, high = interval(gaps, mean)
    reached = np.asarray(scores, float) >= bar  # what just reaches it is above, whatever is claimed
    as_claimed = int(np.sum(reached if sign > 0 else ~reached))
    p = [float(binomtest(count, len(gaps), alternative="greater").pvalue) for count in (as_claimed, len(gaps) - as_claimed)]
    return Test(what, float(gaps.mean()), low, high, *p)


def exactly(what: str, found: float, claimed: float) -> Test:
    """Whether a number that no chance is in is the one claimed."""
    same = found == claimed
    return Test(what, found, found, found, 0.0 if same else 1.0, 1.0 if same else 0.0)


def _p(gaps: np.ndarray, alternative: str) -> float:
    if not np.any(gaps):
        return 1.0
    if len(gaps) == 1:  # which SciPy does not take
        return 0.5 if (gaps[0] > 0) == (alternative == "greater") else 1.0
    result = permutation_test((gaps,), np.mean, permutation_type="samples", alternative=alternative, rng=0, vectorized=True)
    return float(result.pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for being several (Holm 1979)."""
    order = np.argsort(values)
    stepped = np.maximum.accumulate([min(1.0, (len(values) - rank) * values[i]) for rank, i in enumerate(order)])
    corrected = np.empty(len(values))
    corrected[order] = stepped
    return corrected.tolist()


def verdict(tests: Sequence[Test]) -> str:
    """By the rule above."""
    if not tests:
        return MISSING
    if all(p < ALPHA for p in holm([test.for_it for test in tests])):
        return HOLDS
    return FAILS if any(p < ALPHA for p in holm([test.against for test in tests])) else UNDECIDED
