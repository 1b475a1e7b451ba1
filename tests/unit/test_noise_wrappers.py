"""Noise wrappers change rewards and observations as stated, and nothing else."""

import math

import gymnasium as gym
import numpy as np
import pytest

from engram.envs.wrappers import BernoulliReward, GaussianReward, RepeatedObservation
from engram.errors import EngramError

WRAPPERS = [GaussianReward, BernoulliReward, RepeatedObservation]
STEPS = 10_000


class Clock(gym.Env):
    """Observes its step count, reusing one array and one info dict; every reward is 3."""

    observation_space = gym.spaces.Box(0, math.inf, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.info = np.zeros(1, np.float32), {}
        return self.time, self.info

    def step(self, action):
        self.time += 1
        return self.time, 3.0, False, False, self.info


def play(env, steps=STEPS, seed=0):
    env.reset(seed=seed)
    observations, rewards, _, _, infos = zip(
        *(copy_observation(env.step(0)) for _ in range(steps)), strict=True
    )
    return (
        np.array(observations).squeeze(-1),
        np.array(rewards),
        [info["true_reward"] for info in infos],
    )


def copy_observation(result):
    return (np.array(result[0]), *result[1:])


def test_gaussian_noise_has_mean_0_and_the_given_standard_deviation():
    _, rewards, true = play(GaussianReward(Clock(), std=0.2))
    noise = rewards - 3.0
    assert abs(noise.mean()) < 4 * 0.2 / math.sqrt(STEPS)
    assert noise.std() == pytest.approx(0.2, rel=0.03)
    assert (np.abs(noise) < 0.2).mean() == pytest.approx(0.6827, abs=0.02)
    assert set(true) == {3.0}


def test_bernoulli_noise_flips_signs_with_the_given_probability():
    _, rewards, true = play(BernoulliReward(Clock(), p=0.2))
    assert set(rewards) == {-3.0, 3.0}
    assert (rewards < 0).mean() == pytest.approx(0.2, abs=4 * 0.4 / math.sqrt(STEPS))
    assert set(true) == {3.0}


def test_sign_flips_are_not_autocorrelated():
    _, rewards, _ = play(BernoulliReward(Clock(), p=0.5))
    assert abs(np.corrcoef(rewards[1:], rewards[:-1])[0, 1]) < 0.04


def test_a_repeated_observation_is_the_last_one_received_and_not_the_last_true_one():
    observed, rewards, _ = play(RepeatedObservation(Clock(), p=0.5))
    true, last_observed = np.arange(1, STEPS + 1), np.concatenate([[0], observed[:-1]])
    is_true = observed == true
    assert np.array_equal(observed[~is_true], last_observed[~is_true])
    assert (true - observed).max() > 5  # repeated several times
    assert is_true.mean() == pytest.approx(0.5, abs=0.02)
    assert set(rewards) == {3.0}


def test_probabilities_0_and_1_mean_never_and_always():
    assert np.array_equal(play(RepeatedObservation(Clock(), p=0), 50)[0], np.arange(1, 51))
    assert np.array_equal(play(RepeatedObservation(Clock(), p=1), 50)[0], np.zeros(50))
    assert set(play(BernoulliReward(Clock(), p=0), 50)[1]) == {3.0}
    assert set(play(BernoulliReward(Clock(), p=1), 50)[1]) == {-3.0}
    assert set(play(GaussianReward(Clock(), std=0), 50)[1]) == {3.0}


def test_the_observation_of_a_reset_is_never_repeated():
    env = RepeatedObservation(Clock(), p=1)
    env.reset(seed=0)
    env.unwrapped.reset = lambda **_: (np.full(1, 7.0), {})
    assert env.reset()[0] == 7
    assert env.step(0)[0] == 7


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_noise_does_not_change_the_dynamics(wrapper):
    plain, noisy = gym.make("CartPole-v1"), wrapper(gym.make("CartPole-v1"))
    actions = np.random.default_rng(1).integers(2, size=300)
    assert np.array_equal(plain.reset(seed=5)[0], noisy.reset(seed=5)[0])
    for action in actions:
        _, reward, *ends, _ = plain.step(action)
        *_, terminated, truncated, info = noisy.step(action)
        assert np.array_equal(plain.unwrapped.state, noisy.unwrapped.state)
        assert (reward, ends) == (info["true_reward"], [terminated, truncated])
        if any(ends):
            # an unseeded reset draws from the environment's stream, which noise must not use
            assert np.array_equal(plain.reset()[0], noisy.reset()[0])


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_noise_is_determined_by_the_seed(wrapper):
    def noisy_episode(seed):
        return np.concatenate(play(wrapper(Clock()), 100, seed=seed)[:2])

    assert np.array_equal(noisy_episode(3), noisy_episode(3))
    assert not np.array_equal(noisy_episode(3), noisy_episode(4))


def test_a_reset_without_seed_continues_the_noise_stream():
    env = GaussianReward(Clock())
    uninterrupted = play(env, 20)[1]
    first = play(env, 10)[1]
    env.reset()
    assert np.array_equal(uninterrupted, [*first, *(env.step(0)[1] for _ in range(10))])


def test_noise_does_not_use_the_random_stream_of_the_environment():
    env = GaussianReward(Clock(), std=1.0)
    env.reset(seed=7)
    assert env.step(0)[1] - 3 != pytest.approx(env.unwrapped.np_random.normal())


def test_two_wrappers_of_one_class_have_independent_noise():
    _, rewards, true = play(
        GaussianReward(
            gym.wrappers.TransformObservation(GaussianReward(Clock()), lambda o: o, None)
        )
    )
    # equal streams would give a standard deviation of 0.4
    assert rewards.std() == pytest.approx(0.2 * math.sqrt(2), rel=0.03)
    assert set(true) == {3.0}


def test_true_reward_is_that_of_the_innermost_environment():
    env = RepeatedObservation(GaussianReward(BernoulliReward(Clock(), p=1)))
    env.reset(seed=0)
    _, reward, _, _, info = env.step(0)
    assert info["true_reward"] == 3
    assert reward < 0
    assert env.unwrapped.info == {}  # the environment's own dict is not changed


@pytest.mark.parametrize(
    ("wrapper", "arguments"), [(GaussianReward, {"std": 0.7}), (RepeatedObservation, {"p": 0.3})]
)
def test_gymnasium_can_rebuild_a_wrapped_environment_from_its_spec(wrapper, arguments):
    env = wrapper(gym.make("CartPole-v1", max_episode_steps=33), **arguments)
    again = gym.make(env.spec)
    assert isinstance(again, wrapper)
    assert {name: getattr(again, name) for name in arguments} == arguments
    assert again.spec.max_episode_steps == 33


@pytest.mark.parametrize("std", [-0.1, math.nan, math.inf, "0.2", None])
def test_an_invalid_standard_deviation_is_refused(std):
    with pytest.raises(EngramError, match=r"GaussianReward got std=.*: give a finite number"):
        GaussianReward(Clock(), std=std)


@pytest.mark.parametrize("wrapper", [BernoulliReward, RepeatedObservation])
@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, "0.2", None])
def test_an_invalid_probability_is_refused(wrapper, p):
    with pytest.raises(
        EngramError, match=rf"{wrapper.__name__} got p=.*: give a probability from 0 to 1"
    ):
        wrapper(Clock(), p=p)
