"""The training loop: all runs advance together, are logged, saved and watched by hooks."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from engram import checkpoint, runners
from engram.envs import Task
from engram.envs.env_checker import one_line
from engram.episode_stats import EpisodeStats, mean_without_nan
from engram.episodic import knn
from engram.errors import EngramError, EngramWarning, Interrupted
from engram.interrupts import interrupt_flag
from engram.provenance import device_name
from engram.run_dir import RunDir
from engram.types import Agent, Spec

MIN_LOG_POINTS = 100
"""a learning curve has at least this many points, if it has as many iterations"""
MAX_LOG_INTERVAL = 1_000
"""iterations between two log points at most"""
MIN_ITERATIONS_TO_END = 100
"""iterations after which some episode may be expected to have ended"""
CHECKPOINT_SECONDS = 60.0
"""seconds between two checkpoints at least, if nothing else is said"""
CHECKPOINT_RATIO = 20
"""training takes at least this many times as long as writing checkpoints"""


class Progress(NamedTuple):
    """How far a training is at a log point."""

    step: int
    """environment steps of each run so far"""
    steps: int
    """environment steps of each run in the end"""
    steps_per_second: float
    """of all runs together; 0 until the program is compiled"""
    mean_return: float
    """mean over the runs; NaN before the first episode has ended"""
    curve: Float[np.ndarray, "P"]
    """the mean return at all log points so far"""
    returns: dict[int, float]
    """for each seed the mean return of its last episodes"""
    metrics: dict[int, dict[str, float]]
    """for each seed the agent's metrics since the last log point"""

    def scalars(self, seed: int) -> dict[str, float]:
        """What loggers write of a seed: its return if an episode has ended, speed and metrics."""
        values = {"return": self.returns[seed], "steps_per_second": self.steps_per_second}
        return without_nan(values | self.metrics[seed])


def without_nan(values: dict[str, float]) -> dict[str, float]:
    """The values that are numbers: before the first episode has ended there is no return."""
    return {name: value for name, value in values.items() if not math.isnan(value)}


class Hook:
    """Base class of training hooks; every method may be left out."""

    def on_start(self, run: "Training") -> None:
        """Called once before anything is trained or restored."""

    def on_log(self, run: "Training", progress: Progress) -> None:
        """Called at every log point; `run.stop(reason)` ends the run cleanly."""

    def on_checkpoint(self, run: "Training") -> None:
        """Called after every checkpoint."""

    def on_end(self, run: "Training") -> None:
        """Called once when the run ends, even by an error; see `run.is_finished`."""

    def state(self) -> PyTree:
        """Arrays that are saved with the checkpoint, always of the same shapes after `on_start`."""
        return ()

    def restore(self, state: PyTree) -> None:
        """Called with the saved state when a run is resumed."""


class Logger(Hook):
    """Base class of hooks that only report: one that fails is left out, and the run goes on."""


class Training:
    """R runs in one program: run r trains on task r with seed r, and with its own options if given.

    A run that has a checkpoint in its folder goes on from there, exactly.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        spec: Spec,
        folder: RunDir | None = None,
        use_gym: bool = False,
        options: runners.PerRunOptions = None,
        hooks: Sequence[Hook] = (),
        log_interval: int | None = None,
        workers: int | None = None,
        checkpoint_every: float = CHECKPOINT_SECONDS,
    ):
        self.agent = agent
        self.tasks = list(tasks)
        self.seeds = tuple(seeds)
        self.spec = spec
        self.folder = folder
        self.hooks = _named_hooks(hooks)
        self.steps = self.tasks[0].steps
        """environment steps of each run in the end, but for rounding up to whole iterations"""
        self.runner = runners.make_runner(
            agent, self.tasks, self.seeds, spec, use_gym, options, workers
        )
        if log_interval is None:
            log_interval = min(spec.num_iterations // MIN_LOG_POINTS, MAX_LOG_INTERVAL)
        metrics = sorted(self.runner.template()[0].metric_sums)
        self.stats = EpisodeStats(
            len(self.seeds),
            spec.num_iterations,
            max(log_interval, 1),
            metrics,
            spec.max_episode_steps,
            spec.num_envs,
        )
        self.stopped: str | None = None
        """why a hook stopped the run, if one did"""
        self.resume_hint: str | None = None
        """how to go on, where it is not by resuming the folder"""
        self.checkpoint_every = checkpoint_every
        """seconds between two checkpoints at least"""
        self.next_checkpoint = 0.0
        self.checkpoint_seconds = 0.0
        """seconds that the last checkpoint took"""
        self.train_seconds = 0.0
        self.timed_iterations = 0
        """iterations done in `train_seconds`: all but those that compiled"""
        self.is_compiled = False
        self.is_checked_for_ends = False
        """whether it was looked whether episodes end at all"""
        self.failed_loggers: list[Logger] = []
        self.began = time.monotonic()
        """when the run would have begun, had it never been interrupted"""

    @property
    def task(self) -> Task:
        """The task of the first run, and of all where they share one."""
        return self.tasks[0]

    @property
    def step(self) -> int:
        """Environment steps of each run so far."""
        return self.runner.iteration * self.spec.num_envs

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done."""
        return self.runner.iteration >= self.spec.num_iterations

    @property
    def steps_per_second(self) -> float:
        """Environment steps of all runs per second of training, compilation excluded."""
        steps = self.timed_iterations * self.spec.num_envs * len(self.seeds)
        return steps / self.train_seconds if self.timed_iterations else 0.0

    @property
    def wall_seconds(self) -> float:
        """Seconds since the run began, interruptions excluded, all else included."""
        return time.monotonic() - self.began

    def stop(self, reason: str) -> None:
        """Ends an unfinished run at this log point, or at the first, with everything saved."""
        if not self.is_finished:
            self.stopped = reason

    def run(self) -> None:
        """Trains to the end, or until a hook, Ctrl-C, a fault or a non-finite metric stops it."""
        self.began = time.monotonic()
        started: list[Hook] = []
        with (
            self.folder.lock() if self.folder else nullcontext(),
            interrupt_flag() as interrupted,
            ExitStack() as end,
        ):
            end.callback(self._end_hooks, started)
            for hook in self.hooks.values():
                self._call(hook, "on_start")
                started.append(hook)
            if self.folder is not None and self.folder.has_begun:
                self.restore()
            else:
                self.runner.start()
            while not self.is_finished:
                self._advance(interrupted)
                if interrupted():
                    raise Interrupted(self._save_and_say("Interrupted"))
                if self.stopped is not None:
                    break
            self.save()

    def _end_hooks(self, hooks: Sequence[Hook]) -> None:
        """Calls `on_end` in the order of the hooks, of each even if that of another raises."""
        with ExitStack() as calls:
            for hook in reversed(hooks):
                calls.callback(self._call, hook, "on_end")

    def _call(self, hook: Hook, method: str, *arguments: Any) -> None:
        """Calls a hook; a logger that fails ends no run, unless it refuses to start."""
        if not isinstance(hook, Logger):
            getattr(hook, method)(self, *arguments)
            return
        if hook in self.failed_loggers and method != "on_end":
            return
        try:
            getattr(hook, method)(self, *arguments)
        except (Exception, SystemExit) as error:  # Rich exits where a pipe is closed
            if isinstance(error, EngramError) and method == "on_start":
                raise
            if hook not in self.failed_loggers:
                self.failed_loggers.append(hook)
                _warn_of_failure(hook, error)

    def _advance(self, interrupted: Callable[[], bool]) -> None:
        """Trains up to the next log point, or until it is interrupted."""
        done, interval = self.runner.iteration, self.stats.interval
        iterations = min(interval - done % interval, self.spec.num_iterations - done)
        began = time.monotonic()
        self.stats.add(self.runner.advance(iterations, interrupted))
        if self.is_compiled:
            self.train_seconds += time.monotonic() - began
            self.timed_iterations += self.runner.iteration - done
        self.is_compiled = True
        if self.runner.iteration % interval == 0 or self.is_finished:
            self._log()
        if self.runner.fault is not None:
            fault = str(self.runner.fault).rstrip(".")
            error = type(self.runner.fault)(self._save_and_say(f"{fault}. Correct it"))
            raise error from self.runner.fault

    def _log(self) -> None:
        """Adds a point to the curves, calls the hooks, and saves if it is time to."""
        metrics = self.runner.pop_metrics()
        self._check_finite(metrics)
        self.stats.log_point(metrics)
        self._warn_of_endless_episodes()
        progress = self.progress()
        for hook in self.hooks.values():
            self._call(hook, "on_log", progress)
        is_last = self.is_finished or self.stopped is not None  # which `run` saves
        if time.monotonic() >= self.next_checkpoint and not is_last:
            self.save()

    def _warn_of_endless_episodes(self) -> None:
        """Warns once, after a tenth of the run, if no episode has ended and there is no limit."""
        done = self.runner.iteration
        is_due = done >= MIN_ITERATIONS_TO_END and done * 10 >= self.spec.num_iterations
        if self.is_checked_for_ends or not is_due:
            return
        self.is_checked_for_ends = True
        if self.spec.max_episode_steps is None and self.stats.num_ended == 0:
            warnings.warn(
                f"No episode of {self.task.name} has ended in {self.step:,} steps, and it has no "
                "time limit, so there may be no return to report: stop, and give it one with "
                "--max-episode-steps (gym:ID) or gymnasium.wrappers.TimeLimit.",
                EngramWarning,
                stacklevel=2,
            )

    def save(self) -> None:
        """Writes a checkpoint, the learning curves and the metrics."""
        if self.folder is None:
            return
        began = time.monotonic()
        self._check_finite(self._zero_where_finite())
        tree, notes = self.runner.save()
        hook_states = {name: hook.state() for name, hook in self.hooks.items()}
        meta = {
            "step": self.step,
            "notes": notes,
            "train_seconds": self.train_seconds,
            "timed_iterations": self.timed_iterations,
            "wall_seconds": self.wall_seconds,
            "hooks": list(self.hooks),
            "computed_by": self._computed_by(),
        }
        self.folder.save((tree, self.stats.state(), hook_states), meta)
        self.folder.write_curves(self.stats.curve_rows(self.seeds, self.spec.num_envs))
        self.folder.write_metrics(self.stats.metric_rows(self.seeds, self.spec.num_envs))
        ended = time.monotonic()
        self.checkpoint_seconds = ended - began
        pause = max(self.checkpoint_every, CHECKPOINT_RATIO * self.checkpoint_seconds)
        self.next_checkpoint = ended + pause
        for hook in self.hooks.values():
            self._call(hook, "on_checkpoint")

    def restore(self) -> None:
        """Goes back to the checkpoint; a hook that had no state in it begins anew."""
        assert self.folder is not None
        meta = self.folder.meta()
        if meta["step"] < self.steps:
            self._warn_of_other_rounding(meta.get("computed_by", {}))
        saved = meta["hooks"]
        hook_states = {name: self.hooks[name].state() for name in saved if name in self.hooks}
        template = self.runner.template(), self.stats.state(), hook_states
        (tree, stats, hook_states), meta = self.folder.restore(template, partial=True)
        self.runner.restore(tree, meta["notes"])
        self.stats.restore(stats)
        for name, state in hook_states.items():
            self.hooks[name].restore(state)
        self.train_seconds = meta["train_seconds"]
        self.timed_iterations = meta["timed_iterations"]
        self.began -= meta["wall_seconds"]

    def _computed_by(self) -> dict[str, str]:
        """What rounding depends on: the device and, if the agent has a memory, its search."""
        has_memory = type(self.agent).memory is not Agent.memory
        search = {"nearest-neighbour search": knn.search_name()} if has_memory else {}
        return {"device": device_name()} | search

    def _warn_of_other_rounding(self, before: Mapping[str, str]) -> None:
        """Warns if the run is resumed on something else than what it was trained on."""
        now = self._computed_by()
        changes = [
            f"the {name} was {before[name]} and is {now[name]}"
            for name in now
            if before.get(name, now[name]) != now[name]
        ]
        if changes:
            warnings.warn(
                "This run will not end as it would have without the interruption, since rounding "
                f"differs: {' and '.join(changes)}.",
                EngramWarning,
                stacklevel=2,
            )

    def progress(self) -> Progress:
        """How far the training is."""
        returns = self.stats.mean_returns()
        points = int(self.stats.points)
        metrics = {}
        if points:
            metrics = {s: self.stats.metrics_at(points - 1, r) for r, s in enumerate(self.seeds)}
        return Progress(
            step=self.step,
            steps=self.steps,
            steps_per_second=self.steps_per_second,
            mean_return=float(mean_without_nan(returns)),
            curve=mean_without_nan(self.stats.returns[:points]),
            returns=dict(zip(self.seeds, map(float, returns), strict=True)),
            metrics=metrics,
        )

    def _save_and_say(self, reason: str) -> str:
        """Saves, unless a metric is not finite, and gives the sentence with which the run ends."""
        if self.folder is None:
            return f"{reason}."
        self._check_finite(jax.device_get(self.runner.run_state.metric_sums))
        self.save()
        hint = self.resume_hint or f"go on with `{self.folder.resume_command}`"
        return f"{reason}; all until step {self.step:,} is saved: {hint}."

    def _zero_where_finite(self) -> dict[str, Float[np.ndarray, "R"]]:
        """For each array with which agents act 0, or NaN for a run in which it is not finite.

        What only learns is left out: a pass over a replay buffer would take long.
        """
        names, leaves, _ = checkpoint.flatten(self.agent.policy_state(self.runner.run_state.agent))
        sums = {}
        for name, leaf in zip(names, leaves, strict=True):
            if jnp.issubdtype(getattr(leaf, "dtype", int), jnp.floating):
                is_finite = np.isfinite(np.asarray(leaf)).reshape(len(self.seeds), -1)
                sums[f"state{name}"] = np.where(is_finite.all(axis=1), 0.0, np.nan)
        return sums

    def _check_finite(self, metrics: dict[str, Float[np.ndarray, "R"]]) -> None:
        """Raises if a metric or array of a run is not finite: such a state is never saved."""
        for name, values in metrics.items():
            if np.all(np.isfinite(values)):
                continue
            seed = self.seeds[int(np.argmin(np.isfinite(values)))]
            saved = ""
            if self.folder is not None and self.folder.checkpoint.exists():
                saved = f" The checkpoint in {self.folder.path} is from before that."
            raise EngramError(
                f"{name} of seed {seed} was not a finite number within the steps up to "
                f"{self.step:,}: lower the learning rates, or scale the inputs or rewards.{saved}"
            )


def _warn_of_failure(logger: Logger, error: BaseException) -> None:
    """Warns that a logger reports no more, if that can be said."""
    with suppress(OSError):  # stderr may be the pipe that is closed
        warnings.warn(
            f"{type(logger).__name__} failed ({type(error).__name__}: {one_line(error)}) and "
            "reports no more; the training goes on.",
            EngramWarning,
            stacklevel=3,
        )


def _named_hooks(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """The hooks by the names of their classes, numbered where a name occurs twice."""
    named: dict[str, Hook] = {}
    if not isinstance(hooks, Sequence):
        hooks = [hooks]
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise EngramError(f"{hook!r} is not a hook: derive its class from engram.Hook.")
        name = type(hook).__name__
        count = sum(type(other).__name__ == name for other in named.values())
        named[f"{name} {count + 1}" if count else name] = hook
    return named
