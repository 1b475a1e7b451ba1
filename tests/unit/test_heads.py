"""Heads of Q-networks: by hand, and a quantile head learns the quantiles of a distribution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from engram import networks
from engram.heads import LEVELS, DuelingHead, QuantileHead, make_head
from engram.networks import add_inputs, init_params, make_network
from engram.targets import quantile_loss
from engram.types import Spec

VECTOR, IMAGE = Spec((6,), 3), Spec((6, 6), 3, "uint8")


def filled(module, value):
    return jax.tree.map(lambda x: jnp.full(x.shape, value, jnp.float32), module)


def test_dueling_values_are_the_states_plus_advantages_less_their_mean():
    head = filled(DuelingHead((2, 3), jax.random.key(0)), 0.0)
    places = (lambda h: h.value.layers[0].bias), (lambda h: h.advantage.layers[0].bias)
    head = eqx.tree_at(places[0], head, jnp.array([10.0]))
    head = eqx.tree_at(places[1], head, jnp.array([1.0, 2.0, 6.0]))
    assert head(jnp.zeros(2)).tolist() == [8.0, 9.0, 13.0]


def test_a_quantile_level_gates_features_by_its_cosines():
    head = filled(QuantileHead((2, 1), jax.random.key(0), gates_inputs=True), 0.0)
    # Only the first cosine counts, and the value is the sum of the gated features.
    gate = jnp.zeros((2, 64)).at[:, 0].set(jnp.array([1.0, 2.0]))
    head = eqx.tree_at(lambda h: h.gate.weight, head, gate)
    head = eqx.tree_at(lambda h: h.mlp.layers[0].weight, head, jnp.ones((1, 2)))
    levels, x = jnp.array([0.0, 1 / 3, 0.9]), jnp.array([3.0, 5.0])
    expected = 3 * np.cos(np.pi / 3) + 5 * 2 * np.cos(np.pi / 3)
    # cos(0.9 pi) is negative: the gate is closed.
    np.testing.assert_allclose(head.quantiles(x, levels)[:, 0], [13, expected, 0], atol=1e-6)
    np.testing.assert_allclose(head(x), head.quantiles(x, LEVELS).mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("name", ["q", "dueling", "quantile"])
@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_every_head_has_a_value_per_action_and_takes_further_inputs(name, spec):
    def build(key):
        return make_network(spec, "nature", (4, 3), key, head_name=name)

    network = init_params(build, jax.random.key(0))
    wider = add_inputs(network, 2)
    x = jnp.arange(np.prod(spec.shape)).astype(spec.dtype)
    features = networks.encode(network, x)
    extended = jnp.concatenate([features, jnp.array([5.0, -7.0])])
    assert network(x).shape == (3,)
    np.testing.assert_allclose(networks.head(wider)(extended), network(x), rtol=1e-5, atol=1e-6)
    # The further inputs are heeded once their weights are not 0.
    heeding = jax.tree.map(lambda x: x + 0.1, networks.head(wider))
    assert np.any(heeding(extended) != heeding(extended.at[-1].set(1.0)))


def test_a_quantile_head_learns_the_quantiles_of_a_distribution():
    """Of a return that is 0, 1 or 4 with probability 1/4, 1/2 and 1/4; Huber's loss blurs them."""
    head = init_params(lambda key: make_head("quantile", (1, 16, 1), key), jax.random.key(0))
    optimizer = optax.adam(1e-2)

    def loss(head, levels, samples):
        x = jnp.ones((64, 1))
        return quantile_loss(samples, jax.vmap(head.quantiles)(x, levels)[..., 0], levels)

    def step(state, key):
        head, opt_state = state
        keys = jax.random.split(key)
        levels = jax.random.uniform(keys[0], (64, 8))
        samples = jnp.array([0.0, 1.0, 1.0, 4.0])[jax.random.randint(keys[1], (64, 8), 0, 4)]
        updates, opt_state = optimizer.update(jax.grad(loss)(head, levels, samples), opt_state)
        return (optax.apply_updates(head, updates), opt_state), None

    state = head, optimizer.init(head)
    keys = jax.random.split(jax.random.key(1), 1_500)
    head, _ = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)[0]
    low, middle, high = head.quantiles(jnp.ones(1), jnp.array([0.08, 0.5, 0.92]))[:, 0]
    assert low < 0.45 < 0.8 < middle < 1.6 < 2.8 < high < 4.1
    assert head(jnp.ones(1))[0] == pytest.approx(1.5, abs=0.25)
