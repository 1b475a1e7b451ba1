"""Work on some steps: a branch, or none where it is known how it goes."""

import jax
import jax.numpy as jnp
import pytest

from engram.schedule import noting, of_step, settled, usual, when


def program(step, x):
    x = when(lambda step: step % 3 == 0, step, lambda: x + 1, lambda: x)
    return when(lambda step: (step > 4) & (step % 2 == 0), step, lambda: x * 10, lambda: -x)


def run(step):
    """A program that was not traced before."""
    return jax.jit(lambda step: program(step, jnp.float32(1)))(jnp.int32(step))


def work():
    with noting() as found:
        run(0)
    return found


def branches(*known):
    with settled(known) if known else noting():
        return str(jax.make_jaxpr(jax.vmap(lambda x: program(jnp.int32(0), x)))(jnp.ones(2))).count("cond[")


@pytest.mark.parametrize(("step", "found"), [(0, -2.0), (1, -1.0), (3, -2.0), (6, 20.0), (8, 10.0)])
def test_a_program_that_knows_the_step_does_what_one_that_branches_does(step, found):
    branching = run(step)
    with settled(of_step(work(), step)):
        straight = run(step)
    assert branching == straight == found


def test_what_is_known_needs_no_branch():
    assert branches() == 2
    assert branches(True, False) == 0


def test_the_usual_step_is_the_most_frequent_kind():
    assert of_step(work(), 6) == (True, True)
    assert usual(work(), range(5)) == (False, False)
    assert usual(work(), [6, 12, 1]) == (True, True)


def test_work_that_is_known_in_another_order_is_refused():
    with pytest.raises(RuntimeError, match="more work than was noted"), settled((True,)):
        run(1)
    with pytest.raises(RuntimeError, match="less work than was noted"), settled((True, True, True)):
        run(1)


def test_what_was_settled_or_noted_ends_with_its_block():
    with noting() as noted, settled((True, True)):
        assert run(1) == 20
    assert run(1) == -1
    assert len(noted) == 2
