"""Periodic updates: a branch in the program, or none if the pattern of updates is fixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.periodic import (
    common_pattern,
    fixed_schedule,
    pattern_at,
    patterns_at,
    periodically,
    record_schedules,
)


def program(step, x):
    """A program with two periodic updates."""

    def add_one():
        return x + 1

    x = periodically(lambda step: step % 3 == 0, step, add_one, lambda: x)
    is_due = lambda step: (step > 4) & (step % 2 == 0)  # noqa: E731
    return periodically(is_due, step, lambda: x * 10, lambda: -x)


def run(step):
    """Compiles the program again, and runs it."""
    return jax.jit(lambda step: program(step, jnp.float32(1)))(jnp.int32(step))


def count_branches():
    jaxpr = jax.make_jaxpr(jax.vmap(lambda x: program(jnp.int32(0), x)))(jnp.ones(2))
    return str(jaxpr).count("cond[")


@pytest.fixture(scope="module")
def schedules():
    with record_schedules() as schedules:
        run(0)
    return schedules


@pytest.mark.parametrize(
    ("step", "result"), [(0, -2.0), (1, -1.0), (3, -2.0), (6, 20.0), (8, 10.0)]
)
def test_a_fixed_schedule_gives_the_same_result_as_branches(schedules, step, result):
    with_branches = run(step)
    with fixed_schedule(pattern_at(schedules, step)):
        without_branches = run(step)
    assert with_branches == without_branches == result


def test_a_fixed_schedule_has_no_branches():
    assert count_branches() == 2
    with fixed_schedule((True, False)):
        assert count_branches() == 0


def test_patterns_at_many_steps_are_those_at_each(schedules):
    steps = np.arange(20)
    expected = [pattern_at(schedules, int(step)) for step in steps]
    np.testing.assert_array_equal(patterns_at(schedules, steps), expected)


def test_the_common_pattern_is_that_of_most_iterations(schedules):
    assert common_pattern(schedules, 5) == (False, False)
    often = [lambda step: step % 2 < 2, lambda step: step % 3 > 0]
    assert common_pattern(often, 10_000) == (True, True)
    assert common_pattern([], 10) is None


@pytest.mark.parametrize("uses_python", [False, True])
def test_a_condition_on_more_than_the_step_has_no_common_pattern(uses_python):
    def program(step, flag):
        is_due = lambda _: flag and True if uses_python else flag & (step > 0)  # noqa: E731
        return periodically(is_due, step, lambda: step, lambda: step + 1)

    with record_schedules() as schedules:
        jaxpr_error = None
        try:
            jax.make_jaxpr(program)(jnp.int32(0), jnp.bool_(True))
        except jax.errors.TracerBoolConversionError as error:
            jaxpr_error = error
    assert (jaxpr_error is not None) == uses_python
    assert len(schedules) == 1
    assert common_pattern(schedules, 10) is None


def test_a_pattern_of_another_length_is_refused():
    with pytest.raises(RuntimeError, match="more periodic updates"), fixed_schedule((True,)):
        run(1)
    with pytest.raises(RuntimeError, match="fewer periodic updates"), fixed_schedule((True,) * 3):
        run(1)


def test_recorded_and_fixed_schedules_end_with_their_block():
    with record_schedules() as schedules, fixed_schedule((True, True)):
        assert run(1) == 20
    assert run(1) == -1
    assert len(schedules) == 2
