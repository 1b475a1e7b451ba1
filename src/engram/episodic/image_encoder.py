"""MBEC's encoder of images, which learns to predict the reward of every action."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Shaped

from engram.encoders import CNN, is_image, make_encoder
from engram.networks import init_params, obs_size
from engram.types import Spec

IMAGE_FEATURES = 64
"""numbers that an image is encoded into (Section 4.1)"""


class ImageEncoder(eqx.Module):
    """Convolutions and a linear layer from an image to 64 numbers, and the rewards they predict."""

    cnn: CNN
    linear: eqx.nn.Linear
    rewards: eqx.nn.Linear

    def __init__(self, cnn: CNN, num_actions: int, key: Key[Array, ""]):
        keys = jax.random.split(key)
        self.cnn = cnn
        self.linear = eqx.nn.Linear(cnn.num_features, IMAGE_FEATURES, key=keys[0])
        self.rewards = eqx.nn.Linear(IMAGE_FEATURES, num_actions, key=keys[1])

    def __call__(self, x: Shaped[Array, "S"]) -> Float[Array, "F"]:
        return jax.nn.relu(self.linear(self.cnn(x)))


def init_image_encoder(spec: Spec, key: Key[Array, ""]) -> ImageEncoder | None:
    """A new encoder of image observations; None for observations that are vectors."""
    if not is_image(spec):
        return None

    def build(key):
        return ImageEncoder(make_encoder(spec, "nature", key), spec.num_actions, key)  # pyright: ignore

    return init_params(build, key)


def num_features(spec: Spec, encoder: ImageEncoder | None) -> int:
    """Numbers that the trajectory model receives of an observation."""
    return obs_size(spec) if encoder is None else IMAGE_FEATURES


def encoder_loss(
    encoder: ImageEncoder,
    obs: Shaped[Array, "B S"],
    action: Int[Array, "B"],
    reward: Float[Array, "B"],
) -> Float[Array, ""]:
    """Mean squared error of the predicted rewards (Eq. 5)."""
    predicted = jax.vmap(lambda x: encoder.rewards(encoder(x)))(obs)
    taken = jnp.take_along_axis(predicted, action[:, None], axis=-1)[:, 0]
    return jnp.mean((reward - taken) ** 2)
