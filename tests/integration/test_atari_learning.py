"""Agents learn values that need a stack of frames, and the command line trains on a game."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from atari_rollouts import make_runner, use_drift
from probes import DriftVecEnv

from engram.agents import MFEC, NEC, make
from engram.cli import main
from engram.training import load
from engram.vec_evaluator import evaluate_atari

NUM_ENVS = 8
EXPLORE = {"gamma": 0.5, "epsilon_end": 0.5, "epsilon_decay": 1e3}
Q_LEARNING = EXPLORE | {
    "hidden_size": 32,
    "num_layers": 1,
    "batch_size": 12,
    "buffer_size": 800,
    "learning_starts": 32,
    "encoder": "nature",
    "learning_rate": 3e-4,
    "target_update_interval": 40 * NUM_ENVS,
}
MBECPP = Q_LEARNING | {
    "learning_rate": 5e-4,
    "memory_size": 200,
    "num_neighbours": 5,
    "chunk": 2,
    "act_with_target": True,
    "double_q": True,
    "select_with_q_only": True,
}
DND = EXPLORE | {"num_neighbours": 5, "memory_size": 2_000}
EMBEDDING = {"hidden_size": 32, "batch_size": 12, "buffer_size": 800, "train_frequency": 1}


def slow(name, agent, iterations=240):
    return pytest.param(agent, iterations, id=name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("agent", "iterations"),
    [
        pytest.param(make("dqn", **Q_LEARNING), 240, id="dqn"),
        # Longer, since Q_theta also has to follow the memory, whose keys change at first.
        slow("mbec++", make("mbec++", "paper", **MBECPP), 320),
        slow("nec", make("nec", **DND, **EMBEDDING, n_step=1, learning_rate=1e-4)),
        slow("mfec", make("mfec", **DND)),
    ],
)
def test_values_that_need_a_stack_of_frames_are_learned(monkeypatch, agent, iterations):
    use_drift(monkeypatch)
    runner = make_runner(agent, ["atari:pong"], [0], NUM_ENVS)
    runner.start()
    runner.advance(iterations)
    states = runner.run_state.agent
    state = jax.tree.map(lambda x: x[0], states)
    values_of = jax.jit(partial(greedy_values, agent, runner.spec))
    for direction in (0, 1):
        values = drift_values(values_of, state, direction)
        if isinstance(agent, NEC):
            values[0] = values[0].mean()  # both actions are as good, and few neighbours are noisy
        # The right action has the value 1 at the last step, then 1.5 and 1.75 before, and the wrong
        # one has 1 less. One frame does not show the direction, so that at first both are equal.
        # MFEC keeps the highest return, which is that of the right action.
        first = 1.875 if isinstance(agent, MFEC) else 1.375
        expected = np.array([[first, first], [1.75, 0.75], [1.5, 0.5], [1.0, 0.0]])
        np.testing.assert_allclose(
            values, expected if direction == 0 else expected[:, ::-1], atol=0.35
        )
    returns = evaluate_atari(agent, runner.spec, states, runner.tasks, [0], 60)
    assert returns.mean() > 3.2  # at best 3.5, at random 2


def greedy_values(agent, spec, state, observation, episode_start, action):
    """The state after `act_greedy` with a given action, and the values that it would maximize."""
    values = []

    def take_action(spec, q, epsilon, key):
        values.append(jnp.mean(q, axis=0))
        return jnp.full(NUM_ENVS, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engram.agents.common.greedy_action", take_action)
        key = jax.random.key(0)
        state, _ = agent.act_greedy(state, spec, observation, episode_start, key)
    return state, values[0]


def drift_values(values_of, state, direction):
    """Values of both actions at the four steps of the drift, means of eight games.

    All actions are right, so that trajectories are those of the best policy.
    """
    vec_env, values = DriftVecEnv(NUM_ENVS), []
    vec_env.reset(seed=np.arange(NUM_ENVS))
    vec_env.direction[:] = direction
    for step in range(DriftVecEnv.EPISODE_STEPS):
        episode_start = np.full(NUM_ENVS, step == 0)
        state, q = values_of(state, vec_env.frames.copy(), episode_start, direction)
        values.append(np.asarray(q))
        vec_env.send(np.full(NUM_ENVS, direction))
        vec_env.recv()
    return np.stack(values)


@pytest.mark.slow
def test_the_command_line_trains_resumes_and_evaluates_a_game(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("engram.envs.atari.MAX_FRAMES", 200)
    small = "--hidden-size 8 --batch-size 4 --buffer-size 200 --learning-starts 8 --encoder nature"
    small += " --gradient-steps 1 --num-envs 4"
    main(f"train dqn atari:pong --seeds 1 --steps 320 --out run {small}".split())
    assert "320 agent steps = 1,280 emulator frames" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["emulator_frames"] == 1280
    main(["resume", "run"])
    main(["eval", "run", "--episodes", "2", "--video", "game.gif"])
    assert "2 greedy episodes" in capsys.readouterr().out
    assert (tmp_path / "game.gif").stat().st_size > 1_000
    policy = load("run")
    assert jax.tree.leaves(policy.state.q_target)  # the target network acts
    assert policy.state.q is None
    assert policy.state.replay is None  # it may have gigabytes
