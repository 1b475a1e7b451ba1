"""The auto-encoder gives back images of any size, its loss is that of the paper, and its images have their channels in front."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents.mfec import pictures
from engram.types import Spec
from engram.vae import VAE, Halving, key_of, loss
from engram.vision import channels_first


@pytest.mark.parametrize("image", [(1, 32, 32), (3, 33, 47), (4, 84, 84), (2, 63, 32)])
def test_what_is_decoded_has_the_shape_of_what_was_encoded(image):
    vae = jax.eval_shape(lambda key: VAE(image, 5, key), jax.random.key(0))
    seen = jax.ShapeDtypeStruct(image, jnp.float32)
    mean, log_variance = jax.eval_shape(lambda vae, x: vae.encode(x), vae, seen)
    assert mean.shape == log_variance.shape == (5,)
    assert jax.eval_shape(lambda vae, x: vae.decode(x), vae, mean).shape == image


class Known:
    """An auto-encoder of one pixel: the mean is twice the image, the variance 4, and what is decoded is the code."""

    def encode(self, image):
        return 2 * image.ravel(), jnp.full(1, jnp.log(4.0))

    def decode(self, code):
        return code.reshape(1, 1, 1)


def test_the_loss_is_the_error_of_the_image_and_the_divergence_of_the_code():
    images, noise = jnp.array([3.0, 1.0]).reshape(2, 1, 1, 1), jnp.array([[0.5], [-1.0]])
    # codes 6 + 2/2 = 7 and 2 - 2 = 0: errors 16 and 1; divergences (36 + 4 - 1 - ln 4) / 2 and (4 + 4 - 1 - ln 4) / 2
    expected = (16 + (39 - np.log(4)) / 2 + 1 + (7 - np.log(4)) / 2) / 2
    assert loss(Known(), images, noise) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "first", "axes"),
    [
        ((84, 84, 4), (4, 84, 84), (2, 0, 1)),
        ((4, 84, 84), (4, 84, 84), (0, 1, 2)),
        ((40, 50), (1, 40, 50), (0, 1)),
        ((7, 7, 20), (20, 7, 7), (2, 0, 1)),
        ((8, 5, 5), (8, 5, 5), (0, 1, 2)),
        ((6, 6, 6), (6, 6, 6), (0, 1, 2)),
        ((4, 9, 8, 3), (12, 9, 8), (0, 3, 1, 2)),
    ],
)
def test_channels_come_first(shape, first, axes):
    assert channels_first(shape) == (first, axes)


def test_pictures_are_between_0_and_1_with_every_pixel_in_its_place():
    seen = jnp.arange(2 * 4 * 5 * 3, dtype=jnp.uint8).reshape(2, 4, 5, 3)
    image = pictures(Spec((4, 5, 3), 2, dtype="uint8"), seen)
    assert image.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(image[1, 2, 3, 4], int(seen[1, 3, 4, 2]) / 255, rtol=1e-6)
    flat = pictures(Spec((4, 5), 2), jnp.arange(20.0).reshape(1, 4, 5))
    assert flat.shape == (1, 1, 4, 5)
    assert flat[0, 0, 2].tolist() == [10, 11, 12, 13, 14]


def test_halving_is_a_convolution_of_4x4_with_stride_2():
    layer, image = Halving(3, 16, 16, jax.random.key(0)), jax.random.normal(jax.random.key(1), (3, 10, 12))
    kernel = layer.weight.reshape(16, 4, 4, 3).transpose(0, 3, 1, 2)
    known = jax.lax.conv_general_dilated(image[None], kernel, (2, 2), ((1, 1), (1, 1)))[0]
    np.testing.assert_allclose(layer.down(image), known, atol=1e-5)


@pytest.mark.parametrize("size", [(10, 12), (11, 13)])
def test_doubling_is_halving_transposed(size):
    """<down(x), y> = <x, up(y)>, for sides that were even and for sides that were odd."""
    layer = Halving(3, 16, 16, jax.random.key(0))
    back = eqx.tree_at(lambda layer: layer.bias, layer, jnp.zeros(3))
    x, y = jax.random.normal(jax.random.key(1), (3, *size)), jax.random.normal(jax.random.key(2), (16, size[0] // 2, size[1] // 2))
    np.testing.assert_allclose(jnp.sum(layer.down(x) * y), jnp.sum(x * back.up(y, size)), rtol=1e-4)


def test_an_image_has_the_same_key_in_every_program():
    model, images = VAE((1, 32, 32), 8, jax.random.key(0)), jax.random.uniform(jax.random.key(1), (20, 1, 32, 32))
    together = jax.jit(jax.vmap(lambda image: key_of(model, image)))(images)
    alone = jnp.stack([*map(jax.jit(lambda image: key_of(model, image)), images)])
    assert np.mean(np.any(together != alone, axis=1)) <= 0.05
