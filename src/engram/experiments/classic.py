"""All agents on the nine noisy classic-control tasks and the three clean ones (Section 4.2, Figure 4 and the appendix's figure).

    python -m engram.experiments.classic run [--families cartpole ...] [--agents dqn ...] [--preset paper] [--out results/classic]
    python -m engram.experiments.classic report [--out results/classic]

`run` trains the four versions of a task together in one program and leaves, for each task and agent, a CSV of curves and a JSON with
summary and protocol; what is there already is not repeated. `report` draws the figures and writes the tables from these files.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from engram.agents import PRESETS, make
from engram.experiments.control import OURS
from engram.experiments.lines import Line, load_all, read_curves, train_group
from engram.experiments.running import FAMILIES, NOISES, NOISY, PRESET, deadline, machines, main, markdown, normalised
from engram.report.figures import grid
from engram.report.statistics import interval, iqm, mean
from engram.tasks import find

TASKS = [f"{family}{noise}" for family in FAMILIES for noise in ("", *(f"-{noise}" for noise in NOISES))]
AGENTS = tuple(PRESET)
MEASURES = {"final": "final", "auc": "area"}
Found = dict[str, dict[str, tuple[dict, dict]]]
"""task, then agent, to summary and curves"""
BEYOND = {"dqn+": "dqn, engram", "engram": "mbec++, engram"}
"""what the experiment `engram-preset` calls them, and the README"""
BEGIN, END = "<!-- results: written by `python -m engram.experiments.classic report` -->", "<!-- end of results -->"


@dataclass(frozen=True)
class Run:
    """Trains what is missing."""

    families: tuple[str, ...] = FAMILIES
    agents: tuple[str, ...] = AGENTS
    noises: tuple[str, ...] = ("clean", *NOISES)
    seeds: int = 10
    steps: int | None = None
    preset: str | None = None
    """of all agents; where not given, `tuned` for the baselines and `paper` for MBEC and MBEC++"""
    out: Path = Path("results/classic")
    minutes: float = 9.0
    """stop, and save, after so many; the same command goes on"""
    scratch: Path = Path("runs/classic")
    """where what is unfinished waits"""

    def __call__(self) -> None:
        until = deadline(self.minutes)
        for family in self.families:
            for agent in self.agents:
                self.train(family, agent, until)

    def train(self, family: str, name: str, until: float) -> None:
        tasks = [find(family if noise == "clean" else f"{family}-{noise}", self.steps) for noise in self.noises]
        tasks = [task for task in tasks if not (self.out / f"{task.name}-{name}.json").exists()]
        if not tasks:
            return
        agent = make(name, self.preset or PRESET[name])
        lines = [Line(name, agent, task.name, self.out.name, self.steps, self.seeds) for task in tasks]
        train_group(lines, self.out.parent, self.scratch, until)


@dataclass(frozen=True)
class Report:
    """Draws the figures and writes the tables."""

    out: Path = Path("results/classic")

    def __call__(self) -> None:
        report(self.out)


def load(out: Path) -> Found:
    found: Found = {}
    for task in TASKS:
        for agent in AGENTS:
            file = out / f"{task}-{agent}.json"
            if not file.exists():
                continue
            found.setdefault(task, {})[agent] = (json.loads(file.read_text()), read_curves(file.with_suffix(".csv")))
    return found


def report(out: Path, readme: Path = Path("README.md")) -> None:
    found = load(out)
    seeds = {task: {agent: seeds for agent, (_, seeds) in agents.items()} for task, agents in found.items()}
    grid({task: seeds[task] for task in NOISY if task in seeds}, out / "noisy.png")
    grid({task: seeds[task] for task in FAMILIES if task in seeds}, out / "clean.png")
    (out / "README.md").write_text(page(found))
    if out == Report.out:
        before, rest = readme.read_text().split(BEGIN)
        readme.write_text(before + BEGIN + "\n" + short_table(found, out.parent) + END + rest.split(END)[1])
    print(page(found))


def page(found: Found) -> str:
    summaries = [summary for agents in found.values() for summary, _ in agents.values()]
    steps = {summary["task"].partition("-")[0]: f"{summary['steps']:,}" for summary in summaries}
    return f"""\
# Classic control, clean and noisy

Written by `python -m engram.experiments.classic report` from the files beside it; never by hand.

Options: {presets(summaries)}. *Final*: un-noised return, mean of the last 10 training episodes. *Area*: the mean of that score over the
whole run. Steps of a run: {", ".join(f"{family} {count}" for family, count in steps.items())}. One environment a run, no frame skipping:
agent steps are environment steps. CartPole-v1 cut at 200 steps, MountainCar-v0, LunarLander-v3; a time limit counts as an end.
Trained on: {machines(summaries)}.

## Means

Mean and 95% bootstrap interval over {len(summaries[0]["seeds"])} seeds. The last column is MBEC++ less DQN, paired by seed; bold where its
95% interval excludes 0 (not corrected for many comparisons).

{table(found, lambda row: (row["mean"], row["ci95"]), difference)}
## Interquartile means

The mean of the middle half of the seeds, which single lucky or failed seeds do not move, and its 95% bootstrap interval.

{table(found, lambda row: (row["iqm"], interval(row["per_seed"], iqm)))}
{aggregate(found)}What the paper claims of these tasks, and whether it holds: [the report](../report/README.md).

![noisy](noisy.png)

![clean](clean.png)
"""


def presets(summaries: list[dict]) -> str:
    """Which agents have which preset, told by their options."""
    agents: dict[str, list[str]] = {}
    for agent in AGENTS[1:]:  # random has no options
        for name in sorted({_preset(agent, s["options"]) for s in summaries if s["agent"] == agent}):
            agents.setdefault(name, []).append(agent)
    where = {"`tuned`": " (the best of a [search](../tuning/README.md) on other seeds)"}
    return "; ".join(f"{name}{where.get(name, '')} for {', '.join(agents[name])}" for name in agents)


def _preset(agent: str, options: dict) -> str:
    for name in (PRESET[agent], *PRESETS):
        made = asdict(make(agent, name)) if name in PRESETS else {}  # pyright: ignore[reportArgumentType]
        # What the agent had or has besides cannot be compared.
        if made and all(made[option] == value for option, value in options.items() if option in made):
            return f"`{name}`"
    return "options of no preset"


def present(found: Found) -> list[str]:
    return [agent for agent in AGENTS if any(agent in agents for agents in found.values())]


def table(found: Found, measure, *more) -> str:
    """Final score and area under the curve of every agent; `more` are functions of a task's agents that give further cells."""
    names, rows = present(found), []
    for task, agents in found.items():
        for key, label in MEASURES.items():
            cells = [_cell(*measure(agents[a][0][key])) if a in agents else "–" for a in names]
            rows.append([task if key == "final" else "", label, *cells, *(column(agents, key) for column in more)])
    return markdown(["task", "", *names, *("mbec++ − dqn" for _ in more)], rows)


def aggregate(found: Found) -> str:
    """Each agent's interquartile mean over all seeds of the nine noisy tasks, on one scale."""
    names = [agent for agent in present(found) if all(agent in found.get(task, {}) for task in NOISY)]
    if "random" not in names or len(names) == 1:
        return ""
    rows = []
    for name in names:
        cells = []
        for key in MEASURES:
            means = {task: {a: found[task][a][0][key]["mean"] for a in names} for task in NOISY}
            scores = [
                normalised(np.array(found[task][name][0][key]["per_seed"]), means[task]["random"], max(means[task].values()))
                for task in NOISY
            ]
            cells.append(_cell(iqm(scores), interval(scores, iqm), "z.2f"))
        rows.append([name, *cells])
    return f"""\
## All nine noisy tasks together

Interquartile mean over all seeds of the nine tasks, of scores on a scale where random's mean is 0 and the best agent's mean on that task
is 1; 95% bootstrap interval, seeds drawn within each task, the scale held fixed.

{markdown(["", *MEASURES.values()], rows)}
"""


def short_table(found: Found, results: Path) -> str:
    """Final scores on the noisy tasks, for the README, and those with the preset `engram`."""
    names, beyond, rows = present(found), load_all(OURS, results), []
    for task, agents in found.items():
        if task in FAMILIES:
            continue
        summaries = [agents[a][0] if a in agents else None for a in names]
        summaries += [beyond[task, label].summary if (task, label) in beyond else None for label in BEYOND]
        rows.append([f"`{task}`", *(f"{s['final']['mean']:.1f}" if s else "–" for s in summaries)])
    return markdown(["final score, mean of 10 seeds", *names, *BEYOND.values()], rows)


def difference(agents: dict, key: str) -> str:
    """MBEC++ less DQN, paired by seed, bold where its interval excludes 0."""
    if not {"dqn", "mbec++"} <= agents.keys():
        return "–"
    low, high = interval(np.array(agents["mbec++"][0][key]["per_seed"]) - np.array(agents["dqn"][0][key]["per_seed"]), mean)
    sign = "**" if low > 0 or high < 0 else ""
    middle = agents["mbec++"][0][key]["mean"] - agents["dqn"][0][key]["mean"]
    return f"{sign}{middle:+.1f}{sign} [{low:+.1f}, {high:+.1f}]"


def _cell(value: float, ends: tuple[float, float], digits: str = ".1f") -> str:
    low, high = ends
    return f"{value:{digits}} [{low:{digits}}, {high:{digits}}]"


if __name__ == "__main__":
    main(Run, Report)
