"""The noise wrappers disturb exactly what they say, as often as they say, and nothing else."""

import math

import gymnasium as gym
import numpy as np
import pytest

from engram.errors import EngramError
from engram.tasks.noise import BernoulliReward, GaussianReward, RepeatedObservation

WRAPPERS = [GaussianReward, BernoulliReward, RepeatedObservation]
STEPS = 10_000


class Clock(gym.Env):
    """Shows how many steps were made, always in the same array and with the same info, and rewards with 3."""

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
    observations, rewards, _, _, infos = zip(*(_copied(env.step(0)) for _ in range(steps)), strict=True)
    return np.array(observations).squeeze(-1), np.array(rewards), [info["true_reward"] for info in infos]


def _copied(answer):
    return (np.array(answer[0]), *answer[1:])


def test_gaussian_noise_has_mean_0_and_the_deviation_asked_for():
    _, rewards, true = play(GaussianReward(Clock(), std=0.2))
    noise = rewards - 3.0
    assert abs(noise.mean()) < 4 * 0.2 / math.sqrt(STEPS)
    assert noise.std() == pytest.approx(0.2, rel=0.03)
    assert (np.abs(noise) < 0.2).mean() == pytest.approx(0.6827, abs=0.02)
    assert set(true) == {3.0}


def test_bernoulli_noise_flips_the_sign_as_often_as_asked_for():
    _, rewards, true = play(BernoulliReward(Clock(), p=0.2))
    assert set(rewards) == {-3.0, 3.0}
    assert (rewards < 0).mean() == pytest.approx(0.2, abs=4 * 0.4 / math.sqrt(STEPS))
    assert set(true) == {3.0}


def test_flips_do_not_depend_on_the_flip_before():
    _, rewards, _ = play(BernoulliReward(Clock(), p=0.5))
    assert abs(np.corrcoef(rewards[1:], rewards[:-1])[0, 1]) < 0.04


def test_a_repeat_shows_the_last_observed_observation_and_not_the_last_true_one():
    seen, rewards, _ = play(RepeatedObservation(Clock(), p=0.5))
    now, before = np.arange(1, STEPS + 1), np.concatenate([[0], seen[:-1]])
    fresh = seen == now
    assert np.array_equal(seen[~fresh], before[~fresh])
    assert (now - seen).max() > 5  # repeats of repeats
    assert fresh.mean() == pytest.approx(0.5, abs=0.02)
    assert set(rewards) == {3.0}


def test_probabilities_0_and_1_mean_never_and_always():
    assert np.array_equal(play(RepeatedObservation(Clock(), p=0), 50)[0], np.arange(1, 51))
    assert np.array_equal(play(RepeatedObservation(Clock(), p=1), 50)[0], np.zeros(50))
    assert set(play(BernoulliReward(Clock(), p=0), 50)[1]) == {3.0}
    assert set(play(BernoulliReward(Clock(), p=1), 50)[1]) == {-3.0}
    assert set(play(GaussianReward(Clock(), std=0), 50)[1]) == {3.0}


def test_the_observation_of_a_reset_is_always_true():
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
            # without a seed, the next start comes from the environment's own stream: the noise must not have drawn from it
            assert np.array_equal(plain.reset()[0], noisy.reset()[0])


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_seed_repeats_the_noise_and_another_seed_does_not(wrapper):
    def once(seed):
        return np.concatenate(play(wrapper(Clock()), 100, seed=seed)[:2])

    assert np.array_equal(once(3), once(3))
    assert not np.array_equal(once(3), once(4))


def test_without_a_seed_the_noise_goes_on():
    env = GaussianReward(Clock())
    straight = play(env, 20)[1]
    first = play(env, 10)[1]
    env.reset()
    assert np.array_equal(straight, [*first, *(env.step(0)[1] for _ in range(10))])


def test_noise_is_not_the_environments_own_stream():
    env = GaussianReward(Clock(), std=1.0)
    env.reset(seed=7)
    assert env.step(0)[1] - 3 != pytest.approx(env.unwrapped.np_random.normal())


def test_two_wrappers_of_one_kind_are_independent():
    _, rewards, true = play(GaussianReward(gym.wrappers.TransformObservation(GaussianReward(Clock()), lambda o: o, None)))
    # were the streams equal, the deviation would be 0.4
    assert rewards.std() == pytest.approx(0.2 * math.sqrt(2), rel=0.03)
    assert set(true) == {3.0}


def test_the_innermost_wrapper_tells_the_true_reward():
    env = RepeatedObservation(GaussianReward(BernoulliReward(Clock(), p=1)))
    env.reset(seed=0)
    _, reward, _, _, info = env.step(0)
    assert info["true_reward"] == 3
    assert reward < 0
    assert env.unwrapped.info == {}  # the environment's own dict is left alone


@pytest.mark.parametrize(("wrapper", "arguments"), [(GaussianReward, {"std": 0.7}), (RepeatedObservation, {"p": 0.3})])
def test_gymnasium_can_rebuild_a_wrapped_environment_from_its_spec(wrapper, arguments):
    env = wrapper(gym.make("CartPole-v1", max_episode_steps=33), **arguments)
    again = gym.make(env.spec)
    assert isinstance(again, wrapper)
    assert {name: getattr(again, name) for name in arguments} == arguments
    assert again.spec.max_episode_steps == 33


@pytest.mark.parametrize("std", [-0.1, math.nan, math.inf, "0.2", None])
def test_a_wrong_deviation_is_named(std):
    with pytest.raises(EngramError, match=r"GaussianReward got std=.*: give a finite number"):
        GaussianReward(Clock(), std=std)


@pytest.mark.parametrize("wrapper", [BernoulliReward, RepeatedObservation])
@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, "0.2", None])
def test_a_wrong_probability_is_named(wrapper, p):
    with pytest.raises(EngramError, match=rf"{wrapper.__name__} got p=.*: give a probability from 0 to 1"):
        wrapper(Clock(), p=p)
