"""Verdicts on the paper's claims, computed by statistical tests and never written by hand."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binomtest

from engram.stats import interval, mean, permutation_p

HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold", "undecided", "not run yet"
ALPHA = 0.05
RULE = (
    "Each comparison is tested in both directions. Two agents are compared by a paired permutation "
    "test, by seed unless stated otherwise: the signs of the differences are flipped (all flips of "
    "up to 13 differences, else 9,999 random ones). An agent and a fixed threshold are compared by "
    "an exact binomial test on the number of seeds, or of games where stated, on either side of "
    "it. A claim is a conjunction: it says that all of its comparisons come out as claimed. So it "
    f"*{HOLDS}* if each of them does with p < {ALPHA}; this intersection-union test needs no "
    f"correction. It *{FAILS}* if at least one comes out the other way with p < {ALPHA} after "
    "Holm's correction over its family, and is otherwise "
    f"*{UNDECIDED}*. A family is the comparisons of one claim, and a claim that names several "
    "rivals is split into one claim per rival, so that many comparisons with a weak rival do not "
    "weaken the test against a strong one. Intervals are 95% bootstrap intervals of the mean over "
    "seeds, or over games where these are counted."
)


class Comparison(NamedTuple):
    """One comparison of a claim; a positive mean is what the paper claims."""

    what: str
    mean: float
    low: float
    high: float
    p_for: float
    """p-value of a mean at least as large if there were no difference"""
    p_against: float
    """p-value of a mean at least as small"""


def compare(what: str, ours: ArrayLike, theirs: ArrayLike) -> Comparison:
    """Tests whether `ours` exceeds `theirs`, paired by seed."""
    differences = np.asarray(ours, float) - np.asarray(theirs, float)
    low, high = interval(differences, mean)
    p_for, p_against = permutation_p(differences, "greater"), permutation_p(differences, "less")
    return Comparison(what, float(differences.mean()), low, high, p_for, p_against)


def compare_to_threshold(
    what: str, returns: ArrayLike, threshold: float, sign: int = 1
) -> Comparison:
    """Tests whether most seeds reach a threshold, or with sign -1 whether most stay below it.

    Seeds are counted because distances from a threshold near the maximum return are skewed."""
    returns = np.asarray(returns, float)
    differences = sign * (returns - threshold)
    low, high = interval(differences, mean)
    reached = returns >= threshold  # equality counts as reached in both directions
    count, total = int(np.sum(reached if sign > 0 else ~reached)), len(returns)
    p_for = float(binomtest(count, total, alternative="greater").pvalue)
    p_against = float(binomtest(total - count, total, alternative="greater").pvalue)
    return Comparison(what, float(differences.mean()), low, high, p_for, p_against)


def compare_exactly(what: str, value: float, claimed: float) -> Comparison:
    """Compares two numbers that do not depend on chance."""
    is_equal = value == claimed
    return Comparison(what, value, value, value, 1.0 - is_equal, float(is_equal))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple comparisons (Holm 1979)."""
    order = np.argsort(p_values)
    stepped = [min(1.0, (len(p_values) - rank) * p_values[i]) for rank, i in enumerate(order)]
    corrected = np.empty(len(p_values))
    corrected[order] = np.maximum.accumulate(stepped)
    return corrected.tolist()


def verdict(comparisons: Sequence[Comparison]) -> str:
    """The verdict on a conjunction of comparisons, which form one family (see RULE)."""
    if not comparisons:
        return MISSING
    if all(comparison.p_for < ALPHA for comparison in comparisons):
        return HOLDS
    p_against = holm([comparison.p_against for comparison in comparisons])
    return FAILS if any(p < ALPHA for p in p_against) else UNDECIDED
