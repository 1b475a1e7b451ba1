"""The commands on the paper's experiments: reproduce, campaign, report."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from engram.config import Count, Positive
from engram.errors import EngramError

RESULTS_QUICK = Path("runs/quick")


@dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments, or list their state."""

    names: Positional[tuple[str, ...]] = ()
    """experiments to run; paper for all of the paper's, all for ours too; none: list them"""
    quick: bool = False
    """a version of two minutes, in runs/quick, to see whether it works"""
    minutes: float = 60.0
    """stop and save after this many minutes; the same command goes on"""
    results: str = "results"
    """the folder of results; nothing that is there is trained again"""
    scratch: str = "runs/reproduce"
    """the folder of unfinished trainings"""
    jobs: Count = 1
    """parts to run at the same time, each in its own process; 10 to 20 fill a GPU"""
    part: int | None = None
    """only this part of the experiment, to share it among machines"""

    def run(self) -> None:
        from engram.loggers import console
        from engram.paper import experiments, jobs, report, running

        results = RESULTS_QUICK if self.quick else Path(self.results)
        if not self.names:
            console.print_claims(report.overview(results, self.quick))
            return
        selected = experiments.select(self.names)
        if self.part is not None and len(selected) > 1:
            count = len(selected)
            raise EngramError(f"--part needs one experiment, not {count}: name only one.")
        if self.part is not None and self.jobs > 1:
            raise EngramError("--jobs runs all parts and --part only one: choose one of the two.")
        for experiment in selected:
            if experiment.command:
                state = report.state(experiment, results)
                command = experiment.command
                console.print_line(f"{experiment.name}: {state}, trained by `{command}`.")
        if self.quick:
            selected = [experiment.quick() for experiment in selected]
        scratch = Path(self.scratch)
        until = running.deadline(self.minutes)
        if self.jobs > 1:
            options = ["--results", self.results, "--scratch", self.scratch]
            options += ["--quick"] * self.quick
            parts = jobs.missing(selected, results)
            jobs.run(parts, self.jobs, options, scratch, until, console.print_line)
        for experiment in selected:
            self.finish(experiment, results, until)

    def finish(self, experiment: Any, results: Path, until: float) -> None:
        """Run what is missing of an experiment, draw its figures and print its verdicts."""
        from engram.loggers import console

        say = functools.partial(console.print_line, f"{experiment.name}:")
        with console.plain_warnings():
            experiment.run(results, Path(self.scratch), until, self.quick, say, self.part)
        if self.part is not None:
            return
        experiment.draw_figure(results)
        if not self.quick:
            verdicts = experiment.verdicts(results).items()
            console.print_claims([["", "", claim.text, x.verdict] for claim, x in verdicts])


@dataclass(frozen=True)
class Campaign:
    """Train the next games of the Atari plan."""

    plan: str
    """atari, the only one"""
    minutes: Positive = 25.0
    """stop and save after this many minutes; the same command goes on, on the same machine"""
    max_runs: Count = 30
    """runs in one program"""
    only: str = ""
    """only runs with one of these in their names: pong,dqn,400k; stopped ones go on first"""
    results: str = "results"
    """the folder of results"""
    scratch: str = "runs/campaign"
    """the folder of unfinished trainings"""

    def run(self) -> None:
        if self.plan != "atari":
            raise EngramError(
                f"There is no campaign {self.plan!r}: the only one is `engram campaign atari`."
            )
        import jax

        from engram.loggers.console import print_line
        from engram.paper import campaign

        # batches of a kind share one compiled program, also between calls
        cache = Path(self.scratch, "compiled").absolute()
        jax.config.update("jax_compilation_cache_dir", str(cache))
        results, scratch = Path(self.results), Path(self.scratch)
        only = tuple(word for word in self.only.split(",") if word)
        campaign.run_session(results, scratch, self.minutes, self.max_runs, print_line, only=only)
        if (page := results / "atari" / "README.md").exists():
            print_line(f"All runs: {page}")


@dataclass(frozen=True)
class Report:
    """Write one page with all results and verdicts."""

    results: str = "results"
    """the folder of results"""

    def run(self) -> None:
        from engram.loggers.console import print_line
        from engram.paper import report

        if not Path(self.results).is_dir():
            raise EngramError(
                f"There is no folder {self.results}: run `engram reproduce NAME` first, or name "
                "another with --results."
            )
        print_line(f"Written: {report.write(Path(self.results))}, and README.md next to it")
