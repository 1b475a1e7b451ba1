"""What a training spends its time on: programs that are compiled, log points and checkpoints."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax

from engram.loggers.console import count_seeds
from engram.provenance import describe_machine
from engram.training_loop import Logger, Progress, Training

MIN_SECONDS = 0.1
"""what takes less is not printed"""
SECONDS_BETWEEN = 1.0
"""seconds between two lines about speed, at least"""


class CompilationLog:
    """Prints every program that is traced and compiled within it, or loaded from the cache."""

    def __init__(self):
        self.programs = 0
        self.cached_programs = 0
        self.seconds = 0.0
        self.thread = threading.local()  # since programs are compiled in several threads at once

    def __enter__(self) -> "CompilationLog":
        jax.monitoring.register_event_listener(self.on_event)
        jax.monitoring.register_event_duration_secs_listener(self.on_duration)
        return self

    def __exit__(self, *_: Any) -> None:
        jax.monitoring.unregister_event_listener(self.on_event)
        jax.monitoring.unregister_event_duration_listener(self.on_duration)

    def on_event(self, event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            self.thread.is_cached = True

    def on_duration(self, event: str, duration_secs: float, **about: Any) -> None:
        match event:
            case "/jax/core/compile/jaxpr_trace_duration":
                done = "traced"
            case "/jax/core/compile/jaxpr_to_mlir_module_duration":
                done = "lowered"
            case "/jax/core/compile/backend_compile_duration":
                is_cached = getattr(self.thread, "is_cached", False)
                self.thread.is_cached = False
                done = "loaded from the cache" if is_cached else "compiled"
                self.programs += 1
                self.cached_programs += is_cached
                self.seconds += duration_secs
            case _:
                return
        if duration_secs >= MIN_SECONDS:
            name = about.get("fun_name", "a program").removeprefix("jit(").strip("_)")
            with suppress(OSError):  # JAX, which calls this, would not compile the program
                say(f"{name}: {done} in {duration_secs:.2f} s")

    def __str__(self) -> str:
        count = f"{self.programs} programs, {self.cached_programs} of them from the cache"
        return f"{count}, compiled or loaded in {self.seconds:.1f} s"


class Timings(Logger):
    """Prints device, compiled programs, speed at log points, and times of checkpoints."""

    def on_start(self, run: Training) -> None:
        print_device()
        envs = f"{run.spec.num_envs} environment{'s' * (run.spec.num_envs > 1)} each"
        say(f"{type(run.runner).__name__}: {count_seeds(len(run.seeds))}, {envs}")
        self.began = time.monotonic()
        self.next_line = 0.0
        self.timed = 0, 0.0
        """iterations and seconds of training until the last line"""
        self.checkpoint_seconds = 0.0
        self.compilations = CompilationLog().__enter__()

    def on_log(self, run: Training, progress: Progress) -> None:
        iterations, seconds = (
            run.timed_iterations - self.timed[0],
            run.train_seconds - self.timed[1],
        )
        is_due = time.monotonic() >= self.next_line or run.is_finished
        if not (is_due and iterations > 0 and seconds > 0):
            return
        self.timed = run.timed_iterations, run.train_seconds
        self.next_line = time.monotonic() + SECONDS_BETWEEN
        speed = iterations * run.spec.num_envs * len(run.seeds) / seconds
        say(f"step {progress.step:,}: {speed:,.0f} steps/s in the last {seconds:.2f} s of training")

    def on_checkpoint(self, run: Training) -> None:
        assert run.folder is not None
        size = run.folder.checkpoint.stat().st_size / 1e6
        self.checkpoint_seconds += run.checkpoint_seconds
        say(f"checkpoint at step {run.step:,}: {run.checkpoint_seconds:.2f} s, {size:,.1f} MB")

    def on_end(self, run: Training) -> None:
        self.compilations.__exit__()
        training = f"{run.train_seconds:.1f} s training after compilation"
        checkpoints = f"{self.checkpoint_seconds:.1f} s checkpoints"
        say(f"{self.compilations}")
        say(f"{time.monotonic() - self.began:.1f} s in all: {training}, {checkpoints}")


@contextmanager
def print_times() -> Iterator[None]:
    """Within it every compiled program is printed, and at the end the time of all."""
    print_device()
    began = time.monotonic()
    with CompilationLog() as compilations:
        yield
    say(f"{compilations}")
    say(f"{time.monotonic() - began:.1f} s in all")


def print_device() -> None:
    """Print the device, its processors, and where compiled programs are kept."""
    machine = describe_machine()
    cache = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    jax_version = machine["versions"]["jax"]
    say(f"device {machine['device']}, {machine['processors']} processors, JAX {jax_version}")
    say(f"compiled programs are kept in {cache}" if cache else "compiled programs are not kept")


def say(text: str) -> None:
    """Print a line above the progress bar, if there is one."""
    print(text, flush=True)
