"""Verdicts follow from p-values by the stated rule, checked by numbers worked out by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.paper.verdicts import (
    ALPHA,
    FAILS,
    HOLDS,
    MISSING,
    UNDECIDED,
    Comparison,
    compare,
    compare_exactly,
    compare_to_threshold,
    holm,
    verdict,
)


def comparison(p_for: float, p_against: float = 1.0) -> Comparison:
    return Comparison("", 0.0, 0.0, 0.0, p_for, p_against)


def test_permutation_p_value_by_hand():
    """Of the eight sign flips of (1, 2, 4) only the identity has a mean as large."""
    result = compare("a − b", [2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (result.mean, result.p_for, result.p_against) == (
        pytest.approx(7 / 3),
        pytest.approx(1 / 8),
        1.0,
    )
    assert 1 <= result.low <= result.high <= 4


def test_equal_returns_have_p_value_one():
    result = compare("", [1.0, 2.0], [1.0, 2.0])
    assert (result.p_for, result.p_against) == (1.0, 1.0)


def test_threshold_p_value_counts_seeds():
    """Nine of ten seeds reach it: 1 + 10 of 1,024 outcomes of a fair coin are as good."""
    result = compare_to_threshold("", [195.0] * 9 + [0.0], 195.0)
    assert result.p_for == pytest.approx(11 / 1024)
    assert result.p_against == pytest.approx(1 - 1 / 1024)
    assert result.mean == pytest.approx(-19.5)
    below = compare_to_threshold("", [195.0] * 9 + [0.0], 195.0, -1)
    assert (below.p_for, below.p_against) == (result.p_against, result.p_for)


def test_holm_by_hand():
    # sorted: 0.01 x 3, 0.02 x 2, and 0.03, which must not be smaller than the one before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@settings(max_examples=50)
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_like_its_step_down_procedure(values):
    """From the smallest up, each is compared with alpha over the number left, until one fails."""
    rejected = set()
    for rank, i in enumerate(np.argsort(values, kind="stable")):
        if values[i] * (len(values) - rank) >= ALPHA:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(values)) if p < ALPHA} == rejected


def test_claim_needs_all_comparisons_to_hold_and_one_to_fail():
    seeds = np.arange(10.0)
    better, worse, equal = seeds + 1, seeds - 1, seeds + np.tile([1, -1], 5)
    results = {
        HOLDS: compare("", better, seeds),
        FAILS: compare("", worse, seeds),
        UNDECIDED: compare("", equal, seeds),
    }
    for a, b in product(results, results):
        both = FAILS if FAILS in (a, b) else UNDECIDED if UNDECIDED in (a, b) else HOLDS
        assert verdict([results[a], results[b]]) == both
        assert verdict([results[a]]) == a
    assert verdict([]) == MISSING


def test_conjunction_holds_without_correction():
    """An intersection-union test: nine times p = 0.04 holds, though Holm would reject none."""
    assert min(holm([0.04] * 9)) > ALPHA
    assert verdict([comparison(0.04)] * 9) == HOLDS
    assert verdict([comparison(0.04)] * 8 + [comparison(0.06)]) == UNDECIDED


def test_conjunction_fails_only_after_correction():
    """p = 0.006 the other way fails among nine (0.054 would not) and not among 36 comparisons."""
    against = comparison(1.0, 0.005)
    neutral = comparison(0.5, 0.5)
    assert verdict([against] + [neutral] * 8) == FAILS  # 0.005 x 9 = 0.045
    assert verdict([comparison(1.0, 0.006)] + [neutral] * 8) == UNDECIDED  # 0.054
    assert verdict([against] + [neutral] * 35) == UNDECIDED  # 0.18


def test_numbers_without_chance_are_compared_exactly():
    assert verdict([compare_exactly("", 43.0, 43.0)]) == HOLDS
    assert verdict([compare_exactly("", 43.0, 43.0), compare_exactly("", 22.0, 43.0)]) == FAILS
