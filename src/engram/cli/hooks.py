"""The hooks that options of train and resume ask for."""

import dataclasses
from pathlib import Path
from typing import Any

from engram.errors import EngramError


def check_loudness(command: Any) -> None:
    """Raise if a command shall be both quiet and verbose."""
    if command.quiet and command.verbose:
        raise EngramError("--quiet prints less and --verbose more: choose one of the two.")


def with_earlier_loggers(command: Any, folder: str | Path) -> Any:
    """A command with the loggers too that a run folder was trained with before."""
    from engram.loggers.trackers import read_record
    from engram.run_dir import refuse_links

    refuse_links(Path(folder))
    loggers: dict[str, Any] = {}
    if Path(folder, "tensorboard").is_dir():
        loggers["tensorboard"] = True
    for package in ("wandb", "trackio"):
        if getattr(command, package) is None and (record := read_record(folder, package)):
            loggers[package] = record["project"]
    return dataclasses.replace(command, **loggers)


def training_hooks(command: Any, title: str, folder: str | Path) -> list[Any]:
    """What watches a training into a folder."""
    check_loudness(command)
    hooks: list[Any] = []
    if not command.quiet:
        from engram.loggers.progress_bar import ProgressBar

        hooks.append(ProgressBar(title))
    if command.tensorboard:
        from engram.loggers.tensorboard import TensorBoard

        hooks.append(TensorBoard(Path(folder, "tensorboard")))
    if command.wandb is not None:
        from engram.loggers.trackers import WandB

        hooks.append(WandB(command.wandb, quiet=command.quiet))
    if command.trackio is not None:
        from engram.loggers.trackers import Trackio

        hooks.append(Trackio(command.trackio, quiet=command.quiet))
    if command.verbose:
        from engram.loggers.timings import Timings

        hooks.append(Timings())
    return hooks
