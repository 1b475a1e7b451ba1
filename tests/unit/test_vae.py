"""The variational auto-encoder reconstructs images of any size; its loss is computed by hand."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents.mfec import to_chw
from engram.errors import EngramError
from engram.types import Spec
from engram.vae import VAE, HalvingConvolution, encode_key, vae_loss


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 33, 47), (4, 84, 84), (2, 63, 32)])
def test_a_reconstruction_has_the_shape_of_its_image(shape):
    vae = jax.eval_shape(partial(VAE, shape, 5), jax.random.key(0))
    image = jax.ShapeDtypeStruct(shape, jnp.float32)
    mean, log_variance = jax.eval_shape(VAE.encode, vae, image)
    assert mean.shape == log_variance.shape == (5,)
    assert jax.eval_shape(VAE.decode, vae, mean).shape == shape


def test_an_image_too_small_to_be_halved_five_times_is_refused():
    with pytest.raises(EngramError, match=r"at least 32 by 32 pixels, not 31 by 40"):
        VAE((1, 31, 40), 5, jax.random.key(0))


class OnePixelVAE:
    """Encodes a pixel x with mean 2 x and variance 4, and decodes a code as itself."""

    def encode(self, image):
        return 2 * image.ravel(), jnp.full(1, jnp.log(4.0))

    def decode(self, code):
        return code.reshape(1, 1, 1)


def test_the_loss_is_reconstruction_error_and_kl_divergence():
    images, noise = jnp.array([3.0, 1.0]).reshape(2, 1, 1, 1), jnp.array([[0.5], [-1.0]])
    # Codes 6 + 2/2 = 7 and 2 - 2 = 0: errors 16 and 1.
    divergences = (36 + 4 - 1 - np.log(4)) / 2, (4 + 4 - 1 - np.log(4)) / 2
    expected = (16 + divergences[0] + 1 + divergences[1]) / 2
    assert vae_loss(OnePixelVAE(), images, noise) == pytest.approx(expected, rel=1e-6)


def test_image_keys_are_computed_from_floats_with_channels_first():
    obs = jnp.arange(2 * 4 * 5 * 3, dtype=jnp.uint8).reshape(2, 4, 5, 3)
    images = to_chw(Spec((4, 5, 3), 2, dtype="uint8"), obs)
    assert images.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(images[1, 2, 3, 4], int(obs[1, 3, 4, 2]) / 255, rtol=1e-6)
    gray = to_chw(Spec((4, 5), 2), jnp.arange(20.0).reshape(1, 4, 5))
    assert gray.shape == (1, 1, 4, 5)
    assert gray[0, 0, 2].tolist() == [10, 11, 12, 13, 14]


def test_a_halving_convolution_is_a_4x4_convolution_of_stride_2():
    layer = HalvingConvolution(3, 16, 16, jax.random.key(0))
    image = jax.random.normal(jax.random.key(1), (3, 10, 12))
    kernel = layer.weight.reshape(16, 4, 4, 3).transpose(0, 3, 1, 2)
    padding = (1, 1), (1, 1)
    expected = jax.lax.conv_general_dilated(image[None], kernel, (2, 2), padding)[0]
    np.testing.assert_allclose(jax.jit(HalvingConvolution.down)(layer, image), expected, atol=1e-5)


@pytest.mark.parametrize("size", [(10, 12), (11, 13)], ids=["even", "odd"])
def test_up_is_the_transpose_of_down(size):
    """<down(x), y> = <x, up(y)>."""
    layer = HalvingConvolution(3, 16, 16, jax.random.key(0))
    transposed = eqx.tree_at(lambda layer: layer.bias, layer, jnp.zeros(3))
    x = jax.random.normal(jax.random.key(1), (3, *size))
    y = jax.random.normal(jax.random.key(2), (16, size[0] // 2, size[1] // 2))
    down = jax.jit(HalvingConvolution.down)(layer, x)
    up = jax.jit(HalvingConvolution.up, static_argnums=2)(transposed, y, size)
    np.testing.assert_allclose(jnp.sum(down * y), jnp.sum(x * up), rtol=1e-4)


def test_an_image_has_the_same_key_alone_and_in_a_batch():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(partial(VAE, (1, 32, 32), 8), jax.random.key(0))
    vae = jax.tree.map(lambda x: rng.uniform(-0.1, 0.1, x.shape).astype(np.float32), shapes)
    images = rng.uniform(size=(20, 1, 32, 32)).astype(np.float32)
    encode = partial(encode_key, vae)
    together = jax.jit(jax.vmap(encode))(images)
    alone = np.stack([*map(jax.jit(encode), images)])
    assert len(np.unique(alone, axis=0)) == 20
    # Rounding differs for the few codes that lie between two keys.
    assert np.mean(np.any(together != alone, axis=1)) <= 0.05
