"""Networks, their initialization and their inputs."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram import networks
from engram.heads import MLP
from engram.networks import (
    LSTMState,
    RecurrentNetwork,
    add_inputs,
    flatten_obs,
    init_params,
    make_network,
    mask_actions,
    preprocess,
    reset_where,
    unroll,
    zero_state,
)
from engram.types import Spec

T, B = 5, 3
EPISODE_START = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0]], bool)
UNROLL = jax.jit(unroll)


@pytest.fixture(scope="module")
def network():
    build = partial(RecurrentNetwork, (2, 4, 6, 3), activation=jnp.tanh)
    return jax.jit(partial(init_params, build))(jax.random.key(0))


@pytest.fixture(scope="module")
def state():
    """LSTM states of three environments."""
    return LSTMState(*jax.random.normal(jax.random.key(1), (2, B, 6)))


@pytest.fixture(scope="module")
def inputs():
    return jax.random.normal(jax.random.key(2), (T, B, 4))


def step_by_step(cell, state, inputs):
    """States after each step, by Equinox's own cell."""
    call, states = jax.jit(cell.__call__), np.zeros((2, T, B, 6))
    for b in range(B):
        pair = state.h[b], state.c[b]
        for t in range(T):
            if EPISODE_START[t, b]:
                pair = jnp.zeros(6), jnp.zeros(6)
            pair = call(inputs[t, b], pair)
            states[:, t, b] = pair
    return states


# LSTMs


def test_an_unrolled_lstm_equals_the_cell_step_by_step(network, state, inputs):
    h, c = step_by_step(network.cell, state, inputs)
    states = UNROLL(network.cell, state, inputs, EPISODE_START)
    np.testing.assert_allclose(states.h, h, atol=1e-6)
    np.testing.assert_allclose(states.c, c, atol=1e-6)


def test_an_lstm_forgets_its_state_where_an_episode_starts(network, state, inputs):
    one = UNROLL(network.cell, state, inputs, EPISODE_START)
    other = UNROLL(network.cell, jax.tree.map(lambda x: x + 1, state), inputs, EPISODE_START)
    is_same = np.all(np.asarray(one.h) == np.asarray(other.h), axis=-1).astype(int)
    # By environment: from the first step, from the third, never.
    assert is_same.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_no_gradient_flows_across_an_episode_start(network, state, inputs):
    def last_output(inputs):
        return jnp.sum(unroll(network.cell, state, inputs, jnp.array(EPISODE_START)).h[-1])

    gradient = jax.jit(jax.grad(last_output))(inputs)
    flows = np.any(np.asarray(gradient) != 0, axis=-1).astype(int)
    assert flows.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1], [1, 1, 1]]


def test_a_recurrent_network_is_a_layer_an_lstm_and_a_layer(network, state):
    obs = jax.random.normal(jax.random.key(3), (T, B, 2))
    states, outputs = jax.jit(RecurrentNetwork.__call__)(network, state, obs, EPISODE_START)
    embed, head = (
        [np.asarray(x) for x in (layer.weight.T, layer.bias)]
        for layer in (network.embed, network.head)
    )
    embedded = np.tanh(np.asarray(obs) @ embed[0] + embed[1])
    h, c = step_by_step(network.cell, state, jnp.array(embedded))
    np.testing.assert_allclose(states.c, c, atol=1e-6)
    np.testing.assert_allclose(outputs, h @ head[0] + head[1], atol=1e-5)


def test_one_step_of_a_recurrent_network_continues_from_the_given_state(network, state):
    obs = jax.random.normal(jax.random.key(3), (1, B, 2))
    no_start = jnp.zeros((1, B), bool)
    states, outputs = jax.jit(RecurrentNetwork.__call__)(network, state, obs, no_start)
    next_state, output = jax.jit(RecurrentNetwork.one_step)(network, state, obs[0])
    np.testing.assert_allclose(next_state.h, states.h[0], atol=1e-6)
    np.testing.assert_allclose(output, outputs[0], atol=1e-6)


def test_reset_where_zeroes_states_at_an_episode_start():
    state = LSTMState(jnp.ones((3, 2)), 2 * jnp.ones((3, 2)))
    after = reset_where(state, jnp.array([False, True, False]))
    assert after.h[:, 0].tolist() == [1, 0, 1]
    assert after.c[:, 0].tolist() == [2, 0, 2]


def test_reset_where_starts_anew_with_another_number_of_environments():
    states = jax.tree.map(lambda x: x + 1, (zero_state(3, 2), zero_state(3, 4)))
    after = jax.tree.leaves(reset_where(states, jnp.array([False] * 5)))
    assert [x.shape for x in after] == [(5, 2), (5, 2), (5, 4), (5, 4)]
    assert not any(np.any(x) for x in after)
    assert reset_where(zero_state(1, 2), jnp.array([True])).h.shape == (1, 2)


# Initialization


def test_weights_are_uniform_within_one_over_sqrt_of_the_inputs():
    build = partial(RecurrentNetwork, (100, 50, 25, 30))
    network = init_params(build, jax.random.key(4))
    for layer, inputs in ((network.embed, 100), (network.cell, 25), (network.head, 25)):
        numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves(layer)])
        bound = 1 / np.sqrt(inputs)
        assert 0.9 * bound < np.abs(numbers).max() <= bound
        assert abs(numbers.mean()) < 0.3 * bound
        assert np.std(numbers) == pytest.approx(bound / np.sqrt(3), rel=0.1)
    shapes = jax.eval_shape(build, jax.random.key(4))
    assert jax.tree.map(jnp.shape, network) == jax.tree.map(jnp.shape, shapes)


def test_layers_have_independent_weights():
    first, second = init_params(partial(MLP, (16, 16, 16)), jax.random.key(2)).layers
    correlation = np.corrcoef(np.ravel(first.weight), np.ravel(second.weight))[0, 1]
    assert abs(correlation) < 0.3


def test_the_activation_of_an_mlp_can_be_chosen():
    network = jax.eval_shape(partial(MLP, (1, 1, 1), activation=jnp.tanh), jax.random.key(0))
    ones = jax.tree.map(lambda x: jnp.ones(x.shape), network)
    assert ones(jnp.array([1.0]))[0] == pytest.approx(np.tanh(2.0) + 1)
    negative = eqx.tree_at(lambda network: network.layers[0].bias, ones, jnp.array([-9.0]))
    assert negative(jnp.array([1.0]))[0] < 0.01


@pytest.mark.parametrize("spec", [Spec((6,), 2), Spec((6, 6), 2, "uint8")], ids=["vector", "image"])
def test_added_inputs_do_not_change_the_output_at_first(spec):
    network = make_network(spec, "nature", (4, 2), jax.random.key(0))
    wider = add_inputs(network, 3)
    x = jnp.arange(np.prod(spec.shape)).astype(spec.dtype)
    features = networks.encode(network, x)
    extended = jnp.concatenate([features, jnp.array([5.0, -7.0, 9.0])])
    np.testing.assert_allclose(networks.head(wider)(extended), network(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(networks.head(network)(features), network(x))


# Inputs


def test_with_bounds_observations_are_mapped_to_minus_1_and_1():
    spec = Spec((3,), 2, low=(-2.0, 0.0, -np.inf), high=(4.0, 10.0, np.inf))
    obs = jnp.array([[-2.0, 10.0, 7.0], [1.0, 2.5, -7.0]])
    expected = [[-1.0, 1.0, 7.0], [0.0, -0.5, -7.0]]
    np.testing.assert_allclose(flatten_obs(spec, obs, "bounds"), expected, atol=1e-6)
    np.testing.assert_array_equal(flatten_obs(spec, obs, "none"), obs)


def test_with_small_only_numbers_with_small_bounds_are_scaled():
    spec = Spec((4,), 2, low=(-0.05, -0.2, 0.0, -np.inf), high=(0.1, 0.2, 1.0, np.inf))
    obs = flatten_obs(spec, jnp.array([[0.05, -0.2, 0.5, 7.0]]), "small")
    np.testing.assert_allclose(obs, [[0.5, -1.0, 0.5, 7.0]], rtol=1e-6)


def test_bytes_are_scaled_to_0_and_1():
    spec = Spec((2, 1), 2, dtype="uint8")
    obs = flatten_obs(spec, jnp.array([[[255], [51]]], jnp.uint8))
    np.testing.assert_allclose(obs, [[1.0, 0.2]], rtol=1e-6)


def test_networks_receive_images_as_bytes_and_other_bytes_as_floats():
    image = preprocess(Spec((5, 6), 2, "uint8"), jnp.full((2, 5, 6), 51, jnp.uint8))
    assert (image.dtype, image.shape) == (jnp.uint8, (2, 30))
    vector = preprocess(Spec((4,), 2, "uint8"), jnp.full((2, 4), 51, jnp.uint8))
    np.testing.assert_allclose(vector, np.full((2, 4), 0.2), rtol=1e-6)


def test_invalid_actions_have_the_value_minus_infinity():
    q = jnp.array([[1.0, 2.0, 3.0]])
    assert mask_actions(Spec((2,), 3), q).tolist() == [[1.0, 2.0, 3.0]]
    masked = mask_actions(Spec((2,), 3, num_valid_actions=jnp.int32(2)), q)
    assert masked.tolist() == [[1.0, 2.0, -np.inf]]
