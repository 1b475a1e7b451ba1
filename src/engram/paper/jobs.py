"""Parts of experiments in parallel processes: one small program leaves most of a GPU idle."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engram.agents import agent_name
from engram.errors import Interrupted
from engram.paper.experiment import Experiment
from engram.paper.runs import Run

GYM_COST = 30
"""cost of a step of a Gymnasium environment relative to one of a JAX environment"""
AGENT_COST = {
    "nec": 1.6,
    "mbec++": 1.4,
    "mfec": 1.3,
    "drqn": 1.1,
    "mbec": 0.8,
    "ppo": 0.7,
    "random": 0.5,
}
"""cost of a step relative to one of DQN"""
COMPUTE_COST = 1e7
"""cost of a computation, which starts early because it cannot be split"""


class Part(NamedTuple):
    """The work of one process: a group of runs, or the computation of an experiment."""

    experiment: str
    number: int
    runs: Sequence[Run]

    def __str__(self) -> str:
        labels = dict.fromkeys(run.label for run in self.runs)
        tasks = dict.fromkeys(run.task_name for run in self.runs)
        work = f"{', '.join(labels)} on {', '.join(tasks)}" if self.runs else "computation"
        return f"{self.experiment}, part {self.number} ({work})"

    def log(self, scratch: Path) -> Path:
        return scratch / f"{self.experiment}-{self.number}.log"


def missing(experiments: Iterable[Experiment], results: Path) -> list[Part]:
    """The parts that are not done, most expensive first; none whose runs another part trains."""
    parts, files = [], set()
    for experiment in experiments:
        for number, runs in enumerate(experiment.parts()):
            own_files = {run.file(results) for run in runs}
            is_planned = bool(own_files) and own_files <= files
            if is_planned or experiment.is_part_done(runs, results):
                continue
            files |= own_files
            parts.append(Part(experiment.name, number, runs))
    return sorted(parts, key=lambda part: -cost(part.runs))


def cost(runs: Sequence[Run]) -> float:
    """The approximate duration, in arbitrary units."""
    total = 0.0
    for run in runs:
        task = run.get_task()
        step_cost = (1 if task.jax_env else GYM_COST) * AGENT_COST.get(agent_name(run.agent), 1.0)
        total += run.num_seeds * task.steps * step_cost
    return total or COMPUTE_COST


def run(
    parts: Sequence[Part],
    jobs: int,
    options: Sequence[str],
    scratch: Path,
    until: float,
    report: Callable[[str], Any],
) -> None:
    """Runs all parts, at most `jobs` at a time, with these options of `engram reproduce`.

    The output of each process goes to a file in `scratch`. A part that fails, or has no time left,
    does not stop the others."""
    scratch.mkdir(parents=True, exist_ok=True)
    start, queue, running, num_done = time.monotonic(), list(parts), {}, 0
    try:
        while running or (queue and time.monotonic() < until):
            while queue and len(running) < jobs and time.monotonic() < until:
                part = queue.pop(0)
                minutes = f"{(until - time.monotonic()) / 60:.3f}"
                process = start_process(part, [*options, "--minutes", minutes], scratch)
                running[process] = part, time.monotonic()
            time.sleep(0.2)
            for process in [process for process in running if process.poll() is not None]:
                part, began = running.pop(process)
                is_done = process.returncode == 0
                num_done += is_done
                outcome = "done" if is_done else f"not done ({last_line(part.log(scratch))})"
                report(f"{part}: {outcome} after {time.monotonic() - began:.0f} s")
    finally:
        for process in running:
            process.terminate()
            process.wait()
    seconds = time.monotonic() - start
    report(f"{num_done} of {len(parts)} parts done, {jobs} at a time, in {seconds:.0f} s")
    if num_done < len(parts):
        raise Interrupted(
            f"{len(parts) - num_done} of {len(parts)} parts are not done: "
            "repeat the command to continue."
        )


def start_process(part: Part, options: Sequence[str], scratch: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "engram.cli", "reproduce", part.experiment]
    command += ["--part", str(part.number), *options]
    # Without this the first process would take the whole GPU memory.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ
    with part.log(scratch).open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)


def last_line(log: Path) -> str:
    return (log.read_text().strip().splitlines() or ["no output"])[-1]
