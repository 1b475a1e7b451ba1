"""The tables of a comparison of runs, as Markdown and as one offline page."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from engram.page import Block, Heading, Image, Table, Text, to_html, to_markdown
from engram.run_figures import MAX_LINES, plot
from engram.stats import MIN_SEEDS, format_interval, format_return

TITLE = "Comparison of runs"
MEASURES = {"final": "final return", "area": "area"}
MIN_SEEDS_FOR_P = 6
"""with fewer equal seeds a two-sided permutation test has no p-value below 0.05"""


class Estimate(NamedTuple):
    """A statistic over seeds, with its interval unless there are few."""

    value: float
    interval: tuple[float, float] | None
    """95% bootstrap interval; None with fewer than `MIN_SEEDS` seeds"""
    per_seed: dict[int, float]

    def __str__(self) -> str:
        if self.interval is not None:
            return f"{format_return(self.value)} ({format_interval(*self.interval)})"
        seeds = ", ".join(map(format_return, self.per_seed.values()))
        return f"{format_return(self.value)} (seeds {seeds})"


class RunScores(NamedTuple):
    """What a run reached."""

    label: str
    path: Path
    final: Estimate
    """mean return of the last episodes of training"""
    area: Estimate
    """mean area under the learning curve, per step"""
    iqm: Estimate
    """interquartile mean of the final returns"""


class Difference(NamedTuple):
    """A run minus the baseline, over the seeds that both have."""

    label: str
    baseline: str
    measure: str
    """a key of MEASURES"""
    mean: Estimate
    p_improvement: float
    """probability that a seed of the run beats one of the baseline; a tie counts half"""
    p_value: float
    """of the two-sided paired permutation test by seed"""


@dataclass(frozen=True)
class TaskComparison:
    """The runs of one task, and how they differ from the baseline."""

    task: str
    steps: int
    runs: list[RunScores]
    differences: list[Difference]
    """empty if the task has one run only"""

    def blocks(self) -> list[Block]:
        """A heading and the tables."""
        blocks: list[Block] = [Heading(f"{self.task}, {self.steps:,} agent steps"), self._scores()]
        return [*blocks, self._differences()] if self.differences else blocks

    def _scores(self) -> Table:
        rows = []
        for run in self.runs:
            # The seeds of a few are shown once: the IQM is of the same returns as the mean.
            few = run.iqm.interval is None
            iqm_text = format_return(run.iqm.value) if few else str(run.iqm)
            seeds = str(len(run.final.per_seed))
            rows.append([run.label, seeds, str(run.final), str(run.area), iqm_text])
        return Table(["run", "seeds", "final return", "area", "IQM"], rows)

    def _differences(self) -> Table:
        rows = [
            [
                x.label,
                MEASURES[x.measure],
                str(len(x.mean.per_seed)),
                str(x.mean),
                f"{x.p_improvement:.2f}",
                f"{x.p_value:.3g}",
            ]
            for x in self.differences
        ]
        head = [f"minus {self.differences[0].baseline}", "measure", "seeds", "mean difference"]
        return Table([*head, "P(improvement)", "p"], rows)


@dataclass(frozen=True)
class RunComparison:
    """Comparisons of runs, one per task; as text it is Markdown."""

    tasks: list[TaskComparison]

    def blocks(self) -> list[Block]:
        """The tables of all tasks, and what their columns are."""
        return [*(block for task in self.tasks for block in task.blocks()), Text(self.protocol())]

    def protocol(self) -> str:
        """How the numbers were computed."""
        runs = [run for task in self.tasks for run in task.runs]
        differences = [x for task in self.tasks for x in task.differences]
        estimates = [*(run.final for run in runs), *(x.mean for x in differences)]
        counts = {len(x.per_seed) for x in estimates}
        text = (
            "Returns are un-noised, each the mean of the last 10 training episodes; area: under "
            "the learning curve, per step; IQM: interquartile mean of the final returns."
        )
        if max(counts) >= MIN_SEEDS:
            text += " In brackets: 95% bootstrap intervals over seeds."
        if min(counts) < MIN_SEEDS:
            text += f" Fewer than {MIN_SEEDS} seeds have no interval: each is shown."
        text += (
            " Differences are by seed. P(improvement): the probability that a seed of the run "
            "beats one of the baseline, ties counting half. p: two-sided paired permutation test "
            "by seed, not corrected for several comparisons."
        )
        if any(len(x.mean.per_seed) < MIN_SEEDS_FOR_P for x in differences):
            text += f" With fewer than {MIN_SEEDS_FOR_P} equal seeds p cannot be below 0.05."
        return text

    def to_markdown(self) -> str:
        return to_markdown(self.blocks(), Path())

    def to_html(self) -> str:
        """One offline page, with the learning curves unless a task has too many runs."""
        blocks: list[Block] = [Heading(TITLE, 1), *self.blocks()]
        if any(len(task.runs) > MAX_LINES for task in self.tasks):
            return to_html(blocks, TITLE)
        with TemporaryDirectory() as folder:
            paths = [run.path for task in self.tasks for run in task.runs]
            figure = plot(paths, Path(folder) / "curves.png")
            return to_html([*blocks, Image(figure, "Learning curves")], TITLE)

    def __str__(self) -> str:
        return self.to_markdown()
