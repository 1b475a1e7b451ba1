"""The Atari campaign: sessions of GPU time that each add runs of the plan to `results/atari`.

A session trains the next runs of the plan, as many in one program as fit into memory. Runs that
are stopped at its end continue when the command is repeated on the same machine.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engram import checkpoint, runners
from engram.best_policy import BestPolicy
from engram.envs import get_task
from engram.envs.atari import FRAME_SKIP, PROTOCOLS
from engram.episode_stats import EpisodeStats
from engram.errors import EngramError
from engram.files import atomic_write, write_json
from engram.paper import atari_page, atari_runs, validation
from engram.paper.atari_runs import PLAN, Job, Row, is_done, missing
from engram.paper.running import deadline, train
from engram.paper.runs import agent_options
from engram.provenance import describe_machine, memory_size
from engram.training_loop import Training
from engram.types import Agent, Spec


def run_session(
    results: Path,
    scratch: Path,
    minutes: float,
    max_runs: int,
    report: Callable[[str], Any],
    plan: Sequence[Job] = PLAN,
    only: Sequence[str] = (),
) -> None:
    """Trains runs of the plan for some minutes, after those that an earlier session stopped.

    `only` restricts it to runs whose names contain one of these texts."""
    until, selected = deadline(minutes), select(only, plan)
    while jobs := unfinished(scratch, results) or next_batch(results, max_runs, selected):
        names = ", ".join(job.name for job in jobs)
        report(f"{len(jobs)} run{'s' * (len(jobs) != 1)}: {names}")
        with atomic_write(scratch / "begun.json") as file:
            file.write(json.dumps([asdict(job) for job in jobs]).encode())
        try:
            run(jobs, results, scratch, until, report)
            (scratch / "begun.json").unlink(missing_ok=True)
        finally:
            atari_page.write(results, plan)
    which = f"with {' '.join(only)} in their names" if only else "of the plan"
    report(f"All runs {which} are done.")


def select(only: Sequence[str], plan: Sequence[Job] = PLAN) -> list[Job]:
    """The runs of the plan whose names contain one of `only`; all if it is empty."""
    if unknown := [text for text in only if not any(text in job.name for job in plan)]:
        raise EngramError(
            f"No run of the plan has {unknown[0]!r} in its name: names are like {plan[0].name}."
        )
    return [job for job in plan if not only or any(text in job.name for text in only)]


def unfinished(scratch: Path, results: Path) -> list[Job]:
    """The batch that an earlier session stopped; it continues as a whole."""
    file = scratch / "begun.json"
    if not file.exists():
        return []
    jobs = [Job(**job) for job in json.loads(file.read_text())]
    return jobs if any(not is_done(job, results) for job in jobs) else []


def next_batch(results: Path, max_runs: int, plan: Sequence[Job] = PLAN) -> list[Job]:
    """The first missing run and others of the same agent and budget, as many as fit."""
    jobs = missing(results, plan)
    if not jobs:
        return []
    first = jobs[0]
    batch = [job for job in jobs if (job.label, job.steps) == (first.label, first.steps)]
    return batch[: min(max_runs, num_fitting(first))]


def num_fitting(job: Job) -> int:
    """How many such runs fit into four fifths of the device's memory."""
    available = memory_size()
    if available is None:
        return 1
    agent = atari_runs.make_agent(job)
    state = jax.eval_shape(lambda: agent.init(jax.random.key(0), joint(agent, [job])))
    return max(1, int(0.8 * available / checkpoint.size(state)))


def joint(agent: Agent, jobs: Sequence[Job]) -> Spec:
    """The spec that runs of one program share."""
    tasks = [get_task(f"atari:{job.game}") for job in jobs]
    envs = runners.default_num_envs(agent, tasks[0])
    return runners.joint_spec(tasks, envs, -(-jobs[0].steps // envs))


def run(
    jobs: Sequence[Job],
    results: Path,
    scratch: Path,
    until: float,
    report: Callable[[str], Any] = lambda text: None,
) -> None:
    """Trains runs of one kind in one program, tests their best policies, and writes their rows."""
    agent = atari_runs.make_agent(jobs[0])
    spec = joint(agent, jobs)
    tasks = [get_task(f"atari:{job.game}", job.steps) for job in jobs]
    best = BestPolicy(validation.VALIDATIONS, validation.VALIDATION_GAMES, report)
    label = f"atari {jobs[0].agent} {jobs[0].steps * FRAME_SKIP:,} frames"

    def write_rows(training: Training) -> None:
        training_seconds = training.wall_seconds - float(best.seconds)
        start = time.monotonic()
        test_returns = best.test(training, validation.TEST_GAMES)
        timing = {
            "runs_in_one_program": len(jobs),
            "steps_per_second": training.steps_per_second,
            "seconds_with_compilation": training_seconds,
            "evaluation_seconds": float(best.seconds) + time.monotonic() - start,
        }
        window = atari_runs.scored_steps(jobs[0].steps) // spec.num_envs
        scores = training.stats.mean_return_since(spec.num_iterations - window)
        for r, job in enumerate(jobs):
            points = curve(training.stats, r, spec.num_envs)
            results_row = row(job, agent, test_returns[r], scores[r], points, best.history[:, r])
            write_json(job.file(results), results_row | timing)

    seeds = [job.seed for job in jobs]
    train(
        label,
        agent,
        tasks,
        seeds,
        scratch,
        until,
        spec=spec,
        hooks=[best],
        then=write_rows,
        report=report,
    )


def curve(stats: EpisodeStats, run: int, num_envs: int) -> dict[str, list[float]]:
    """A run's mean return, and those of its metrics that the page shows, at each log point."""
    columns = {"return": stats.returns[:, run]}
    for i, name in enumerate(stats.names):
        if name in ("q_max", "realized_return", "beta"):
            columns[name] = stats.metrics[:, run, i]
    points = {name: [float(f"{x:.6g}") for x in column] for name, column in columns.items()}
    return {"steps": stats.steps(num_envs).tolist()} | points


def row(
    job: Job,
    agent: Agent,
    test_returns: np.ndarray,
    training_score: float,
    curve: dict[str, list[float]],
    validation_returns: np.ndarray,
) -> Row:
    """The published results of a run."""
    return {
        **asdict(job),
        "emulator_frames": job.steps * FRAME_SKIP,
        "protocol": asdict(PROTOCOLS["classic"]),
        "test_return": float(test_returns.mean()),
        "test_games": test_returns.tolist(),
        "test": job.test,
        "training_score": float(training_score),
        "validation": validation_returns.tolist(),
        "curve": curve,
        "options": agent_options(agent),
    } | describe_machine()
