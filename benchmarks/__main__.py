"""`python -m benchmarks`: measures, prints, and writes what was measured. See README.md."""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

from benchmarks import comparison
from benchmarks.tables import Table

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- results: written by `python -m benchmarks table` -->", "<!-- end of results -->"
SECTIONS = ("cpu", "others", "agents", "scaling", "search", "gpu", "atari", "torch")
PACKAGES = ("engram-rl", "jax", "jaxlib", "equinox", "optax", "gymnasium", "numpy")


def measure(section: str, options: argparse.Namespace, say, keep) -> dict:
    match section:
        case "cpu" | "others":
            pythons = comparison.find_pythons(options.others_python, options.coach_python, say)
            contenders = comparison.DQNS + (comparison.OURS if section == "cpu" else [])
            return comparison.measure(contenders, pythons, options.quick, say)
        case "agents":
            from benchmarks import agents

            return agents.measure(options, say)
        case "atari":
            from benchmarks import atari

            return atari.measure(options.quick, say, keep, options.only)
        case "torch":
            from benchmarks import reference

            return reference.measure(options.quick, say)
        case "search":
            from benchmarks import search

            return search.measure(options.quick, say)
        case _:
            from benchmarks import scaling

            return {"scaling": scaling.scaling, "gpu": scaling.gpu}[section](options.quick, say)


def tables(section: str, result: dict) -> list[Table]:
    from benchmarks import agents, atari, reference, scaling, search

    of = {
        "torch": reference.tables,
        "atari": atari.tables,
        "agents": agents.tables,
        "scaling": scaling.scaling_tables,
        "gpu": scaling.gpu_tables,
        "search": search.tables,
    }
    return of.get(section, comparison.tables)(result)


def describe(options: argparse.Namespace) -> dict:
    """The machine, the software and the day."""
    import jax

    git = ["git", "-C", str(README.parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": cores,
            "device": jax.devices()[0].device_kind,
            "system": f"{platform.system()} {platform.make_vec()}",
            "load": os.getloadavg(),
        },
        "versions": {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES},
        "commit": options.commit or commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
    }


def headline(report: dict) -> str:
    machine, versions = report["machine"], report["versions"]
    place = f"{machine['cores']} cores of {machine['cpu']}" + (f", {machine['device']}" if machine["device"] != "cpu" else "")
    words = f"{place}; Python {versions['python']}, JAX {versions['jax']}; commit {report['commit']}, {report['date'][:10]}"
    return words + ("; **only a quick trial**" if report["quick"] else "")


def write_readme(reports: list[dict]) -> None:
    parts = []
    for report in reports:
        parts.append(f"### {headline(report)}")
        parts += [t.markdown() for name, result in report["sections"].items() for t in tables(name, result)]
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + "\n\n".join([BEGIN, *parts, END]) + after)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed of Engram, and of others beside it.")
    parser.add_argument("what", nargs="*", help=f"of {', '.join(SECTIONS)} (default: all; gpu where there is one); or: table FILES")
    parser.add_argument("--quick", action="store_true", help="small and noisy, to see whether it works")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all that was measured as JSON")
    parser.add_argument("--others-python", metavar="PATH", help="a Python that has the other software (default: makes .venv-bench)")
    parser.add_argument("--coach-python", metavar="PATH", help="a Python 3.7 that has Coach (default: it is left out)")
    parser.add_argument("--only", nargs="+", metavar="AGENT", help="of the agents, only these (such as: dqn ppo)")
    parser.add_argument("--commit", help="what was measured, where git cannot tell")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 128)

    if options.what[:1] == ["table"]:
        files = [Path(name) for name in options.what[1:]] or sorted(Path("results").glob("bench-*.json"))
        reports = [json.loads(file.read_text()) for file in files]
        write_readme(reports)
        for report in reports:
            show(report, console)
        return

    if wrong := set(options.what) - set(SECTIONS):
        parser.error(f"there is no benchmark {', '.join(sorted(wrong))}; there are {', '.join(SECTIONS)}, and table")
    report = describe(options)
    sections = options.what or ["cpu", "agents", "scaling", "search"] + (["gpu"] if report["machine"]["device"] != "cpu" else [])
    report["sections"] = {}

    def keep(section: str, result: dict) -> None:
        """What is known so far: what follows may fail, or be cut."""
        report["sections"][section] = result
        report["machine"]["load after"] = os.getloadavg()
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(report, indent=1) + "\n")

    for section in sections:
        with console.status(section) as status:
            tell = status.update if console.is_terminal else partial(print, flush=True)
            keep(section, measure(section, options, lambda words, s=section, tell=tell: tell(f"{s}: {words}"), partial(keep, section)))
        for table in tables(section, report["sections"][section]):
            table.show(console)
    console.print(headline(report), style="dim")


def show(report: dict, console: Console) -> None:
    console.print(headline(report), style="bold")
    for name, result in report["sections"].items():
        for table in tables(name, result):
            table.show(console)


if __name__ == "__main__":
    main()
