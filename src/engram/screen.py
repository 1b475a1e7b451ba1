"""What the command line shows: a bar while training, tables afterwards, and lists."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from engram.agents import AGENTS, PRESETS, kind_of, name_of, usual
from engram.options import meanings
from engram.provenance import memory_in_use, memory_size
from engram.report.statistics import interval, mean
from engram.tasks import find, names
from engram.training import Progress as Now
from engram.training import Result


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[Now], None]]:
    """A bar with steps, steps/s, the device's memory in use, time left, the mean score and its curve; where there is no terminal, a line
    every tenth of the way."""
    screen = Console()
    columns = (
        BarColumn(bar_width=None),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[memory]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left  score {task.fields[score]}"),
    )
    if screen.is_terminal:
        screen.print(what, highlight=False, soft_wrap=True)
    with Progress(*columns, console=screen, disable=not screen.is_terminal, expand=True) as bar:
        line = bar.add_task(what, total=None, steps="compiling", speed="", memory="", score="–")
        shown = -1

        def watch(now: Now) -> None:
            nonlocal shown
            speed = f"{now.steps_per_second:,.0f} steps/s" if now.steps_per_second else ""
            score = "–" if math.isnan(now.score) else _score(now.score)
            done, memory = min(now.step, now.steps), _memory()
            shown_score = f"{score} {sparkline(now.curve)}"
            steps = f"{done:,}/{now.steps:,} steps"
            bar.update(line, completed=done, total=now.steps, steps=steps, speed=speed, memory=memory, score=shown_score)
            tenth = 10 * done // now.steps
            if not screen.is_terminal and tenth > shown:
                shown = tenth
                told = [steps, speed or "compiled", *([memory] if memory else []), *_left(now), f"mean score {score}"]
                text = f"{what}: {', '.join(told)}"
                screen.print(text, highlight=False, soft_wrap=True)

        yield watch


def sparkline(curve: Float[np.ndarray, "P"], width: int = 16) -> str:
    """A curve so small that it fits into a line; each sign is the mean of a stretch of it."""
    known = curve[~np.isnan(curve)]
    if not len(known):
        return ""
    means = np.array([part.mean() for part in np.array_split(known, min(width, len(known)))])
    height = (means - means.min()) / (np.ptp(means) or 1.0)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * h)] for h in height)


def _memory() -> str:
    """Of an accelerator, how much of its memory is in use."""
    used, there = memory_in_use(), memory_size()
    return f"{used / 1e9:.1f}/{there / 1e9:.0f} GB" if used and there else ""


def _left(now: Now) -> list[str]:
    """About how long it will take, in words, if that is known."""
    if not now.steps_per_second or now.step >= now.steps:
        return []
    seconds = (now.steps - now.step) * len(now.scores) / now.steps_per_second
    return [f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"]


def report(result: Result) -> None:
    """A table of what came out, where it is, and what to try next."""
    screen, summary, name = Console(), result.summary, name_of(result.agent)
    table = Table(title=f"{name} on {result.task.name}: {seeds(len(result.seeds))}, {result.task.amount(result.steps)} each")
    for column in ("", "mean", "95% interval", "std", "IQM", "worst", "best"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for label, row in (("final score", summary["final"]), ("whole run", summary["auc"])):
        each = row["per_seed"]
        numbers = [_score(x) for x in (row["mean"], row["std"], row["iqm"], min(each), max(each))]
        if len(each) == 1 or math.isnan(row["mean"]):  # one seed tells nothing of others
            table.add_row(label, numbers[0], "–", "–", *numbers[2:])
        else:
            table.add_row(label, numbers[0], _between(*row["ci95"]), *numbers[1:])
    screen.print(table)
    speed = f"{summary['steps_per_second']:,.0f} agent steps/s over all seeds, after compilation."
    screen.print(f"A score is the un-noised return, mean of the last 10 episodes. {speed}", style="dim", highlight=False)
    if math.isnan(summary["final"]["mean"]):
        hint = (
            "In some seed no episode has ended, so there is no score: train longer (steps are those of all its environments together), "
            "or, if its episodes never end, put gymnasium.wrappers.TimeLimit around it."
        )
        screen.print(hint, style="yellow", highlight=False)
    rival = "mbec++" if name == "dqn" else "dqn"
    for line in (
        f"Learning curve: {result.folder}/curves.png",
        f"Try next: engram eval {result.folder} --video episode.gif, or a rival: engram train {rival} {result.task.name}",
    ):
        screen.print(line, highlight=False, soft_wrap=True)


def notice(what: str) -> None:
    """Something that may not be meant so."""
    Console(stderr=True).print(what, style="yellow", highlight=False, soft_wrap=True)


def seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def evaluation(what: str, returns: dict[int, np.ndarray]) -> None:
    """A row for each seed's greedy episodes, and one for all."""
    episodes = len(next(iter(returns.values())))
    table = Table(title=f"{what}: {episodes} greedy episode{'s' * (episodes != 1)} of each seed, un-noised returns")
    for column in ("seed", "mean", "95% interval", "worst", "best"):
        table.add_column(column, justify="right")
    rows = {str(seed): values for seed, values in returns.items()}
    rows["all, by their means"] = np.array([values.mean() for values in returns.values()])
    for label, values in rows.items():
        spread = _between(*interval(values, mean)) if len(values) > 1 else "–"
        table.add_row(label, _score(values.mean()), spread, _score(values.min()), _score(values.max()))
    Console().print(table)


def catalogue() -> None:
    """Agents, tasks and presets, each with a line."""
    anything = {"gym:ID": "any Gymnasium environment with discrete actions, such as gym:Acrobot-v1; 100,000 steps"}
    anything |= {
        "atari:GAME": "any of the 57 games, such as atari:breakout, or atari:breakout-modern; 2,500,000 steps (pip install ale-py)"
    }
    sections = {
        "Agents": {name: _headline(kind) for name, kind in AGENTS.items()},
        "Tasks": {name: f"{find(name).about}; {find(name).steps:,} steps" for name in names()} | anything,
        "Presets": {name: about for name, (about, _) in PRESETS.items()},
    }
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
        for name, about in rows.items():
            table.add_row(f"  {name}", about)
        Console().print(table, "")


def claims(rows: list[list[str]]) -> None:
    """Experiments, what the paper says, and whether it holds."""
    table = Table(box=None, pad_edge=False)
    for column in ("experiment", "state", "the paper says", "verdict"):
        table.add_column(column, no_wrap=column in ("experiment", "verdict"))
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def options(name: str) -> None:
    """An agent's options, with defaults and meaning, and what the presets change."""
    kind, screen = kind_of(name), Console()
    screen.print(f"[bold]{name}[/]: {_headline(kind)} The usual preset: {_usual(name)}.", highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("option", "paper", "meaning"):
        table.add_column(column)
    for field, meaning in meanings(kind).items():
        default = getattr(kind(), field)
        table.add_row(_flag(field), "not given" if default is None else str(default), meaning)
    screen.print(table)
    for preset, (_, overlays) in PRESETS.items():
        if changes := overlays.get(name):
            flags = " ".join(_flag(option, value) for option, value in changes.items())
            screen.print(f"--preset {preset}: {flags}", highlight=False)


def _usual(name: str) -> str:
    preset, arcade = usual(name), usual(name, arcade=True)
    return preset if arcade == preset else f"{preset}, for Atari {arcade}"


def _headline(kind: type) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def _flag(option: str, value: Any = None) -> str:
    """An option as it is typed, with its value."""
    name = option.replace("_", "-")
    match value:
        case None | True:
            return f"--{name}"
        case False:
            return f"--no-{name}"
    return f"--{name} {value}"


def _between(low: float, high: float) -> str:
    return f"{_score(low)} to {_score(high)}"


def _score(x: float) -> str:
    """With one decimal, or as many as show a small number."""
    return f"{x:.1f}" if abs(x) >= 10 or x == 0 else f"{x:.3g}"
