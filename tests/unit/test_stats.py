"""Statistics over seeds agree with numbers worked out by hand."""

import math

import numpy as np
import pytest

from engram.errors import EngramError
from engram.stats import (
    area,
    format_return,
    interval,
    iqm,
    mean,
    mean_curve,
    permutation_p,
    probability_of_improvement,
    running_mean,
    summary,
)


def test_iqm_drops_a_quarter_at_each_end():
    assert iqm([100.0, 2.0, 3.0, -50.0]) == 2.5
    assert iqm([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 700.0]]) == pytest.approx(
        (2 + 3 + 4 + 5) / 4
    )  # all tasks together


def test_iqm_of_a_nan_is_nan():
    assert math.isnan(iqm([1.0, 2.0, 3.0, math.nan]))


def test_interval_of_equal_returns_is_empty():
    assert interval([4.0, 4.0, 4.0]) == (4.0, 4.0)
    assert interval([7.0], mean) == (7.0, 7.0)


def test_interval_of_two_returns_follows_the_binomial_distribution():
    # the mean of two draws from {0, 1} is 0, 1/2 or 1 with probabilities 1/4, 1/2, 1/4
    assert interval([0.0, 1.0], mean) == (0.0, 1.0)
    assert interval([0.0, 1.0], mean, level=0.4) == (0.5, 0.5)


def test_interval_of_a_mean_spans_two_standard_errors_each_way():
    returns = np.random.default_rng(1).normal(10.0, 3.0, 400)
    low, high = interval(returns, mean)
    error = returns.std() / math.sqrt(400)
    assert low == pytest.approx(returns.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(returns.mean() + 1.96 * error, abs=0.15 * error)


def test_interval_covers_the_true_mean_at_its_level():
    draws = np.random.default_rng(2).normal(0.0, 1.0, (200, 30))
    intervals = np.array([interval(returns, mean, level=0.8, resamples=300) for returns in draws])
    covered = np.mean((intervals[:, 0] < 0) & (intervals[:, 1] > 0))
    assert 0.7 < covered < 0.88


def test_seeds_are_resampled_within_tasks():
    # within a task all seeds agree, so there is no uncertainty, though the tasks differ
    assert interval([[0.0, 0.0, 0.0], [10.0, 10.0, 10.0]], mean) == (5.0, 5.0)
    low, high = interval([0.0, 0.0, 0.0, 10.0, 10.0, 10.0], mean)
    assert low < 3
    assert high > 7


def test_tasks_are_resampled_independently():
    # were the same seeds drawn in both tasks, the two would cancel out and the interval be empty
    low, high = interval([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]], mean)
    assert low < 1.3
    assert high > 1.7


def test_interval_is_deterministic_given_its_seed():
    returns = np.random.default_rng(0).normal(size=20)
    assert interval(returns) == interval(returns)
    assert interval(returns) != interval(returns, seed=1)


def test_area_is_a_mean_return():
    assert area(np.array([0, 10, 30]), np.array([0.0, 2.0, 2.0])) == pytest.approx(
        (10 * 1 + 20 * 2) / 30
    )
    assert area(np.array([5, 6]), np.array([3.0, 3.0])) == 3.0


def test_area_starts_at_the_first_return():
    assert area(np.array([0, 10, 20, 30]), np.array([math.nan, math.nan, 1.0, 3.0])) == 2.0
    assert area(np.array([0, 10]), np.array([math.nan, 4.0])) == 4.0
    assert math.isnan(area(np.array([0, 10]), np.array([math.nan, math.nan])))


def test_summary_by_hand():
    steps = np.array([0, 10, 20])
    result = summary(
        {1: (steps, np.array([0.0, 4.0, 4.0])), 0: (steps, np.array([math.nan, 0.0, 2.0]))}
    )
    final, auc = result["final"], result["auc"]
    assert final["per_seed"] == [2.0, 4.0]
    assert final["mean"] == final["iqm"] == 3.0
    assert final["std"] == pytest.approx(math.sqrt(2))
    assert final["ci95"] == [2.0, 4.0]
    assert auc["per_seed"] == [1.0, 3.0]
    assert auc["mean"] == 2.0
    assert auc["ci95"] == [1.0, 3.0]


def test_one_seed_has_no_standard_deviation():
    final = summary({3: (np.array([0, 1]), np.array([1.0, 5.0]))})["final"]
    assert final == {"mean": 5.0, "std": 0.0, "iqm": 5.0, "ci95": [5.0, 5.0], "per_seed": [5.0]}


def test_seed_without_a_return_makes_the_mean_nan():
    steps = np.array([0, 1])
    final = summary({0: (steps, np.array([1.0, 1.0])), 1: (steps, np.array([math.nan, math.nan]))})[
        "final"
    ]
    assert math.isnan(final["mean"])
    assert math.isnan(final["iqm"])
    assert all(map(math.isnan, final["ci95"]))


@pytest.mark.parametrize("curves", [{}, {0: (np.array([]), np.array([]))}])
def test_empty_curves_cannot_be_summed_up(curves):
    with pytest.raises(EngramError, match="nothing to sum up"):
        summary(curves)


def test_mean_curve_covers_the_steps_common_to_all_seeds():
    curves = {
        0: (np.array([0, 10, 20, 30]), np.array([math.nan, 1.0, 2.0, 3.0])),
        1: (np.array([0, 10, 20]), np.array([9.0, 3.0, 4.0])),
        2: (np.array([0, 10, 20]), np.full(3, math.nan)),
    }
    steps, middle, low, high = mean_curve(curves)
    assert steps.tolist() == [10, 20]
    assert middle.tolist() == [2.0, 3.0]
    assert low.tolist() == [1.0, 2.0]  # of two seeds the interval is both of them
    assert high.tolist() == [3.0, 4.0]


def test_mean_curve_interpolates_seeds_with_different_steps():
    curves = {
        0: (np.array([0, 20]), np.array([0.0, 20.0])),
        1: (np.array([0, 10, 20]), np.array([0.0, 0.0, 0.0])),
    }
    steps, middle, *_ = mean_curve(curves)
    assert steps.tolist() == [0, 10, 20]
    assert middle.tolist() == [0.0, 5.0, 10.0]


def test_long_mean_curve_is_thinned_but_keeps_its_ends():
    steps, middle, *_ = mean_curve({0: (np.arange(10_000), np.arange(10_000.0))}, points=50)
    assert len(steps) == 50
    assert (steps[0], steps[-1]) == (0, 9_999)
    np.testing.assert_array_equal(middle, steps)


def test_mean_curve_without_returns_is_empty():
    assert [len(part) for part in mean_curve({0: (np.array([0, 1]), np.full(2, math.nan))})] == [
        0,
        0,
        0,
        0,
    ]
    assert [len(part) for part in mean_curve({})] == [0, 0, 0, 0]


def test_two_sided_p_value_by_hand():
    # of the eight flips of (1, 2, 4) the identity is as large, and its opposite as small
    assert permutation_p([1.0, 2.0, 4.0]) == pytest.approx(2 / 8)
    assert permutation_p([1.0, 2.0, 4.0], "greater") == pytest.approx(1 / 8)
    assert permutation_p([1.0, -1.0]) == 1.0
    assert permutation_p([3.0]) == 1.0
    assert permutation_p([3.0], "greater") == 0.5
    assert permutation_p([0.0, 0.0]) == 1.0


def test_probability_of_improvement_counts_pairs_and_half_of_ties():
    # 3 beats 1 and 2, 2 beats 1 and ties with 2
    assert probability_of_improvement([3.0, 2.0], [1.0, 2.0]) == 3.5 / 4
    assert probability_of_improvement([5.0], [5.0, 5.0]) == 0.5


def test_running_mean_looks_back_and_starts_at_the_first_return():
    returns = np.array([math.nan, 2.0, 4.0, 9.0, 5.0])
    np.testing.assert_allclose(running_mean(returns, 1), returns)
    np.testing.assert_allclose(running_mean(returns, 3), [math.nan, 2.0, 3.0, 5.0, 6.0])
    np.testing.assert_allclose(running_mean(returns, 99), [math.nan, 2.0, 3.0, 5.0, 5.0])


@pytest.mark.parametrize(
    ("number", "text"),
    [(200, "200.0"), (0, "0.0"), (-12.34, "-12.3"), (0.1234, "0.123"), (math.nan, "–")],
)
def test_returns_have_one_decimal_or_three_digits(number, text):
    assert format_return(number) == text
