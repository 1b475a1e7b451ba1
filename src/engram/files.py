"""Files that are written whole or not at all, and strict JSON."""

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from engram.errors import EngramError

_NUMBER = r"(?:-?[\d.]+(?:e[+-]?\d+)?|null)"
_LIST_OF_NUMBERS = re.compile(rf"\[\s+({_NUMBER}(?:,\s+{_NUMBER})*)\s+\]")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces `path` once it is on disk; after a failure the old one stays."""
    new = path.with_name(path.name + ".new")  # one name, so that a kill's leftover is removed
    refuse_special(new)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with open(new, "xb") as file:  # never a file that is there, which may be one elsewhere too
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        raise EngramError(
            f"{path.name} could not be written into {path.parent} ({error.strerror or error}); "
            "what was saved before is untouched: free some space, or make the folder writable, and "
            "try again."
        ) from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system can sync a folder, and the file is whole anyway
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def refuse_special(*paths: Path) -> None:
    """Raises if there is something else than a file or folder, such as a link to one elsewhere."""
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue  # there is nothing, or it cannot be read, which is found later
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
            raise EngramError(
                f"{path} is {kind}, which Engram neither reads nor writes there: remove it, or put "
                "the file itself in its place."
            )


def check_target(path: Path, endings: Sequence[str]) -> None:
    """Raises unless a file with one of these endings can be written at `path`."""
    if path.suffix.lower() not in endings:
        *others, last = endings
        choice = f"{', '.join(others)} or {last}" if others else last
        raise EngramError(f"Engram cannot write {path}: choose a name that ends in {choice}.")
    if not path.parent.is_dir():
        raise EngramError(
            f"There is no folder {path.parent} to write {path.name} into: make it, or name another."
        )
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        reason = "it is a folder" if path.is_dir() else f"{path.parent} is not writable"
        raise EngramError(f"{path} cannot be written ({reason}): name another file.")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes `value` as strict JSON, with lists of numbers on one line."""
    text = json.dumps(to_json(value), indent=2, allow_nan=False)
    text = _LIST_OF_NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text)
    with atomic_write(path) as file:
        file.write((text + "\n").encode())


def to_json(value: Any) -> Any:
    """`value` in JSON's types: arrays become lists, and numbers that are not finite null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
