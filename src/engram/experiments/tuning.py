"""The baselines' options for noisy classic control, searched over the ranges that the paper names (appendix).

    python -m engram.experiments.tuning run [--agents dqn ...] [--families cartpole ...] [--only hidden=64 ...] [--out results/tuning]
    python -m engram.experiments.tuning report [--out results/tuning]

One program trains the three noisy versions of a task with every seed and every value of the options that are real numbers; options that
give shapes are programs of their own, each with a file of its own, so that several processes can share the work by `--only`. What is
there already is not repeated. `report` writes the tables and chosen.json, which the preset `tuned` must equal. The seeds are not those of
the reported results.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from engram import loop
from engram.agents import PRESETS, make
from engram.errors import EngramError, nearest_names
from engram.experiments.choosing import Setting, chosen, page
from engram.experiments.running import FAMILIES, NOISES, curves, deadline, main, protocol, train
from engram.records import strict, write_json
from engram.report.statistics import summary
from engram.tasks import find

Grid = Mapping[str, Sequence[float]]

GRIDS: dict[str, Grid] = {
    "dqn": {"learning_rate": (1e-5, 1e-4, 3e-4, 5e-4, 1e-3)},
    "mfec": {"neighbours": (3, 5, 11, 25)},
    "nec": {"neighbours": (3, 5, 11, 25), "hidden": (32, 64, 128, 256), "learning_rate": (1e-5, 1e-4, 1e-3)},
    "drqn": {"lstm": (128, 256, 512), "learning_rate": (1e-4, 5e-4, 1e-3)},
    "ppo": {"clip_range": (0.2, 0.5, 0.8), "learning_rate": (3e-4, 1e-3, 3e-3)},
}
FIRST_SEED, REPORTED_SEEDS = 1000, range(10)


@dataclass(frozen=True)
class Run:
    """Trains what is missing."""

    agents: tuple[str, ...] = tuple(GRIDS)
    families: tuple[str, ...] = FAMILIES
    only: tuple[str, ...] = ()
    """narrows the grids, as in neighbours=11 hidden=64,128"""
    seeds: int = 3
    steps: int | None = None
    minutes: float = 9.0
    """stop, and save, after so many; the same command goes on"""
    out: Path = Path("results/tuning")
    scratch: Path = Path("runs/tuning")
    """where what is unfinished waits"""

    def __call__(self) -> None:
        until = deadline(self.minutes)
        for name in self.agents:
            grid = narrowed(name, self.only)
            numbers = {option: values for option, values in grid.items() if loop.may_differ(make(name, "paper"), option)}
            shapes = {option: values for option, values in grid.items() if option not in numbers}
            for shape, family in product(settings(shapes), self.families):
                self.search(name, family, shape, settings(numbers), until)

    def search(self, name: str, family: str, shape: Setting, numbers: list[Setting], until: float) -> None:
        """Trains one shape with all numbers, on the noisy versions of one task."""
        agent, seeds = make(name, "paper", **shape), range(FIRST_SEED, FIRST_SEED + self.seeds)
        assert not set(seeds) & set(REPORTED_SEEDS)
        tasks = [find(f"{family}-{noise}", self.steps) for noise in NOISES]
        wanted = {"steps": tasks[0].steps, "seeds": list(seeds), "options": strict(asdict(agent))}  # pyright: ignore[reportArgumentType]
        done = [entry["options"] for entry in self.entries(name, family, shape, wanted)]
        missing = [setting for setting in numbers if shape | setting not in done]
        if not missing:
            return
        runs = list(product(missing, tasks, seeds))
        label = title(name, family, shape, missing)
        scores, seconds = train(
            label,
            agent,
            [task for _, task, _ in runs],
            [seed for _, _, seed in runs],
            self.scratch,
            until,
            {option: [setting[option] for setting, _, _ in runs] for option in missing[0]},
        )
        entries = [{"options": shape | setting, "tasks": {}} for setting in missing]
        for i, (entry, task) in enumerate(product(entries, tasks)):
            found = summary(curves(scores, i * len(seeds), seeds))
            entry["tasks"][task.name] = {key: found[key]["per_seed"] for key in ("final", "auc")}
        how = protocol(agent, tasks[0].steps, seeds, len(runs), seconds)
        write_json(self.out / f"{label.replace(' ', '-')}.json", {"family": family, "settings": entries} | how)

    def entries(self, name: str, family: str, shape: Setting, wanted: dict[str, Any]) -> Iterable[dict]:
        """What files already hold of one shape; they must have been made as more is to be made."""
        for path, file in load(self.out).items():
            if (file["agent"], file["family"]) == (name, family) and shape.items() <= file["settings"][0]["options"].items():
                for what in wanted:
                    if file[what] != wanted[what]:
                        raise EngramError(f"{path} was made with other {what}: move it away, or name another folder with --out.")
                yield from file["settings"]


@dataclass(frozen=True)
class Report:
    """Writes the tables and what was chosen."""

    out: Path = Path("results/tuning")
    classic: Path = Path("results/classic")
    """where random's scores are"""

    def __call__(self) -> None:
        files, random = list(load(self.out).values()), random_areas(self.classic)
        if not files:
            raise EngramError(f"{self.out} holds no search yet: begin with `python -m engram.experiments.tuning run`.")
        (self.out / "README.md").write_text(page(files, candidates(), random))
        write_json(self.out / "chosen.json", chosen(files, candidates(), random))
        print(page(files, candidates(), random))


def differing(chosen: Mapping[str, Setting], preset: str = "tuned") -> list[str]:
    """The agents whose preset is not what the search chose."""
    return [name for name, setting in chosen.items() if preset not in PRESETS or make(name, preset) != make(name, "paper", **setting)]


def settings(grid: Grid) -> list[Setting]:
    """Every combination of a grid's values; of no options, the one empty setting."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def candidates() -> dict[str, list[Setting]]:
    """Every setting of every agent."""
    return {name: settings(grid) for name, grid in GRIDS.items()}


def narrowed(name: str, only: Iterable[str]) -> Grid:
    """An agent's grid, with only the values named, as in hidden=64,128."""
    if name not in GRIDS:
        raise EngramError(f"There is no grid for {name!r}.{nearest_names(name, GRIDS)}")
    grid = dict(GRIDS[name])
    for words in only:
        option, _, values = words.partition("=")
        known = {f"{float(value):g}": value for value in grid.get(option, ())}
        try:
            grid[option] = [known[f"{float(value):g}"] for value in values.split(",")]
        except (KeyError, ValueError):
            raise EngramError(f"The grid of {name} has no {words}: give an option and values of {GRIDS[name]}.") from None
    return grid


def title(name: str, family: str, shape: Setting, numbers: list[Setting]) -> str:
    """What tells a program from others: its shape, and its numbers where they are not all that the grid has."""
    of_grid = len(settings({option: GRIDS[name][option] for option in numbers[0]}))
    values = {option: sorted({setting[option] for setting in numbers}) for option in numbers[0]} if len(numbers) < of_grid else {}
    parts = {option: [value] for option, value in shape.items()} | values
    return " ".join([family, name, *(f"{option}={','.join(f'{x:g}' for x in several)}" for option, several in parts.items())])


def load(out: Path) -> dict[Path, dict]:
    """The files of a search."""
    return {path: json.loads(path.read_text()) for path in sorted(out.glob("*-*.json"))}


def random_areas(classic: Path) -> dict[str, float]:
    """Random's mean area on each task."""
    tasks = [f"{family}-{noise}" for family in FAMILIES for noise in NOISES]
    return {task: json.loads((classic / f"{task}-random.json").read_text())["auc"]["mean"] for task in tasks}


if __name__ == "__main__":
    main(Run, Report)
