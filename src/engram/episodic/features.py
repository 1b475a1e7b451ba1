"""Features of images for the trajectory model: a fixed random projection of the encoder's output.

The paper reconstructs a feature vector of the image; the authors' code projects CNN features to 32
numbers. Observations that are no images are their own features: they have no projection, and every
function here returns them as they are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from engram import running_stats
from engram.encoders import is_image
from engram.networks import Network, VisualNetwork, obs_size
from engram.running_stats import RunningStats
from engram.types import Spec

FEATURE_DIM = 32
"""numbers that the trajectory and the reward model receive of an image"""


class FeatureProjection(NamedTuple):
    """A random linear map, and the statistics by which its output is normalized."""

    matrix: Float[Array, "F G"]
    stats: RunningStats


def num_features(spec: Spec) -> int:
    """Numbers that the trajectory model receives of an observation."""
    return FEATURE_DIM if is_image(spec) else obs_size(spec)


def init(key: Key[Array, ""], network: Network) -> FeatureProjection | None:
    """A map from the network's encoder, with statistics of no batch; None without an encoder."""
    if not isinstance(network, VisualNetwork):
        return None
    inputs = network.encoder.num_features
    matrix = jax.random.normal(key, (inputs, FEATURE_DIM)) / jnp.sqrt(inputs)
    return FeatureProjection(matrix, running_stats.init(FEATURE_DIM))


def zeros(projection: FeatureProjection | None, num_envs: int) -> Float[Array, "E G"] | None:
    """Stands for the features of images before the first step."""
    return None if projection is None else jnp.zeros((num_envs, FEATURE_DIM))


class StepFeatures(NamedTuple):
    """Features of one step, and the projection with its statistics updated."""

    model_input: Float[Array, "E G"]
    """of the trajectory model, for the current observations"""
    current: Float[Array, "E G"] | None
    """of the current images, to be stored in replay; None for other observations"""
    reached: Float[Array, "E G"] | None
    """of the images that the last actions led to"""
    projection: FeatureProjection | None


def project_step(
    projection: FeatureProjection | None, encoded: Float[Array, "B F"], num_envs: int
) -> StepFeatures:
    """Projects the current observations, the first `num_envs` rows, and those reached, the last.

    Only the first enter the statistics.
    """
    if projection is None:
        return StepFeatures(encoded, None, None, None)
    # Without the barrier XLA merges this product with the Q-network's and copies all weights.
    projected = lax.optimization_barrier(encoded) @ projection.matrix
    stats = running_stats.update(projection.stats, projected[:num_envs])
    features = running_stats.normalize(stats, projected)
    current, reached = features[:num_envs], features[-num_envs:]
    return StepFeatures(current, current, reached, projection._replace(stats=stats))


def project(
    projection: FeatureProjection | None, encoded: Float[Array, "B F"]
) -> Float[Array, "B G"]:
    """Normalized features."""
    if projection is None:
        return encoded
    return running_stats.normalize(projection.stats, encoded @ projection.matrix)
