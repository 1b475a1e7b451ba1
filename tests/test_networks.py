"""Networks with an LSTM are the cell called step by step, and observations enter as their bounds say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.networks import MLP, Carried, Recurrent, clipped, descend, draw, encode, fresh, in_turn, lived, optimiser, unroll
from engram.types import Spec

T, B = 5, 3
FIRST = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0]], bool)
UNROLL = jax.jit(unroll)


@pytest.fixture(scope="module")
def network():
    return jax.jit(lambda key: Recurrent((2, 4, 6, 3), key, jnp.tanh))(jax.random.key(0))


@pytest.fixture(scope="module")
def begun():
    """What the LSTMs of three environments carry already."""
    return Carried(*jax.random.normal(jax.random.key(1), (2, B, 6)))


@pytest.fixture(scope="module")
def inputs():
    return jax.random.normal(jax.random.key(2), (T, B, 4))


def by_cell(cell, begun, inputs):
    """Step by step and environment by environment, with Equinox's own cell."""
    call, out = jax.jit(cell.__call__), np.zeros((2, T, B, 6))
    for b in range(B):
        carried = (begun.h[b], begun.c[b])
        for t in range(T):
            if FIRST[t, b]:
                carried = (jnp.zeros(6), jnp.zeros(6))
            carried = call(inputs[t, b], carried)
            out[:, t, b] = carried
    return out


def test_an_unrolled_lstm_is_the_cell_step_by_step(network, begun, inputs):
    h, c = by_cell(network.cell, begun, inputs)
    carried = UNROLL(network.cell, begun, inputs, FIRST)
    np.testing.assert_allclose(carried.h, h, atol=1e-6)
    np.testing.assert_allclose(carried.c, c, atol=1e-6)


def test_where_an_episode_begins_nothing_is_left_of_the_one_before(network, begun, inputs):
    one = UNROLL(network.cell, begun, inputs, FIRST)
    other = UNROLL(network.cell, jax.tree.map(lambda x: x + 1, begun), inputs, FIRST)
    same = np.all(np.asarray(one.h) == np.asarray(other.h), axis=-1).astype(int)
    # by environment: from the first step, from the third, never
    assert same.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_a_recurrent_network_is_a_layer_an_lstm_and_a_layer(network, begun):
    states = jax.random.normal(jax.random.key(3), (T, B, 2))
    carried, outputs = jax.jit(Recurrent.__call__)(network, begun, states, FIRST)
    entered = np.tanh(np.asarray(states) @ np.asarray(network.enter.weight).T + np.asarray(network.enter.bias))
    h, c = by_cell(network.cell, begun, jnp.array(entered))
    np.testing.assert_allclose(carried.c, c, atol=1e-6)
    np.testing.assert_allclose(outputs, h @ np.asarray(network.head.weight).T + np.asarray(network.head.bias), atol=1e-5)


def test_no_gradient_crosses_the_beginning_of_an_episode(network, begun, inputs):
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(unroll(network.cell, begun, x, jnp.array(FIRST)).h[-1])))(inputs)
    reached = np.any(np.asarray(gradient) != 0, axis=-1).astype(int)
    assert reached.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1], [1, 1, 1]]


def test_an_lstm_goes_on_but_where_an_episode_begins():
    carried = Carried(jnp.ones((3, 2)), 2 * jnp.ones((3, 2)))
    after = lived(carried, jnp.array([False, True, False]))
    assert after.h[:, 0].tolist() == [1, 0, 1]
    assert after.c[:, 0].tolist() == [2, 0, 2]


def test_an_lstm_carries_nothing_to_another_number_of_environments():
    pair = (Carried(jnp.ones((3, 2)), jnp.ones((3, 2))), Carried(jnp.ones((3, 4)), jnp.ones((3, 4))))
    after = lived(pair, jnp.array([False] * 5))
    assert [x.shape for x in jax.tree.leaves(after)] == [(5, 2), (5, 2), (5, 4), (5, 4)]
    assert not any(np.any(x) for x in jax.tree.leaves(after))
    assert lived(fresh(1, 2), jnp.array([True])).h.shape == (1, 2)


def test_what_is_longer_than_a_norm_is_shortened_to_it():
    assert clipped(jnp.array([[3.0, 0.0], [0.0, 4.0]]), 10.0).tolist() == [[3.0, 0.0], [0.0, 4.0]]
    np.testing.assert_allclose(clipped(jnp.array([[3.0, 0.0], [0.0, 4.0]]), 1.0), [[0.6, 0.0], [0.0, 0.8]], rtol=1e-6)
    assert clipped(jnp.zeros(3), 1.0).tolist() == [0.0, 0.0, 0.0]


def test_one_draw_gives_each_layer_its_own_range():
    network = draw(lambda key: Recurrent((100, 50, 25, 3), key), jax.random.key(4))
    for layer, inputs in ((network.enter, 100), (network.cell, 25), (network.head, 25)):
        numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves(layer)])
        assert 0.9 / np.sqrt(inputs) < np.abs(numbers).max() <= 1 / np.sqrt(inputs)
        assert abs(numbers.mean()) < 0.3 / np.sqrt(inputs)
    built = jax.eval_shape(lambda key: Recurrent((100, 50, 25, 3), key), jax.random.key(4))
    assert jax.tree.map(jnp.shape, network) == jax.tree.map(jnp.shape, built)


def test_weights_after_he_keep_the_size_of_what_is_seen():
    network = draw(lambda key: MLP((400, 400, 400, 400), key), jax.random.key(5), he=True)
    for layer in network.layers:
        assert np.std(layer.weight) == pytest.approx(np.sqrt(2 / 400), rel=0.02)
        assert np.mean(np.abs(layer.weight) > 2 * np.sqrt(2 / 400)) == pytest.approx(0.0455, abs=0.005)  # of a normal distribution
        assert not np.any(layer.bias)
    seen = jax.random.normal(jax.random.key(6), (100, 400))
    assert np.mean(jax.vmap(network)(seen) ** 2) == pytest.approx(2.0, rel=0.2)  # the last layer has no ReLU, which would halve it


def test_the_function_between_layers_may_be_another():
    network = jax.eval_shape(lambda key: MLP((1, 1, 1), key, jnp.tanh), jax.random.key(0))
    ones = jax.tree.map(lambda x: jnp.ones(x.shape), network)
    assert ones(jnp.array([1.0]))[0] == pytest.approx(np.tanh(2.0) + 1)
    assert eqx.tree_at(lambda net: net.layers[0].bias, ones, jnp.array([-9.0]))(jnp.array([1.0]))[0] < 0.01


def test_observations_with_bounds_are_scaled_and_bytes_always_are():
    spec = Spec((3,), 2, low=(-2.0, 0.0, -np.inf), high=(2.0, 10.0, np.inf))
    seen = jnp.array([[1.0, 2.5, 7.0]])
    assert encode(spec, seen, True).tolist() == [[0.5, -0.5, 7.0]]
    assert encode(spec, seen, False).tolist() == [[1.0, 2.5, 7.0]]
    picture = encode(Spec((2, 1), 2, dtype="uint8"), jnp.array([[[255], [51]]], jnp.uint8), False)
    np.testing.assert_allclose(picture, [[1.0, 0.2]], rtol=1e-6)


def test_only_what_is_bound_to_be_small_is_stretched():
    spec = Spec((4,), 2, low=(-0.05, -0.2, 0.0, -np.inf), high=(0.1, 0.2, 1.0, np.inf))
    np.testing.assert_allclose(encode(spec, jnp.array([[0.05, -0.2, 0.5, 7.0]]), False, True), [[0.5, -1.0, 0.5, 7.0]], rtol=1e-6)


def test_a_step_of_descent_gives_the_loss_before_it_and_what_else_was_computed():
    adam = optimiser(0.1, 1.0)
    params = jnp.array([3.0, 4.0])
    after, _, (loss, extra) = descend(adam, lambda x, y: (jnp.sum(x * y), 2 * y), params, adam.init(params), 2.0, has_aux=True)
    assert (float(loss), extra) == (14.0, 4.0)
    np.testing.assert_allclose(after, [2.9, 3.9], rtol=1e-5)  # Adam's first step is its rate, whatever the gradient


def test_work_in_turn_is_the_same_work_also_with_what_it_does_not_get_as_data():
    scale, data = jnp.arange(1.0, 4), jnp.arange(6.0).reshape(3, 2)

    def one(scale, data, how):
        def work(data):
            return {"sum": jnp.sum(scale * data), "all": scale * data}

        return how(work, data)

    expected = jax.vmap(lambda *x: one(*x, lambda work, data: work(data)))(scale, data)
    found = jax.jit(jax.vmap(lambda *x: one(*x, in_turn)))(scale, data)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert found["sum"].tolist() == expected["sum"].tolist() == [1.0, 10.0, 27.0]
    assert found["all"].tolist() == expected["all"].tolist()
