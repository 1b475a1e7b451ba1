"""An experiment of the paper: runs or computations, the paper's claims about them, and a figure."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram.errors import EngramError, Interrupted
from engram.files import write_json
from engram.paper.runs import Run, RunResults, group_by_program, load, load_all, train_group
from engram.paper.verdicts import MISSING, Comparison, verdict
from engram.provenance import describe_machine

CLASSIC_CONTROL = (
    "CartPole-v1 truncated at 200 steps, MountainCar-v0, LunarLander-v3; a truncation counts as "
    "terminal"
)


class ExperimentResults(NamedTuple):
    """The published results of an experiment: those of its runs, or computed numbers."""

    runs: RunResults
    numbers: dict[str, Any]

    def per_seed(self, task: str, label: str, measure: str = "auc") -> np.ndarray:
        return self.runs[task, label].per_seed(measure)


Comparisons = Callable[[ExperimentResults], Sequence[Comparison]]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the comparisons that decide it."""

    number: int
    """in our list of the paper's claims; 0 if it is not the paper's"""
    text: str
    comparisons: Comparisons
    compared: str
    """what the comparisons measure, in words"""
    baseline: Comparisons | None = None
    """the same comparisons for DQN, shown next to the verdict but not part of it"""


class ClaimVerdict(NamedTuple):
    verdict: str
    comparisons: Sequence[Comparison]
    baseline: Sequence[Comparison] = ()


@dataclass(frozen=True)
class Experiment:
    """One figure, table or analysis of the paper."""

    name: str
    paper: str
    """where it is in the paper"""
    claims: tuple[Claim, ...] = ()
    runs: tuple[Run, ...] = ()
    quick_runs: tuple[Run, ...] = ()
    """those of the quick version; all if empty"""
    tasks: str = CLASSIC_CONTROL
    """the tasks of its runs, in words"""
    compute: Callable[[bool], dict[str, Any]] | None = None
    """computes numbers; its argument says whether the quick version is wanted"""
    collect: Callable[[Path], dict[str, Any]] | None = None
    """reads numbers that another command left in the results folder, {} if there are none; the
    entry `state` says how many there are"""
    command: str = ""
    """the command that trains it, if not `engram reproduce`"""
    presets: str = ""
    """the agents' presets, for experiments without runs"""
    protocol: Callable[[ExperimentResults], list[list[str]]] | None = None
    """rows of the protocol table, for experiments that are neither runs nor computed"""
    draw: Callable[[ExperimentResults, Path], None] | None = None
    in_paper: bool = True

    def quick(self) -> "Experiment":
        runs = tuple(run.quick() for run in self.quick_runs or self.runs)
        return replace(self, runs=runs, quick_runs=())

    def file(self, results: Path) -> Path:
        """The file of computed numbers."""
        return results / "analyses" / f"{self.name}.json"

    def missing(self, results: Path) -> list[Run]:
        return [run for run in self.runs if load(run, results) is None]

    def is_done(self, results: Path) -> bool:
        if self.missing(results):
            return False
        if self.collect:
            return bool(self.collect(results))
        return self.compute is None or self.file(results).exists()

    def load(self, results: Path) -> ExperimentResults:
        if self.collect:
            return ExperimentResults({}, self.collect(results))
        file = self.file(results)
        try:
            has_numbers = self.compute is not None and file.exists()
            numbers = json.loads(file.read_text()) if has_numbers else {}
        except ValueError as error:
            raise EngramError(f"{file} cannot be read ({error}): {RECOMPUTE}") from error
        return ExperimentResults(load_all(self.runs, results), numbers)

    def verdicts(self, results: Path) -> dict[Claim, ClaimVerdict]:
        """The verdict on every claim, `MISSING` while results are missing."""
        if not self.is_done(results):
            return dict.fromkeys(self.claims, ClaimVerdict(MISSING, ()))
        loaded, verdicts = self.load(results), {}
        try:
            for claim in self.claims:
                comparisons = claim.comparisons(loaded)
                baseline = claim.baseline(loaded) if claim.baseline else ()
                verdicts[claim] = ClaimVerdict(verdict(comparisons), comparisons, baseline)
        except (KeyError, IndexError) as error:
            raise EngramError(f"{self.file(results)} lacks {error}: {RECOMPUTE}") from error
        return verdicts

    def figure(self, results: Path) -> Path:
        return results / "report" / f"{self.name}.png"

    def draw_figure(self, results: Path) -> None:
        """Draws the figure if the experiment is done."""
        if self.draw is not None and self.is_done(results):
            self.draw(self.load(results), self.figure(results))

    def parts(self) -> list[list[Run]]:
        """Parts that can run separately: groups of runs, and [] for the computation."""
        return [*group_by_program(self.runs), *([[]] if self.compute else [])]

    def is_part_done(self, part: Sequence[Run], results: Path) -> bool:
        if part:
            return all(load(run, results) is not None for run in part)
        return self.file(results).exists()

    def run(
        self,
        results: Path,
        scratch: Path,
        until: float,
        quick: bool,
        report: Callable[[str], Any],
        only: int | None = None,
    ) -> None:
        """Trains and computes what is missing, or one part of it, and stops at the time `until`.

        Called again, it continues."""
        parts = self.parts()
        if only is not None and not parts:
            raise EngramError(f"{self.name} has no parts: it is trained by `{self.command}`.")
        if only is not None and not 0 <= only < len(parts):
            numbers = f"0 to {len(parts) - 1}"
            raise EngramError(f"{self.name} has no part {only}: name one of {numbers}.")
        for number, part in enumerate(parts):
            if only not in (None, number) or self.is_part_done(part, results):
                continue
            if part:
                missing = [run for run in part if load(run, results) is None]
                labels = [run.label for run in missing]
                seeds = sum(run.num_seeds for run in missing)
                report(f"trains {', '.join(labels)}: {seeds} seeds in one program")
                seconds = train_group(missing, results, scratch, until, report)
                report(f"done in {seconds:.0f} s")
            else:
                report(f"computed in {self.compute_numbers(results, until, quick):.0f} s")

    def compute_numbers(self, results: Path, until: float, quick: bool) -> float:
        """Computes the numbers, writes them to their file and returns the seconds it took."""
        start = time.monotonic()
        if start > until or self.compute is None:
            raise Interrupted(
                f"No time is left to compute {self.name}: repeat the command to continue."
            )
        numbers = self.compute(quick)
        seconds = time.monotonic() - start
        write_json(self.file(results), numbers | {"seconds": seconds} | describe_machine())
        return seconds


RECOMPUTE = "remove it, and the next reproduction computes it again."
