"""DRQN stores the LSTM's state before each step, and its loss agrees with numbers by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    CUE,
    constant_network,
    cue_returns,
    episode_timesteps,
    jit_step,
    probe_spec,
    rollout,
)

from engram.agents import DQN
from engram.agents.drqn import DRQN, RecurrentTransition
from engram.errors import EngramError
from engram.networks import zero_state
from engram.replay_buffer import sample_sequences
from engram.runners import JaxRunner
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=40)
AGENT = DRQN(
    gamma=0.5,
    hidden_size=3,
    lstm_size=4,
    batch_size=2,
    sequence_length=3,
    buffer_size=20,
    epsilon_end=1.0,
)
LOSS, Q_VALUES = jax.jit(AGENT.loss_fn), jax.jit(AGENT.q_values)


@pytest.fixture(scope="module")
def initial_state():
    return AGENT.init(jax.random.key(0), SPEC)


@pytest.fixture(scope="module")
def ten_steps(initial_state):
    """An episode of three steps that terminates, a truncated one of two, and part of a third."""
    timesteps = episode_timesteps(
        (1.0, [1.0, 2.0, 4.0], False), (-1.0, [8.0, 16.0], True), (2.0, [32.0] * 9, False)
    )
    return rollout(jit_step(AGENT, SPEC), initial_state, timesteps, 10)


@pytest.fixture(scope="module")
def rows(ten_steps):
    """The rows of replay after ten steps."""
    return jax.tree.map(lambda x: np.asarray(x)[:9, 0], ten_steps[0][-1].replay)


# Replay


def test_a_row_is_a_step_and_its_result(ten_steps, rows):
    times_and_marks = [(0, 1), (1, 1), (2, 1), (0, -1), (1, -1), (0, 2), (1, 2), (2, 2), (3, 2)]
    assert list(map(tuple, rows.obs.tolist())) == times_and_marks
    assert rows.reward.tolist() == [1, 2, 4, 8, 16, 32, 32, 32, 32]
    assert rows.terminal.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]  # not where it was truncated
    assert rows.episode_start.tolist() == [t in (0, 3, 5) for t in range(9)]
    assert rows.action.tolist() == ten_steps[1][:9]


def test_the_stored_lstm_state_is_that_before_the_step_and_zero_at_an_episodes_start(
    initial_state, rows
):
    q = initial_state.q
    apply_cell = jax.jit(lambda lstm_state, obs: q.cell(jax.nn.relu(q.embed(obs)), lstm_state))
    lstm_state = None
    for t in range(9):
        if rows.episode_start[t]:
            lstm_state = (jnp.zeros(4), jnp.zeros(4))
        np.testing.assert_allclose(rows.lstm_state.h[t], lstm_state[0], atol=1e-6)
        np.testing.assert_allclose(rows.lstm_state.c[t], lstm_state[1], atol=1e-6)
        assert np.any(rows.lstm_state.h[t]) != rows.episode_start[t]
        lstm_state = apply_cell(lstm_state, rows.obs[t])


@pytest.mark.parametrize("burn_in", [0, 2])
def test_values_along_a_sequence_are_those_that_selected_its_actions(
    ten_steps, initial_state, burn_in
):
    """From any step on and across the starts of episodes, with the parameters that acted."""
    states, _, metrics = ten_steps
    agent = replace(AGENT, burn_in=burn_in, sequence_length=5 - burn_in)
    q_values = jax.jit(lambda batch: agent.q_values(initial_state.q, batch))
    for start in range(4):
        batch = jax.tree.map(lambda x, start=start: x[start : start + 6], states[-1].replay)
        q_max = [metrics[t]["q_max"] for t in range(start + burn_in, start + 6)]
        np.testing.assert_allclose(q_values(batch).max(axis=-1)[:, 0], q_max, rtol=1e-5)


def test_frames_are_stored_once_and_their_stacks_have_the_values_that_acted():
    spec = Spec((3, 6, 6), 2, "uint8", max_episode_steps=10, frame_stack=3, num_iterations=40)
    agent = replace(AGENT, buffer_size=12, sequence_length=4)
    rng = np.random.default_rng(0)
    frames = rng.integers(1, 256, (15, 6, 6)).astype(np.uint8)
    no, yes = np.array([False]), np.array([True])
    step = jit_step(agent, spec)
    state, stack, q_max = agent.init(jax.random.key(0), spec), np.zeros((3, 6, 6), np.uint8), []
    for t, frame in enumerate(frames):
        done = t in (4, 9)
        stack = np.concatenate([stack[1:] * (not done), frame[None]])
        reward, none = np.zeros(1, np.float32), np.zeros((1, 0), np.uint8)
        timestep = TimeStep(stack[None], reward, yes if done else no, no, none)
        state, _, metrics = step(state, timestep, np.int32(t))
        q_max.append(metrics["q_max"])
    assert state.replay.obs.frames.shape == (12, 1, 36)
    draw = jax.jit(lambda uniform: sample_sequences(state.replay, 14, 5, uniform))
    for uniform, start in ((0.0, 5), (0.999, 9)):  # the oldest with whole stacks, and the newest
        values = agent.q_values(state.q, draw(jnp.array([uniform])))
        np.testing.assert_allclose(values.max(axis=-1)[:, 0], q_max[start : start + 5], rtol=1e-5)


# The loss


def make_batch(*rows):
    """A sequence of one environment from rows of (reward, terminal, episode start, action)."""
    rewards, terminals, starts, actions = (np.array(x)[:, None] for x in zip(*rows, strict=True))
    count = len(rows)
    return RecurrentTransition(
        obs=jax.random.normal(jax.random.key(3), (count, 1, 2)),
        action=jnp.array(actions),
        lstm_state=zero_state(count, 1, 4),
        episode_start=jnp.array(starts, bool),
        reward=jnp.array(rewards, jnp.float32),
        terminal=jnp.array(terminals, jnp.float32),
    )


NO_END = [(1.0, 0, 1, 0), (2.0, 0, 0, 1), (4.0, 0, 0, 0), (100.0, 0, 0, 0)]
TERMINATED = [(1.0, 0, 1, 0), (2.0, 1, 0, 1), (4.0, 0, 1, 0), (100.0, 0, 0, 0)]
TRUNCATED = [(1.0, 0, 1, 0), (2.0, 0, 0, 1), (4.0, 0, 1, 0), (100.0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("rows", "errors"),
    [
        # Q is (2, 3), and (6, 10) by the target network: unless a step is terminal, its target is
        # the reward and 10/2.
        (NO_END, [1 + 5 - 2, 2 + 5 - 3, 4 + 5 - 2]),
        (TERMINATED, [1 + 5 - 2, 2 - 3, 4 + 5 - 2]),
        # The observation after the second step was not stored, so that this step is left out.
        (TRUNCATED, [1 + 5 - 2, 4 + 5 - 2]),
    ],
    ids=["no end", "terminated", "truncated"],
)
def test_the_loss_is_the_mean_squared_td_error_without_truncated_steps(initial_state, rows, errors):
    batch = make_batch(*rows)
    next_q = Q_VALUES(constant_network(initial_state.q, [6.0, 10.0]), batch)[1:]
    loss = LOSS(constant_network(initial_state.q, [2.0, 3.0]), batch, next_q)
    assert loss == pytest.approx(np.mean(np.square(errors)), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "errors"),
    [
        (NO_END, [1 + 2 / 2 + 10 / 4 - 2, 2 + 4 / 2 + 10 / 4 - 3, 4 + 5 - 2]),
        (TERMINATED, [1 + 2 / 2 - 2, 2 - 3, 4 + 5 - 2]),
        # The first step's target ends before the truncated one.
        (TRUNCATED, [1 + 5 - 2, 4 + 5 - 2]),
    ],
    ids=["no end", "terminated", "truncated"],
)
def test_n_step_targets_end_with_the_sequence_and_the_episode(initial_state, rows, errors):
    batch = make_batch(*rows)
    next_q = Q_VALUES(constant_network(initial_state.q, [6.0, 10.0]), batch)[1:]
    loss_fn = jax.jit(replace(AGENT, n_step=2).loss_fn)
    loss = loss_fn(constant_network(initial_state.q, [2.0, 3.0]), batch, next_q)
    assert loss == pytest.approx(np.mean(np.square(errors)), rel=1e-6)


def test_a_sequence_of_truncated_steps_has_no_loss(initial_state):
    batch = make_batch(*[(1.0, 0, 1, 0)] * 4)
    assert LOSS(initial_state.q, batch, jnp.ones((3, 1, 2))) == 0.0


def test_the_burn_in_has_neither_loss_nor_gradient(initial_state):
    agent = replace(AGENT, burn_in=2, sequence_length=2)
    rows = [(50.0, 0, 1, 0), (70.0, 1, 0, 1), (1.0, 0, 0, 1), (2.0, 0, 0, 0), (100.0, 0, 0, 0)]
    batch = make_batch(*rows)
    target_network = constant_network(initial_state.q, [6.0, 10.0])
    next_q = jax.jit(agent.q_values)(target_network, batch)[1:]
    assert next_q.shape == (2, 1, 2)

    @jax.jit
    def loss_and_gradient(q, obs):
        loss = lambda obs: agent.loss_fn(q, batch._replace(obs=obs), next_q)  # noqa: E731
        return jax.value_and_grad(loss)(obs)

    # Errors 1 + 5 - 3 and 2 + 5 - 2.
    loss, _ = loss_and_gradient(constant_network(initial_state.q, [2.0, 3.0]), batch.obs)
    assert loss == pytest.approx((3**2 + 5**2) / 2)
    loss, gradient = loss_and_gradient(initial_state.q, batch.obs)
    has_gradient = np.any(np.asarray(gradient) != 0, axis=(1, 2))
    assert has_gradient.tolist() == [False, False, True, True, False]
    # Yet the values depend on the observations of the burn-in.
    assert loss_and_gradient(initial_state.q, batch.obs.at[0].add(1.0))[0] != loss


def test_without_burn_in_the_gradient_goes_back_to_the_episodes_start(initial_state):
    ends_and_starts = [(0, 0), (1, 0), (0, 1), (0, 0), (0, 0), (0, 0)]
    batch = make_batch(*[(0.0, terminal, start, 0) for terminal, start in ends_and_starts])
    agent = replace(AGENT, sequence_length=5)

    @jax.jit
    @jax.grad
    def gradient_of_last_values(obs):
        return jnp.sum(agent.q_values(initial_state.q, batch._replace(obs=obs))[-2])

    has_gradient = np.any(np.asarray(gradient_of_last_values(batch.obs)) != 0, axis=(1, 2))
    assert has_gradient.tolist() == [False, False, True, True, True, False]


# Options that do not fit


@pytest.mark.parametrize(
    ("buffer_size", "num_envs", "message"),
    [
        (
            8,
            1,
            "buffer_size (8) must hold 9 steps, one more than burn_in and sequence_length "
            "together: raise it to at least 9, or lower the other.",
        ),
        (
            20,
            4,
            "buffer_size (20) must hold 9 steps of each of 4 environments, one more than burn_in "
            "and sequence_length together: raise it to at least 36",
        ),
    ],
)
def test_a_buffer_that_holds_no_sequence_is_refused(buffer_size, num_envs, message):
    """A sequence has a burn-in of two steps, six steps, and the observation after them."""
    agent = replace(AGENT, buffer_size=buffer_size, sequence_length=6, burn_in=2)
    with pytest.raises(EngramError) as error:
        agent.init(jax.random.key(0), Spec((2,), 2, num_envs=num_envs))
    assert str(error.value).startswith(message)


# A task that needs memory

ITERATIONS = 2500
OPTIONS = {
    "gamma": 0.9,
    "hidden_size": 16,
    "learning_rate": 5e-3,
    "train_frequency": 2,
    "target_update_interval": 20,
    "epsilon_end": 0.1,
    "epsilon_decay": 300.0,
}


def train(agent):
    """The losses of the first ten steps, and greedy returns [seed, cue] after training."""
    runner = JaxRunner(agent, [CUE] * 2, [0, 1], probe_spec(ITERATIONS))
    runner.start()
    runner.max_iterations = ITERATIONS  # so that one program serves all calls
    losses = []
    for _ in range(10):
        runner.advance(1)
        losses.append(float(runner.pop_metrics()["td_loss"][0]))
    runner.advance(ITERATIONS - 10)
    returns = jax.jit(jax.vmap(lambda state: cue_returns(agent, state, runner.spec)))
    return losses, np.asarray(returns(runner.run_state.agent))


@pytest.fixture(scope="module")
def trained_drqn():
    sizes = {"lstm_size": 16, "batch_size": 8, "sequence_length": 6}
    return train(DRQN(**OPTIONS, **sizes, learning_starts=1))


def test_learning_starts_once_a_whole_sequence_is_stored(trained_drqn):
    losses, _ = trained_drqn
    # Six steps and the row after them are stored in step 7, and every second step learns.
    assert [loss > 0 for loss in losses] == [False] * 8 + [True, True]


def test_drqn_recalls_a_cue_that_is_no_longer_observed(trained_drqn):
    _, returns = trained_drqn
    assert returns.mean(axis=-1).min() > 0.9


def test_dqn_cannot_recall_the_cue():
    """The last observation is the same for both cues, so its action is right for one of them."""
    _, returns = train(DQN(**OPTIONS, batch_size=16))
    assert returns.sum(axis=-1).tolist() == [0.0, 0.0]
