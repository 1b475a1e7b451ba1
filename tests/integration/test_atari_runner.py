"""The Atari runner: many games in parallel, their episodes, rewards, checkpoints and faults."""

from copy import deepcopy
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from atari_rollouts import copy, joint_spec, make_runner, play, use_drift
from probes import DriftVecEnv

from engram import runners
from engram.agents import Random, make
from engram.errors import EngramError


def restored(runner):
    """A new runner that is restored from another one."""
    tree, notes = runner.save()
    other = runners.make_runner(Random(), runner.tasks, runner.seeds, runner.spec)
    other.restore(jax.tree.map(copy, tree), deepcopy(notes))
    return other


@pytest.fixture(scope="module")
def two_games():
    """Random play of two games with different actions, longer than one game of Breakout."""
    return play(Random(), ["atari:breakout", "atari:pong-modern"], [3, 4], 260)


def test_no_run_selects_an_action_that_its_game_lacks(two_games):
    runner, _, _ = two_games
    selected = [
        {action for e in range(2) for action in runner.episode_actions[r, e]} for r in range(2)
    ]
    assert selected == [set(range(4)), set(range(6))]


def test_a_run_alone_receives_the_same_as_among_others(two_games):
    _, together, _ = two_games
    _, alone, _ = play(Random(), ["atari:breakout"], [3], 60)
    for a, b in zip(alone, together, strict=False):
        np.testing.assert_array_equal(a.observation[0], b.observation[0])
        np.testing.assert_array_equal(a.reward[0], b.reward[0])
    _, other_seed, _ = play(Random(), ["atari:breakout"], [5], 60)
    pairs = zip(alone, other_seed, strict=True)
    assert any((a.observation != b.observation).any() for a, b in pairs)


def test_a_lost_life_terminates_an_episode_but_not_the_game(two_games):
    _, timesteps, returns = two_games
    terminated = np.stack([timestep.terminated for timestep in timesteps[1:]])
    game_over = ~np.isnan(returns)
    assert game_over[:, 0].any()
    for e in np.flatnonzero(game_over[:, 0].any(axis=0)):
        episode_ends = np.flatnonzero(terminated[:, 0, e])
        game_ends = np.flatnonzero(game_over[:, 0, e])
        assert set(game_ends) <= set(episode_ends)
        assert len(episode_ends) >= 5 * len(game_ends)  # a game has five lives
        # Random play reaches only bricks with a reward of 1, which clipping does not change.
        first_game = timesteps[1 : game_ends[0] + 2]
        assert returns[game_ends[0], 0, e] == sum(step.reward[0, e] for step in first_game)
    assert not terminated[:, 1].any()  # no game of Pong ends so early


def test_frames_before_a_game_are_black(two_games):
    _, timesteps, returns = two_games
    (t, e), *_ = np.argwhere(~np.isnan(returns[:, 0]))
    frames = timesteps[t + 1].observation[0, e]
    assert [bool(frame.any()) for frame in frames] == [False, False, False, True]


def test_restored_games_of_several_runs_continue_as_if_never_stopped(two_games):
    runner, _, _ = two_games
    resumed = restored(runner)
    runner.advance(20)
    resumed.advance(20)
    np.testing.assert_array_equal(runner.timestep.observation, resumed.timestep.observation)
    np.testing.assert_array_equal(runner.episode_return, resumed.episode_return)


@pytest.mark.parametrize("steps_between_seeds", [30, 10_000])
def test_games_are_restored_with_and_without_new_seeds(monkeypatch, steps_between_seeds):
    monkeypatch.setattr("engram.runners.atari.STEPS_BETWEEN_SEEDS", steps_between_seeds)
    runner, _, returns = play(Random(), ["atari:breakout-modern"], [3], 300)
    assert (~np.isnan(returns)).any(axis=0).all()  # each environment has begun a second game
    assert ((runner.seeded_index > 0) == (steps_between_seeds == 30)).all()
    resumed = restored(runner)
    for _ in range(3):
        runner.advance(40)
        resumed.advance(40)
        np.testing.assert_array_equal(runner.timestep.observation, resumed.timestep.observation)
    np.testing.assert_array_equal(runner.episode_index, resumed.episode_index)


@dataclass(frozen=True)
class Unclipped(Random):
    clip_rewards: bool = False


class LargeRewards(DriftVecEnv):
    """Its rewards are 20 and -20."""

    def recv(self):
        observation, reward, *rest = super().recv()
        return observation, 40 * reward - 20, *rest


@pytest.mark.parametrize(("agent", "reward"), [(Random(), 1.0), (Unclipped(), 20.0)])
def test_rewards_are_clipped_if_agents_want_it_and_returns_never(monkeypatch, agent, reward):
    use_drift(monkeypatch, LargeRewards)
    _, timesteps, returns = play(agent, ["atari:pong"], [0], 8)
    rewards = np.stack([timestep.reward for timestep in timesteps[1:]])
    assert set(np.abs(rewards).ravel().tolist()) == {reward}
    assert {40.0} <= set(np.abs(returns[~np.isnan(returns)])) <= {0.0, 40.0, 80.0}


def test_dqn_clips_rewards_on_atari_and_nec_does_not():
    assert make("dqn", "atari").clip_rewards
    assert not make("nec", "atari").clip_rewards


class BrokenVecEnv:
    def send(self, actions):
        pass

    def recv(self):
        raise RuntimeError("no power")


def test_a_fault_names_game_seed_and_step():
    runner = make_runner(Random(), ["atari:breakout", "atari:pong"], [3, 4])
    runner.start()
    runner.advance(2)
    runner.vec_envs[1] = BrokenVecEnv()
    message = r"atari:pong failed with seed 4 at step 6: recv raised RuntimeError \(no power\) in "
    with pytest.raises(EngramError, match=message):
        runner.advance(1)


def test_agents_that_cannot_mask_actions_are_refused():
    message = "PPO cannot train on games with different numbers of actions in one program"
    with pytest.raises(EngramError, match=message):
        make_runner(make("ppo"), ["atari:breakout", "atari:pong"], [0, 1])


def test_a_spec_with_too_few_actions_is_refused():
    pong = make_runner(Random(), ["atari:pong"], [0]).tasks
    with pytest.raises(EngramError, match="A game has 6 actions but the spec only 4"):
        runners.make_runner(Random(), pong, [0], joint_spec("atari:breakout"))
