"""What the command line asks for, as every part receives it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    quick: bool
    """small and noisy, to see whether it works"""
    only: Sequence[str]
    """names of the agents to measure; all if empty"""
    others_python: str | None
    """a Python that has the other software; .venv-bench's if None"""
    coach_python: str | None
    """a Python that has Coach, which is left out if None"""
    old: Path | None
    """the checkout that `commits` compares with this one"""
    log: Callable[[str], None]
    """shows progress"""
    save: Callable[[dict], None]
    """writes what a part has measured so far to the file"""
