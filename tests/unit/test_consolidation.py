"""Dynamic consolidation: Q_theta, which may use tau, and f_beta, the episodic value's weight."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents import MBECpp
from engram.agents.common import make_q_network
from engram.episodic import consolidation
from engram.types import Spec

SPEC = Spec((3,), 2)
OBS = jnp.array([[0.5, -1.0, 2.0], [1.0, 1.0, 0.0]])
TAU = jnp.array([[0.1, -0.2], [0.4, 0.3]])


def make(**options):
    """Options with two numbers in tau, and networks for them."""
    config = MBECpp(trajectory_dim=2, hidden_size=8, **options)
    make_network = partial(make_q_network, config, SPEC)
    return config, consolidation.init(config, make_network, jax.random.key(0))


def test_f_beta_is_the_sigmoid_of_a_network_of_tau():
    config, params = make()
    hidden, last = params.beta.layers
    x = np.maximum(TAU @ hidden.weight.T + hidden.bias, 0)
    logit = (x @ last.weight.T + last.bias)[:, 0]
    expected = 1 / (1 + np.exp(-logit))
    np.testing.assert_allclose(consolidation.beta(config, params, TAU), expected, rtol=1e-5)


def test_a_fixed_beta_ignores_tau():
    config, params = make(fixed_beta=0.3)
    np.testing.assert_allclose(consolidation.beta(config, params, TAU), [0.3, 0.3], rtol=1e-6)


@pytest.mark.parametrize("q_uses_tau", [True, False])
def test_q_values_depend_on_tau_only_if_it_is_an_input(q_uses_tau):
    config, params = make(q_uses_tau=q_uses_tau)
    encoded = consolidation.encode(params, OBS)
    np.testing.assert_array_equal(encoded, OBS)  # vectors are their own encoding
    at_first = consolidation.q_values(config, params, encoded, TAU)
    np.testing.assert_array_equal(
        at_first, consolidation.q_values(config, params, encoded, 2 * TAU)
    )  # its weights start at 0
    ones = jax.tree.map(jnp.ones_like, params.q)
    trained = params._replace(q=ones)
    a, b = (consolidation.q_values(config, trained, encoded, x) for x in (TAU, 2 * TAU))
    assert np.any(a != b) == q_uses_tau


def test_weights_of_observations_do_not_depend_on_whether_tau_is_an_input():
    (_, with_tau), (_, without) = make(q_uses_tau=True), make(q_uses_tau=False)
    wide, narrow = (params.q.layers[0].weight for params in (with_tau, without))
    np.testing.assert_array_equal(wide[:, :3], narrow)
    assert eqx.tree_equal(with_tau.beta, without.beta)
