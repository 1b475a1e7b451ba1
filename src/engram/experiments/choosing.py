"""Which of the settings that a search has tried is best, and the page that shows it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.experiments.running import FAMILIES, NOISES, machines, markdown, normalised

TASKS = tuple(f"{family}-{noise}" for family in FAMILIES for noise in NOISES)

Setting = dict[str, Any]
Candidates = Mapping[str, Sequence[Setting]]
"""of each agent the settings that can be chosen, in the order of the tables"""


class Tried(NamedTuple):
    """A setting and what it brought on each task that it was run on, mean of the seeds."""

    setting: Setting
    areas: dict[str, float]
    scaled: dict[str, float]
    """areas where random is 0 and the best setting of any agent 1"""


def tried(files: Sequence[dict], candidates: Candidates, random: Mapping[str, float]) -> dict[str, list[Tried]]:
    """The settings that were run, by agent."""
    found: dict[tuple, dict[str, float]] = {}
    for file in files:
        for entry in file["settings"]:
            areas = {task: float(np.mean(scores["auc"])) for task, scores in entry["tasks"].items()}
            found.setdefault(_key(file["agent"], entry["options"]), {}).update(areas)
    known = [(agent, s, found[_key(agent, s)]) for agent, settings in candidates.items() for s in settings if _key(agent, s) in found]
    best: dict[str, float] = {}
    for _, _, areas in known:
        best |= {task: max(area, best.get(task, area)) for task, area in areas.items()}
    tries: dict[str, list[Tried]] = {}
    for agent, setting, areas in known:
        scaled = {task: normalised(area, random[task], best[task]) for task, area in areas.items()}
        tries.setdefault(agent, []).append(Tried(setting, areas, scaled))
    return tries


def _key(agent: str, setting: Setting) -> tuple:
    return agent, *sorted(setting.items())


def furthest(tries: Sequence[Tried]) -> list[Tried]:
    """The settings that were run on the most families of tasks: those that fell behind on one may be spared the others."""
    families = [len({task.split("-")[0] for task in one.areas}) for one in tries]
    return [one for one, count in zip(tries, families, strict=True) if count == max(families)]


def shared(tries: Sequence[Tried]) -> list[str]:
    """The tasks that all of these settings were run on, on which alone they can be compared."""
    return [task for task in TASKS if all(task in one.areas for one in furthest(tries))]


def score(one: Tried, tasks: Sequence[str]) -> float:
    return float(np.mean([one.scaled[task] for task in tasks]))


def best(tries: Sequence[Tried]) -> Tried | None:
    """The setting with the highest mean scaled area over the shared tasks, the first of equals; None where there are no such tasks."""
    tasks = shared(tries)
    return max(furthest(tries), key=lambda one: score(one, tasks)) if tasks else None


def best_per_task(tries: Sequence[Tried]) -> float:
    """The mean scaled area if each task could have its own setting."""
    return float(np.mean([max(one.scaled[task] for one in furthest(tries)) for task in shared(tries)]))


def chosen(files: Sequence[dict], candidates: Candidates, random: Mapping[str, float]) -> dict[str, Setting]:
    """The best setting of each agent that can be compared."""
    found = {agent: best(tries) for agent, tries in tried(files, candidates, random).items()}
    return {agent: one.setting for agent, one in found.items() if one is not None}


def page(files: Sequence[dict], candidates: Candidates, random: Mapping[str, float]) -> str:
    found = tried(files, candidates, random)
    steps = {family: f"{file['steps']:,}" for family in FAMILIES for file in files if file["family"] == family}
    seeds = sorted({seed for file in files for seed in file["seeds"]})
    minutes = sum(file["seconds_with_compilation"] for file in files) / 60
    head = ["agent", "chosen", "normalised area", "with a setting for each task", "settings run", "tasks compared"]
    sections = "".join(section(agent, tries, candidates[agent], random) for agent, tries in found.items())
    return f"""\
# The baselines' options

Written by `python -m engram.experiments.tuning report` from the files beside it; never by hand.

Each baseline is trained with the settings of its grid on the nine noisy tasks, with seeds {", ".join(map(str, seeds))}, which the
[reported results](../classic/README.md) do not use. Other options are the defaults. Steps of a run:
{", ".join(f"{family} {count}" for family, count in steps.items())}. *Area*: the score (un-noised return, mean of the last 10 training
episodes), mean over the run and the seeds. *Normalised area*: on a scale where random has 0 and the best setting of any agent 1, mean over
the tasks that all settings compared were run on: those that were run furthest, since what fell behind on Cart Pole was not always run on
the other tasks. The setting with the highest is chosen, one for all tasks: it is in `chosen.json` and is the preset `tuned`. A setting for
each task would look better, partly since it is picked by few seeds and then judged by the same. Bold: the best of a column.
Trained for {minutes:.0f} minutes in all on: {machines(files)}.

{markdown(head, [_choice(agent, tries, candidates[agent]) for agent, tries in found.items()])}
{sections.rstrip()}
"""


def _choice(agent: str, tries: Sequence[Tried], settings: Sequence[Setting]) -> list[str]:
    one, tasks = best(tries), shared(tries)
    scores = ["–", "–", "–"] if one is None else [words(one.setting), f"{score(one, tasks):z.3f}", f"{best_per_task(tries):z.3f}"]
    return [agent, *scores, f"{len(tries)} of {len(settings)}", f"{len(tasks)} of {len(TASKS)}"]


def section(agent: str, tries: Sequence[Tried], settings: Sequence[Setting], random: Mapping[str, float]) -> str:
    """The table of one agent, a row a setting, and how much of it is missing."""
    tasks = shared(tries)
    nothing = Tried({}, {}, {})
    ones = [next((one for one in tries if one.setting == setting), nothing) for setting in settings]
    columns = [_cells([one.areas.get(task, np.nan) for one in ones], ".1f") for task in TASKS]
    compared = furthest(tries) if tasks else []
    columns.append(_cells([score(one, tasks) if one in compared else np.nan for one in ones], "z.3f"))
    rows = [[f"{value:g}" for value in setting.values()] + [column[i] for column in columns] for i, setting in enumerate(settings)]
    rows.append(["random", *[""] * (len(settings[0]) - 1), *(f"{random[task]:.1f}" for task in TASKS), "0.000"])
    lacking = {family: sum(any(f"{family}-{noise}" not in one.areas for noise in NOISES) for one in ones) for family in FAMILIES}
    missing = ", ".join(f"{count} of {len(ones)} settings on {family}" for family, count in lacking.items() if count)
    note = f"\nNot run yet: {missing}.\n" if missing else ""
    return f"## {agent}\n\n{markdown([*settings[0], *TASKS, 'normalised'], rows)}{note}\n"


def _cells(column: list[float], digits: str) -> list[str]:
    """Numbers as text, the best in bold; a dash where there is none."""
    best = max((x for x in column if not np.isnan(x)), default=np.nan)
    return ["–" if np.isnan(x) else f"**{x:{digits}}**" if x == best else f"{x:{digits}}" for x in column]


def words(setting: Setting) -> str:
    return " ".join(f"{option}={value:g}" for option, value in setting.items())
