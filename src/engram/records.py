"""Run folders: what a run was asked, its curves, and a checkpoint that a kill at any moment leaves whole.

Checkpoints are safetensors files, written and read here: the library holds all of them in memory twice, and has no place for checksums.
"""

import csv
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from engram.errors import EngramError

FILES = ("config.json", "curves.csv", "metrics.csv", "summary.json", "checkpoint")
FILM, PIECE = 2**20, 2**24  # bytes: what is compressed at all, and at once
FORMAT = 2  # of checkpoints; raise it when the header or the order of the bytes changes
KIND = "engram checkpoint"
CODES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "complex64": "C64",
}  # what safetensors calls each dtype

Curves = dict[int, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class RunFolder:
    """One run on disk, made by `create` or found by `RunFolder.load`."""

    path: Path
    config: dict

    @staticmethod
    def load(path: str | Path) -> "RunFolder":
        """The run that `path` holds."""
        file = Path(path) / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise EngramError(f"{path} is not a run folder (it has no config.json): name one that `engram train` made.") from None
        except OSError as error:
            raise EngramError(f"{file} cannot be read ({error.strerror}): make it readable.") from error
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise EngramError(f"{file} is damaged (not a JSON object): restore it from a copy, or train anew into another folder.")
        return RunFolder(Path(path), config)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it no other process may train into this folder."""
        try:
            file = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise EngramError(f"Nothing can be written into {self.path} ({error.strerror}): make it writable, or copy it.") from error
        with file:
            try:
                import fcntl  # not on Windows

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EngramError(
                    f"Another process is training into {self.path}: wait until it ends, or name another folder with --out."
                ) from None
            except (ImportError, OSError):
                pass  # nobody locks here: another system, or a file system without locks
            yield

    @property
    def way_on(self) -> str:
        """How to resume: the command line cannot know a function."""
        return f"engram.resume({str(self.path)!r}, task=...)" if self.config.get("own_task") else f"engram resume {self.path}"

    @property
    def has_begun(self) -> bool:
        """Whether anything was ever saved: what is stopped before that has only its configuration."""
        return self.checkpoint.exists() or (self.path / "curves.csv").exists()

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint stands, once there is one."""
        return self.path / "checkpoint" / "state.safetensors"

    def save(self, tree: PyTree, meta: Mapping[str, Any]) -> None:
        """Replaces the checkpoint by `tree` and `meta` (plain JSON; NaN survives), or leaves the old one untouched."""
        names, leaves, _ = flatten(tree)
        arrays = [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf, order="C") for leaf in leaves]
        parts = {name: packed(array) for name, array in zip(names, arrays, strict=True) if is_film(array)}
        arrays = [np.frombuffer(b"".join(parts[name]), np.uint8) if name in parts else x for name, x in zip(names, arrays, strict=True)]
        body = {
            "structure": dict(zip(names, map(signature, leaves), strict=True)),
            "packed": {name: list(map(len, pieces)) for name, pieces in parts.items()},
            "keys": {name: str(jax.random.key_impl(x)) for name, x in zip(names, leaves, strict=True) if is_key(x)},
            "crc32": [zlib.crc32(octets(array)) for array in arrays],
            "meta": meta,
        }
        with replacing(self.checkpoint) as file:
            file.write(header(body, layout(names, arrays)))
            for array in arrays:
                file.write(octets(array))

    def restore(self, template: PyTree) -> tuple[PyTree, dict]:
        """The saved tree and metadata. `template`, arrays or `jax.eval_shape`'s answer, says what tree it must be; its NumPy
        leaves and Python numbers come back as such, all others as JAX arrays."""
        names, leaves, treedef = flatten(template)
        with self._opened() as (file, body, entries):
            if difference := compare(body["structure"], dict(zip(names, map(signature, leaves), strict=True))):
                raise EngramError(
                    f"{self.checkpoint} belongs to another agent, task, options or version of Engram ({difference}): "
                    "resume it with those it was trained with, or train into another folder with --out."
                )
            lengths = body.get("packed", {})  # there was none in format 1
            shapes = [stored(leaf) for leaf in leaves]
            arrays = [
                np.empty(sum(lengths[name]), np.uint8) if name in lengths else np.empty(x.shape, x.dtype)
                for name, x in zip(names, shapes, strict=True)
            ]
            size = sum(array.nbytes for array in arrays)
            if entries != layout(names, arrays) or os.fstat(file.fileno()).st_size != file.tell() + size:
                raise damaged(self.checkpoint)
            for array, crc in zip(arrays, body["crc32"], strict=True):
                if file.readinto(octets(array)) != array.nbytes or zlib.crc32(octets(array)) != crc:
                    raise damaged(self.checkpoint)
        arrays = [unpacked(a, lengths[n], x.shape) if n in lengths else a for n, a, x in zip(names, arrays, shapes, strict=True)]
        restored = [like(leaf, array, body["keys"].get(name)) for name, leaf, array in zip(names, leaves, arrays, strict=True)]
        return jax.tree.unflatten(treedef, restored), body["meta"]

    def meta(self) -> dict:
        """The metadata of the checkpoint, without its arrays."""
        with self._opened() as (_, body, _):
            return body["meta"]

    def write_curves(self, rows: Iterable[Sequence]) -> None:
        """Replaces curves.csv by rows of seed, step, return; a return is NaN until an episode has ended."""
        self._write_csv("curves.csv", ["seed", "step", "return"], rows)

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces metrics.csv by rows with a seed, a step and any metrics; a metric that a row lacks stays empty there."""
        rows = list(rows)
        columns = list(dict.fromkeys(["seed", "step", *(name for row in rows for name in row)]))
        self._write_csv("metrics.csv", columns, ([row.get(name, "") for name in columns] for row in rows))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replaces summary.json."""
        write_json(self.path / "summary.json", summary)

    def read_curves(self) -> Curves:
        """For each seed its steps and returns."""
        file = self.path / "curves.csv"
        try:
            with open(file, newline="", encoding="utf-8") as text:
                columns, *rows = csv.reader(text)
            if columns != ["seed", "step", "return"]:
                raise ValueError("other columns")
            table = np.array([[int(seed), int(step), float(value)] for seed, step, value in rows]).reshape(-1, 3)
        except FileNotFoundError:
            raise EngramError(f"{self.path} has no curves.csv yet: let the run go on with `engram resume {self.path}`.") from None
        except OSError as error:
            raise EngramError(f"{file} cannot be read ({error.strerror}): make it readable.") from error
        except (ValueError, csv.Error):
            raise EngramError(
                f"{file} is damaged (its lines should be seed,step,return): write it anew with `engram resume {self.path}`."
            ) from None
        seeds = table[:, 0].astype(int)
        return {int(seed): (table[seeds == seed, 1].astype(int), table[seeds == seed, 2]) for seed in np.unique(seeds)}

    def _write_csv(self, name: str, columns: Sequence[str], rows: Iterable[Sequence]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])
        with replacing(self.path / name) as file:
            file.write(text.getvalue().encode())

    @contextmanager
    def _opened(self) -> Iterator[tuple[io.BufferedReader, dict, dict]]:
        """The checkpoint, standing at the first byte of its arrays, with its own header and safetensors' entries."""
        try:
            with open(self.checkpoint, "rb") as file:
                yield file, *read_header(file, self.checkpoint)
        except FileNotFoundError:
            if not self.has_begun:
                raise EngramError(f"{self.path} has no checkpoint yet: let `{self.way_on}` train it.") from None
            told = "restore it from a copy, or train anew into another folder with --out"
            raise EngramError(f"{self.path} has lost its checkpoint: {told}.") from None
        except OSError as error:
            raise EngramError(f"{self.checkpoint} cannot be read ({error.strerror}): make it readable.") from error


def create(path: str | Path, config: Mapping[str, Any]) -> RunFolder:
    """A new run folder with its config.json; what is there already is never overwritten."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise EngramError(f"{path} is a file, not a folder: name another with --out.")
    if any((path / name).exists() for name in FILES):
        raise EngramError(
            f"{path} already holds a run: resume it with `{RunFolder(path, dict(config)).way_on}`, or name another with --out."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngramError(f"{path} cannot be made ({error.strerror}): name another folder with --out.") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise EngramError(f"{path} is not writable: name another folder with --out.")
    write_json(path / "config.json", config)
    return RunFolder.load(path)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file written beside `path`, synced, and renamed over it; after any failure what was at `path` is still there."""
    beside = path.with_name(path.name + ".new")  # always the same name, so that what a kill leaves is written over next time
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise EngramError(
            f"{path.name} could not be written into {path.parent} ({error.strerror or error}); what was saved before is untouched: "
            "free some space, or make the folder writable, and try again."
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system can sync a folder, and the file is whole either way
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`value` as strict JSON, with lists of numbers on one line."""
    text = json.dumps(strict(value), indent=2, allow_nan=False)
    text = re.sub(r"\[\s+((?:-?[\d.]+(?:e[+-]?\d+)?|null)(?:,\s+(?:-?[\d.]+(?:e[+-]?\d+)?|null))*)\s+\]", _on_one_line, text)
    with replacing(path) as file:
        file.write((text + "\n").encode())


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + " ".join(found[1].split()) + "]"


def strict(value: Any) -> Any:
    """`value` in what JSON knows: arrays are lists, and numbers that are not finite are null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flatten(tree: PyTree) -> tuple[list[str], list, Any]:
    """Names, leaves and structure of a tree."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in pairs], [leaf for _, leaf in pairs], treedef


def is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stored(leaf: Any) -> Any:
    """Shape and dtype of the bytes that stand for a leaf: a key is saved as its data."""
    if is_key(leaf):
        return jax.eval_shape(jax.random.key_data, leaf)
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def signature(leaf: Any) -> str:
    """A leaf's dtype and shape, as `float32[3,4]`."""
    leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def compare(saved: dict[str, str], wanted: dict[str, str]) -> str:
    """The first leaf in which two structures differ, in words; empty where they agree."""
    for name in [*wanted, *saved]:
        if saved.get(name) != wanted.get(name):
            return f"{name or 'the state'} is {saved.get(name, 'missing')} there, {wanted.get(name, 'missing')} here"
    return "" if list(saved) == list(wanted) else "its arrays stand in another order"


def like(leaf: Any, array: np.ndarray, impl: str | None) -> Any:
    """`array` as the kind of thing that `leaf` is."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=impl)
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    return jnp.asarray(array) if hasattr(leaf, "dtype") else array.item()


def size(tree: PyTree) -> int:
    """Bytes that arrays, or what has their shapes, take."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def octets(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8)


def is_film(array: np.ndarray) -> bool:
    """Whether an array is so large, and of bytes, that it must be frames, which zlib makes ten to fifty times smaller."""
    return array.dtype == np.uint8 and array.nbytes >= FILM


def packed(array: np.ndarray) -> list[bytes]:
    """An array of bytes, compressed piece by piece, on all cores."""
    octet = octets(array)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda start: zlib.compress(octet[start : start + PIECE], 1), range(0, len(octet), PIECE)))


def unpacked(compressed: np.ndarray, lengths: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
    """What `packed` was given, from its pieces put together."""
    array = np.empty(shape, np.uint8)
    ends = np.cumsum([0, *lengths]).tolist()

    def one(i):
        piece = zlib.decompress(compressed[ends[i] : ends[i + 1]])
        octets(array)[i * PIECE : i * PIECE + len(piece)] = np.frombuffer(piece, np.uint8)

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, range(len(lengths))))
    return array


def layout(names: Sequence[str], arrays: Sequence[np.ndarray]) -> dict[str, dict]:
    """safetensors' entries for arrays that follow one another."""
    ends = np.cumsum([0, *(array.nbytes for array in arrays)]).tolist()
    return {
        name: {"dtype": CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": ends[i : i + 2]}
        for i, (name, array) in enumerate(zip(names, arrays, strict=True))
    }


def header(body: dict, entries: dict[str, dict]) -> bytes:
    """safetensors' header: its length in 8 bytes, then JSON, in whose metadata our own header lies as sealed text."""
    text = json.dumps(body, default=lambda x: x.tolist())
    metadata = {"format": f"{KIND} {FORMAT}", "crc32": str(zlib.crc32(text.encode())), "body": text}
    head = json.dumps({"__metadata__": metadata, **entries}).encode()
    head += b" " * (-len(head) % 8)  # safetensors wants the arrays aligned
    return len(head).to_bytes(8, "little") + head


def read_header(file: BinaryIO, path: Path) -> tuple[dict, dict]:
    """Our own header and safetensors' entries, the seal of the former checked."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= os.fstat(file.fileno()).st_size - 8:
        raise damaged(path)
    try:
        entries = json.loads(file.read(length))
        metadata = entries.pop("__metadata__", {})
        kind, _, version = metadata.get("format", "").rpartition(" ")
        if kind != KIND:
            raise EngramError(f"{path} is not a checkpoint of Engram's: put the right file back, or train anew into another folder.")
        if int(version) > FORMAT:
            raise EngramError(f"{path} was written by a newer Engram (format {version}, here {FORMAT}): upgrade engram-rl to read it.")
        if zlib.crc32(metadata["body"].encode()) != int(metadata["crc32"]):
            raise ValueError("the seal is broken")
        return json.loads(metadata["body"]), entries
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(path) from None


def damaged(path: Path) -> EngramError:
    return EngramError(f"{path} is damaged (cut short or altered): put a copy back, or train anew into another folder with --out.")
