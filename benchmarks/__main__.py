"""`python -m benchmarks`: measures, prints tables, and writes JSON. See README.md."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks import (
    agents,
    atari,
    commits,
    comparison,
    maze,
    pickup,
    reference,
    scaling,
    search,
)
from benchmarks.options import Options
from benchmarks.report import describe, headline
from benchmarks.tables import Table


class Section(NamedTuple):
    """A part of the benchmarks: how it is measured, and its tables."""

    measure: Callable[[Options], dict]
    tables: Callable[[dict], list[Table]]


SECTIONS = {
    "cpu": Section(comparison.measure_cpu, comparison.tables),
    "others": Section(comparison.measure_others, comparison.tables),
    "agents": Section(agents.measure, agents.tables),
    "scaling": Section(scaling.measure_scaling, scaling.scaling_tables),
    "search": Section(search.measure, search.tables),
    "maze": Section(maze.measure, maze.tables),
    "pickup": Section(pickup.measure, pickup.tables),
    "gpu": Section(scaling.measure_gpu, scaling.gpu_tables),
    "atari": Section(atari.measure, atari.tables),
    "torch": Section(reference.measure, reference.tables),
    "commits": Section(commits.measure, commits.tables),
}
DEFAULT = ("cpu", "agents", "scaling", "search")
"""parts that are measured if none is named, on a GPU also `gpu`"""


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 128)
    if arguments.parts[:1] == ["table"]:
        show_files(arguments.parts[1:], console)
        return
    if unknown := set(arguments.parts) - set(SECTIONS):
        parser.error(
            f"there is no part {', '.join(sorted(unknown))}; "
            f"there are {', '.join(SECTIONS)}, and table"
        )
    if "commits" in arguments.parts and arguments.old is None:
        parser.error("commits needs --old with the path of a checkout")
    measure_all(arguments, console)


def measure_all(arguments: argparse.Namespace, console: Console) -> None:
    """Measures the named parts, and prints the tables of each when it is done."""
    report = describe(arguments.commit, arguments.quick)
    has_gpu = report["machine"]["device"] != "cpu"
    for name in arguments.parts or (*DEFAULT, *(["gpu"] if has_gpu else [])):
        save = partial(_save, report, name, arguments.out)
        with console.status(name) as status:
            show = status.update if console.is_terminal else partial(print, flush=True)
            options = Options(
                quick=arguments.quick,
                only=[agent.lower() for agent in arguments.only],
                others_python=arguments.others_python,
                coach_python=arguments.coach_python,
                old=arguments.old,
                log=partial(_log, show, name),
                save=save,
            )
            save(SECTIONS[name].measure(options))
        for table in SECTIONS[name].tables(report["sections"][name]):
            table.show(console)
    console.print(headline(report), style="dim")


def show_files(files: list[str], console: Console) -> None:
    """Prints the tables of result files."""
    paths = [Path(file) for file in files] or sorted(Path("results").glob("bench-*.json"))
    for path in paths:
        report = json.loads(path.read_text())
        console.print(headline(report), style="bold")
        for name, result in report["sections"].items():
            for table in SECTIONS[name].tables(result):
                table.show(console)


def _log(show: Callable[[str], None], section: str, message: str) -> None:
    show(f"{section}: {message}")


def _save(report: dict, section: str, out: Path | None, result: dict) -> None:
    """Writes the report so far: what follows may fail, or be interrupted."""
    report["sections"][section] = result
    report["machine"]["load after"] = os.getloadavg()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Speed of Engram next to other software."
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(SECTIONS)} (default: {', '.join(DEFAULT)}, and gpu on a GPU); "
        "or: table FILES",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small and noisy, to see whether it works"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the measurements as JSON")
    parser.add_argument(
        "--others-python",
        metavar="PATH",
        help="a Python that has the other software (default: makes .venv-bench)",
    )
    parser.add_argument(
        "--coach-python",
        metavar="PATH",
        help="a Python 3.7 that has Coach (default: it is left out)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="AGENT",
        help="in agents and atari, only these, such as: dqn ppo",
    )
    parser.add_argument(
        "--old", type=Path, metavar="PATH", help="in commits, a checkout of the old commit"
    )
    parser.add_argument("--commit", help="the commit, where git cannot name it")
    return parser


if __name__ == "__main__":
    main()
