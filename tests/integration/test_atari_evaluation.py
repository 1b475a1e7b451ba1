"""The evaluation of whole Atari games, of many runs in parallel."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from atari_rollouts import (
    SMALL_DQN,
    SMALL_MBECPP,
    copy,
    disable_learning,
    joint_spec,
    make_runner,
    play,
)

from engram import running_stats, vec_evaluator
from engram.agents import Random
from engram.envs import get_task
from engram.networks import encode
from engram.runners import VmappedAgent
from engram.vec_evaluator import VecEvaluator, evaluate_atari

TASKS = [get_task("atari:breakout")] * 2
evaluate = partial(evaluate_atari, SMALL_DQN)


@pytest.fixture(scope="module")
def evaluation():
    """The spec and the states of two untrained agents, and their returns in three games each.

    Two games are played in parallel. Some end with the last life and some at the limit of frames.
    """
    spec = joint_spec("atari:breakout")
    states = VmappedAgent(SMALL_DQN, spec, 2).init(jnp.arange(2, dtype=jnp.uint32)).agent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vec_evaluator, "NUM_EVAL_ENVS", 2)
        patch.setattr("engram.envs.atari.MAX_FRAMES", 1_600)
        yield spec, states, evaluate(spec, states, TASKS, [0, 1], 3)


def test_returns_of_a_run_are_the_same_alone_and_among_others(evaluation):
    spec, states, together = evaluation
    assert together.shape == (2, 3)
    assert (together == together.astype(int)).all()
    alone = evaluate(spec, jax.tree.map(lambda x: x[1:], states), TASKS[1:], [1], 3)
    np.testing.assert_array_equal(alone[0], together[1])


def test_an_evaluator_that_is_used_again_gives_the_same_returns(evaluation):
    spec, states, returns = evaluation
    evaluator = VecEvaluator(SMALL_DQN, spec, TASKS, 2)
    states = jax.tree.map(np.asarray, states)
    evaluator.evaluate(states, [5, 6], 1)
    np.testing.assert_array_equal(evaluator.evaluate(states, [0, 1], 3), returns)
    evaluator.close()


def test_evaluation_does_not_change_the_trained_agents(evaluation):
    spec, states, _ = evaluation
    before = jax.tree.map(copy, states)
    evaluate(spec, states, TASKS, [0, 1], 1)
    jax.tree.map(np.testing.assert_array_equal, before, states)


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(SMALL_DQN, marks=pytest.mark.slow),
        # Always the mean of the neighbours, as in evaluation, and no refinement.
        replace(SMALL_MBECPP, p_read=1.0, p_refine=0.0),
    ],
    ids=["dqn", "mbec++"],
)
def test_an_agent_that_does_not_learn_acts_the_same_in_training_and_evaluation(monkeypatch, agent):
    disable_learning(monkeypatch, agent)
    monkeypatch.setattr("engram.envs.atari.MAX_FRAMES", 480)
    monkeypatch.setattr("engram.episodic.memory.write", lambda memory, *_, **__: memory)
    monkeypatch.setattr("engram.running_stats.update", lambda stats, _: stats)
    monkeypatch.setattr("engram.agents.common.epsilon_schedule", lambda *_: jnp.zeros(()))
    runner = make_runner(agent, ["atari:breakout"], [3], num_envs=4)
    runner.start()
    spread = with_spread_values(runner.run_state.agent)
    runner.run_state = runner.run_state._replace(agent=spread)
    states = jax.tree.map(copy, runner.run_state.agent)
    returns = runner.advance(250)[:, 0]
    first_two_games = np.array([row[~np.isnan(row)][:2] for row in returns.T])
    assert all(len(set(runner.episode_actions[0, e])) > 2 for e in range(4))
    assert len(set(first_two_games.ravel().tolist())) > 1

    def without_epsilon(task):
        return replace(task.atari, protocol=replace(task.atari.protocol, eval_epsilon=0.0))

    def training_seed(seed, episode_index):
        return runner._reset_seed((0, episode_index), 0)

    monkeypatch.setattr(vec_evaluator, "evaluation_seed", training_seed)
    monkeypatch.setattr(vec_evaluator, "_atari_game", without_epsilon)
    evaluator = VecEvaluator(agent, runner.spec, runner.tasks, 4)
    sent = [record_actions(monkeypatch, vec_env) for (vec_env,) in evaluator.vec_envs]
    evaluated = evaluator.evaluate(states, [3], 8)[0]
    evaluator.close()
    np.testing.assert_array_equal(evaluated, first_two_games.T.ravel())
    for e in range(4):  # every second environment is in the other half
        actions = np.stack(sent[e % 2])[:240, e // 2]
        np.testing.assert_array_equal(actions, runner.episode_actions[0, e][: len(actions)])


def record_actions(monkeypatch, vec_env):
    """A list to which all actions that are sent to an environment are appended."""
    sent = []
    send = vec_env.send

    def record(actions):
        sent.append(actions.copy())
        send(actions)

    monkeypatch.setattr(vec_env, "send", record)
    return sent


def with_spread_values(state):
    """The agents with values that depend on the observation, and a memory of random values."""
    _, timesteps, _ = play(Random(), ["atari:breakout"], [9], 100)
    frames = [timestep.observation[0].reshape(2, -1) for timestep in timesteps[::5]]
    observations = jnp.concatenate(frames)

    def spread(q):
        features = jax.vmap(partial(encode, q))(observations)
        layers = q.head.layers
        num_missing = layers[0].weight.shape[1] - features.shape[1]  # tau, if the head uses it
        inputs = jnp.concatenate([features, jnp.zeros((len(features), num_missing))], axis=1)
        values = jax.vmap(q.head)(inputs)
        std = values.std(axis=0)
        weight = layers[-1].weight / std[:, None]
        bias = (layers[-1].bias - values.mean(axis=0)) / std
        last_layer = lambda q: (q.head.layers[-1].weight, q.head.layers[-1].bias)  # noqa: E731
        return eqx.tree_at(last_layer, q, (weight, bias))

    if not hasattr(state, "episodic"):
        return state._replace(q=jax.jit(jax.vmap(spread))(state.q))

    def normalize_by_observations(q, projection):
        features = jax.vmap(partial(encode, q))(observations) @ projection.matrix
        mean, variance = features.mean(axis=0), features.var(axis=0)
        stats = running_stats.RunningStats(jnp.ones(()), mean, variance)
        return projection._replace(stats=stats)

    memory = state.episodic.memory
    key = jax.random.key(1)
    full = memory._replace(
        keys=0.2 * jax.random.normal(key, memory.keys.shape),
        values=5.0 * jax.random.normal(key, memory.values.shape),
        num_inserted=jnp.full_like(memory.num_inserted, memory.values.shape[-1]),
    )
    projection = jax.jit(jax.vmap(normalize_by_observations))(state.params.q, state.projection)
    return state._replace(
        episodic=state.episodic._replace(memory=full),
        params=state.params._replace(q=jax.jit(jax.vmap(spread))(state.params.q)),
        projection=projection,
    )
