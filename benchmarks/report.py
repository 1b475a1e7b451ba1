"""The report of a run: machine, software, commit and date."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

ROOT = Path(__file__).parent.parent
PACKAGES = ("engram-rl", "jax", "jaxlib", "equinox", "optax", "gymnasium", "numpy")


def describe(commit: str | None, quick: bool) -> dict:
    """The machine, the software and the date."""
    has_affinity = hasattr(os, "sched_getaffinity")
    versions = {"python": platform.python_version()}
    return {
        "machine": {
            "cpu": _cpu_name(),
            "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count(),
            "device": jax.devices()[0].device_kind,
            "system": f"{platform.system()} {platform.machine()}",
            "load": os.getloadavg(),
        },
        "versions": versions | {package: _version(package) for package in PACKAGES},
        "commit": commit or commit_of(ROOT),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "sections": {},
    }


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, `-dirty` if files have changed since."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()


def headline(report: dict) -> str:
    """One line on where, with what and when a report was measured."""
    machine, versions = report["machine"], report["versions"]
    place = f"{machine['cores']} cores of {machine['cpu']}"
    if machine["device"] != "cpu":
        place += f", {machine['device']}"
    software = f"Python {versions['python']}, JAX {versions['jax']}"
    line = f"{place}; {software}; commit {report['commit']}, {report['date'][:10]}"
    return line + ("; **only a quick trial**" if report["quick"] else "")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"
