"""NEC's returns, gradients and updates agree with numbers worked out by hand and with finite differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import act_through, actor, episodes

from engram import replay as rp
from engram.agents.nec import NEC, Lookup, Row
from engram.errors import EngramError
from engram.types import Spec

SPEC = Spec((2,), 2, limit=10, iterations=40)
AGENT = NEC(gamma=0.5, hidden=3, embedding=2, neighbours=2, slots=1000, horizon=2, batch=4, replay=100, learn_start=1, learn_every=1)


@pytest.fixture(scope="module")
def newborn():
    """An agent in whose dictionaries one far key of each action is worth 20."""
    state = AGENT.init(jax.random.key(0), SPEC)
    tables = state.tables._replace(
        keys=state.tables.keys.at[:, 0].set(50.0), values=state.tables.values.at[:, 0].set(20.0), written=jnp.ones(2, jnp.int32)
    )
    return state._replace(tables=tables)


@pytest.fixture(scope="module")
def act():
    return actor(AGENT, SPEC)


# Returns


def entries(state):
    """What was written after the far keys: values by action."""
    return [state.tables.values[action, 1 : int(state.tables.written[action])].tolist() for action in range(2)]


@pytest.mark.parametrize(("cut", "returns"), [(False, [1 + 2 / 2 + 20 / 4, 2 + 4 / 2, 4.0]), (True, [7.0, 2 + 4 / 2 + 20 / 4, 4 + 20 / 2])])
def test_returns_of_two_steps_go_on_with_what_is_known_but_not_after_an_end(newborn, act, cut, returns):
    """The first closes after two rewards, the others with the episode; until then everything is worth 20."""
    states, actions, metrics = act_through(act, newborn, episodes((0.0, [1.0, 2.0, 4.0], cut)), 5)
    np.testing.assert_allclose([said["value"] for said in metrics[:4]], 20.0, rtol=1e-5)
    expected = [[r for r, action in zip(returns, actions, strict=False) if action == own] for own in range(2)]
    for found, own in zip(entries(states[-1]), expected, strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-5)
    replay = jax.tree.map(lambda x: np.asarray(x)[:5, 0], states[-1].replay)
    np.testing.assert_allclose(replay.target, [*returns, 0.0, 0.0], rtol=1e-5)
    assert replay.known.tolist() == [1, 1, 1, 0, 0]
    assert replay.state[:, 0].tolist() == [0, 1, 2, 0, 1]
    assert replay.action.tolist() == actions
    # a return is known in the step after its last reward
    known = [int(np.sum(state.replay.known)) for state in states]
    assert known == [0, 0, 0, 1, 3]


def test_the_keys_written_are_the_embeddings_of_the_states(newborn, act):
    states, actions, _ = act_through(act, newborn, episodes((0.0, [1.0, 2.0, 4.0], False)), 5)
    h = jax.vmap(newborn.embedding)(jnp.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]))
    for action in range(2):
        own = np.asarray(h)[[t for t in range(3) if actions[t] == action]]
        np.testing.assert_allclose(states[-1].tables.keys[action, 1 : 1 + len(own)], own, rtol=1e-5, atol=1e-6)


def test_a_return_finds_its_row_after_the_ring_has_turned(newborn):
    """Six rows, the fewest that are allowed, for twelve steps, and episodes of two."""
    agent = replace(AGENT, replay=6)
    state = agent.init(jax.random.key(0), SPEC)
    assert state.replay.target.shape == (6, 1)
    script = episodes(*[(0.0, [float(number), 10.0 * number], False) for number in range(1, 7)])
    states, _, _ = act_through(actor(agent, SPEC), state, script, 12)
    replay = jax.tree.map(lambda x: np.asarray(x)[:, 0], states[-1].replay)
    # rows hold steps 6 to 11; the first of episode n is worth n + 10n/2 and the second 10n; of step 10 on they are to come
    assert replay.known.tolist() == [1, 1, 1, 1, 0, 0]
    np.testing.assert_allclose(replay.target[:4], [24, 40, 30, 50], rtol=1e-6)
    assert replay.state[:, 0].tolist() == [0, 1, 0, 1, 0, 1]


# Gradients


def numpy_loss(leaves, there, batch, delta):
    """The loss in double precision, written anew: w1, b1, w2, b2 of the embedding, keys, values."""
    w1, b1, w2, b2, keys, values = leaves
    h = np.maximum(np.asarray(batch.state, float) @ w1.T + b1, 0) @ w2.T + b2
    error = 0.0
    for b, (own_keys, own_values) in enumerate(zip(keys, values, strict=True)):
        kernel = [1 / (np.sum((h[b] - key) ** 2) + delta) if is_there else 0.0 for key, is_there in zip(own_keys, there[b], strict=True)]
        q = np.dot(kernel, own_values) / sum(kernel)
        error += float(batch.known[b]) * (float(batch.target[b]) - q) ** 2
    return error / float(np.sum(batch.known))


def test_embedding_keys_and_values_have_the_gradients_of_finite_differences(newborn):
    agent, random = replace(AGENT, delta=0.1), np.random.default_rng(5)
    keys, values = random.normal(size=(3, 2, 2)).astype(np.float32), random.normal(size=(3, 2)).astype(np.float32)
    states = random.normal(size=(3, 2)).astype(np.float32)
    batch = Row(jnp.array(states), jnp.array([0, 1, 0]), jnp.array([1.0, -2.0, 9.0]), jnp.array([1.0, 1.0, 0.0]))
    there = np.array([[True, True], [True, False], [True, True]])
    lookup = Lookup(newborn.embedding, jnp.array(keys), jnp.array(values))
    loss, gradient = jax.jit(jax.value_and_grad(agent.loss))(lookup, jnp.array(there), batch)
    layers = newborn.embedding.layers
    leaves = [np.array(x, float) for x in (layers[0].weight, layers[0].bias, layers[1].weight, layers[1].bias, keys, values)]
    assert loss == pytest.approx(numpy_loss(leaves, there, batch, 0.1), rel=1e-4)
    own = gradient.embedding.layers
    found = [own[0].weight, own[0].bias, own[1].weight, own[1].bias, gradient.keys, gradient.values]
    for leaf, got in zip(leaves, found, strict=True):
        expected = np.zeros_like(leaf)
        for index in np.ndindex(leaf.shape):
            kept, either = leaf[index], []
            for step in (1e-5, -1e-5):
                leaf[index] = kept + step
                either.append(numpy_loss(leaves, there, batch, 0.1))
            leaf[index] = kept
            expected[index] = (either[0] - either[1]) / 2e-5
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-5)
        assert np.any(expected != 0)
    # the neighbour that is not there, and the row whose return is unknown
    for part in (gradient.keys, gradient.values):
        assert not np.any(part[1, 1])
        assert not np.any(part[2])


# Updates


def filled(rows, tables=((10.0, 30.0), (-10.0, -30.0))):
    """A state with two far-off keys and two near ones, by action; the rows of replay are of a state, an action and a target or None."""
    state = AGENT.init(jax.random.key(1), SPEC)
    keys = jnp.array([[0.0, 0.0], [1.0, 0.0], [40.0, 40.0], [60.0, 0.0]])
    memory = state.tables._replace(
        keys=state.tables.keys.at[:, :4].set(keys),
        values=state.tables.values.at[:, :4].set(jnp.array([[*own, 5.0, 7.0] for own in tables])),
        written=jnp.full(2, 4, jnp.int32),
    )
    replay = state.replay
    for number, (seen, action, target) in enumerate(rows):
        known = target is not None
        row = Row(jnp.array([seen]), jnp.array([action]), jnp.array([float(target or 0.0)]), jnp.array([float(known)]))
        replay = rp.store(replay, row, jnp.int32(number))
    return state._replace(tables=memory, replay=replay)


LEARN = jax.jit(lambda state, step, key: AGENT.learn(state, SPEC, step, key))


def test_an_update_changes_the_neighbours_in_the_table_of_the_action_and_no_others():
    state = filled([((0.3, 0.1), 1, 3.0)] * 2)
    after, metrics = LEARN(state, jnp.int32(1), jax.random.key(0))
    for name in ("keys", "values"):
        old, new = (np.asarray(getattr(x.tables, name)).reshape(2, 40, -1) for x in (state, after))
        changed = np.any(old != new, axis=-1)
        assert changed[1, :4].tolist() == [True, True, False, False], name
        assert not changed[0].any(), name
        assert not changed[1, 4:].any(), name
    for old, new in zip(jax.tree.leaves(state.embedding), jax.tree.leaves(after.embedding), strict=True):
        assert np.any(old != new)
    assert metrics["loss"] > 0
    # an update that is not due changes nothing
    lazy = replace(AGENT, learn_every=4)
    same, _ = jax.jit(lambda state: lazy.learn(state, SPEC, jnp.int32(1), jax.random.key(0)))(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(old, new)


def test_values_move_by_the_rate_their_weight_and_the_error():
    """Two rows of one state, so a batch of four is four times that state."""
    state = filled([((0.3, 0.1), 1, 3.0)] * 2)
    h = np.asarray(state.embedding(jnp.array([0.3, 0.1])), float)
    kernel = 1 / (np.sum((h - np.array([[0.0, 0.0], [1.0, 0.0]])) ** 2, axis=-1) + AGENT.delta)
    weights = kernel / kernel.sum()
    q = weights @ [-10.0, -30.0]
    after, _ = LEARN(state, jnp.int32(1), jax.random.key(0))
    moved = np.asarray(after.tables.values[1, :2]) - [-10.0, -30.0]
    np.testing.assert_allclose(moved, 4 * AGENT.dictionary_rate * weights * (3.0 - q), rtol=1e-3)


def test_rows_whose_return_is_unknown_contribute_nothing():
    """The dictionary's rate is that of a single example: those that are known count as if they were alone."""
    row, key = ((0.3, 0.1), 1, 3.0), jax.random.key(3)
    state = filled([row, ((5.0, 5.0), 0, None)])
    drawn = int(np.sum(rp.sample(jnp.arange(2)[:, None], 2, jax.random.uniform(key, (4,))) == 0))
    assert drawn == 1  # of four
    after, _ = LEARN(state, jnp.int32(1), key)
    np.testing.assert_array_equal(after.tables.values[0], state.tables.values[0])
    np.testing.assert_array_equal(after.tables.keys[0], state.tables.keys[0])
    four, _ = LEARN(filled([row] * 2), jnp.int32(1), key)
    moved, moved_by_four = (np.asarray(x.tables.values[1, :2] - state.tables.values[1, :2]) for x in (after, four))
    np.testing.assert_allclose(moved, moved_by_four / 4, rtol=1e-4)


def test_a_batch_of_which_nothing_is_known_changes_nothing():
    state = filled([((0.3, 0.1), 1, None)] * 2)
    after, metrics = LEARN(state, jnp.int32(1), jax.random.key(0))
    assert metrics["loss"] == 0
    for name in ("keys", "values"):
        np.testing.assert_array_equal(getattr(after.tables, name), getattr(state.tables, name))


# What is refused


@pytest.mark.parametrize(
    ("options", "envs", "sentence"),
    [
        (
            {"horizon": 10, "replay": 29},
            1,
            "replay (29) must hold 30 steps, three times the horizon of 10: raise it to at least 30, or lower the other.",
        ),
        # five rows: a return of ten steps would come to a row of another step
        (
            {"horizon": 10, "replay": 40},
            8,
            "replay (40) must hold 30 steps of each of 8 environments, three times the horizon of 10: raise it to at least 240",
        ),
    ],
)
def test_a_replay_that_is_overwritten_before_returns_are_known_is_refused(options, envs, sentence):
    with pytest.raises(EngramError) as error:
        NEC(**options).init(jax.random.key(0), replace(SPEC, envs=envs))
    assert str(error.value).startswith(sentence)
