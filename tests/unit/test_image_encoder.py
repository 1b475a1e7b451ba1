"""MBEC's encoder of images learns the rewards of the actions taken."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents import MBEC
from engram.encoders import CNN
from engram.episodic import reencoding
from engram.episodic.image_encoder import (
    IMAGE_FEATURES,
    ImageEncoder,
    encoder_loss,
    init_image_encoder,
    num_features,
)
from engram.optim import gradient_step, make_optimizer
from engram.replay_buffer import Transition, add
from engram.types import Spec

IMAGES, VECTORS = Spec((6, 6), 2, "uint8"), Spec((6,), 2)
DARK, BRIGHT = jnp.zeros(36, jnp.uint8), jnp.full(36, 200, jnp.uint8)


def encoder_by_hand():
    """Of a pixel with brightness x, all features are x (those after the first, 0).

    The predicted rewards are 2x + 1 and -x.
    """
    encoder = ImageEncoder(CNN((1, 1), ((1, 1, 1),), jax.random.key(0)), 2, jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, encoder)
    weights = lambda e: (e.cnn.layers[0].linear.weight, e.linear.weight, e.rewards.weight)  # noqa: E731
    new = (
        jnp.ones((1, 1)),
        jnp.zeros((IMAGE_FEATURES, 1)).at[0].set(1.0),
        jnp.zeros((2, IMAGE_FEATURES)).at[:, 0].set(jnp.array([2.0, -1.0])),
    )
    encoder = eqx.tree_at(weights, zeros, new)
    return eqx.tree_at(lambda e: e.rewards.bias, encoder, jnp.array([1.0, 0.0]))


def test_features_are_those_of_the_image():
    features = encoder_by_hand()(jnp.array([51], jnp.uint8))
    np.testing.assert_allclose(features, [0.2, *[0.0] * (IMAGE_FEATURES - 1)], rtol=1e-6)


def test_the_loss_is_the_squared_error_of_the_rewards_of_actions_taken():
    """Brightness 0.2 and 1: predicted are 1.4 for action 0, and -1 for action 1."""
    obs = jnp.array([[51], [255]], jnp.uint8)
    loss = encoder_loss(encoder_by_hand(), obs, jnp.array([0, 1]), jnp.array([1.0, 2.0]))
    assert float(loss) == pytest.approx((0.4**2 + 3.0**2) / 2, rel=1e-5)


def test_the_encoder_learns_rewards_that_depend_on_image_and_action():
    obs = jnp.stack([DARK, DARK, BRIGHT, BRIGHT])
    action, reward = jnp.array([0, 1, 0, 1]), jnp.array([1.0, 0.0, -1.0, 2.0])
    encoder = init_image_encoder(IMAGES, jax.random.key(0))
    optimizer = make_optimizer(5e-3, 10.0)

    @jax.jit
    def train(encoder):
        def update(carry, _):
            *carry, loss = gradient_step(optimizer, encoder_loss, *carry, obs, action, reward)
            return tuple(carry), loss

        carry = encoder, optimizer.init(encoder)
        (encoder, _), losses = jax.lax.scan(update, carry, length=150)
        return encoder, losses

    encoder, losses = train(encoder)
    assert losses[0] > 0.5
    assert losses[-1] < 1e-2
    predicted = jax.vmap(lambda x: encoder.rewards(encoder(x)))(obs[jnp.array([0, 2])])
    np.testing.assert_allclose(predicted, [[1.0, 0.0], [-1.0, 2.0]], atol=0.2)


def test_only_images_have_an_encoder():
    assert init_image_encoder(VECTORS, jax.random.key(0)) is None
    assert num_features(VECTORS, None) == 6
    encoder = init_image_encoder(IMAGES, jax.random.key(0))
    assert num_features(IMAGES, encoder) == IMAGE_FEATURES == encoder(DARK).shape[0]


def test_inputs_of_images_are_their_features_with_any_leading_axes():
    encoder = init_image_encoder(IMAGES, jax.random.key(0))
    inputs = reencoding.init_inputs(IMAGES, encoder)
    obs = jnp.stack([DARK, BRIGHT])
    expected = jnp.stack([encoder(DARK), encoder(BRIGHT)])
    np.testing.assert_allclose(inputs(obs), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inputs(obs[None]), expected[None], rtol=1e-5, atol=1e-6)


def test_mbec_trains_its_encoder_on_the_rewards_of_replay_and_leaves_that_of_keys():
    agent = MBEC(batch_size=4, learning_starts=1, memory_size=8)
    spec = replace(IMAGES, num_iterations=20)
    state = jax.jit(lambda: agent.init(jax.random.key(0), spec))()
    action, reward = jnp.ones((1,), jnp.int32), jnp.array([3.0])
    row = Transition(BRIGHT[None], action, reward, DARK[None], jnp.zeros(1), jnp.zeros(1))
    row = row._replace(tau=state.episodic.tau, next_tau=state.episodic.tau)
    state = state._replace(replay=add(state.replay, row, jnp.int32(0)))
    train = jax.jit(
        lambda state: agent.train_on_rewards(state, spec, jnp.int32(1), jax.random.key(0))
    )
    trained = train(state)
    expected = encoder_loss(state.encoder, BRIGHT[None], action, reward)
    assert float(trained.reward_loss) == pytest.approx(float(expected), rel=1e-4)
    assert float(train(trained).reward_loss) < 0.99 * float(expected)
    for part, changes in ((trained.encoder, True), (trained.inputs.encoder, False)):
        assert np.any(part.linear.weight != state.encoder.linear.weight) == changes
