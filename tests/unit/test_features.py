"""Features of images are a fixed projection of the encoder's output, normalized."""

import jax
import numpy as np

from engram.encoders import make_encoder
from engram.episodic import features
from engram.episodic.features import FEATURE_DIM
from engram.networks import VisualNetwork, make_network
from engram.types import Spec

IMAGES = Spec((12, 12, 1), 2, "uint8")


def make_projection(seed):
    """A projection, and the size of the encoder's output."""
    network = make_network(IMAGES, "nature", (4,), jax.random.key(seed))
    assert isinstance(network, VisualNetwork)
    return features.init(jax.random.key(seed), network), network.encoder.num_features


def test_features_are_normalized_by_the_statistics_of_current_observations_only():
    projection, size = make_projection(0)
    encoded = np.random.default_rng(0).normal(3.0, 2.0, (40, size)).astype(np.float32)
    step = jax.jit(features.project_step, static_argnums=2)(projection, encoded, 30)
    projected = encoded @ np.asarray(projection.matrix)
    mean, std = projected[:30].mean(axis=0), projected[:30].std(axis=0)
    expected = np.clip((projected - mean) / std, -5, 5)
    assert step.current.shape == (30, FEATURE_DIM)
    np.testing.assert_allclose(step.current, expected[:30], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(step.reached, expected[-30:], rtol=1e-3, atol=1e-3)
    again = jax.jit(features.project)(step.projection, encoded)
    np.testing.assert_allclose(again[:30], step.current, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(step.projection.matrix, projection.matrix)


def test_a_projection_keeps_the_scale_of_its_input():
    projection, size = make_projection(1)
    encoded = np.random.default_rng(1).normal(size=(100, size)).astype(np.float32)
    assert abs(np.std(encoded @ np.asarray(projection.matrix)) - 1) < 0.1


def test_vectors_are_their_own_features():
    vectors = Spec((3,), 2)
    network = make_network(vectors, "nature", (4,), jax.random.key(0))
    assert make_encoder(vectors, "nature", jax.random.key(0)) is None
    projection = features.init(jax.random.key(0), network)
    assert projection is None
    assert features.num_features(vectors) == 3
    obs = np.ones((2, 3), np.float32)
    step = features.project_step(projection, obs, 2)
    np.testing.assert_array_equal(step.model_input, obs)
    assert step.current is None
    np.testing.assert_array_equal(features.project(projection, obs), obs)
