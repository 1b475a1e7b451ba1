"""Versions, commit and device, which every published number must name."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from engram.devices import named_device


def describe_machine() -> dict[str, Any]:
    """Versions, commit and device, for config.json and for result files."""
    packages = ("engram-rl", "jax", "jaxlib", "equinox", "optax", "gymnasium", "ale-py", "numpy")
    return {
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in packages},
        "commit": _commit(),
        "device": device_name(),
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def device_name() -> str:
    """The kind of the device that computes."""
    return getattr(_device(), "device_kind", str(_device()))


def memory_size() -> int | None:
    """Bytes of memory of the device that computes, where known."""
    if not _is_cpu():
        return (_device().memory_stats() or {}).get("bytes_limit")
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_in_use() -> int | None:
    """Bytes in use of an accelerator's memory, where known."""
    return None if _is_cpu() else (_device().memory_stats() or {}).get("bytes_in_use")


def _device() -> Any:
    """The device that computes."""
    return named_device() or jax.devices()[0]


def _is_cpu() -> bool:
    device = _device()
    return getattr(device, "platform", device) == "cpu"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree, marked where it was changed since.

    For a copy without history the environment variable ENGRAM_COMMIT names it.
    """
    if named := os.environ.get("ENGRAM_COMMIT"):
        return named
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not git("ls-files", "provenance.py"):
            return None
        return git("rev-parse", "HEAD") + (
            "-changed" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
