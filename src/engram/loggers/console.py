"""What the command line prints: results, warnings, tables and lists."""

import math
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engram import zoo
from engram.agents import AGENTS, PRESETS, agent_class, agent_name, default_preset
from engram.config import field_docs
from engram.envs import get_task, task_names
from engram.errors import EngramWarning
from engram.run_dir import RunDir
from engram.stats import MIN_SEEDS, format_interval, format_return, interval, mean
from engram.training import Result


def print_result(result: Result, quiet: bool = False) -> None:
    """Print a training's returns, where its files are, and what to try next; or a line alone."""
    screen = Console(emoji=False)
    summary = result.summary
    name = agent_name(result.agent)
    if quiet:
        final = format_mean(np.array(summary["final"]["per_seed"]))
        print_line(f"{name} on {result.task.name}: final return {final}, {result.folder}")
        return
    size = f"{count_seeds(len(result.seeds))}, {result.task.format_steps(result.steps)} each"
    table = Table(title=escape(f"{name} on {result.task.name}: {size}"), box=box.SIMPLE_HEAD)
    has_interval = len(result.seeds) >= MIN_SEEDS
    spread = ("95% interval", "std", "IQM", "worst", "best") if has_interval else ("each seed",)
    for column in ("", "mean", *spread):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    for label, row in (
        ("final return", summary["final"]),
        ("area", summary["auc"]),
    ):
        each = row["per_seed"]
        cells = [", ".join(map(format_return, each))]
        if has_interval:
            low_to_high = "–" if math.isnan(row["mean"]) else format_interval(*row["ci95"])
            numbers = (row["std"], row["iqm"], min(each), max(each))
            cells = [low_to_high, *map(format_return, numbers)]
        table.add_row(label, format_return(row["mean"]), *cells)
    screen.print(table)
    speed = f"{summary['steps_per_second']:,.0f} agent steps/s over all seeds, after compilation."
    about = "Returns are without noise, each the mean of the last 10 episodes; area: over the run."
    screen.print(f"{about} {speed}", style="dim", highlight=False)
    if math.isnan(summary["final"]["mean"]):
        hint = (
            "In some seed no episode has ended, so there is no return: train longer (steps are "
            "counted over all environments of a run), or, if its episodes never end, give it a "
            "limit: --max-episode-steps for gym:ID, else gymnasium.wrappers.TimeLimit."
        )
        screen.print(hint, style="yellow", highlight=False)
    rival = "mbec++" if name == "dqn" else "dqn"
    words = [result.task.name]
    for option, values in (
        ("--env-kwargs", [f"{key}={value}" for key, value in result.task.env_kwargs]),
        ("--wrapper", result.task.wrappers),
        ("--observe", result.task.observe),
    ):
        words += [option, *values] if values else []
    task = shlex.join(words)
    assert result.folder is not None
    play = f"{RunDir.load(result.folder).command('eval')} --video episode.gif"
    for line in (
        f"Learning curve: {result.folder}/curves.png",
        f"Try next: {play}, or another agent: engram train {rival} {task}",
    ):
        print_line(line)


def print_warning(text: str) -> None:
    """Print to stderr what the user may not have meant."""
    screen = Console(stderr=True, emoji=False, markup=False)
    screen.print(text, style="yellow", highlight=False, soft_wrap=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within it Engram's warnings are printed as one sentence each, without a line of source."""
    with warnings.catch_warnings():
        default = warnings.showwarning

        def show(message, category, *args, **kwargs):
            if issubclass(category, EngramWarning):
                print_warning(str(message))
            else:
                default(message, category, *args, **kwargs)

        warnings.simplefilter("always", EngramWarning)
        warnings.showwarning = show
        yield


def print_pairs(title: str, pairs: Mapping[str, str]) -> None:
    """Print names and what is to be said of each."""
    table = Table(title=escape(title), title_justify="left", box=None)
    table.show_header, table.pad_edge = False, False
    for name, text in pairs.items():
        table.add_row(f"[bold]{escape(name)}[/]", escape(text))
    Console(emoji=False).print(table)


def print_line(*words: str) -> None:
    """Print a line as it is, however long."""
    Console(emoji=False, markup=False).print(*words, highlight=False, soft_wrap=True)


def count_seeds(count: int) -> str:
    """A number of seeds in words."""
    return f"{count} seed{'s' * (count != 1)}"


def format_mean(per_seed: Float[np.ndarray, "R"]) -> str:
    """The mean over seeds with their number, and its interval if they are enough."""
    text, seeds = format_return(mean(per_seed)), count_seeds(len(per_seed))
    if len(per_seed) < MIN_SEEDS or np.isnan(per_seed).any():
        return f"{text} ({seeds})"
    return f"{text} ({seeds}, 95% interval {format_interval(*interval(per_seed, mean))})"


def print_evaluation(title: str, returns: dict[int, np.ndarray], quiet: bool = False) -> None:
    """Print a row for each seed's greedy episodes, and one for the means of all seeds."""
    episodes = len(next(iter(returns.values())))
    count = f"{episodes} greedy episode{'s' * (episodes != 1)} of each seed"
    if quiet:
        means = np.array([values.mean() for values in returns.values()])
        print_line(f"{title}: mean return {format_mean(means)}, {count}")
        return
    table = Table(title=escape(f"{title}: {count}, returns without noise"))
    for column in ("seed", "mean", "95% interval", "worst", "best"):
        table.add_column(column, justify="right")
    rows = {str(seed): values for seed, values in returns.items()}
    rows["means of all seeds"] = np.array([values.mean() for values in returns.values()])
    for label, values in rows.items():
        spread = format_interval(*interval(values, mean)) if len(values) >= MIN_SEEDS else "–"
        numbers = [format_return(x) for x in (values.mean(), values.min(), values.max())]
        table.add_row(label, numbers[0], spread, *numbers[1:])
    Console(emoji=False).print(table)


def print_agents_and_tasks() -> None:
    """Print all agents, tasks and presets, with a line about each."""
    tasks = {name: get_task(name) for name in task_names()}
    about_tasks = {
        name: f"{task.description}; {task.steps:,} steps" for name, task in tasks.items()
    }
    about_tasks["gym:ID"] = (
        "any Gymnasium environment with discrete actions, such as gym:Acrobot-v1; 100,000 steps"
    )
    about_tasks["atari:GAME"] = (
        "any of the 57 games, such as atari:breakout, or atari:breakout-modern; 2,500,000 steps "
        "(pip install ale-py)"
    )
    sections = {
        "Agents": {name: _headline(kind) for name, kind in AGENTS.items()},
        "Tasks": about_tasks,
        "Presets": {name: about for name, (about, _) in PRESETS.items()},
        "Trained agents": {zoo.PREFIX + name: zoo.headline(name) for name in zoo.names()},
    }
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        table.show_header, table.pad_edge = False, False
        for name, about in rows.items():
            table.add_row(f"  {name}", about)
        Console(emoji=False).print(table, "")


def print_claims(rows: list[list[str]]) -> None:
    """Print experiments with their state, and below each its claims and their verdicts."""
    screen = Console(emoji=False)
    for experiment, state, claim, verdict in rows:
        if experiment:
            screen.print(f"[bold]{experiment}[/]: {state}", highlight=False, soft_wrap=True)
        if verdict != "–":
            screen.print(f"  {claim} [bold]{verdict}[/]", highlight=False, soft_wrap=True)


def print_options(name: str) -> None:
    """Print an agent's options with default and meaning, and what each preset changes."""
    kind = agent_class(name)
    screen = Console(emoji=False)
    own = default_preset(name)
    families = {"Atari": "atari", "mazes": "maze", "3D navigation": "pickup"}
    on_tasks = {tasks: default_preset(name, preset) for tasks, preset in families.items()}
    others = [f", for {tasks} {preset}" for tasks, preset in on_tasks.items() if preset != own]
    presets = own + "".join(others)
    screen.print(f"[bold]{name}[/]: {_headline(kind)} Default preset: {presets}.", highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    for field, meaning in field_docs(kind).items():
        table.add_row(_flag(field), str(getattr(kind(), field)), meaning)
    screen.print(table)
    for preset, (_, overlays) in PRESETS.items():
        if changes := overlays.get(name):
            flags = " ".join(f"{_flag(option)} {value}" for option, value in changes.items())
            print_line(f"--preset {preset}: {flags}")


def _headline(kind: type) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
