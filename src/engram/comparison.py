"""Runs against each other: returns with intervals, and differences by seed with a paired test."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from engram.comparison_tables import (
    MEASURES,
    Difference,
    Estimate,
    RunComparison,
    RunScores,
    TaskComparison,
)
from engram.errors import EngramError
from engram.run_labels import LabelledRun, group_by, read_runs
from engram.stats import (
    MIN_SEEDS,
    area,
    interval,
    iqm,
    mean,
    permutation_p,
    probability_of_improvement,
)


def compare(paths: Sequence[str | Path], baseline: str | Path | None = None) -> RunComparison:
    """Compares finished runs, task by task, with the first of each task or with a baseline.

    On a task that the baseline did not train on, its place takes the run of the same label."""
    given = [paths] if isinstance(paths, str | Path) else paths
    folders = [Path(path) for path in given]
    if baseline is not None and Path(baseline).resolve() not in map(Path.resolve, folders):
        folders.insert(0, Path(baseline))
    runs = read_runs(folders)
    tasks = group_by(runs, lambda run: run.task)
    _check_several(tasks)
    if baseline is not None:
        chosen = next(run for run in runs if run.path.resolve() == Path(baseline).resolve())
        tasks = {task: _baseline_first(chosen, of_task) for task, of_task in tasks.items()}
    return RunComparison([compare_task(of_task) for of_task in tasks.values()])


def compare_task(runs: Sequence[LabelledRun]) -> TaskComparison:
    """The scores of runs of one task, and how all differ from the first."""
    for run in runs:
        _check_finished(run)
        _check_same_steps(runs[0], run)
        _check_every_seed(run)
    first, *others = runs
    differences = [difference(run, first, measure) for run in others for measure in MEASURES]
    return TaskComparison(first.task, first.steps, [scores(run) for run in runs], differences)


def scores(run: LabelledRun) -> RunScores:
    """The final return and the area of a run."""
    final, areas = per_seed(run, "final"), per_seed(run, "area")
    estimates = estimate(final), estimate(areas), estimate(final, iqm)
    return RunScores(run.label, run.path, *estimates)


def difference(run: LabelledRun, baseline: LabelledRun, measure: str) -> Difference:
    """How a measure of a run differs from the baseline's over the seeds that both have."""
    ours, theirs = per_seed(run, measure), per_seed(baseline, measure)
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        raise EngramError(
            f"{run.path} and {baseline.path} have no seed in common ({_list_seeds(ours)}, and "
            f"{_list_seeds(theirs)}), and differences are by seed: train both with the same seeds."
        )
    differences = {seed: ours[seed] - theirs[seed] for seed in seeds}
    p_improvement = probability_of_improvement(
        [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    )
    p_value = permutation_p(list(differences.values()))
    labels = run.label, baseline.label
    return Difference(*labels, measure, estimate(differences), p_improvement, p_value)


def per_seed(run: LabelledRun, measure: str) -> dict[int, float]:
    """The `final` return or the `area` of each seed."""
    if measure == "final":
        return {seed: float(returns[-1]) for seed, (_, returns) in sorted(run.curves.items())}
    return {seed: area(*curve) for seed, curve in sorted(run.curves.items())}


def estimate(values: Mapping[int, float], statistic: Callable = mean) -> Estimate:
    """A statistic of a value per seed, with its interval if there are enough."""
    numbers = np.array(list(values.values()))
    bounds = interval(numbers, statistic) if len(numbers) >= MIN_SEEDS else None
    return Estimate(float(statistic(numbers)), bounds, dict(values))


def _baseline_first(baseline: LabelledRun, runs: Sequence[LabelledRun]) -> list[LabelledRun]:
    """The runs of a task, the baseline or its like first."""
    like = [run for run in runs if run.label == baseline.label]
    if not like:
        raise EngramError(
            f"No run of {runs[0].task} is a {baseline.label}, as the baseline {baseline.path} is: "
            "add one, or leave the baseline out to compare with the first run of each task."
        )
    return [like[0], *(run for run in runs if run is not like[0])]


def _check_several(tasks: Mapping[str, Sequence[LabelledRun]]) -> None:
    """Raises unless some task has two runs."""
    if any(len(runs) > 1 for runs in tasks.values()):
        return
    trained = "; ".join(f"{runs[0].path}: {task}" for task, runs in tasks.items())
    if len(tasks) == 1:
        raise EngramError(f"There is one run only ({trained}): name another of the same task.")
    raise EngramError(
        f"These runs cannot be compared, for each has a task or env_kwargs of its own ({trained}): "
        "name two that have the same."
    )


def _check_finished(run: LabelledRun) -> None:
    done = max(int(steps[-1]) for steps, _ in run.curves.values())
    if done < run.steps:
        raise EngramError(
            f"{run.path} has done {done:,} of its {run.steps:,} steps, so its final return is none "
            f"yet: finish it with `{run.folder.resume_command}`, or leave it out."
        )


def _check_same_steps(first: LabelledRun, run: LabelledRun) -> None:
    if run.steps != first.steps:
        raise EngramError(
            f"{first.path} was trained for {first.steps:,} steps and {run.path} for "
            f"{run.steps:,}: compare runs with the same --steps."
        )


def _check_every_seed(run: LabelledRun) -> None:
    for seed, (_, returns) in run.curves.items():
        if np.isnan(returns[-1]):
            raise EngramError(
                f"No episode of seed {seed} of {run.path} has ended, so it has no return: train "
                "longer, or leave the run out."
            )


def _list_seeds(seeds: Mapping[int, float]) -> str:
    return ", ".join(map(str, list(seeds)[:5])) + (", ..." if len(seeds) > 5 else "")
