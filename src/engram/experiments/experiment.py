"""What an experiment is: lines to be trained or numbers to be computed, the paper's claims about them, and a picture."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from engram.errors import EngramError, Interrupted
from engram.experiments.lines import Line, Results, groups, load, load_all, train_group
from engram.experiments.verdicts import MISSING, Test, verdict
from engram.provenance import describe_machine
from engram.records import write_json


class Found(NamedTuple):
    """All that is known: what lines came to, or what was computed."""

    lines: Results
    numbers: dict[str, Any]

    def per_seed(self, task: str, label: str, measure: str = "auc"):
        return self.lines[task, label].per_seed(measure)


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and the comparisons that decide it."""

    number: int
    """of our list of its claims"""
    says: str
    tests: Callable[[Found], Sequence[Test]]
    how: str
    """what is compared, in words"""


@dataclass(frozen=True)
class Experiment:
    """One figure, table or analysis of the paper."""

    name: str
    paper: str
    """where it stands there"""
    claims: tuple[Claim, ...] = ()
    lines: tuple[Line, ...] = ()
    quick_lines: tuple[Line, ...] = ()
    """those that a quick version has; all where not given"""
    compute: Callable[[bool], dict[str, Any]] | None = None
    """gives numbers; told whether it must be quick"""
    gather: Callable[[Path], dict[str, Any]] | None = None
    """gives numbers from what another command left in the results' folder, none where there is nothing; `state` says how much there is"""
    by: str = ""
    """that command"""
    card: Callable[[Found], list[list[str]]] | None = None
    """how they came about"""
    draw: Callable[[Found, Path], None] | None = None
    later: str = ""
    """what is missing before it can be run at all"""
    is_ours: bool = False
    """whether the paper has no such thing"""

    def quick(self) -> "Experiment":
        small = tuple(line.quick() for line in self.quick_lines or self.lines)
        return replace(self, lines=small, quick_lines=())

    def file(self, results: Path) -> Path:
        """Where computed numbers lie."""
        return results / "analyses" / f"{self.name}.json"

    def missing(self, results: Path) -> list[Line]:
        return [line for line in self.lines if load(line, results) is None]

    def is_done(self, results: Path) -> bool:
        if self.later or self.missing(results):
            return False
        return bool(self.gather(results)) if self.gather else self.compute is None or self.file(results).exists()

    def found(self, results: Path) -> Found:
        if self.gather:
            return Found({}, self.gather(results))
        file = self.file(results)
        try:
            numbers = json.loads(file.read_text()) if self.compute and file.exists() else {}
        except ValueError as error:
            raise EngramError(f"{file} cannot be read ({error}): remove it, and the next reproduction computes it again.") from error
        return Found(load_all(self.lines, results), numbers)

    def verdicts(self, results: Path) -> dict[Claim, tuple[str, Sequence[Test]]]:
        """Of every claim; unknown where something is missing."""
        if not self.is_done(results):
            return dict.fromkeys(self.claims, (MISSING, ()))
        found = self.found(results)
        try:
            tests = {claim: claim.tests(found) for claim in self.claims}
        except (KeyError, IndexError) as error:
            file = self.file(results)
            raise EngramError(f"{file} lacks {error}: remove it, and the next reproduction computes it again.") from error
        return {claim: (verdict(tests[claim]), tests[claim]) for claim in self.claims}

    def picture(self, results: Path) -> Path:
        return results / "report" / f"{self.name}.png"

    def illustrate(self, results: Path) -> None:
        """Draws what is done."""
        if self.draw is not None and self.is_done(results):
            self.draw(self.found(results), self.picture(results))

    def parts(self) -> list[list[Line]]:
        """What can be run apart: groups of lines, and the computation, which is the part without lines."""
        return [*groups(self.lines), *([[]] if self.compute else [])]

    def is_part_done(self, part: Sequence[Line], results: Path) -> bool:
        return all(load(line, results) is not None for line in part) if part else self.file(results).exists()

    def run(self, results: Path, scratch: Path, until: float, quick: bool, say: Callable[[str], Any], only: int | None = None) -> None:
        """Trains and computes what is missing, or that of one part only. From the moment `until` on it stops; run again, it goes on."""
        parts = self.parts()
        if only is not None and not parts:
            raise EngramError(f"{self.name} has no parts: it is trained by `{self.by}`.")
        if only is not None and not 0 <= only < len(parts):
            raise EngramError(f"{self.name} has no part {only}: name one of 0 to {len(parts) - 1}.")
        for number, part in enumerate(parts):
            if only in (None, number) and not self.is_part_done(part, results):
                if part:
                    self.train([line for line in part if load(line, results) is None], results, scratch, until, say)
                else:
                    self.work_out(results, until, quick, say)

    def train(self, lines: Sequence[Line], results: Path, scratch: Path, until: float, say: Callable[[str], Any]) -> None:
        say(f"{len(lines)} lines, {sum(line.seeds for line in lines)} runs in one program: {', '.join(line.label for line in lines)}")
        seconds = train_group(lines, results, scratch, until)
        say(f"done in {seconds:.0f} s")

    def work_out(self, results: Path, until: float, quick: bool, say: Callable[[str], Any]) -> None:
        began = time.monotonic()
        if began > until or self.compute is None:
            raise Interrupted(f"No time left to compute {self.name}; the same command goes on.")
        numbers = self.compute(quick)
        seconds = time.monotonic() - began
        write_json(self.file(results), numbers | {"seconds": seconds} | describe_machine())
        say(f"computed in {seconds:.0f} s")
