"""DRQN stores the LSTM's state before each step, and its loss agrees with numbers worked out by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import CUE, act_through, actor, constant, episodes, probe_spec, recalls

from engram import loop
from engram.agents import DQN
from engram.agents.drqn import DRQN, Row
from engram.errors import EngramError
from engram.networks import Carried
from engram.types import Spec

SPEC = Spec((2,), 2, limit=10, iterations=40)
AGENT = DRQN(gamma=0.5, hidden=3, lstm=4, batch=2, sequence=3, replay=20, epsilon_end=1.0)


@pytest.fixture(scope="module")
def newborn():
    return AGENT.init(jax.random.key(0), SPEC)


@pytest.fixture(scope="module")
def lived(newborn):
    """An episode of three steps that ends, one of two that is cut, and the beginning of a third."""
    script = episodes((1.0, [1.0, 2.0, 4.0], False), (-1.0, [8.0, 16.0], True), (2.0, [32.0] * 9, False))
    return act_through(actor(AGENT, SPEC), newborn, script, 10)


# What is stored


def test_a_row_is_a_step_and_what_came_of_it(lived):
    states, actions, _ = lived
    rows = jax.tree.map(lambda x: np.asarray(x)[:9, 0], states[-1].replay)
    assert rows.state.tolist() == [[0, 1], [1, 1], [2, 1], [0, -1], [1, -1], [0, 2], [1, 2], [2, 2], [3, 2]]
    assert rows.reward.tolist() == [1, 2, 4, 8, 16, 32, 32, 32, 32]
    assert rows.end.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]  # a cut is no end
    assert rows.first.tolist() == [True, False, False, True, False, True, False, False, False]
    assert rows.action.tolist() == actions[:9]


def test_the_state_stored_is_that_before_the_step_and_nothing_where_an_episode_begins(lived, newborn):
    rows = jax.tree.map(lambda x: np.asarray(x)[:9, 0], lived[0][-1].replay)
    one = jax.jit(lambda carried, seen: newborn.q.cell(jax.nn.relu(newborn.q.enter(seen)), carried))
    carried = None
    for t in range(9):
        if rows.first[t]:
            carried = (jnp.zeros(4), jnp.zeros(4))
        np.testing.assert_allclose(rows.carried.h[t], carried[0], atol=1e-6)
        np.testing.assert_allclose(rows.carried.c[t], carried[1], atol=1e-6)
        assert np.any(rows.carried.h[t]) != rows.first[t]
        carried = one(carried, rows.state[t])


@pytest.mark.parametrize("burn_in", [0, 2])
def test_values_along_a_sequence_are_those_by_which_it_was_acted(lived, newborn, burn_in):
    """From any step on, over the beginnings of episodes, with the parameters that acted."""
    states, _, metrics = lived
    agent = replace(AGENT, burn_in=burn_in, sequence=5 - burn_in)
    values = jax.jit(lambda batch: agent.values(newborn.q, batch))
    for begin in range(4):
        batch = jax.tree.map(lambda x, begin=begin: x[begin : begin + 6], states[-1].replay)
        said = [metrics[t]["value"] for t in range(begin + burn_in, begin + 6)]
        np.testing.assert_allclose(values(batch).max(axis=-1)[:, 0], said, rtol=1e-5)


# The loss


def batch_of(*rows):
    """A sequence of one environment: for each row a reward, whether it ended, whether an episode begins there, and an action."""
    rewards, ends, first, actions = (np.array(x) for x in zip(*rows, strict=True))
    count = len(rows)
    carried = Carried(jnp.zeros((count, 1, 4)), jnp.zeros((count, 1, 4)))
    states = jax.random.normal(jax.random.key(3), (count, 1, 2))
    columns = (x[:, None] for x in (rewards.astype(np.float32), ends.astype(np.float32)))
    return Row(states, jnp.array(actions)[:, None], carried, jnp.array(first, bool)[:, None], *map(jnp.array, columns))


PLAIN = [(1.0, 0, 1, 0), (2.0, 0, 0, 1), (4.0, 0, 0, 0), (100.0, 0, 0, 0)]
ENDED = [(1.0, 0, 1, 0), (2.0, 1, 0, 1), (4.0, 0, 1, 0), (100.0, 0, 0, 0)]
WAS_CUT = [(1.0, 0, 1, 0), (2.0, 0, 0, 1), (4.0, 0, 1, 0), (100.0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("rows", "errors"),
    [
        # Q is (2, 3) and (6, 10) by the target copy, so that targets are the reward and 5, but for an end
        (PLAIN, [1 + 5 - 2, 2 + 5 - 3, 4 + 5 - 2]),
        (ENDED, [1 + 5 - 2, 2 - 3, 4 + 5 - 2]),
        (WAS_CUT, [1 + 5 - 2, 4 + 5 - 2]),  # what the second led to was not stored: it is left out
    ],
)
def test_the_loss_is_the_mean_squared_td_error_of_what_is_whole(newborn, rows, errors):
    batch = batch_of(*rows)
    q_next = AGENT.values(constant(newborn.q, [6.0, 10.0]), batch)[1:]
    loss = AGENT.loss(constant(newborn.q, [2.0, 3.0]), batch, q_next)
    assert loss == pytest.approx(np.mean(np.square(errors)), rel=1e-6)


def test_a_sequence_of_nothing_but_cuts_has_no_loss(newborn):
    batch = batch_of(*[(1.0, 0, 1, 0)] * 4)
    assert AGENT.loss(newborn.q, batch, jnp.ones((3, 1, 2))) == 0.0


def test_the_burn_in_has_neither_loss_nor_gradient(newborn):
    agent = replace(AGENT, burn_in=2, sequence=2)
    rows = [(50.0, 0, 1, 0), (70.0, 1, 0, 1), (1.0, 0, 0, 1), (2.0, 0, 0, 0), (100.0, 0, 0, 0)]
    batch = batch_of(*rows)
    q_next = agent.values(constant(newborn.q, [6.0, 10.0]), batch)[1:]
    assert q_next.shape == (2, 1, 2)
    # 1 + 5 - 3 and 2 + 5 - 2
    assert agent.loss(constant(newborn.q, [2.0, 3.0]), batch, q_next) == pytest.approx((3**2 + 5**2) / 2)
    both = jax.jit(jax.value_and_grad(lambda states: agent.loss(newborn.q, batch._replace(state=states), q_next)))
    loss, gradient = both(batch.state)
    assert np.any(np.asarray(gradient) != 0, axis=(1, 2)).tolist() == [False, False, True, True, False]
    assert both(batch.state.at[0].add(1.0))[0] != loss  # yet what was seen there is not forgotten


def test_without_burn_in_the_gradient_goes_back_to_the_first_step_of_the_episode(newborn):
    batch = batch_of((0.0, 0, 0, 0), (0.0, 1, 0, 1), (0.0, 0, 1, 0), (0.0, 0, 0, 1), (0.0, 0, 0, 0), (0.0, 0, 0, 0))
    agent = replace(AGENT, sequence=5)

    def last(states):
        return jnp.sum(agent.values(newborn.q, batch._replace(state=states))[-2])

    reached = np.any(np.asarray(jax.jit(jax.grad(last))(batch.state)) != 0, axis=(1, 2))
    assert reached.tolist() == [False, False, True, True, True, False]


# What is refused


@pytest.mark.parametrize(
    ("replay", "envs", "sentence"),
    [
        (8, 1, "replay (8) must hold 9 steps, one more than burn_in and sequence together: raise it to at least 9, or lower the other."),
        (
            20,
            4,
            "replay (20) must hold 9 steps of each of 4 environments, one more than burn_in and sequence together: raise it to at least 36",
        ),
    ],
)
def test_a_replay_that_holds_no_sequence_is_refused(replay, envs, sentence):
    """Six steps after a burn-in of two, and what the last of them led to."""
    with pytest.raises(EngramError) as error:
        DRQN(replay=replay, sequence=6, burn_in=2, hidden=3, lstm=4).init(jax.random.key(0), Spec((2,), 2, envs=envs))
    assert str(error.value).startswith(sentence)


# A task that needs a memory

STEPS = 2500
LEARNS = {"gamma": 0.9, "hidden": 16, "learning_rate": 5e-3, "target_every": 20, "epsilon_end": 0.1, "epsilon_decay": 300.0}


def trained(agent):
    """The losses of the first ten steps, and the greedy returns of two seeds, each for both cues, after training."""
    driver = loop.Scan(agent, [CUE] * 2, [0, 1], probe_spec(STEPS))
    driver.start()
    driver.most = STEPS  # so that one program serves all
    losses = []
    for _ in range(10):
        driver.advance(1)
        losses.append(float(driver.metrics()["td_loss"][0]))
    driver.advance(STEPS - 10)
    play = jax.jit(jax.vmap(lambda state: recalls(agent, state, driver.spec)))
    return losses, np.asarray(play(driver.carry.agent))


@pytest.fixture(scope="module")
def recalling():
    return trained(DRQN(**LEARNS, lstm=16, batch=8, sequence=6, learn_every=2, learn_start=1))


def test_nothing_is_learnt_before_a_whole_sequence_is_stored(recalling):
    losses, _ = recalling
    # six steps and what follows them are there in step 7, and every second one learns
    assert [loss > 0 for loss in losses] == [False] * 8 + [True, True]


def test_drqn_recalls_a_cue_that_is_no_longer_seen(recalling):
    _, returns = recalling
    assert returns.mean(axis=-1).min() > 0.9


def test_dqn_cannot_recall_it():
    """At the last step both cues look the same, so what it does there is right for one and wrong for the other."""
    _, returns = trained(DQN(**LEARNS, batch=16, learn_every=2))
    assert returns.sum(axis=-1).tolist() == [0.0, 0.0]
