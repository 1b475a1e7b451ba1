"""Parts of experiments run side by side, each by a process of its own: one small program leaves most of a GPU idle, many fill it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engram.agents import name_of
from engram.errors import Interrupted
from engram.experiments.experiment import Experiment
from engram.experiments.lines import Line
from engram.tasks import find

HOST = 30
"""about how many times dearer a step of a Gymnasium environment is than one of a task written in JAX"""
DEAR = {"nec": 1.6, "mbec++": 1.4, "mfec": 1.3, "drqn": 1.1, "mbec": 0.8, "ppo": 0.7, "random": 0.5}
"""about how many times longer than a DQN's a step of theirs takes"""


class Part(NamedTuple):
    """What one process does."""

    experiment: str
    number: int
    lines: Sequence[Line]

    def __str__(self) -> str:
        labels = dict.fromkeys(line.label for line in self.lines)
        tasks = dict.fromkeys(line.task for line in self.lines)
        what = f"{', '.join(labels)} on {', '.join(tasks)}" if self.lines else "computed"
        return f"{self.experiment}, part {self.number} ({what})"

    def log(self, scratch: Path) -> Path:
        return scratch / f"{self.experiment}-{self.number}.log"


def missing(experiments: Iterable[Experiment], results: Path) -> list[Part]:
    """Parts of which something is missing, the dearest first; none whose lines another part trains."""
    found, known = [], set()
    for experiment in experiments:
        for number, lines in enumerate(experiment.parts()):
            files = {line.file(results) for line in lines}
            if experiment.is_part_done(lines, results) or (files and files <= known):
                continue
            known |= files
            found.append(Part(experiment.name, number, lines))
    return sorted(found, key=lambda part: -cost(part.lines))


def cost(lines: Sequence[Line]) -> float:
    """About how long they take, of nothing in particular; what is computed begins early, since it is one long piece."""

    def one(line: Line) -> float:
        task = find(line.task, line.steps)
        return line.seeds * task.steps * (1 if task.dynamics else HOST) * DEAR.get(name_of(line.agent), 1.0)

    return sum(map(one, lines)) or 1e7


def run(parts: Sequence[Part], jobs: int, options: Sequence[str], scratch: Path, until: float, say: Callable[[str], Any]) -> None:
    """Runs all parts, at most `jobs` at a time, with further words of `engram reproduce`; what a process says goes to a file in
    `scratch`. A part that fails, or has no time left, does not stop the others."""
    scratch.mkdir(parents=True, exist_ok=True)
    began, waiting, running, done = time.monotonic(), list(parts), {}, 0
    try:
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < jobs and time.monotonic() < until:
                part = waiting.pop(0)
                running[begin(part, [*options, "--minutes", f"{(until - time.monotonic()) / 60:.3f}"], scratch)] = part, time.monotonic()
            time.sleep(0.2)
            for process in [process for process in running if process.poll() is not None]:
                part, since = running.pop(process)
                done += process.returncode == 0
                how = "done in" if process.returncode == 0 else f"not done ({last_words(part, scratch)}) after"
                say(f"{part}: {how} {time.monotonic() - since:.0f} s")
    finally:
        for process in running:
            process.terminate()
            process.wait()
    say(f"{done} of {len(parts)} parts, {jobs} at a time: {time.monotonic() - began:.0f} s")
    if done < len(parts):
        raise Interrupted(f"{len(parts) - done} of {len(parts)} parts are not done; the same command goes on.")


def begin(part: Part, options: Sequence[str], scratch: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "engram.cli", "reproduce", part.experiment, "--part", str(part.number), *options]
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ  # else the first process takes the whole GPU
    with part.log(scratch).open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)


def last_words(part: Part, scratch: Path) -> str:
    return (part.log(scratch).read_text().strip().splitlines() or ["it said nothing"])[-1]
