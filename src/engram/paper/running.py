"""Trainings of experiments, which stop in time and continue later."""

import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engram import compilation_cache, runners
from engram.envs import Task
from engram.errors import Interrupted
from engram.hooks import TimeBudget
from engram.run_dir import RunDir
from engram.training_loop import Hook, Progress, Training
from engram.types import Agent, Spec

POINTS = 200
"""points of a learning curve"""


def deadline(minutes: float) -> float:
    """The time at which `train` stops."""
    return time.monotonic() + 60 * minutes


class ReportProgress(Hook):
    """Reports a line for every tenth of a training."""

    def __init__(self, label: str, report: Callable[[str], Any]):
        self.label = label
        self.report = report

    def on_log(self, run: Training, progress: Progress) -> None:
        if int(run.stats.points) % (POINTS // 10) == 0:
            seconds, mean_return = run.wall_seconds, progress.mean_return
            self.report(f"{self.label}: {run.step:,} steps, {seconds:.0f} s, {mean_return:.1f}")


def train(
    label: str,
    agent: Agent,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    scratch: Path,
    until: float,
    options: runners.PerRunOptions = None,
    spec: Spec | None = None,
    hooks: Sequence[Hook] = (),
    then: Callable[[Training], Any] = lambda run: None,
    report: Callable[[str], Any] = lambda text: None,
) -> Training:
    """Trains run r on task r with seed r; `then` uses the result before the checkpoint is removed.

    At the time `until` it leaves a checkpoint in `scratch` and raises `Interrupted`; called again,
    it continues. `spec` is for more than one environment per run.
    """
    compilation_cache.enable()
    if time.monotonic() > until:
        raise Interrupted(f"No time is left to start {label}: repeat the command to continue.")
    budget = TimeBudget(max(0.0, until - time.monotonic()) / 60)
    spec = spec or tasks[0].spec(1, tasks[0].steps)
    identity = repr((agent, [task.name for task in tasks], list(seeds), spec, options))
    name = f"{label.replace(' ', '-')}-{zlib.crc32(identity.encode()):08x}"
    folder = RunDir(scratch / name, {})
    folder.path.mkdir(parents=True, exist_ok=True)
    hooks = [*hooks, ReportProgress(label, report), budget]
    interval = spec.num_iterations // POINTS
    run = Training(agent, tasks, seeds, spec, folder, False, options, hooks, interval)
    run.resume_hint = "repeat the command to continue"
    run.run()
    run.runner.close()
    if not run.is_finished:
        raise Interrupted(f"{label} stopped at step {run.step:,}: repeat the command to continue.")
    then(run)
    shutil.rmtree(folder.path)
    report(f"{label}: done in {run.wall_seconds:.0f} s")
    return run
