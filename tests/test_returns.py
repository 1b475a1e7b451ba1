"""Targets and advantages agree with numbers worked out by hand, and with sums in two loops."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.returns import advantages, td_loss, td_target

ADVANTAGES = jax.jit(advantages)


def test_nothing_follows_an_end():
    q_next = jnp.array([[1.0, 6.0], [8.0, 2.0]])
    assert td_target(jnp.array([1.0, 1.0]), jnp.array([0.0, 1.0]), q_next, 0.5).tolist() == [4.0, 1.0]


def test_a_chooser_chooses_and_the_other_values():
    q_next, chooser = jnp.array([[1.0, 6.0], [8.0, 2.0]]), jnp.array([[3.0, 2.0], [3.0, 2.0]])
    assert td_target(jnp.ones(2), jnp.zeros(2), q_next, jnp.array([0.5, 0.25]), chooser).tolist() == [1.5, 3.0]


def test_errors_count_by_their_square_or_by_their_size():
    target, value = jnp.array([1.0, 5.0]), jnp.array([0.5, 1.0])
    assert td_loss(target, value).item() == (0.25 + 16) / 2
    assert td_loss(target, value, huber=True).item() == (0.125 + 3.5) / 2


def test_advantages_by_hand_with_an_end_in_the_middle():
    reward, value, done = (jnp.array(x, jnp.float32) for x in ([1, 2, 4, 8], [10, 20, 40, 80], [0, 1, 0, 0]))
    # with gamma = 1/2 and lambda = 1/2. Errors: 1 + 20/2 - 10, 2 - 20 (the end), 4 + 80/2 - 40, 8 + 160/2 - 80
    # then from behind: 8; 4 + 8/4; -18, as nothing comes over the end; 1 - 18/4
    assert ADVANTAGES(reward, value, done, jnp.float32(160), 0.5, 0.5).tolist() == [-3.5, -18.0, 6.0, 8.0]


def test_an_end_at_the_last_step_hides_what_follows():
    one = jnp.ones(1)
    assert ADVANTAGES(one, one * 5, one, jnp.float32(1e6), 0.9, 0.9).tolist() == [-4.0]


def test_with_lambda_1_an_advantage_is_the_return_less_the_value_and_with_0_one_error():
    reward, value, done = jnp.array([1.0, 1.0, 1.0]), jnp.array([3.0, 5.0, 7.0]), jnp.zeros(3)
    assert ADVANTAGES(reward, value, done, jnp.float32(8), 0.5, 1.0).tolist() == [1 + 0.5 + 0.25 + 1 - 3, 1 + 0.5 + 2 - 5, 1 + 4 - 7]
    assert ADVANTAGES(reward, value, done, jnp.float32(8), 0.5, 0.0).tolist() == [1 + 2.5 - 3, 1 + 3.5 - 5, 1 + 4 - 7]


NUMBERS = st.lists(st.integers(-9, 9), min_size=12, max_size=12)


@settings(max_examples=40)
@given(reward=NUMBERS, value=NUMBERS, done=st.lists(st.booleans(), min_size=12, max_size=12), last=st.tuples(*[st.integers(-9, 9)] * 2))
def test_advantages_are_those_of_two_loops(reward, value, done, last):
    """Sums of discounted errors, each up to the first end, for two environments."""
    gamma, decay = 0.9, 0.7
    reward, value, done = (np.array(x, np.float32).reshape(6, 2) for x in (reward, value, done))
    found = ADVANTAGES(reward, value, done, np.array(last, np.float32), gamma, decay)
    for env in range(2):
        follows = [*value[1:, env], last[env]]
        for t in range(6):
            total, weight = 0.0, 1.0
            for k in range(t, 6):
                total += weight * (reward[k, env] + gamma * (1 - done[k, env]) * follows[k] - value[k, env])
                if done[k, env]:
                    break
                weight *= gamma * decay
            np.testing.assert_allclose(found[t, env], total, rtol=1e-4, atol=1e-4)
