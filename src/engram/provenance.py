"""Where a number comes from: versions, commit and device, which every published figure must name."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from engram.devices import named_device


def describe_machine() -> dict[str, Any]:
    """Versions, commit and device: what a published number must name."""
    packages = ("engram-rl", "jax", "jaxlib", "equinox", "optax", "gymnasium", "ale-py", "numpy")
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "commit": _commit(),
        "device": getattr(_device(), "device_kind", str(_device())),
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def memory_size() -> int | None:
    """Bytes of memory of the device that computes, where known."""
    device = _device()
    if getattr(device, "platform", device) == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return (device.memory_stats() or {}).get("bytes_limit")


def memory_in_use() -> int | None:
    """Bytes in use of an accelerator's memory, where known."""
    device = _device()
    return None if getattr(device, "platform", device) == "cpu" else (device.memory_stats() or {}).get("bytes_in_use")


def _device() -> Any:
    """The one that computes."""
    return named_device() or jax.devices()[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree, with a mark where it was changed since; or what ENGRAM_COMMIT says, for a copy without history."""
    if named := os.environ.get("ENGRAM_COMMIT"):
        return named
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "provenance.py"):
            return None
        return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
