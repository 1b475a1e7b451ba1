"""What experiments share: the tasks, trainings that stop in time and go on later, their protocol, tables and scale."""

import json
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from jaxtyping import PyTree

from engram import loop
from engram.agents import name_of
from engram.errors import EngramError, Interrupted
from engram.provenance import describe_machine
from engram.records import Curves, RunFolder, size
from engram.scores import Scores
from engram.tasks import Task
from engram.types import Agent, Spec

FAMILIES = ("cartpole", "mountaincar", "lunarlander")
NOISES = ("gaussian", "bernoulli", "transition")
NOISY = tuple(f"{family}-{noise}" for noise in NOISES for family in FAMILIES)  # a row a kind of noise, as in the paper's appendix
PRESET = {"random": "paper", "dqn": "tuned", "mfec": "tuned", "nec": "tuned", "drqn": "tuned", "ppo": "tuned"}
PRESET |= {"mbec": "paper", "mbec++": "paper"}  # the paper names one setting for these
POINTS = 200
"""of a curve"""
PATIENCE = 180.0
"""seconds between two checkpoints, at least"""
SAVED = 5e8
"""bytes of a checkpoint that are written in a second, where none was written yet"""


def main(run: type, report: type) -> None:
    """The command line: two dataclasses of options that can be called."""
    command = tyro.cli(
        Annotated[run, tyro.conf.subcommand("run")] | Annotated[report, tyro.conf.subcommand("report")],  # pyright: ignore
        prog=f"python -m engram.experiments.{Path(str(sys.modules[run.__module__].__file__)).stem}",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    try:
        command()
    except EngramError as error:
        raise SystemExit(str(error)) from None


def deadline(minutes: float) -> float:
    """The moment from which on `train` stops."""
    return time.monotonic() + 60 * minutes


class Beside:
    """What is done beside a training, and saved with it: nothing."""

    def prepare(self, driver: Any) -> None:
        """Before anything is trained or restored."""

    def mark(self, driver: Any) -> None:
        """At every point of the curve."""

    def tree(self) -> PyTree:
        """Arrays to be saved."""
        return ()

    def restore(self, tree: PyTree) -> None: ...

    def gives_up(self, driver: Any) -> bool:
        """Whether the last run ends now for the sake of the others; asked at every point of the curve."""
        return False

    def keep(self, runs: Sequence[int]) -> None:
        """Only these go on."""


def train(
    label: str,
    agent: Agent,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    scratch: Path,
    until: float,
    options: loop.Options = None,
    spec: Spec | None = None,
    beside: Beside | None = None,
    then: Callable[[Scores, float], Any] = lambda scores, seconds: None,
    final: bool = False,
) -> tuple[Scores, float]:
    """Trains run r on task r with seed r, all in one program, and gives their curves and the seconds it took. From `until` on it leaves
    a checkpoint in `scratch` and ends the process; called alike, it goes on from there. `spec` is for more than one environment a run. What
    `then` does with the outcome is done before the checkpoint is removed. Where it is `final` there are no checkpoints, and it goes on to
    the end."""
    spec = spec or tasks[0].spec(1, tasks[0].steps)
    steps = spec.iterations
    driver = loop.driver(agent, tasks, seeds, spec, options=options)
    scores = Scores(len(seeds), steps, max(1, steps // POINTS), sorted(driver.template()[0].sums))
    is_alone, beside = beside is None, beside or Beside()
    beside.prepare(driver)
    what = repr((agent, [task.name for task in tasks], list(seeds), steps, options))
    folder = RunFolder(scratch / f"{label.replace(' ', '-')}-{zlib.crc32(what.encode()):08x}", {})
    if time.monotonic() > until:
        raise Interrupted(f"No time left to begin {label}; the same command goes on.")
    before, began = 0.0, time.monotonic()
    is_trained = False
    if folder.checkpoint.exists():
        if "is_trained" not in (meta := folder.meta()):
            raise EngramError(f"{folder.path} was begun by an older Engram: remove it, and it is trained anew.")
        is_trained = meta["is_trained"]
        (tree, saved, kept), meta = folder.restore((() if is_trained else driver.template(), scores.tree(), beside.tree()))
        if not is_trained:
            driver.restore(tree, meta["notes"])
        scores.restore(saved)
        beside.restore(kept)
        before = meta["seconds"]
    else:
        driver.start()
    saved, patience = began, _patience(size(driver.template()) / SAVED)
    while not is_trained:
        scores.add(driver.advance(min(scores.interval, steps - driver.iteration)))
        if driver.fault is not None:
            raise driver.fault
        scores.mark(driver.metrics())
        beside.mark(driver)
        seconds = before + time.monotonic() - began
        if int(scores.points) % 20 == 0:
            print(f"{label}: {driver.iteration * spec.envs:,} steps, {seconds:.0f} s, {np.mean(scores.now()):.1f}", flush=True)
        is_trained, is_over = driver.iteration >= steps, time.monotonic() > until and not final
        if not is_trained and beside.gives_up(driver):
            runs = range(len(scores.recent) - 1)
            driver = driver.keep(runs)  # pyright: ignore[reportAttributeAccessIssue]
            scores.keep(runs)
            beside.keep(runs)
        is_due = is_over or time.monotonic() - saved > patience
        # What is done with the last one may take long; where nothing is, it would only be removed again.
        is_of_use = is_due if not is_trained else not is_alone
        if is_of_use and not final:
            writing = time.monotonic()
            tree, notes = ((), {}) if is_trained else driver.save()  # who has learnt all needs no replay any more
            folder.save((tree, scores.tree(), beside.tree()), {"notes": notes, "seconds": seconds, "is_trained": is_trained})
            saved = time.monotonic()
            patience = _patience(saved - writing)
        if is_over and not is_trained:
            raise Interrupted(f"{label} stopped at step {driver.iteration * spec.envs:,}; the same command goes on.")
    driver.close()
    seconds = before + time.monotonic() - began
    then(scores, seconds)
    folder.checkpoint.unlink(missing_ok=True)
    print(f"{label}: done in {seconds:.0f} s", flush=True)
    return scores, seconds


def _patience(writing: float) -> float:
    """Seconds to the next checkpoint, where one takes so many to write."""
    return max(PATIENCE, 20 * writing)


def known(file: Path) -> list[dict[str, Any]]:
    """What a file of findings holds so far."""
    try:
        return json.loads(file.read_text()) if file.exists() else []
    except ValueError as error:
        raise EngramError(f"{file} cannot be read ({error}): mend it, or name another file with --out.") from error


def curves(scores: Scores, first: int, seeds: Sequence[int]) -> Curves:
    """The curves of the runs from `first` on, one a seed."""
    return {seed: (scores.steps(1), scores.curve[:, first + i]) for i, seed in enumerate(seeds)}


def protocol(agent: Agent, steps: int, seeds: Sequence[int], runs: int, seconds: float) -> dict[str, Any]:
    """How scores came about."""
    return {
        "agent": name_of(agent),
        "options": asdict(agent),  # pyright: ignore[reportArgumentType]
        "steps": steps,
        "environments": 1,
        "seeds": list(seeds),
        "score": "un-noised return, mean of the last 10 training episodes",
        "runs_in_one_program": runs,
        "seconds_with_compilation": seconds,
    } | describe_machine()


def machines(protocols: Iterable[dict]) -> str:
    """On which devices, and from which commits."""
    return "; ".join(sorted({f"{p['device']} (JAX {p['versions']['jax']}, commit {_shortened(str(p['commit']))})" for p in protocols}))


def _shortened(commit: str) -> str:
    number, dash, changed = commit.partition("-")
    return number[:9] + dash + changed


def normalised(scores: Any, random: float, best: float) -> Any:
    """Scores on a scale where random is 0 and the best is 1; all are 0 where nothing beat random, which tells nothing."""
    return (scores - random) / (best - random) if best > random else 0.0 * scores


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "".join(f"|{line}|\n" if line.startswith("---") else f"| {line} |\n" for line in lines)
