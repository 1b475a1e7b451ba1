"""NEC's returns, gradients and updates agree with numbers by hand and with finite differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import episode_timesteps, jit_step, rollout

from engram import replay_buffer
from engram.agents.nec import NEC, Lookup, NStepTransition
from engram.errors import EngramError
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=40)
AGENT = NEC(
    gamma=0.5,
    hidden_size=3,
    key_size=2,
    num_neighbours=2,
    memory_size=1000,
    n_step=2,
    batch_size=4,
    buffer_size=100,
    learning_starts=1,
    train_frequency=1,
)


@pytest.fixture(scope="module")
def initial_state():
    """An agent in whose dictionaries one distant key of each action has value 20."""
    state = AGENT.init(jax.random.key(0), SPEC)
    memory = state.dnd._replace(
        keys=state.dnd.keys.at[:, 0].set(50.0),
        values=state.dnd.values.at[:, 0].set(20.0),
        num_inserted=jnp.ones(2, jnp.int32),
    )
    return state._replace(dnd=memory)


@pytest.fixture(scope="module")
def step_function():
    return jit_step(AGENT, SPEC)


# Returns


def new_values(state):
    """For each action the values that were stored after the distant key's."""
    sizes = state.dnd.size.tolist()
    return [state.dnd.values[action, 1 : sizes[action]].tolist() for action in range(2)]


@pytest.mark.parametrize(
    ("truncated", "returns"),
    [
        (False, [1 + 2 / 2 + 20 / 4, 2 + 4 / 2, 4.0]),
        (True, [1 + 2 / 2 + 20 / 4, 2 + 4 / 2 + 20 / 4, 4 + 20 / 2]),
    ],
)
def test_two_step_returns_bootstrap_except_after_termination(
    initial_state, step_function, truncated, returns
):
    """The first closes after two rewards, the others with the episode; until then Q is 20."""
    timesteps = episode_timesteps((0.0, [1.0, 2.0, 4.0], truncated))
    states, actions, metrics = rollout(step_function, initial_state, timesteps, 5)
    np.testing.assert_allclose([x["q_max"] for x in metrics[:4]], 20.0, rtol=1e-5)
    for action, values in enumerate(new_values(states[-1])):
        own = [x for x, taken in zip(returns, actions, strict=False) if taken == action]
        np.testing.assert_allclose(values, own, rtol=1e-5)
    replay = jax.tree.map(lambda x: np.asarray(x)[:5, 0], states[-1].replay)
    np.testing.assert_allclose(replay.n_step_return, [*returns, 0.0, 0.0], rtol=1e-5)
    assert replay.is_known.tolist() == [1, 1, 1, 0, 0]
    assert replay.obs[:, 0].tolist() == [0, 1, 2, 0, 1]
    assert replay.action.tolist() == actions
    # A return is known in the step after its last reward.
    num_known = [int(np.sum(state.replay.is_known)) for state in states]
    assert num_known == [0, 0, 0, 1, 3]


def test_stored_keys_are_the_embeddings_of_the_states(initial_state, step_function):
    timesteps = episode_timesteps((0.0, [1.0, 2.0, 4.0], False))
    states, actions, _ = rollout(step_function, initial_state, timesteps, 5)
    embeddings = jax.vmap(initial_state.embedding)(jnp.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]))
    for action in range(2):
        own = np.asarray(embeddings)[[t for t in range(3) if actions[t] == action]]
        keys = states[-1].dnd.keys[action, 1 : 1 + len(own)]
        np.testing.assert_allclose(keys, own, rtol=1e-5, atol=1e-6)


def test_a_return_finds_its_row_after_the_ring_buffer_has_wrapped():
    """Six rows, the fewest that are allowed, for twelve steps in episodes of two."""
    agent = replace(AGENT, buffer_size=6)
    state = agent.init(jax.random.key(0), SPEC)
    assert state.replay.n_step_return.shape == (6, 1)
    episodes = [(0.0, [float(number), 10.0 * number], False) for number in range(1, 7)]
    timesteps = episode_timesteps(*episodes)
    states, _, _ = rollout(jit_step(agent, SPEC), state, timesteps, 12)
    replay = jax.tree.map(lambda x: np.asarray(x)[:, 0], states[-1].replay)
    # The rows hold steps 6 to 11. In episode n the first return is n + 10n/2, the second 10n.
    # Those of steps 10 and 11 are not known yet.
    assert replay.is_known.tolist() == [1, 1, 1, 1, 0, 0]
    np.testing.assert_allclose(replay.n_step_return[:4], [24, 40, 30, 50], rtol=1e-6)
    assert replay.obs[:, 0].tolist() == [0, 1, 0, 1, 0, 1]


# Gradients


def numpy_loss(leaves, is_present, batch, delta):
    """The loss in double precision, of w1, b1, w2, b2 of the embedding, keys, and values."""
    w1, b1, w2, b2, keys, values = leaves
    h = np.maximum(np.asarray(batch.obs, float) @ w1.T + b1, 0) @ w2.T + b2
    error = 0.0
    for b in range(len(h)):
        kernel = is_present[b] / (np.sum((h[b] - keys[b]) ** 2, axis=-1) + delta)
        q = np.dot(kernel, values[b]) / np.sum(kernel)
        error += float(batch.is_known[b]) * (float(batch.n_step_return[b]) - q) ** 2
    return error / float(np.sum(batch.is_known))


def finite_differences(function, leaves, leaf, eps=1e-5):
    """The gradient of `function(leaves)` by one of the leaves, which is changed in place."""
    gradient = np.zeros_like(leaf)
    for index in np.ndindex(leaf.shape):
        old = leaf[index]
        leaf[index] = old + eps
        above = function(leaves)
        leaf[index] = old - eps
        below = function(leaves)
        leaf[index] = old
        gradient[index] = (above - below) / (2 * eps)
    return gradient


def test_embedding_keys_and_values_have_the_gradients_of_finite_differences(initial_state):
    agent = replace(AGENT, kernel_delta=0.1)
    rng = np.random.default_rng(5)
    keys = rng.normal(size=(3, 2, 2)).astype(np.float32)
    values = rng.normal(size=(3, 2)).astype(np.float32)
    obs = rng.normal(size=(3, 2)).astype(np.float32)
    returns, is_known = jnp.array([1.0, -2.0, 9.0]), jnp.array([1.0, 1.0, 0.0])
    batch = NStepTransition(jnp.array(obs), jnp.array([0, 1, 0]), returns, is_known)
    is_present = np.array([[True, True], [True, False], [True, True]])
    lookup = Lookup(initial_state.embedding, jnp.array(keys), jnp.array(values))
    loss_and_gradient = jax.jit(jax.value_and_grad(agent.loss_fn))
    loss, gradient = loss_and_gradient(lookup, jnp.array(is_present), batch)

    def parameters(lookup):
        first, second = lookup.embedding.layers
        weights = first.weight, first.bias, second.weight, second.bias
        return [np.array(x, float) for x in (*weights, lookup.keys, lookup.values)]

    def loss_of(leaves):
        return numpy_loss(leaves, is_present, batch, 0.1)

    leaves = parameters(lookup)
    assert loss == pytest.approx(loss_of(leaves), rel=1e-4)
    for leaf, actual in zip(leaves, parameters(gradient), strict=True):
        expected = finite_differences(loss_of, leaves, leaf)
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=1e-5)
        assert np.any(expected != 0)
    # The missing neighbour, and the row whose return is unknown.
    for part in (gradient.keys, gradient.values):
        assert not np.any(part[1, 1])
        assert not np.any(part[2])


# Updates


@pytest.fixture(scope="module")
def empty_state():
    return AGENT.init(jax.random.key(1), SPEC)


@pytest.fixture(scope="module")
def filled(empty_state):
    """Makes a state from rows of (observation, action, return or None) in replay.

    The dictionary of each action has two near keys, of these values, and two distant ones.
    """
    add = jax.jit(replay_buffer.add)
    keys = jnp.array([[0.0, 0.0], [1.0, 0.0], [40.0, 40.0], [60.0, 0.0]])
    values = jnp.array([[10.0, 30.0, 5.0, 7.0], [-10.0, -30.0, 5.0, 7.0]])
    memory = empty_state.dnd._replace(
        keys=empty_state.dnd.keys.at[:, :4].set(keys),
        values=empty_state.dnd.values.at[:, :4].set(values),
        num_inserted=jnp.full(2, 4, jnp.int32),
    )

    def make(rows):
        replay = empty_state.replay
        for iteration, (obs, action, n_step_return) in enumerate(rows):
            returns = jnp.array([float(n_step_return or 0.0)])
            is_known = jnp.array([float(n_step_return is not None)])
            row = NStepTransition(jnp.array([obs]), jnp.array([action]), returns, is_known)
            replay = add(replay, row, jnp.int32(iteration))
        return empty_state._replace(dnd=memory, replay=replay)

    return make


LEARN = jax.jit(lambda state, step, key: AGENT.learn(state, SPEC, step, key))
KNOWN_ROW = ((0.3, 0.1), 1, 3.0)


def test_an_update_changes_only_the_neighbours_in_the_dictionary_of_the_action(filled):
    state = filled([KNOWN_ROW] * 2)
    after, metrics = LEARN(state, jnp.int32(1), jax.random.key(0))
    for name in ("keys", "values"):
        old, new = (np.asarray(getattr(x.dnd, name)).reshape(2, 40, -1) for x in (state, after))
        changed = np.any(old != new, axis=-1)
        assert changed[1, :4].tolist() == [True, True, False, False], name
        assert not changed[0].any(), name
        assert not changed[1, 4:].any(), name
    embeddings = (jax.tree.leaves(x.embedding) for x in (state, after))
    for old, new in zip(*embeddings, strict=True):
        assert np.any(old != new)
    assert metrics["loss"] > 0


def test_an_iteration_without_update_changes_nothing(filled):
    agent = replace(AGENT, train_frequency=4)
    state = filled([KNOWN_ROW] * 2)
    learn = jax.jit(lambda state: agent.learn(state, SPEC, jnp.int32(1), jax.random.key(0)))
    after, _ = learn(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old, new)


def test_values_move_by_rate_times_weight_times_error(filled):
    """Both rows are one state, so that a batch of four is four times that state."""
    state = filled([KNOWN_ROW] * 2)
    h = np.asarray(state.embedding(jnp.array([0.3, 0.1])), float)
    squared_distances = np.sum((h - np.array([[0.0, 0.0], [1.0, 0.0]])) ** 2, axis=-1)
    kernel = 1 / (squared_distances + AGENT.kernel_delta)
    weights = kernel / kernel.sum()
    q = weights @ [-10.0, -30.0]
    after, _ = LEARN(state, jnp.int32(1), jax.random.key(0))
    change = np.asarray(after.dnd.values[1, :2]) - [-10.0, -30.0]
    np.testing.assert_allclose(change, 4 * AGENT.dnd_lr * weights * (3.0 - q), rtol=1e-3)


def test_rows_whose_return_is_unknown_contribute_nothing(filled):
    """The dictionary's rate is per example: known rows change it as if they were alone."""
    key = jax.random.key(3)
    state = filled([KNOWN_ROW, ((5.0, 5.0), 0, None)])
    uniforms = jax.random.uniform(key, (AGENT.batch_size,))
    rows = replay_buffer.sample(jnp.arange(2)[:, None], 2, uniforms)
    assert rows.tolist().count(0) == 1  # of four
    after, _ = LEARN(state, jnp.int32(1), key)
    np.testing.assert_array_equal(after.dnd.values[0], state.dnd.values[0])
    np.testing.assert_array_equal(after.dnd.keys[0], state.dnd.keys[0])
    four_times, _ = LEARN(filled([KNOWN_ROW] * 2), jnp.int32(1), key)
    before = state.dnd.values[1, :2]
    change, change_of_four = (x.dnd.values[1, :2] - before for x in (after, four_times))
    np.testing.assert_allclose(change, change_of_four / 4, rtol=1e-4)


def test_a_batch_without_known_returns_changes_nothing(filled):
    state = filled([((0.3, 0.1), 1, None)] * 2)
    after, metrics = LEARN(state, jnp.int32(1), jax.random.key(0))
    assert metrics["loss"] == 0
    for name in ("keys", "values"):
        np.testing.assert_array_equal(getattr(after.dnd, name), getattr(state.dnd, name))


# Options that do not fit


@pytest.mark.parametrize(
    ("buffer_size", "num_envs", "message"),
    [
        (
            29,
            1,
            "buffer_size (29) must hold 30 steps, three times n_step (10): "
            "raise it to at least 30, or lower the other.",
        ),
        # Five rows: a return of ten steps would be written to the row of another step.
        (
            40,
            8,
            "buffer_size (40) must hold 30 steps of each of 8 environments, three times n_step "
            "(10): raise it to at least 240",
        ),
    ],
)
def test_a_buffer_overwritten_before_returns_are_known_is_refused(buffer_size, num_envs, message):
    with pytest.raises(EngramError) as error:
        NEC(n_step=10, buffer_size=buffer_size).init(
            jax.random.key(0), replace(SPEC, num_envs=num_envs)
        )
    assert str(error.value).startswith(message)
