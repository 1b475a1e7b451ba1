"""TD targets and advantages agree with numbers computed by hand, and with sums in two loops."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.targets import (
    generalized_advantages,
    n_step_targets,
    quantile_loss,
    quantile_target,
    td_loss,
    td_target,
)

ADVANTAGES = jax.jit(generalized_advantages)


def test_a_terminal_transition_has_no_bootstrap():
    next_q = jnp.array([[1.0, 6.0], [8.0, 2.0]])
    target = td_target(jnp.array([1.0, 1.0]), jnp.array([0.0, 1.0]), next_q, 0.5)
    assert target.tolist() == [4.0, 1.0]


def test_double_q_learning_evaluates_the_action_that_the_selector_prefers():
    next_q = jnp.array([[1.0, 6.0], [8.0, 2.0]])
    selector_q = jnp.array([[3.0, 2.0], [3.0, 2.0]])
    gamma = jnp.array([0.5, 0.25])
    target = td_target(jnp.ones(2), jnp.zeros(2), next_q, gamma, selector_q)
    assert target.tolist() == [1.5, 3.0]


def test_the_td_loss_is_a_mean_of_squares_or_of_huber_losses():
    target, value = jnp.array([1.0, 5.0]), jnp.array([0.5, 1.0])
    assert td_loss(target, value).item() == (0.25 + 16) / 2
    assert td_loss(target, value, "huber").item() == (0.125 + 3.5) / 2


def test_samples_of_a_target_are_those_of_the_action_that_the_selector_prefers():
    next_quantiles = jnp.array([[[1.0, 6.0], [3.0, 8.0]], [[2.0, 4.0], [5.0, 7.0]]])  # [B, M, A]
    selector_q = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    reward, gamma = jnp.array([1.0, 10.0]), jnp.array([0.5, 0.25])
    target = quantile_target(reward, jnp.zeros(2), next_quantiles, gamma, selector_q)
    assert target.tolist() == [[4.0, 5.0], [10.5, 11.25]]
    target = quantile_target(reward, jnp.array([1.0, 0.0]), next_quantiles, 0.5, selector_q)
    assert target.tolist() == [[1.0, 1.0], [11.0, 12.5]]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 4), m=st.integers(1, 4))
def test_the_quantile_loss_is_a_sum_over_levels_of_means_over_samples(seed, n, m):
    rng = np.random.default_rng(seed)
    target, quantiles, levels = rng.normal(size=(3, m)), rng.normal(size=(3, n)), rng.random((3, n))
    total = 0.0
    for b in range(3):
        for i in range(n):
            for j in range(m):
                error = target[b, j] - quantiles[b, i]
                huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
                total += abs(levels[b, i] - (error < 0)) * huber / m / 3
    np.testing.assert_allclose(quantile_loss(target, quantiles, levels), total, rtol=1e-5)


def test_advantages_do_not_cross_the_end_of_an_episode():
    numbers = [1, 2, 4, 8], [10, 20, 40, 80], [0, 1, 0, 0]
    reward, value, done = (jnp.array(x, jnp.float32) for x in numbers)
    # With gamma = 1/2 and lambda = 1/2. TD errors: 1 + 20/2 - 10, 2 - 20 (the end),
    # 4 + 80/2 - 40, 8 + 160/2 - 80. Then backwards: 8; 4 + 8/4; -18; 1 - 18/4.
    advantages = ADVANTAGES(reward, value, done, jnp.float32(160), 0.5, 0.5)
    assert advantages.tolist() == [-3.5, -18.0, 6.0, 8.0]


def test_an_episode_that_ends_at_the_last_step_ignores_the_last_value():
    one = jnp.ones(1)
    assert ADVANTAGES(one, one * 5, one, jnp.float32(1e6), 0.9, 0.9).tolist() == [-4.0]


def test_with_lambda_1_an_advantage_is_the_return_minus_the_value():
    reward, value, done = jnp.ones(3), jnp.array([3.0, 5.0, 7.0]), jnp.zeros(3)
    advantages = ADVANTAGES(reward, value, done, jnp.float32(8), 0.5, 1.0)
    assert advantages.tolist() == [1 + 0.5 + 0.25 + 1 - 3, 1 + 0.5 + 2 - 5, 1 + 4 - 7]


def test_with_lambda_0_an_advantage_is_one_td_error():
    reward, value, done = jnp.ones(3), jnp.array([3.0, 5.0, 7.0]), jnp.zeros(3)
    advantages = ADVANTAGES(reward, value, done, jnp.float32(8), 0.5, 0.0)
    assert advantages.tolist() == [1 + 2.5 - 3, 1 + 3.5 - 5, 1 + 4 - 7]


NUMBERS = st.lists(st.integers(-9, 9), min_size=12, max_size=12)


@settings(max_examples=40)
@given(
    reward=NUMBERS,
    value=NUMBERS,
    done=st.lists(st.booleans(), min_size=12, max_size=12),
    last_value=st.tuples(*[st.integers(-9, 9)] * 2),
)
def test_advantages_are_sums_of_discounted_td_errors(reward, value, done, last_value):
    """Each sum goes to the first episode end, for two environments."""
    gamma, gae_lambda = 0.9, 0.7
    reward, value, done = (np.array(x, np.float32).reshape(6, 2) for x in (reward, value, done))
    last_value = np.array(last_value, np.float32)
    advantages = ADVANTAGES(reward, value, done, last_value, gamma, gae_lambda)
    next_value = np.concatenate([value[1:], last_value[None]])
    td_error = reward + gamma * (1 - done) * next_value - value
    expected = np.zeros((6, 2))
    for env in range(2):
        for t in range(6):
            for k in range(t, 6):
                expected[t, env] += (gamma * gae_lambda) ** (k - t) * td_error[k, env]
                if done[k, env]:
                    break
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)


N_STEP_TARGETS = jax.jit(n_step_targets, static_argnums=5)


@settings(max_examples=40)
@given(
    reward=NUMBERS,
    next_value=NUMBERS,
    end=st.lists(st.sampled_from(["no", "no", "terminal", "truncated"]), min_size=12, max_size=12),
    n=st.sampled_from([1, 2, 3, 9]),
)
def test_n_step_targets_are_sums_of_discounted_rewards_and_one_value(reward, next_value, end, n):
    """They are for two environments; a truncated step's target is not used."""
    gamma = 0.5
    reward, next_value = (np.array(x, np.float32).reshape(6, 2) for x in (reward, next_value))
    end = np.array(end).reshape(6, 2)
    is_terminal, is_truncated = (end == kind for kind in ("terminal", "truncated"))
    terminal = is_terminal.astype(np.float32)
    targets = N_STEP_TARGETS(reward, terminal, is_truncated, next_value, gamma, n)
    for env in range(2):
        for t in np.flatnonzero(~is_truncated[:, env]):
            total, last = 0.0, t
            while True:
                total += gamma ** (last - t) * reward[last, env]
                ends = last + 1 in (6, t + n) or is_truncated[last + 1, env]
                if ends or is_terminal[last, env]:
                    break
                last += 1
            if not is_terminal[last, env]:
                total += gamma ** (last - t + 1) * next_value[last, env]
            np.testing.assert_allclose(targets[t, env], total, rtol=1e-6)
