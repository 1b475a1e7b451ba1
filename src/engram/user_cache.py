"""Folders in the user's cache where nobody else can write: what is kept there is executed."""

import os
import platform
from pathlib import Path

_PROCESSOR_LINES = ("model name", "model\t", "CPU part", "flags", "Features")


class SharedFolderError(OSError):
    """Another user owns a folder or may write into it."""


def folder(*names: str) -> Path:
    """A folder of Engram's that is made if missing; raises OSError if there is no safe one."""
    path = _cache_home()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(path)
    for name in ("engram", *names):
        path /= name
        path.mkdir(mode=0o700, exist_ok=True)
        _check_private(path)
    return path


def processor() -> str:
    """The processor's model and instructions, since different machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(_PROCESSOR_LINES)}))


def _cache_home() -> Path:
    """XDG_CACHE_HOME, which counts only if it is absolute, or ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise OSError("no home folder")
    return Path(home, ".cache")


def _check_private(path: Path) -> None:
    """Raises unless the folder, or what it links to, is the user's and writable by nobody else."""
    if not hasattr(os, "geteuid"):  # on Windows others have no rights in a user's profile
        return
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise SharedFolderError(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise SharedFolderError(f"other users may write into {path}")
