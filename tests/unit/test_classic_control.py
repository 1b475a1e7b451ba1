"""Cart Pole and Mountain Car in JAX equal Gymnasium's, and their noise that of the wrappers."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engram.envs.classic_control import NO_NOISE, CartPole, MountainCar, Noise, State
from engram.types import EnvStep

KEY = jax.random.key(0)
STEP = {jax_env: jax.jit(jax_env.step) for jax_env in (CartPole(), MountainCar())}
IDS = {CartPole(): "CartPole-v1", MountainCar(): "MountainCar-v0"}
ENVS = {jax_env: gym.make(id).unwrapped for jax_env, id in IDS.items()}
BOTH = pytest.mark.parametrize(
    "jax_env", [CartPole(), MountainCar()], ids=["cartpole", "mountaincar"]
)
DRAWS = 20_000


def state_of(physics, episode_step=0):
    physics = jnp.asarray(physics, jnp.float32)
    return State(physics, physics, jnp.int32(episode_step))


def compare_episode(jax_env, policy, seed, start=None, resync=False):
    """Compares every step of an episode in both; returns its length, terminated and truncated."""
    env, rng = gym.make(IDS[jax_env], max_episode_steps=200), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    observation = observation if start is None else np.array(start, np.float32)
    env.unwrapped.state = observation.astype(np.float64)
    state = state_of(observation)
    for t in range(1, 1000):
        action = policy(observation, rng)
        if resync:
            state = state_of(env.unwrapped.state, t - 1)
        observation, reward, terminated, truncated, _ = env.step(action)
        state, env_step = STEP[jax_env](NO_NOISE, state, jnp.int32(action), KEY)
        np.testing.assert_allclose(env_step.observation, observation, atol=1e-5)
        assert (reward, reward) == (env_step.reward, env_step.true_reward)
        assert (terminated, truncated) == (env_step.terminated, env_step.truncated), f"at step {t}"
        if terminated or truncated:
            return t, terminated, truncated
    raise AssertionError("the episode never ended")


def random_policy(num_actions):
    return lambda observation, rng: int(rng.integers(num_actions))


def balance(observation, rng):
    return int(observation @ [0.05, 0.1, 1.0, 0.3] > 0)


def swing(observation, rng):
    return 2 if observation[1] >= 0 else 0


@pytest.mark.parametrize("seed", range(5))
def test_cart_pole_terminates_when_gymnasiums_does(seed):
    length, terminated, truncated = compare_episode(CartPole(), random_policy(2), seed)
    assert (terminated, truncated) == (True, False)
    assert length < 200


@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_cart_pole_is_truncated_at_200_steps(seed):
    # An upright pole is unstable: rounding errors grow a million times in 200 steps, unless each
    # step starts from the same state.
    assert compare_episode(CartPole(), balance, seed, resync=True) == (200, False, True)


@pytest.mark.parametrize("side", [-1, 1])
def test_a_cart_that_leaves_the_track_terminates(side):
    length, terminated, _ = compare_episode(
        CartPole(), balance, 0, start=np.array([2.35, 1.0, 0.0, 0.0]) * side
    )
    assert terminated
    assert length == 3  # 2.37, 2.39, 2.41


@pytest.mark.parametrize("seed", range(5))
def test_a_swinging_mountain_car_terminates_when_gymnasiums_does(seed):
    length, terminated, truncated = compare_episode(MountainCar(), swing, seed)
    assert (terminated, truncated) == (True, False)
    assert 80 < length < 200


@pytest.mark.parametrize("policy", [random_policy(3), lambda *_: 0], ids=["random", "left"])
def test_a_mountain_car_below_the_goal_is_truncated_at_200_steps(policy):
    assert compare_episode(MountainCar(), policy, 3) == (200, False, True)


def test_the_left_wall_stops_the_mountain_car():
    state, env_step = STEP[MountainCar()](NO_NOISE, state_of([-1.19, -0.07]), jnp.int32(0), KEY)
    assert env_step.observation == pytest.approx([-1.2, 0.0])
    assert state.physics[1] == 0


def test_the_last_step_can_be_terminated_and_truncated():
    _, env_step = STEP[MountainCar()](
        NO_NOISE, state_of([0.49, 0.05], episode_step=199), jnp.int32(2), KEY
    )
    assert (env_step.terminated, env_step.truncated) == (True, True)


def gym_step(jax_env, physics, action):
    """One step of Gymnasium's environment from a given state, without a time limit."""
    env = ENVS[jax_env]
    env.reset()
    env.state = np.array(physics, np.float64)
    return env.step(action)


def float32s(low, high):
    return st.floats(low, high, width=32)


@settings(max_examples=150, deadline=None)
@given(st.tuples(*(float32s(-bound, bound) for bound in (2.5, 4.0, 0.25, 4.0))), st.integers(0, 1))
def test_one_step_of_cart_pole_equals_gymnasiums(physics, action):
    observation, _, terminated, *_ = gym_step(CartPole(), physics, action)
    assume(abs(abs(observation[0]) - 2.4) > 1e-5)
    assume(abs(abs(observation[2]) - 0.20943951) > 1e-5)
    _, env_step = STEP[CartPole()](NO_NOISE, state_of(physics), jnp.int32(action), KEY)
    np.testing.assert_allclose(env_step.observation, observation, atol=1e-5)
    assert env_step.terminated == terminated


@settings(max_examples=150, deadline=None)
@given(st.tuples(float32s(-1.1875, 0.59375), float32s(-0.0625, 0.0625)), st.integers(0, 2))
def test_one_step_of_mountain_car_equals_gymnasiums(physics, action):
    observation, _, terminated, *_ = gym_step(MountainCar(), physics, action)
    velocity = physics[1] + (action - 1) * 0.001 - np.cos(3 * physics[0]) * 0.0025
    assume(all(abs(physics[0] + velocity - edge) > 1e-5 for edge in (-1.2, 0.5)))
    assume(abs(velocity) > 1e-6)
    _, env_step = STEP[MountainCar()](NO_NOISE, state_of(physics), jnp.int32(action), KEY)
    np.testing.assert_allclose(env_step.observation, observation, atol=1e-5)
    assert env_step.terminated == terminated


@pytest.mark.parametrize(
    ("jax_env", "low", "high"),
    [(CartPole(), [-0.05] * 4, [0.05] * 4), (MountainCar(), [-0.6, 0.0], [-0.4, 0.0])],
)
def test_initial_states_have_gymnasiums_distribution(jax_env, low, high):
    state, observation = jax.vmap(lambda key: jax_env.reset(NO_NOISE, key))(
        jax.random.split(KEY, 4000)
    )
    low, high = np.array(low), np.array(high)
    assert np.all((observation >= low - 1e-7) & (observation <= high + 1e-7))
    # quartiles of a uniform distribution
    assert np.quantile(observation, [0.25, 0.5, 0.75], axis=0) == pytest.approx(
        np.array([0.75 * low + 0.25 * high, (low + high) / 2, 0.25 * low + 0.75 * high]), abs=0.006
    )
    assert np.array_equal(observation, state.observation)
    assert np.array_equal(observation, state.physics)
    assert not state.episode_step.any()


def step_often(jax_env, params) -> EnvStep:
    """The same step with many keys."""
    last = jnp.full_like(jax_env.reset(NO_NOISE, KEY)[1], 9.0)  # far from the true observation
    state = State(jnp.zeros_like(last) - 0.01, last, jnp.int32(0))
    step = jax.vmap(lambda key: jax_env.step(params, state, jnp.int32(1), key)[1])
    return jax.jit(step)(jax.random.split(KEY, DRAWS))


@BOTH
def test_without_noise_rewards_and_observations_are_true(jax_env):
    env_step = step_often(jax_env, NO_NOISE)
    assert np.array_equal(env_step.reward, env_step.true_reward)
    assert np.all(env_step.observation < 1)


@BOTH
def test_gaussian_noise_has_mean_0_and_the_given_standard_deviation(jax_env):
    env_step = step_often(jax_env, Noise(gaussian=0.2))
    noise = np.array(env_step.reward - env_step.true_reward)
    assert np.unique(env_step.true_reward).size == 1
    assert abs(noise.mean()) < 4 * 0.2 / DRAWS**0.5
    assert noise.std() == pytest.approx(0.2, rel=0.02)
    assert [(noise < 0.2 * z).mean() for z in (-2, -1, 1, 2)] == pytest.approx(
        [0.0228, 0.1587, 0.8413, 0.9772], abs=0.012
    )


@BOTH
def test_sign_flips_and_repeats_are_independent_with_the_given_probabilities(jax_env):
    env_step = step_often(jax_env, Noise(bernoulli=0.2, transition=0.5))
    flipped, repeated = (
        np.array(env_step.reward == -env_step.true_reward),
        np.array(env_step.observation[:, 0] == 9),
    )
    assert np.array_equal(np.abs(env_step.reward), np.ones(DRAWS))
    assert (flipped.mean(), repeated.mean()) == pytest.approx((0.2, 0.5), abs=0.015)
    assert (flipped & repeated).mean() == pytest.approx(0.1, abs=0.01)


def test_probability_1_means_always():
    env_step = step_often(CartPole(), Noise(bernoulli=1.0, transition=1.0))
    assert np.all(env_step.reward == -1)
    assert np.all(env_step.observation == 9)


def episode(jax_env, params, steps=150):
    state, _ = jax_env.reset(params, KEY)

    def step(state, t):
        state, env_step = jax_env.step(params, state, t % 2, jax.random.fold_in(KEY, t))
        return state, (state.physics, env_step)

    return jax.lax.scan(step, state, jnp.arange(steps))[1]


NOISES = [NO_NOISE, Noise(gaussian=0.2), Noise(bernoulli=0.2), Noise(transition=0.5)]


@BOTH
def test_runs_with_different_noise_share_one_program_and_the_same_true_states(jax_env):
    params = jax.tree.map(lambda *numbers: jnp.array(numbers, jnp.float32), *NOISES)
    physics, env_step = jax.jit(jax.vmap(lambda noise: episode(jax_env, noise)))(params)
    for other in range(1, len(NOISES)):
        np.testing.assert_array_equal(physics[other], physics[0])
        np.testing.assert_array_equal(env_step.true_reward[other], env_step.true_reward[0])
        np.testing.assert_array_equal(env_step.terminated[other], env_step.terminated[0])
    has_reward_noise = [
        not np.array_equal(env_step.reward[i], env_step.true_reward[i]) for i in range(4)
    ]
    has_observation_noise = [
        not np.array_equal(env_step.observation[i], physics[i]) for i in range(4)
    ]
    assert has_reward_noise == [False, True, True, False]
    assert has_observation_noise == [False, False, False, True]


@BOTH
def test_a_repeated_observation_is_the_last_one_received(jax_env):
    physics, env_step = jax.jit(lambda: episode(jax_env, Noise(transition=0.5)))()
    physics, observed = np.array(physics), np.array(env_step.observation)
    is_true = np.all(observed == physics, axis=1)
    last_observed = np.concatenate([jax_env.reset(NO_NOISE, KEY)[1][None], observed[:-1]])
    assert np.array_equal(observed[~is_true], last_observed[~is_true])
    repeated_twice = ~is_true[1:] & ~is_true[:-1]
    assert repeated_twice.sum() > 10  # so that last received and last true observation differ
    assert 50 < is_true.sum() < 100


@BOTH
def test_dtypes_hold_under_strict_promotion(jax_env):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        noise = Noise(*jnp.array([0.2, 0.2, 0.5], jnp.float32))
        start, _ = jax_env.reset(noise, KEY)
        state, env_step = jax_env.step(noise, start, jnp.int32(1), KEY)
    kinds = jax.tree.map(lambda array: (array.dtype, array.shape), (start, state))
    assert kinds[0] == kinds[1]  # or `scan` would refuse to carry it
    assert [array.dtype for array in env_step] == [jnp.float32] * 3 + [jnp.bool_] * 2
