"""The tasks in JAX are Gymnasium's, and their noise is that of the wrappers."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engram.tasks.classic import CartPole, MountainCar, Noise, State
from engram.types import Outcome

KEY = jax.random.key(0)
QUIET = Noise()
STEP = {dynamics: jax.jit(dynamics.step) for dynamics in (CartPole(), MountainCar())}
IDS = {CartPole(): "CartPole-v1", MountainCar(): "MountainCar-v0"}
ENVS = {dynamics: gym.make(id).unwrapped for dynamics, id in IDS.items()}
BOTH = pytest.mark.parametrize("dynamics", [CartPole(), MountainCar()], ids=["cartpole", "mountaincar"])
DRAWS = 20_000


def state_of(physics, t=0):
    physics = jnp.asarray(physics, jnp.float32)
    return State(physics, physics, jnp.int32(t))


def side_by_side(dynamics, policy, seed, start=None, resync=False):
    """Plays one episode in both and compares each step; returns its length and how it ended."""
    env, random = gym.make(IDS[dynamics], max_episode_steps=200), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    observation = observation if start is None else np.array(start, np.float32)
    env.unwrapped.state = observation.astype(np.float64)
    state = state_of(observation)
    for t in range(1, 1000):
        action = policy(observation, random)
        if resync:
            state = state_of(env.unwrapped.state, t - 1)
        observation, reward, terminated, truncated, _ = env.step(action)
        state, outcome = STEP[dynamics](QUIET, state, jnp.int32(action), KEY)
        np.testing.assert_allclose(outcome.observation, observation, atol=1e-5)
        assert (reward, reward) == (outcome.reward, outcome.true_reward)
        assert (terminated, truncated) == (outcome.terminated, outcome.truncated), f"at step {t}"
        if terminated or truncated:
            return t, terminated, truncated
    raise AssertionError("the episode never ended")


def randomly(actions):
    return lambda observation, random: int(random.integers(actions))


def balance(observation, random):
    return int(observation @ [0.05, 0.1, 1.0, 0.3] > 0)


def pump(observation, random):
    return 2 if observation[1] >= 0 else 0


@pytest.mark.parametrize("seed", range(5))
def test_cart_pole_falls_when_gymnasiums_does(seed):
    length, terminated, truncated = side_by_side(CartPole(), randomly(2), seed)
    assert (terminated, truncated) == (True, False)
    assert length < 200


@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_cart_pole_is_cut_at_200_steps(seed):
    # An upright pole is unstable, so that rounding grows a million times in 200 steps: start each step anew from one state.
    assert side_by_side(CartPole(), balance, seed, resync=True) == (200, False, True)


@pytest.mark.parametrize("side", [-1, 1])
def test_a_cart_that_leaves_the_track_ends_the_episode(side):
    length, terminated, _ = side_by_side(CartPole(), balance, 0, start=np.array([2.35, 1.0, 0.0, 0.0]) * side)
    assert terminated
    assert length == 3  # 2.37, 2.39, 2.41


@pytest.mark.parametrize("seed", range(5))
def test_a_pumped_mountain_car_reaches_the_goal_when_gymnasiums_does(seed):
    length, terminated, truncated = side_by_side(MountainCar(), pump, seed)
    assert (terminated, truncated) == (True, False)
    assert 80 < length < 200


@pytest.mark.parametrize("policy", [randomly(3), lambda *_: 0], ids=["random", "left"])
def test_a_mountain_car_without_a_plan_is_cut_at_200_steps(policy):
    assert side_by_side(MountainCar(), policy, 3) == (200, False, True)


def test_the_wall_stops_the_mountain_car():
    state, outcome = STEP[MountainCar()](QUIET, state_of([-1.19, -0.07]), jnp.int32(0), KEY)
    assert outcome.observation == pytest.approx([-1.2, 0.0])
    assert state.physics[1] == 0


def test_an_episode_that_ends_at_its_last_step_is_cut_there_too():
    _, outcome = STEP[MountainCar()](QUIET, state_of([0.49, 0.05], t=199), jnp.int32(2), KEY)
    assert (outcome.terminated, outcome.truncated) == (True, True)


def alone(dynamics, physics, action):
    """One step of Gymnasium's environment, without a time limit, from a state of our choice."""
    env = ENVS[dynamics]
    env.reset()
    env.state = np.array(physics, np.float64)
    return env.step(action)


def number(low, high):
    return st.floats(low, high, width=32)


@settings(max_examples=150, deadline=None)
@given(st.tuples(*(number(-bound, bound) for bound in (2.5, 4.0, 0.25, 4.0))), st.integers(0, 1))
def test_one_step_of_cart_pole_is_gymnasiums(physics, action):
    observation, _, terminated, *_ = alone(CartPole(), physics, action)
    assume(abs(abs(observation[0]) - 2.4) > 1e-5)
    assume(abs(abs(observation[2]) - 0.20943951) > 1e-5)
    _, outcome = STEP[CartPole()](QUIET, state_of(physics), jnp.int32(action), KEY)
    np.testing.assert_allclose(outcome.observation, observation, atol=1e-5)
    assert outcome.terminated == terminated


@settings(max_examples=150, deadline=None)
@given(st.tuples(number(-1.1875, 0.59375), number(-0.0625, 0.0625)), st.integers(0, 2))
def test_one_step_of_mountain_car_is_gymnasiums(physics, action):
    observation, _, terminated, *_ = alone(MountainCar(), physics, action)
    velocity = physics[1] + (action - 1) * 0.001 - np.cos(3 * physics[0]) * 0.0025
    assume(all(abs(physics[0] + velocity - edge) > 1e-5 for edge in (-1.2, 0.5)))
    assume(abs(velocity) > 1e-6)
    _, outcome = STEP[MountainCar()](QUIET, state_of(physics), jnp.int32(action), KEY)
    np.testing.assert_allclose(outcome.observation, observation, atol=1e-5)
    assert outcome.terminated == terminated


@pytest.mark.parametrize(("dynamics", "low", "high"), [(CartPole(), [-0.05] * 4, [0.05] * 4), (MountainCar(), [-0.6, 0.0], [-0.4, 0.0])])
def test_episodes_start_where_gymnasiums_do(dynamics, low, high):
    state, observation = jax.vmap(lambda key: dynamics.reset(QUIET, key))(jax.random.split(KEY, 4000))
    low, high = np.array(low), np.array(high)
    assert np.all((observation >= low - 1e-7) & (observation <= high + 1e-7))
    # uniform: the quarters hold what they should
    assert np.quantile(observation, [0.25, 0.5, 0.75], axis=0) == pytest.approx(
        np.array([0.75 * low + 0.25 * high, (low + high) / 2, 0.25 * low + 0.75 * high]), abs=0.006
    )
    assert np.array_equal(observation, state.seen)
    assert np.array_equal(observation, state.physics)
    assert not state.t.any()


def many(dynamics, params) -> Outcome:
    """The same step under many keys."""
    seen = jnp.full_like(dynamics.reset(QUIET, KEY)[1], 9.0)  # nowhere near the truth, so that a repeat shows
    state = State(jnp.zeros_like(seen) - 0.01, seen, jnp.int32(0))
    step = jax.vmap(lambda key: dynamics.step(params, state, jnp.int32(1), key)[1])
    return jax.jit(step)(jax.random.split(KEY, DRAWS))


@BOTH
def test_without_noise_nothing_is_disturbed(dynamics):
    outcome = many(dynamics, QUIET)
    assert np.array_equal(outcome.reward, outcome.true_reward)
    assert np.all(outcome.observation < 1)


@BOTH
def test_gaussian_noise_has_mean_0_and_the_deviation_asked_for(dynamics):
    outcome = many(dynamics, Noise(gaussian=0.2))
    noise = np.array(outcome.reward - outcome.true_reward)
    assert np.unique(outcome.true_reward).size == 1
    assert abs(noise.mean()) < 4 * 0.2 / DRAWS**0.5
    assert noise.std() == pytest.approx(0.2, rel=0.02)
    assert [(noise < 0.2 * z).mean() for z in (-2, -1, 1, 2)] == pytest.approx([0.0228, 0.1587, 0.8413, 0.9772], abs=0.012)


@BOTH
def test_flips_and_repeats_come_as_often_as_asked_for_and_independently(dynamics):
    outcome = many(dynamics, Noise(bernoulli=0.2, transition=0.5))
    flipped, repeated = np.array(outcome.reward == -outcome.true_reward), np.array(outcome.observation[:, 0] == 9)
    assert np.array_equal(np.abs(outcome.reward), np.ones(DRAWS))
    assert (flipped.mean(), repeated.mean()) == pytest.approx((0.2, 0.5), abs=0.015)
    assert (flipped & repeated).mean() == pytest.approx(0.1, abs=0.01)


def test_probability_1_means_always():
    outcome = many(CartPole(), Noise(bernoulli=1.0, transition=1.0))
    assert np.all(outcome.reward == -1)
    assert np.all(outcome.observation == 9)


def episode(dynamics, params, steps=150):
    state, _ = dynamics.reset(params, KEY)

    def step(state, t):
        return dynamics.step(params, state, t % 2, jax.random.fold_in(KEY, t))

    def record(state, t):
        state, outcome = step(state, t)
        return state, (state.physics, outcome)

    return jax.lax.scan(record, state, jnp.arange(steps))[1]


NOISES = [QUIET, Noise(gaussian=0.2), Noise(bernoulli=0.2), Noise(transition=0.5)]


@BOTH
def test_runs_with_different_noise_share_one_program_and_the_same_truth(dynamics):
    params = jax.tree.map(lambda *numbers: jnp.array(numbers, jnp.float32), *NOISES)
    physics, outcome = jax.jit(jax.vmap(lambda noise: episode(dynamics, noise)))(params)
    for other in range(1, len(NOISES)):
        np.testing.assert_array_equal(physics[other], physics[0])
        np.testing.assert_array_equal(outcome.true_reward[other], outcome.true_reward[0])
        np.testing.assert_array_equal(outcome.terminated[other], outcome.terminated[0])
    disturbed_reward = [not np.array_equal(outcome.reward[i], outcome.true_reward[i]) for i in range(4)]
    disturbed_sight = [not np.array_equal(outcome.observation[i], physics[i]) for i in range(4)]
    assert disturbed_reward == [False, True, True, False]
    assert disturbed_sight == [False, False, False, True]


@BOTH
def test_a_repeat_shows_the_last_observed_observation(dynamics):
    physics, outcome = jax.jit(lambda: episode(dynamics, Noise(transition=0.5)))()
    physics, seen = np.array(physics), np.array(outcome.observation)
    fresh = np.all(seen == physics, axis=1)
    before = np.concatenate([dynamics.reset(QUIET, KEY)[1][None], seen[:-1]])
    assert np.array_equal(seen[~fresh], before[~fresh])
    stale_twice = ~fresh[1:] & ~fresh[:-1]
    assert stale_twice.sum() > 10  # where the last true observation would differ from the last observed one
    assert 50 < fresh.sum() < 100


@BOTH
def test_dtypes_hold_under_strict_promotion(dynamics):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        noise = Noise(*jnp.array([0.2, 0.2, 0.5], jnp.float32))
        start, _ = dynamics.reset(noise, KEY)
        state, outcome = dynamics.step(noise, start, jnp.int32(1), KEY)
    kinds = jax.tree.map(lambda array: (array.dtype, array.shape), (start, state))
    assert kinds[0] == kinds[1]  # or `scan` would refuse to carry it
    assert [array.dtype for array in outcome] == [jnp.float32] * 3 + [jnp.bool_] * 2
