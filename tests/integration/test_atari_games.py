"""Atari games by name, their protocols, their specs, and the size of networks for them."""

import jax
import numpy as np
import pytest
from atari_rollouts import joint_spec

from engram import runners
from engram.agents import make
from engram.encoders import CNN
from engram.envs import get_task
from engram.envs.atari import GAMES, AtariEnv, threads
from engram.errors import EngramError


def test_ale_has_a_rom_for_each_of_the_57_games():
    from ale_py import roms

    assert len(GAMES) == len(set(GAMES)) == 57
    assert set(GAMES) <= set(roms.get_all_rom_ids())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("atari:breakot", "There is no Atari game 'breakot' among the 57. Did you mean breakout?"),
        ("atari:pong-v5", "Atari has no protocol 'v5': write atari:pong, or atari:pong-modern."),
    ],
)
def test_unknown_games_and_protocols_are_refused(name, message):
    with pytest.raises(EngramError) as error:
        get_task(name)
    assert str(error.value) == message


def test_protocols_differ_in_sticky_actions_and_life_loss():
    classic, modern = get_task("atari:pong").atari, get_task("atari:pong-modern").atari
    assert classic is not None
    assert modern is not None
    assert classic.protocol.repeat_action_probability == 0.0
    assert classic.protocol.terminal_on_life_loss
    assert modern.protocol.repeat_action_probability == 0.25
    assert not modern.protocol.terminal_on_life_loss


def test_the_spec_of_a_game_is_a_stack_of_frames():
    spec = get_task("atari:pong").spec(4, 10)
    assert (spec.shape, spec.dtype, spec.frame_stack) == ((4, 84, 84), "uint8", 4)
    assert (spec.num_actions, spec.max_episode_steps) == (6, 27_000)


def test_a_game_is_a_gymnasium_environment():
    env = AtariEnv(get_task("atari:pong").atari, render_mode="rgb_array")
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    assert env.step(2)[0].shape == (4, 84, 84)
    assert env.render().shape == (168, 168, 3)


def test_the_number_of_environments_grows_with_gradient_steps():
    pong = get_task("atari:pong")
    agents = make("dqn", "atari"), make("mbec++", "atari", gradient_steps=2), make("nec")
    assert [runners.default_num_envs(agent, pong) for agent in agents] == [16, 8, 4]
    assert runners.default_num_envs(make("dqn", gradient_steps=3), get_task("cartpole")) == 1


@pytest.mark.parametrize(("num_runs", "num_left"), [(1, 1), (2, 1), (5, 2), (30, 8)])
def test_threads_of_few_remaining_runs_fill_all_processors(monkeypatch, num_runs, num_left):
    monkeypatch.setattr("engram.envs.atari.cpu_count", lambda: 16)
    assert num_left * min(16, threads(num_runs)) >= 16


@pytest.mark.parametrize(
    ("encoder", "num_features", "num_parameters"),
    [("paper", 25_600, 13_780_000), ("nature", 3_136, 1_690_000)],
)
def test_networks_have_the_sizes_of_their_papers(encoder, num_features, num_parameters):
    agent = make("dqn", hidden_size=512, num_layers=1, encoder=encoder, buffer_size=64)
    spec = joint_spec("atari:pong")
    q = jax.eval_shape(lambda: agent.init(jax.random.key(0), spec).q)
    assert isinstance(q.encoder, CNN)
    assert q.encoder.num_features == num_features
    count = sum(np.prod(x.shape) for x in jax.tree.leaves(q))
    assert count == pytest.approx(num_parameters, rel=0.01)
