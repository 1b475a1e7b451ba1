"""Run folders: a run's configuration, learning curves, metrics, summary and checkpoint."""

import csv
import io
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from jaxtyping import PyTree

from engram import checkpoint, zoo
from engram.errors import EngramError
from engram.files import atomic_write, refuse_special, write_json
from engram.imports import modules_of

FILES = ("config.json", "curves.csv", "metrics.csv", "summary.json", "checkpoint")
STUDY_FILE = "study.db"
"""in the folder of a study, which lies beside run folders"""
LOCK_SECONDS = 0.5
"""for which a lock is waited for, since `create` holds it only for a moment"""

Curves = dict[int, tuple[np.ndarray, np.ndarray]]
"""for each seed its steps and returns"""


@dataclass(frozen=True)
class RunDir:
    """One run on disk, made by `create` or opened by `RunDir.load`."""

    path: Path
    config: dict

    @staticmethod
    def load(path: str | Path) -> "RunDir":
        """The run in the folder `path`, or the trained agent zoo:NAME."""
        is_installed = zoo.is_name(path)
        path = zoo.resolve(path)
        if not is_installed:  # an installer may link the files of a package
            refuse_links(path)
        file = path / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise EngramError(
                f"{path} is not a run folder (it has no config.json): name one that `engram train` "
                "made."
            ) from None
        except OSError as error:
            raise EngramError(
                f"{file} cannot be read ({error.strerror}): make it readable."
            ) from error
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise EngramError(
                f"{file} is damaged (not a JSON object): restore it from a copy, or train anew "
                "into another folder."
            )
        return RunDir(path, config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training into this folder."""
        if self.is_policy:
            raise EngramError(
                f"{self.path} has a trained agent without what learns: evaluate it, or train anew "
                f"with `engram train --config {self.path}`."
            )
        refuse_links(self.path)
        try:
            file = open(self.path / ".lock", "a", opener=_open_no_link)  # noqa: SIM115
        except OSError as error:
            raise EngramError(
                f"Nothing can be written into {self.path} ({error.strerror}): make it writable, or "
                "copy it."
            ) from error
        with file:
            if not _lock(file):
                raise EngramError(
                    f"Another process is training into {self.path}: wait until it ends, or name "
                    "another folder with --out."
                )
            yield

    @property
    def resume_command(self) -> str:
        """How to resume: the command line cannot know a function that makes an environment."""
        if self.config.get("custom_task"):
            return f"engram.resume({str(self.path)!r}, task=...)"
        return self.command("resume")

    def command(self, name: str) -> str:
        """A command of this folder, which allows the modules that it names."""
        modules = shlex.join(self.modules)
        return f"engram {name} {self.path}" + (f" --allow-module {modules}" if modules else "")

    @property
    def modules(self) -> list[str]:
        """The modules of the agent, the environment and its wrappers, which reading imports."""
        agent, task = self.config.get("agent", ""), self.config.get("task", "")
        wrappers = self.config.get("wrappers")
        return modules_of(
            str(agent),
            "" if self.config.get("custom_task") else str(task),
            map(str, wrappers if isinstance(wrappers, Iterable) else ()),
        )

    @property
    def has_begun(self) -> bool:
        """Whether anything was ever saved; a run that was killed before has only its config."""
        return self.checkpoint.exists() or (self.path / "curves.csv").exists()

    @property
    def checkpoint(self) -> Path:
        """The file of the checkpoint, which may not exist yet."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def policy(self) -> Path:
        """The file that a policy folder has instead: trained agents, and nothing that learns."""
        return self.path / "policy.safetensors"

    @property
    def is_policy(self) -> bool:
        """Whether this is a policy folder."""
        return self.policy.exists()

    def save(self, tree: PyTree, meta: Mapping[str, Any]) -> None:
        """Replaces the checkpoint by `tree` and `meta`, or leaves the old one untouched."""
        checkpoint.save(self.checkpoint, tree, meta)

    def restore(self, template: PyTree, partial: bool = False) -> tuple[PyTree, dict]:
        """The checkpoint's tree, of the structure of `template`, and its metadata."""
        with self._explain_missing_checkpoint():
            return checkpoint.restore(self.checkpoint, template, partial)

    def meta(self) -> dict:
        """The metadata of the checkpoint, without its arrays."""
        with self._explain_missing_checkpoint():
            return checkpoint.read_meta(self.policy if self.is_policy else self.checkpoint)

    @contextmanager
    def _explain_missing_checkpoint(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if self.has_begun:
                raise EngramError(
                    f"{self.path} has lost its checkpoint: restore it from a copy, or train anew "
                    "into another folder with --out."
                ) from None
            raise EngramError(
                f"{self.path} has no checkpoint yet: let `{self.resume_command}` train it."
            ) from None

    def write_curves(self, rows: Iterable[Sequence]) -> None:
        """Replaces curves.csv by rows of seed, step, return (NaN until an episode has ended)."""
        self._write_csv("curves.csv", ["seed", "step", "return"], rows)

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replaces metrics.csv by rows with a seed, a step and metrics; missing ones stay empty."""
        rows = list(rows)
        columns = list(dict.fromkeys(["seed", "step", *(name for row in rows for name in row)]))
        lines = ([row.get(name, "") for name in columns] for row in rows)
        self._write_csv("metrics.csv", columns, lines)

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
            numbers = [[int(seed), int(step), float(value)] for seed, step, value in rows]
        except FileNotFoundError:
            if self.is_policy:
                raise EngramError(
                    f"{self.path} has a trained agent without its learning curve: name a run "
                    "folder."
                ) from None
            raise EngramError(
                f"{self.path} has no curves.csv yet: continue the run with `{self.resume_command}`."
            ) from None
        except OSError as error:
            raise EngramError(
                f"{file} cannot be read ({error.strerror}): make it readable."
            ) from error
        except (ValueError, csv.Error):
            raise EngramError(
                f"{file} is damaged (its lines should be seed,step,return): write it anew with "
                f"`{self.resume_command}`."
            ) from None
        table = np.array(numbers).reshape(-1, 3)
        seeds = table[:, 0].astype(int)
        return {
            int(seed): (table[seeds == seed, 1].astype(int), table[seeds == seed, 2])
            for seed in np.unique(seeds)
        }

    def _write_csv(self, name: str, columns: Sequence[str], rows: Iterable[Sequence]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])
        with atomic_write(self.path / name) as file:
            file.write(text.getvalue().encode())


def create(path: str | Path, config: Mapping[str, Any]) -> RunDir:
    """Makes a new run folder with its config.json; a run that is there is never overwritten."""
    zoo.refuse(path)
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise EngramError(f"{path} is a file, not a folder: name another with --out.")
    folder = RunDir(path, dict(config))
    _refuse_used(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngramError(
            f"{path} cannot be made ({error.strerror}): name another folder with --out."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise EngramError(f"{path} is not writable: name another folder with --out.")
    with folder.lock():
        _refuse_used(folder)  # another process may have created it since
        write_json(path / "config.json", config)
    return RunDir.load(path)


def refuse_links(folder: Path) -> None:
    """Raises if a link or a special file is in a folder, which may lead to files elsewhere."""
    for path in (folder, folder / "checkpoint"):
        with suppress(OSError):  # there is none, or it cannot be read, which is found later
            refuse_special(*path.iterdir())


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _refuse_used(folder: RunDir) -> None:
    """Raises if there is a run or a study already."""
    if any((folder.path / name).exists() for name in FILES):
        raise EngramError(
            f"{folder.path} already holds a run: resume it with `{folder.resume_command}`, or name "
            "another with --out."
        )
    if (folder.path / STUDY_FILE).exists():
        raise EngramError(f"{folder.path} holds a study of `engram tune`: name another with --out.")


def _lock(file: TextIO) -> bool:
    """Locks a file until it is closed; false if another process keeps its lock."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            import fcntl  # not on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        except (ImportError, OSError):
            return True  # a system or a file system without locks
        else:
            return True
