"""PPO's loss agrees with numbers worked out by hand, and it learns when and from what it should."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import CUE, WALK, act_through, actor, constant, episodes, probe_spec, recalls

from engram import loop
from engram.agents.ppo import PPO, Decision, Pair, Sample, run_once, sequences
from engram.errors import EngramError
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, limit=10, iterations=40)
AGENT = PPO(gamma=0.5, hidden=3, rollout=4, epochs=1, minibatches=1)
RECURRENT = replace(AGENT, recurrent=True, lstm=4, sequence=2)
PLAIN = {"normalise": False, "entropy_cost": 0.0, "clip_range": 0.25}


@pytest.fixture(scope="module", params=["feed-forward", "recurrent"])
def kind(request):
    """An agent, and its state when it was born."""
    agent = RECURRENT if request.param == "recurrent" else AGENT
    return agent, agent.init(jax.random.key(0), SPEC)


@pytest.fixture(scope="module")
def newborn():
    return AGENT.init(jax.random.key(0), SPEC)


# The loss


def known(state, probabilities=(0.2, 0.8), value=5.0):
    """Networks that always give these."""
    networks = state.networks
    return Pair(constant(networks.actor, np.log(probabilities)), constant(networks.critic, [value]))


def samples(*rows, state=(0.0, 0.0)):
    """For each sample an action, its probability when it was taken, the value then, and its advantage."""
    actions, before, values, advantage = (np.array(x) for x in zip(*rows, strict=True))
    count = len(rows)
    decision = Decision(
        jnp.tile(jnp.array(state), (1, count, 1)),
        jnp.array(actions)[None],
        jnp.log(jnp.array(before, jnp.float32))[None],
        jnp.array(values, jnp.float32)[None],
        None,
        jnp.zeros((1, count), bool),
    )
    return Sample(decision, jnp.array(advantage, jnp.float32)[None])


@pytest.mark.parametrize(
    ("before", "advantage", "objective", "clipped"),
    [
        # the second action has now probability 0.8; the share of it may move from 0.75 to 1.25
        (0.8, 2.0, 2.0, 0),  # as it was
        (0.7, 2.0, 2.0 * 0.8 / 0.7, 0),  # a little more likely
        (0.4, 2.0, 2.0 * 1.25, 1),  # twice as likely: enough of what is good
        (0.4, -2.0, -2.0 * 2.0, 1),  # but of what is bad all counts
        (1.0, -2.0, -2.0 * 0.8, 0),  # a little less likely
    ],
)
def test_the_objective_is_clipped_where_the_policy_has_moved_enough(newborn, before, advantage, objective, clipped):
    agent = replace(AGENT, **PLAIN)
    _, metrics = agent.loss(known(newborn), samples((1, before, 5.0, advantage)))
    assert metrics["policy_loss"] == pytest.approx(-objective, rel=1e-5)
    assert metrics["clipped"] == clipped
    ratio = 0.8 / before
    assert metrics["moved"] == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-6)


@pytest.mark.parametrize(("advantage", "objective"), [(2.0, 2.0 * 0.5), (-2.0, -2.0 * 0.75)])
def test_an_action_that_became_less_likely_is_clipped_the_other_way(newborn, advantage, objective):
    """The first action had probability 0.4 and has 0.2: a share of 1/2, which may be 3/4."""
    _, metrics = replace(AGENT, **PLAIN).loss(known(newborn), samples((0, 0.4, 5.0, advantage)))
    assert metrics["policy_loss"] == pytest.approx(-objective, rel=1e-5)


def test_what_is_clipped_has_no_gradient(newborn):
    slope = jax.jit(jax.grad(lambda networks, batch: replace(AGENT, **PLAIN).loss(networks, batch)[1]["policy_loss"]))
    for before, is_clipped in ((0.4, True), (0.7, False)):
        gradient = slope(known(newborn), samples((1, before, 5.0, 2.0))).actor.layers[-1].bias
        assert np.any(gradient != 0) != is_clipped


def test_all_samples_and_all_parts_make_the_loss(newborn):
    """Three samples: shares 1, 2 and 1/2, advantages 1, 2 and -1; the value is 5 where it was 5, 4 and 7."""
    agent = replace(AGENT, **PLAIN | {"entropy_cost": 0.1}, value_cost=0.5)
    loss, metrics = agent.loss(known(newborn), samples((1, 0.8, 5.0, 1.0), (1, 0.4, 4.0, 2.0), (0, 0.4, 7.0, -1.0)))
    policy = -(1.0 + 2.0 * 1.25 - 0.75) / 3
    value = (1**2 + 1**2 + 1**2) / 3 / 2  # targets 5 + 1, 4 + 2 and 7 - 1
    entropy = -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))
    assert metrics["policy_loss"] == pytest.approx(policy, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(value, rel=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert loss == pytest.approx(policy + 0.5 * value - 0.1 * entropy, rel=1e-5)


@pytest.mark.parametrize(
    ("before", "advantage", "error"),
    [
        # the value is 5; from where it was it may move by 1/4, and the greater of both errors counts
        (4.0, 3.0, (4.25 - 7) ** 2),  # to the right side, but too far: the error of 4.25
        (4.0, -2.0, (5 - 2) ** 2),  # to the wrong side: all of it
        (4.9, 3.0, (5 - 7.9) ** 2),  # not far
    ],
)
def test_a_value_may_not_move_far_towards_its_target(newborn, before, advantage, error):
    agent = replace(AGENT, **PLAIN, clip_value=True)
    _, metrics = agent.loss(known(newborn), samples((1, 0.8, before, advantage)))
    assert metrics["value_loss"] == pytest.approx(error / 2, rel=1e-5)


def test_advantages_may_be_brought_to_mean_0_and_deviation_1_but_not_the_targets_of_the_value(newborn):
    agent = replace(AGENT, **PLAIN | {"normalise": True})
    rows = (1, 0.8, 5.0, 10.0), (0, 0.4, 5.0, 30.0)
    _, metrics = agent.loss(known(newborn), samples(*rows))
    # -1 and 1, with shares 1 and 1/2
    assert metrics["policy_loss"] == pytest.approx(-(-1 + 0.5) / 2, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx((10**2 + 30**2) / 4, rel=1e-5)


# Acting


def test_actions_are_drawn_by_their_probabilities():
    spec = Spec((2,), 3, envs=30_000, iterations=2)
    agent = PPO(hidden=2, rollout=30_000, minibatches=1)
    state = agent.init(jax.random.key(0), spec)
    state = state._replace(networks=known(state, (0.1, 0.2, 0.7)))
    zero, no = jnp.zeros((30_000, 2)), jnp.zeros(30_000, bool)
    after, actions, _ = agent.act(state, spec, TimeStep(zero, jnp.zeros(30_000), no, no, zero), jnp.int32(0), jax.random.key(1))
    expected = np.array([0.1, 0.2, 0.7]) * 30_000
    counts = np.bincount(actions, minlength=3)
    assert np.sum((counts - expected) ** 2 / expected) < 13.8  # chi-square of two degrees, one in a thousand
    np.testing.assert_allclose(np.exp(after.last.log_p), np.array([0.1, 0.2, 0.7])[np.asarray(actions)], rtol=1e-5)
    _, best = agent.play(state, spec, zero[:5], jnp.ones(5, bool), jax.random.key(1))
    assert best.tolist() == [2] * 5


def test_a_cut_episode_is_paid_what_was_still_to_come(kind):
    agent, state = kind
    script = episodes((1.0, [1.0, 2.0], True), (2.0, [4.0, 8.0], False))
    states, actions, metrics = act_through(actor(agent, SPEC), state, script, 5)
    rows = jax.tree.map(lambda x: np.asarray(x)[:, 0], states[-1].rollout)
    assert rows.done.tolist() == [0, 1, 0, 1]
    assert rows.decision.first.tolist() == [True, False, True, False]
    assert rows.decision.action.tolist() == actions[:4]
    assert rows.decision.state.tolist() == [[0, 1], [1, 1], [0, 2], [1, 2]]
    np.testing.assert_allclose(rows.decision.value, [said["value"] for said in metrics[:4]], rtol=1e-6)
    # the value of (2, 1), by an LSTM that has seen the episode up to there; nothing is added where it ended
    carried = None
    for t in range(3):
        zeros = None if state.carried is None else jax.tree.map(jnp.zeros_like, state.carried)
        carried, _, value = run_once(state.networks, zeros if t == 0 else carried, jnp.array([[float(t), 1.0]]))
    np.testing.assert_allclose(rows.reward, [1.0, 2.0 + 0.5 * float(value[0]), 4.0, 8.0], rtol=1e-5)
    assert abs(float(value[0])) > 1e-3


def test_a_limit_that_counts_as_an_end_adds_nothing(newborn):
    agent = replace(AGENT, time_limit_ends=True)
    states, _, _ = act_through(actor(agent, SPEC), newborn, episodes((1.0, [1.0, 2.0], True)), 3)
    assert states[-1].rollout.reward[:2, 0].tolist() == [1.0, 2.0]


def test_the_lstm_stored_is_that_before_the_step_and_nothing_where_an_episode_begins():
    state = RECURRENT.init(jax.random.key(0), SPEC)
    script = episodes((1.0, [1.0, 2.0], True), (2.0, [4.0, 8.0], False))
    states, _, _ = act_through(actor(RECURRENT, SPEC), state, script, 5)
    stored = jax.tree.map(lambda x: np.asarray(x)[:, 0], states[-1].rollout.decision.carried)
    for lstm in stored:
        assert np.any(lstm.h, axis=-1).tolist() == [False, True, False, True]
    for t in (1, 3):  # what was carried after the step before
        np.testing.assert_allclose(stored.critic.c[t], states[t - 1].carried.critic.c[0], atol=1e-6)


# Updates


def test_rows_become_sequences_of_one_environment_each():
    rows = 10 * jnp.arange(6)[:, None] + jnp.arange(2)  # a row's number, and the environment's
    cut = sequences(rows, 3)
    assert sorted(cut.T.tolist()) == [[0, 10, 20], [1, 11, 21], [30, 40, 50], [31, 41, 51]]


@pytest.fixture(scope="module")
def walked(kind):
    """An agent, and what it knew in each of 18 steps of four environments; there are eight rows between two updates."""
    agent = replace(kind[0], rollout=32, minibatches=2)
    driver = loop.Scan(agent, [WALK], [0], Spec((2,), 2, limit=6, envs=4, iterations=40))
    driver.start()
    states = [jax.tree.map(np.array, driver.carry.agent)]
    for _ in range(18):
        driver.advance(1)
        states.append(jax.tree.map(np.array, driver.carry.agent))
    return agent, [jax.tree.map(lambda x: x[0], state) for state in states]


def test_an_update_comes_after_every_rollout_and_not_between(walked):
    _, states = walked
    leaves = [jax.tree.leaves(state.networks) for state in states]
    changed = [step for step, (a, b) in enumerate(pairwise(leaves)) if any(np.any(x != y) for x, y in zip(a, b, strict=True))]
    assert changed == [8, 16]  # once its eighth row is there, which the next step brings


def test_by_the_networks_that_acted_every_share_is_1(walked):
    """Over sequences, too, that cross the end of an episode."""
    agent, states = walked
    rows = jax.tree.map(lambda x: x[:6], states[8].rollout)
    assert int(np.sum(rows.done)) > 0
    batch = jax.tree.map(jnp.asarray, sequences(Sample(rows.decision, rows.reward), 2 if agent.recurrent else 1))
    loss = jax.jit(agent.loss)
    _, metrics = loss(states[0].networks, batch)
    assert metrics["moved"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clipped"] == 0.0
    _, metrics = loss(states[-1].networks, batch)
    assert metrics["moved"] > 1e-6  # while those of later moved


@pytest.mark.parametrize(("options", "envs", "rows"), [({}, 1, 4), ({"rollout": 10}, 4, 2), ({"rollout": 7}, 7, 1)])
def test_a_rollout_is_split_among_the_environments(options, envs, rows):
    assert replace(AGENT, **options).rows(replace(SPEC, envs=envs)) == rows


def test_a_rollout_with_an_lstm_is_of_whole_sequences():
    agent = replace(RECURRENT, rollout=30, sequence=4)
    assert [agent.rows(replace(SPEC, envs=envs)) for envs in (1, 3, 7)] == [28, 8, 4]


def test_the_learning_rate_falls_to_0_in_a_straight_line(newborn):
    """Adam's first step is as long as its rate."""
    states, _, _ = act_through(actor(AGENT, SPEC), newborn, episodes((1.0, [1.0, 2.0, 4.0, 8.0], False)), 5)
    update = jax.jit(lambda step: AGENT.update(states[-1], SPEC, step, jax.random.key(0))[0])

    def moved(step):
        pairs = zip(jax.tree.leaves(update(jnp.int32(step))), jax.tree.leaves(newborn.networks), strict=True)
        return np.concatenate([np.ravel(a - b) for a, b in pairs])

    whole = moved(0)
    assert np.abs(whole).max() == pytest.approx(AGENT.learning_rate, rel=0.05)
    np.testing.assert_allclose(moved(30), whole / 4, rtol=1e-2, atol=2e-7)
    assert np.abs(moved(40)).max() < 1e-9


# How it begins


def test_weights_are_orthogonal_and_the_policy_begins_nearly_even(kind):
    _, state = kind

    def gain(weight):
        w = np.asarray(weight, float)
        product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(product, product[0, 0] * np.eye(len(product)), atol=1e-5)
        return np.sqrt(product[0, 0])

    for network, last in zip(state.networks, (0.01, 1.0), strict=True):
        leaves = jax.tree.leaves(network)
        gains = [gain(x) for x in leaves if x.ndim == 2]
        assert gains == pytest.approx([2**0.5] * (len(gains) - 1) + [last], rel=1e-4)
        assert not any(np.any(x) for x in leaves if x.ndim == 1)
    _, log_p, _ = run_once(state.networks, state.carried, jnp.array([[1.0, -1.0]]))
    np.testing.assert_allclose(np.exp(log_p), 0.5, atol=0.02)


def test_no_orthogonal_matrix_is_drawn_before_the_last_one_is_there(monkeypatch):
    """JAX 0.10 may never end on a CPU where it draws two large ones at once."""

    def keys(value):
        met = []

        def draw(key, shape):
            met.append(np.asarray(jax.random.key_data(key)))
            return jnp.full(shape, value)

        monkeypatch.setattr(jax.nn.initializers, "orthogonal", lambda gain: draw)
        PPO().build(jax.random.key(0), SPEC)
        return np.array(met)

    usual, others = keys(1.0), keys(np.nan)
    np.testing.assert_array_equal((usual != others).any(axis=1), [False] + [True] * 5)  # by what came before, so after it


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rollout": 3, "minibatches": 4}, "A rollout of 3 steps cannot be split into 4 minibatches: raise rollout or lower minibatches."),
        (
            {"rollout": 8, "minibatches": 3, "recurrent": True, "sequence": 4},
            "A rollout of 2 sequences of 4 steps cannot be split into 3 minibatches: raise rollout or lower minibatches.",
        ),
    ],
)
def test_a_rollout_too_short_for_its_minibatches_is_one_sentence(options, sentence):
    with pytest.raises(EngramError) as error:
        PPO(**options).init(jax.random.key(0), SPEC)
    assert str(error.value) == sentence


# A task that needs a memory

ITERATIONS = 900
LEARNS = {"gamma": 0.9, "hidden": 16, "rollout": 96, "epochs": 6, "minibatches": 2, "learning_rate": 1e-2, "anneal": False}


def greedy_returns(agent):
    """Of two seeds, each for both cues, after training in four environments."""
    driver = loop.Scan(agent, [CUE] * 2, [0, 1], probe_spec(ITERATIONS, envs=4))
    driver.start()
    driver.advance(ITERATIONS)
    return np.asarray(jax.jit(jax.vmap(lambda state: recalls(agent, state, driver.spec)))(driver.carry.agent))


def test_with_an_lstm_ppo_recalls_a_cue_that_is_no_longer_seen():
    agent = PPO(**LEARNS, recurrent=True, lstm=16, sequence=12)
    assert greedy_returns(agent).mean(axis=-1).min() > 0.9


def test_without_an_lstm_it_cannot():
    """At the last step both cues look the same, so what it does there is right for one and wrong for the other."""
    assert greedy_returns(PPO(**LEARNS)).sum(axis=-1).tolist() == [0.0, 0.0]
