"""The command that searches options: tune."""

import dataclasses
import json
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engram.cli.training import (
    AgentCommand,
    kwargs_words,
    read_seeds,
    read_task,
    run_path,
    split_words,
    use_device,
    warn_of_no_learning,
)
from engram.config import Count
from engram.errors import EngramWarning

SHOWN = 3
"""trials in the table, beside that of the agent's own options"""
DEFAULT_SEEDS = 10
"""of `engram train`"""


@dataclass(frozen=True)
class Tune(AgentCommand):
    """Search the best options of an agent, or go on with a search."""

    space: str | None = None
    """options to search, and no others: --space learning_rate=1e-5..1e-2:log n_step=1,3,5; a name
    alone has its default range; if None, options that usually matter and are not given"""
    trials: Count = 50
    """finished trials, of all processes that work on the study"""
    objective: Literal["auc", "final"] = "auc"
    """interquartile mean over seeds of the area under the learning curve, or of the final return"""
    seeds: str = "5"
    """number of runs of a trial, with seeds 100, 101, ...; or the seeds themselves: 1,2,3"""
    out: str | None = None
    """the study's folder, where it goes on if it has begun; runs/tune-AGENT-TASK if None"""

    def run(self) -> None:
        from engram import tuning
        from engram.loggers import console
        from engram.search_space import read_space

        seeds = read_seeds(self.seeds)
        task = read_task(self, self.steps)
        own_options = {field.name for field in dataclasses.fields(self.options)}
        fixed = own_options.intersection(self.given)
        words = split_words(self.space)
        space = read_space(self.options, words, fixed)
        warn_of_no_learning(self.options, task, self.num_envs)
        name = "-".join(["tune", self.agent, task.name, *kwargs_words(task)])
        out = self.out or run_path("runs", name)
        runs = console.count_seeds(seeds if isinstance(seeds, int) else len(seeds))
        console.print_line(
            f"{self.agent} on {task.name}, {self.trials} trial{'s' * (self.trials != 1)} of "
            f"{runs}, "
            f"{task.format_steps(task.steps)} each, into {out}"
        )
        console.print_line("Searched:", " ".join(f"{name}={x}" for name, x in space.items()))
        with (
            use_device(self.device),
            console.plain_warnings(),
            TrialLines(self.objective) as lines,
        ):
            warnings.simplefilter("once", EngramWarning)  # not in every trial
            result = tuning.tune(
                self.options,
                task,
                out,
                words,
                trials=self.trials,
                objective=self.objective,
                seeds=seeds,
                num_envs=self.num_envs,
                use_gym=self.use_gym,
                workers=self.workers,
                fixed=fixed,
                on_trial=lines.show,
            )
        own = {name: getattr(self.options, name) for name in result.best.options}
        print_study(result, self.objective, own, tuning.tuning_seeds(seeds))


class TrialLines:
    """Shows the running trial, and a line for each that has ended."""

    def __init__(self, objective: str):
        from rich.console import Console

        self.objective = objective
        self.screen = Console(emoji=False)
        self.status = self.screen.status("")

    def __enter__(self) -> "TrialLines":
        if self.screen.is_terminal:
            self.status.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.status.stop()

    def show(self, trial: Any) -> None:
        from rich.markup import escape

        from engram.stats import format_return

        options = " ".join(f"{name}={spell(x)}" for name, x in trial.options.items())
        if trial.state == "running":
            self.status.update(escape(f"trial {trial.number}: {options}"))
            return
        outcome = trial.state
        if trial.state == "complete":
            outcome = f"{self.objective} {format_return(trial.value)}"
        elif trial.state == "failed":
            outcome = f"failed. {trial.error}"
        line = escape(f"trial {trial.number}: {options}: {outcome}")
        self.screen.print(line, highlight=False, soft_wrap=True)


def print_study(result: Any, objective: str, own: dict[str, Any], seeds: Sequence[int]) -> None:
    """Print the best trials, that of the agent's own options, and how to train the best."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from engram.loggers.console import print_line
    from engram.run_dir import RunDir
    from engram.stats import format_return

    complete = [trial for trial in result.trials if trial.state == "complete"]
    distinct: dict[tuple, Any] = {}
    for trial in sorted(complete, key=lambda trial: -trial.value):
        distinct.setdefault(tuple(trial.options.values()), trial)
    best = list(distinct.values())[:SHOWN]
    shown = best + [x for x in distinct.values() if x.options == own and x not in best]
    counts = {
        state: sum(trial.state == state for trial in result.trials)
        for state in ("complete", "pruned", "failed", "running")
    }
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    print_line(f"Trials: {states}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for trial in shown:
        table.add_column(f"trial {trial.number}", justify="right")
    if result.importance:
        table.add_column("importance", justify="right")
    values = [f"[bold]{format_return(trial.value)}[/]" for trial in shown]
    table.add_row(f"[bold]{objective}[/]", *values)
    for name in result.best.options:
        row = [escape(spell(trial.options[name])) for trial in shown]
        if result.importance:
            row.append(f"{result.importance.get(name, 0.0):.0%}")
        table.add_row(name, *row)
    Console(emoji=False).print(table)
    print_line(f"Best options: {result.config}")
    words = ["engram", "train", "--config", str(result.config)]
    content = json.loads(result.config.read_text())
    if modules := RunDir(result.folder, content).modules:
        words += ["--allow-module", *modules]
    if min(seeds) < DEFAULT_SEEDS:  # those that are trained if none are named
        words += ["--seeds", ",".join(str(max(seeds) + 1 + i) for i in range(DEFAULT_SEEDS))]
    print_line(f"Train with them, on other seeds: {shlex.join(words)}")


def spell(value: Any) -> str:
    """A value; of a real number three digits, or all before the point."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
