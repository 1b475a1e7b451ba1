"""Checkpoints: a pytree of arrays and JSON metadata in one safetensors file.

A kill at any moment leaves the old file or the new one whole, and checksums find damage.
The safetensors library would hold all arrays in memory twice and has no place for checksums.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from engram.errors import EngramError
from engram.files import atomic_write
from engram.pytrees import is_key, signature

COMPRESS_FROM = 2**20
"""byte arrays of at least this many bytes are compressed: they are frames, which shrink tenfold"""
CHUNK_BYTES = 2**24
"""bytes that are compressed at once"""
FORMAT = 2
"""version of the format; raise it when the header or the order of the bytes changes"""
KIND = "engram checkpoint"
DTYPE_CODES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "complex64": "C64",
}
"""safetensors' name of each dtype"""


def save(path: Path, tree: PyTree, meta: Mapping[str, Any]) -> None:
    """Replaces the file by `tree` and `meta` (JSON, with NaN), or leaves it untouched."""
    names, leaves, _ = flatten(tree)
    arrays = [_to_numpy(leaf) for leaf in leaves]
    chunk_lengths = {}
    for i, name in enumerate(names):
        if _is_frames(arrays[i]):
            chunks = _compress(arrays[i])
            chunk_lengths[name] = [len(chunk) for chunk in chunks]
            arrays[i] = np.frombuffer(b"".join(chunks), np.uint8)
    key_impls = {
        name: str(jax.random.key_impl(leaf))
        for name, leaf in zip(names, leaves, strict=True)
        if is_key(leaf)
    }
    body = {
        "structure": dict(zip(names, map(signature, leaves), strict=True)),
        "packed": chunk_lengths,
        "keys": key_impls,
        "crc32": [zlib.crc32(as_bytes(array)) for array in arrays],
        "meta": meta,
    }
    with atomic_write(path) as file:
        file.write(_header(body, _entries(names, arrays)))
        for array in arrays:
            file.write(as_bytes(array))


def restore(path: Path, template: PyTree, partial: bool = False) -> tuple[PyTree, dict]:
    """The saved tree and metadata; with `partial`, the file may hold more arrays than `template`.

    `template`, arrays or `jax.eval_shape`'s result, gives the structure to expect. Its NumPy leaves
    and Python numbers come back as such, all others as JAX arrays.
    """
    names, leaves, treedef = flatten(template)
    wanted = dict(zip(names, map(signature, leaves), strict=True))
    with _open(path) as (file, body, entries):
        structure = body["structure"]
        if partial:
            structure = {name: structure[name] for name in structure if name in wanted}
        if difference := compare(structure, wanted):
            raise EngramError(
                f"{path} belongs to another agent, task, options or version of Engram "
                f"({difference}): resume it with those it was trained with, or train into another "
                "folder with --out."
            )
        start = file.tell()
        _check_entries(
            path, list(body["structure"]), entries, os.fstat(file.fileno()).st_size - start
        )
        checksums = dict(zip(body["structure"], body["crc32"], strict=True))
        chunk_lengths = body.get("packed", {})  # format 1 had none
        restored = []
        for name, leaf in zip(names, leaves, strict=True):
            stored = _stored(leaf)
            lengths = chunk_lengths.get(name)
            array = np.empty(stored.shape, stored.dtype)
            if lengths is not None:
                array = np.empty(sum(lengths), np.uint8)
            begin, end = entries[name]["data_offsets"]
            if entries[name] != _entry(array, begin):
                raise damaged(path)
            file.seek(start + begin)
            if file.readinto(as_bytes(array)) != end - begin:
                raise damaged(path)
            if zlib.crc32(as_bytes(array)) != checksums[name]:
                raise damaged(path)
            if lengths is not None:
                array = _decompress(array, lengths, stored.shape)
            restored.append(_convert_like(leaf, array, body["keys"].get(name)))
    return jax.tree.unflatten(treedef, restored), body["meta"]


def read_meta(path: Path) -> dict:
    """The metadata of a checkpoint, without its arrays."""
    with _open(path) as (_, body, _):
        return body["meta"]


def flatten(tree: PyTree) -> tuple[list[str], list, Any]:
    """Names, leaves and structure of a tree."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in pairs], [leaf for _, leaf in pairs], treedef


def compare(saved: dict[str, str], wanted: dict[str, str]) -> str:
    """The first leaf in which two structures differ, in words; empty where they agree."""
    for name in [*wanted, *saved]:
        if saved.get(name) != wanted.get(name):
            there, here = saved.get(name, "missing"), wanted.get(name, "missing")
            return f"{name or 'the state'} is {there} there, {here} here"
    return "" if list(saved) == list(wanted) else "its arrays are in another order"


def size(tree: PyTree) -> int:
    """Bytes of all arrays, or shapes of arrays, of a tree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8)


def damaged(path: Path) -> EngramError:
    """The error for a file that fails its checks."""
    return EngramError(
        f"{path} is damaged (cut short or altered): put a copy back, or train anew into another "
        "folder with --out."
    )


def _to_numpy(leaf: Any) -> np.ndarray:
    """A leaf as the contiguous array that is saved; a key is saved as its data."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf, order="C")


def _stored(leaf: Any) -> Any:
    """Shape and dtype of a leaf as it is saved."""
    if is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _convert_like(leaf: Any, array: np.ndarray, key_impl: str | None) -> Any:
    """`array` as the type of `leaf`."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=key_impl)
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    return jnp.asarray(array) if hasattr(leaf, "dtype") else array.item()


def _is_frames(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and array.nbytes >= COMPRESS_FROM


def _compress(array: np.ndarray) -> list[bytes]:
    """An array of bytes in compressed chunks, on all cores."""
    data = as_bytes(array)
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda chunk: zlib.compress(chunk, 1), chunks))


def _decompress(
    compressed: np.ndarray, lengths: Sequence[int], shape: tuple[int, ...]
) -> np.ndarray:
    """The array whose compressed chunks have the given lengths."""
    array = np.empty(shape, np.uint8)
    ends = np.cumsum([0, *lengths]).tolist()

    def decompress_chunk(i: int) -> None:
        chunk = zlib.decompress(compressed[ends[i] : ends[i + 1]])
        start = i * CHUNK_BYTES
        as_bytes(array)[start : start + len(chunk)] = np.frombuffer(chunk, np.uint8)

    with ThreadPoolExecutor() as pool:
        list(pool.map(decompress_chunk, range(len(lengths))))
    return array


def _entry(array: np.ndarray, begin: int) -> dict[str, Any]:
    """safetensors' entry of an array at an offset."""
    return {
        "dtype": DTYPE_CODES[str(array.dtype)],
        "shape": list(array.shape),
        "data_offsets": [begin, begin + array.nbytes],
    }


def _entries(names: Sequence[str], arrays: Sequence[np.ndarray]) -> dict[str, dict]:
    """safetensors' entries of arrays that follow one another."""
    begins = np.cumsum([0, *(array.nbytes for array in arrays)]).tolist()
    return {
        name: _entry(array, begin)
        for name, array, begin in zip(names, arrays, begins, strict=False)
    }


def _check_entries(path: Path, names: list[str], entries: dict[str, dict], data_size: int) -> None:
    """Raises unless the named arrays follow one another and fill the file."""
    try:
        offsets = [entry["data_offsets"] for entry in entries.values()]
        begins = [begin for begin, _ in offsets]
        ends = [end for _, end in offsets]
    except (KeyError, TypeError, ValueError):
        raise damaged(path) from None
    if list(entries) != names or [*begins, data_size] != [0, *ends]:
        raise damaged(path)


def _header(body: dict, entries: dict[str, dict]) -> bytes:
    """safetensors' header: 8 bytes of length, then JSON whose metadata hold our own header."""
    text = json.dumps(body, default=lambda x: x.tolist())
    checksum = str(zlib.crc32(text.encode()))
    metadata = {"format": f"{KIND} {FORMAT}", "crc32": checksum, "body": text}
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    header += b" " * (-len(header) % 8)  # safetensors wants the arrays aligned
    return len(header).to_bytes(8, "little") + header


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, dict, dict]]:
    """The file at the first byte of its arrays, our header and safetensors' entries."""
    try:
        with open(path, "rb") as file:
            yield file, *_read_header(file, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EngramError(f"{path} cannot be read ({error.strerror}): make it readable.") from error


def _read_header(file: BinaryIO, path: Path) -> tuple[dict, dict]:
    """Our own header, its checksum verified, and safetensors' entries."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= os.fstat(file.fileno()).st_size - 8:
        raise damaged(path)
    try:
        entries = json.loads(file.read(length))
        metadata = entries.pop("__metadata__", {})
        kind, _, version = metadata.get("format", "").rpartition(" ")
        if kind != KIND:
            raise EngramError(
                f"{path} is not a checkpoint of Engram's: put the right file back, or train anew "
                "into another folder."
            )
        if int(version) > FORMAT:
            raise EngramError(
                f"{path} was written by a newer Engram (format {version}, here {FORMAT}): upgrade "
                "engram-rl to read it."
            )
        if zlib.crc32(metadata["body"].encode()) != int(metadata["crc32"]):
            raise damaged(path)
        return json.loads(metadata["body"]), entries
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(path) from None
