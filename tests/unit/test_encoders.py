"""Image encoders: which observations are images, and their convolutions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from engram import encoders
from engram.encoders import (
    CNN,
    LAYERS,
    SMALL_IMAGE_LAYERS,
    Convolution,
    Impala,
    SameConvolution,
    channels_first,
    convolve_by_xla,
    is_image,
    layers_for,
    make_encoder,
    max_pool,
)
from engram.types import Spec

CALL = jax.jit(CNN.__call__)


def random_image(*shape, high=256):
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((84, 84, 3), "uint8", True),
        ((3, 84, 84), "uint8", True),
        ((5, 5), "uint8", True),
        ((7, 7, 3), "uint8", True),
        ((5, 4, 3), "uint8", False),
        ((2, 5, 4), "uint8", False),
        ((84, 84, 3), "float32", False),
        ((128,), "uint8", False),
        ((2, 9, 9, 3), "uint8", True),
        ((2, 9, 4, 3), "uint8", False),
        ((2, 2, 9, 9, 3), "uint8", False),
    ],
)
def test_images_are_bytes_of_at_least_5_by_5_pixels(shape, dtype, expected):
    spec = Spec(shape, 2, dtype)
    assert is_image(spec) == expected
    encoder = jax.eval_shape(lambda key: make_encoder(spec, "nature", key), jax.random.key(0))
    assert (encoder is not None) == expected


@pytest.mark.parametrize(
    ("shape", "expected_shape", "axes"),
    [
        ((84, 84, 4), (4, 84, 84), (2, 0, 1)),
        ((4, 84, 84), (4, 84, 84), (0, 1, 2)),
        ((40, 50), (1, 40, 50), (0, 1)),
        ((7, 7, 20), (20, 7, 7), (2, 0, 1)),
        ((8, 5, 5), (8, 5, 5), (0, 1, 2)),
        ((6, 6, 6), (6, 6, 6), (0, 1, 2)),
        ((4, 9, 8, 3), (12, 9, 8), (0, 3, 1, 2)),
        ((2, 3, 9, 8), (6, 9, 8), (0, 1, 2, 3)),
    ],
)
def test_the_axis_of_the_channels_is_known_from_the_shape(shape, expected_shape, axes):
    assert channels_first(shape) == (expected_shape, axes)


@pytest.mark.parametrize(
    ("shape", "name", "layers"),
    [
        ((84, 84, 4), "paper", LAYERS["paper"]),
        ((4, 84, 84), "nature", LAYERS["nature"]),
        ((68, 100), "paper", LAYERS["paper"]),  # 68, 16, 7, 5, 3
        ((67, 100), "paper", LAYERS["nature"]),
        ((52, 52), "paper", LAYERS["nature"]),  # 52, 12, 5, 3
        ((51, 90, 3), "nature", SMALL_IMAGE_LAYERS[0]),
        ((18, 18), "nature", SMALL_IMAGE_LAYERS[0]),  # 18, 8, 3
        ((17, 90), "paper", SMALL_IMAGE_LAYERS[1]),
        ((5, 5), "paper", SMALL_IMAGE_LAYERS[1]),
    ],
)
def test_layers_leave_a_feature_map_of_3_by_3_if_they_can(shape, name, layers):
    assert layers_for(shape, name) == layers


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("is_bytes", [False, True], ids=["floats", "bytes"])
@pytest.mark.parametrize(("kernel", "stride"), [(8, 4), (4, 2), (3, 1)])
def test_a_convolution_equals_the_one_of_lax(monkeypatch, kernel, stride, is_bytes, device):
    monkeypatch.setattr(encoders, "platform", lambda: device)
    layer = Convolution(3, 5, kernel, stride, jax.random.key(0))
    image = jax.random.normal(jax.random.key(1), (21, 18, 3))
    if is_bytes:
        image = jax.random.randint(jax.random.key(1), image.shape, 0, 256).astype(jnp.uint8)
    blocks = kernel // stride
    # Weights are ordered by block, then by pixel within a block.
    weight = layer.linear.weight.reshape(5, blocks, blocks, stride, stride, 3)
    weight = weight.transpose(0, 5, 1, 3, 2, 4).reshape(5, 3, kernel, kernel)
    image_chw = (image / 255 if is_bytes else image).transpose(2, 0, 1)[None]
    expected = jax.lax.conv(image_chw, weight, (stride, stride), "VALID")[0].transpose(1, 2, 0)
    expected = jax.nn.relu(expected + layer.linear.bias)
    # A GPU multiplies in bfloat16, which has 8 bits.
    tolerance = {"cpu": 1e-5, "gpu": 1e-2}[device]
    np.testing.assert_allclose(layer(image), expected, atol=tolerance)


def test_features_do_not_depend_on_the_axis_of_the_channels():
    image = random_image(9, 8, 3)
    transposed = image.transpose(2, 0, 1)
    layers, key = SMALL_IMAGE_LAYERS[1], jax.random.key(0)
    last, first = (CNN(x.shape, layers, key) for x in (image, transposed))
    features = CALL(last, image.ravel())
    np.testing.assert_array_equal(features, CALL(first, transposed.ravel()))
    assert features.shape == (first.num_features,)
    assert not np.allclose(features, CALL(last, image[::-1].ravel()))


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 9, 8, 3), (0, 3, 1, 2)), ((2, 3, 9, 8), (0, 1, 2, 3))]
)
def test_the_channels_of_a_stack_of_images_are_joined(shape, axes):
    image = random_image(*shape)
    joined = image.transpose(axes).reshape(6, 9, 8)
    layers, key = SMALL_IMAGE_LAYERS[1], jax.random.key(0)
    stack, single = CNN(shape, layers, key), CNN((6, 9, 8), layers, key)
    np.testing.assert_array_equal(CALL(stack, image.ravel()), CALL(single, joined.ravel()))


def test_pixels_are_scaled_by_their_upper_bound():
    image = random_image(9, 9, high=3)
    layers, key = SMALL_IMAGE_LAYERS[1], jax.random.key(0)
    dark, bright = (CNN((9, 9), layers, key, pixel_max) for pixel_max in (2, 254))
    features = CALL(dark, image.ravel())
    expected = CALL(bright, 127 * image.ravel())
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-6)
    assert make_encoder(Spec((9, 9), 2, "uint8", 7), "nature", key).pixel_max == 7


def test_bytes_and_their_floats_have_the_same_features():
    image = random_image(9, 9)
    cnn = CNN((9, 9), SMALL_IMAGE_LAYERS[1], jax.random.key(0))
    floats = jnp.asarray(image.ravel(), jnp.float32) / 255
    np.testing.assert_allclose(CALL(cnn, image.ravel()), CALL(cnn, floats), rtol=1e-5, atol=1e-6)


# The residual network


def test_a_convolution_of_the_same_size_is_a_sum_over_3_by_3_neighbours():
    layer = SameConvolution(2, 3, jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(4, 5, 2)).astype(np.float32)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    kernel = np.asarray(layer.linear.weight).T.reshape(3, 3, 2, 3)
    expected = np.zeros((4, 5, 3)) + np.asarray(layer.linear.bias)
    for i in range(3):
        for j in range(3):
            expected += padded[i : i + 4, j : j + 5] @ kernel[i, j]
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    weight, bias = layer.linear.weight.T, layer.linear.bias
    np.testing.assert_allclose(convolve_by_xla(x, weight) + bias, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 8, 2), (7, 5, 1), (1, 2, 3)])
def test_pooling_has_the_windows_of_lax(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = lax.reduce_window(x, -jnp.inf, lax.max, (3, 3, 1), (2, 2, 1), "SAME")
    np.testing.assert_array_equal(max_pool(x), expected)


@pytest.mark.parametrize(
    ("name", "shape", "features", "parameters"),
    [
        # 15 convolutions of 9 weights per pair of channels (4 to 16, 16 to 32, 32 to 32), and bias
        ("impala", (4, 84, 84), 11 * 11 * 32, 97_744),
        ("impala2", (4, 60, 80, 3), 8 * 10 * 64, None),
        ("impala4", (7, 6, 3), 1 * 1 * 128, None),
    ],
)
def test_three_stacks_halve_an_image_three_times(name, shape, features, parameters):
    spec = Spec(shape, 2, "uint8")
    encoder = jax.eval_shape(lambda key: make_encoder(spec, name, key), jax.random.key(0))
    assert isinstance(encoder, Impala)
    assert encoder.num_features == features
    flat = jax.ShapeDtypeStruct((np.prod(shape),), jnp.uint8)
    assert jax.eval_shape(Impala.__call__, encoder, flat).shape == (features,)
    if parameters:
        assert sum(x.size for x in jax.tree.leaves(encoder)) == parameters


def test_residual_blocks_without_weights_leave_the_pooled_convolution():
    """With blocks of zeros a stack is the maximum over 3 x 3 windows of its first convolution."""
    spec = Spec((6, 8), 2, "uint8")
    encoder = make_encoder(spec, "impala", jax.random.key(0))
    stack = encoder.stacks[0]
    stack = eqx.tree_at(lambda s: s.blocks, stack, jax.tree.map(jnp.zeros_like, stack.blocks))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 1)).astype(np.float32))
    wide = np.pad(stack.first(x), ((0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    expected = [
        [wide[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(4)] for i in range(3)
    ]
    np.testing.assert_allclose(stack(x), expected, rtol=1e-6)
