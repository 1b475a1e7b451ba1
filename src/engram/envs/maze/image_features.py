"""512 numbers that a frozen network makes of a maze's image (the paper's noisy mode)."""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import jax
import numpy as np
from jaxtyping import Array, Float, UInt8

from engram.envs.maze import pretrained
from engram.envs.maze.config import NUM_FEATURES, MazeConfig, draw_image

PIXELS = 224
"""height and width of a network's input"""
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
"""of ImageNet's red, green and blue, from 0 to 1"""
CAFFE_MEAN = np.array([104.006, 116.669, 122.679])
"""of ImageNet's blue, green and red, from 0 to 255"""
BATCH_SIZE = 16

RANDOM_CHANNELS = (3, 32, 64, 64, 64, 64)

Network = Callable[[Float[np.ndarray, "B 3 P P"]], Float[Array, "B F"]]
Normalize = Callable[[UInt8[np.ndarray, "B P P 3"]], Float[np.ndarray, "B P P 3"]]


def maze_features(config: MazeConfig) -> Float[np.ndarray, "n n F"]:
    """Features of the maze's image, for each position of the agent; read-only."""
    return _maze_features(config.size, config.layout.tobytes(), config.features)


@cache
def _maze_features(size: int, layout: bytes, source: str) -> Float[np.ndarray, "n n F"]:
    config, cells = MazeConfig(size), np.frombuffer(layout, bool).reshape(size, size, 4)
    network, normalize = load_network(source)
    positions = [(x, y) for x in range(size) for y in range(size)]
    parts = []
    for start in range(0, len(positions), BATCH_SIZE):
        batch = positions[start : start + BATCH_SIZE]
        images = np.stack([enlarge(draw_image(config, cells, position)) for position in batch])
        inputs = np.zeros((BATCH_SIZE, 3, PIXELS, PIXELS), np.float32)
        inputs[: len(batch)] = normalize(images).transpose(0, 3, 1, 2)
        with jax.ensure_compile_time_eval():  # the caller may be a program that is being traced
            parts.append(np.asarray(network(inputs))[: len(batch)])
    features = np.concatenate(parts).reshape(size, size, NUM_FEATURES)
    features.setflags(write=False)
    return features


def load_network(source: str) -> tuple[Network, Normalize]:
    """The network that `MazeConfig.features` names, and how its images are normalised."""
    if source == "random":
        return partial(jax.jit(random_network), random_kernels()), normalize_torch
    if source == "squeezenet":
        weights = pretrained.load_squeezenet()
        return partial(jax.jit(pretrained.squeezenet), weights), normalize_caffe
    weights = pretrained.load_resnet18(source)
    return partial(jax.jit(pretrained.resnet18), weights), normalize_torch


def enlarge(image: UInt8[np.ndarray, "p p 3"]) -> UInt8[np.ndarray, "P P 3"]:
    """The image in the size of a network's input, each pixel the nearest one."""
    nearest = np.arange(PIXELS) * len(image) // PIXELS
    return image[nearest[:, None], nearest]


def normalize_torch(images: UInt8[np.ndarray, "B P P 3"]) -> Float[np.ndarray, "B P P 3"]:
    """As torchvision's networks were trained: red, green and blue by mean and deviation."""
    return (images / 255 - MEAN) / DEVIATION


def normalize_caffe(images: UInt8[np.ndarray, "B P P 3"]) -> Float[np.ndarray, "B P P 3"]:
    """As SqueezeNet was trained: blue, green and red from 0 to 255, less their mean."""
    return images[..., ::-1] - CAFFE_MEAN


def random_kernels() -> list[Float[np.ndarray, "O I K K"]]:
    """The same in every process: normal numbers of He's scale from NumPy's generator."""
    rng = np.random.default_rng(0)
    shapes = [(outputs, inputs, 3, 3) for inputs, outputs in pairwise(RANDOM_CHANNELS)]
    side = PIXELS // 2 ** len(shapes)
    shapes.append((NUM_FEATURES, RANDOM_CHANNELS[-1], side, side))
    scales = [np.sqrt(2 / np.prod(shape[1:])) for shape in shapes]
    return [
        rng.normal(0, scale, shape).astype(np.float32)
        for scale, shape in zip(scales, shapes, strict=True)
    ]


def random_network(
    kernels: list[Float[np.ndarray, "O I K K"]], images: Float[Array, "B 3 P P"]
) -> Float[Array, "B F"]:
    """Five convolutions that halve the image, and one over all that is left.

    Means over the image, as ResNet's, would hardly differ between positions of the agent.
    """
    x = images
    for kernel in kernels[:-1]:
        x = jax.nn.relu(pretrained.convolve(x, kernel, stride=2, padding=1))
    return jax.nn.relu(pretrained.convolve(x, kernels[-1]))[:, :, 0, 0]
