"""All agents on the nine noisy classic-control tasks and the three clean ones (Section 4.2, Figure 4 and the appendix's figure).

    python -m experiments.classic run [--families cartpole ...] [--agents dqn ...] [--seeds 10] [--out results/classic]
    python -m experiments.classic report [--out results/classic]

`run` trains the four versions of a task together in one program and leaves, for each task and agent, a CSV of curves and a JSON with
summary and protocol; what is there already is not repeated. `report` draws the figure and writes the table from these files.
"""

import csv
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from engram import loop
from engram.agents import make
from engram.provenance import describe_machine
from engram.records import RunFolder, write_json
from engram.report.figures import grid
from engram.report.statistics import interval, mean, summary
from engram.scores import Scores
from engram.tasks import find

NOISES = ("", "-gaussian", "-bernoulli", "-transition")
FAMILIES = ("cartpole", "mountaincar", "lunarlander")
AGENTS = ("random", "dqn", "mbec", "mbec++")
BEGIN, END = "<!-- results: written by `python -m experiments.classic report` -->", "<!-- end of results -->"

Found = dict[str, dict[str, tuple[dict, dict]]]
"""task, then agent, to summary and curves"""


@dataclass(frozen=True)
class Run:
    """Trains what is missing."""

    families: tuple[str, ...] = FAMILIES
    agents: tuple[str, ...] = AGENTS
    noises: tuple[str, ...] = ("clean", "gaussian", "bernoulli", "transition")
    seeds: int = 10
    steps: int | None = None
    preset: str = "paper"
    out: Path = Path("results/classic")
    minutes: float = 9.0
    """stop, and save, before a run would last longer; the same command goes on"""
    scratch: Path = Path("runs/classic")
    """where what is unfinished waits"""


@dataclass(frozen=True)
class Report:
    """Draws the figure and writes the table."""

    out: Path = Path("results/classic")


def main() -> None:
    command = tyro.cli(
        Annotated[Run, tyro.conf.subcommand("run")] | Annotated[Report, tyro.conf.subcommand("report")],  # pyright: ignore
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if isinstance(command, Report):
        report(command.out)
        return
    for family in command.families:
        for agent in command.agents:
            train(command, family, agent)


def train(command: Run, family: str, name: str) -> None:
    tasks = [find(family if noise == "clean" else f"{family}-{noise}", command.steps) for noise in command.noises]
    tasks = [task for task in tasks if not (command.out / f"{task.name}-{name}.json").exists()]
    if not tasks:
        return
    agent, steps, seeds = make(name, command.preset), tasks[0].steps, range(command.seeds)
    spec = tasks[0].spec(1, steps)
    driver = loop.driver(agent, *loop.every_seed(tasks, seeds), spec)
    scores = Scores(len(tasks) * len(seeds), steps, max(1, steps // 200), sorted(driver.template()[0].sums))
    folder = RunFolder(command.scratch / f"{family}-{name}-{len(tasks)}", {})
    seconds = 0.0
    if folder.checkpoint.exists():
        (tree, saved), meta = folder.restore((driver.template(), scores.tree()))
        driver.restore(tree, meta["notes"])
        scores.restore(saved)
        seconds = meta["seconds"]
    else:
        driver.start()
    began = time.monotonic()
    while driver.iteration < steps:
        scores.add(driver.advance(min(scores.interval, steps - driver.iteration)))
        scores.mark(driver.metrics())
        spent = time.monotonic() - began
        if int(scores.points) % 20 == 0:
            print(f"{family} {name}: {driver.iteration:,} steps, {spent:.0f} s, {np.nanmean(scores.now()):.1f}", flush=True)
        if spent > 60 * command.minutes:
            tree, notes = driver.save()
            folder.save((tree, scores.tree()), {"notes": notes, "seconds": seconds + spent})
            raise SystemExit(f"{family} {name} stopped at step {driver.iteration:,}; the same command goes on.")
    driver.close()
    seconds += time.monotonic() - began
    for t, task in enumerate(tasks):
        columns = slice(t * len(seeds), (t + 1) * len(seeds))
        marks, curve = scores.steps(1), scores.curve[:, columns]
        curves = {seed: (marks, curve[:, i]) for i, seed in enumerate(seeds)}
        protocol = {
            "agent": name,
            "options": asdict(agent),  # pyright: ignore[reportArgumentType]
            "task": task.name,
            "steps": steps,
            "environments": 1,
            "seeds": list(seeds),
            "score": "un-noised return, mean of the last 10 training episodes",
            "runs_in_one_program": len(tasks) * len(seeds),
            "seconds_with_compilation": seconds,
        } | describe_machine()
        command.out.mkdir(parents=True, exist_ok=True)
        with open(command.out / f"{task.name}-{name}.csv", "w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["seed", "step", "return"])
            rows.writerows((seed, int(m), f"{curve[p, i]:.4g}") for i, seed in enumerate(seeds) for p, m in enumerate(marks))
        means = scores.metrics[:, columns].mean(axis=1)
        protocol["metrics"] = {metric: [float(f"{x:.4g}") for x in means[:, i]] for i, metric in enumerate(scores.names)}
        write_json(command.out / f"{task.name}-{name}.json", summary(curves) | protocol)
    print(f"{family} {name}: done in {seconds:.0f} s", flush=True)


def load(out: Path) -> Found:
    found: Found = {}
    for family in FAMILIES:
        for noise in NOISES:
            for agent in AGENTS:
                file = out / f"{family}{noise}-{agent}.json"
                if not file.exists():
                    continue
                table = np.genfromtxt(file.with_suffix(".csv"), delimiter=",", skip_header=1)
                curves = {int(s): (table[table[:, 0] == s, 1], table[table[:, 0] == s, 2]) for s in np.unique(table[:, 0])}
                found.setdefault(family + noise, {})[agent] = (json.loads(file.read_text()), curves)
    return found


def report(out: Path, readme: Path = Path("README.md")) -> None:
    found = load(out)
    curves = {task: {agent: curves for agent, (_, curves) in agents.items()} for task, agents in found.items()}
    noisy = [f"{family}{noise}" for noise in NOISES[1:] for family in FAMILIES]  # a row a kind of noise, as in the paper's appendix
    grid({task: curves[task] for task in noisy if task in curves}, out / "noisy.png")
    grid({task: curves[task] for task in FAMILIES if task in curves}, out / "clean.png")
    (out / "README.md").write_text(page(found))
    if out == Report.out:
        before, rest = readme.read_text().split(BEGIN)
        readme.write_text(before + BEGIN + "\n" + short_table(found) + END + rest.split(END)[1])
    print(page(found))


def page(found: Found) -> str:
    some = next(iter(next(iter(found.values())).values()))[0]
    summaries = [summary for agents in found.values() for summary, _ in agents.values()]
    machines = sorted({f"{s['device']} (JAX {s['versions']['jax']}, commit {str(s['commit'])[:9]})" for s in summaries})
    options = "the preset `scaled`" if some["options"].get("scale_inputs") else "the default options"
    return f"""\
# Classic control, clean and noisy

Written by `python -m experiments.classic report` from the files beside it; never by hand.

All agents with {options}. Mean and 95% bootstrap interval over {len(some["seeds"])} seeds. *Final*: un-noised return, mean of the last 10
training episodes. *Area*: the mean of that score over the whole run. One environment a run, no frame skipping: agent steps are environment
steps. The last column is MBEC++ less DQN, paired by seed; bold where its 95% interval excludes 0 (not corrected for many comparisons).
CartPole-v1 cut at 200 steps, MountainCar-v0, LunarLander-v3; a time limit counts as an end. Trained on: {"; ".join(machines)}.

{table(found)}
{claims(found)}
![noisy](noisy.png)

![clean](clean.png)
"""


def table(found: Found) -> str:
    """Final score and area under the curve of every agent, and MBEC++ against DQN seed by seed."""
    lines = ["| task | steps | | " + " | ".join(AGENTS) + " | mbec++ − dqn |", "|---|---|---|" + "---|" * (len(AGENTS) + 1)]
    for task, agents in found.items():
        steps = f"{next(iter(agents.values()))[0]['steps']:,}"
        for key, label in (("final", "final"), ("auc", "area")):
            cells = [_cell(agents[a][0][key]) if a in agents else "–" for a in AGENTS]
            first = [task, steps] if key == "final" else ["", ""]
            lines.append("| " + " | ".join([*first, label, *cells, _difference(agents, key)]) + " |")
    return "\n".join(lines) + "\n"


def short_table(found: Found) -> str:
    """Final scores on the noisy tasks, for the README."""
    lines = ["| final score, mean of 10 seeds | " + " | ".join(AGENTS) + " | mbec++ − dqn |", "|---|" + "---|" * (len(AGENTS) + 1)]
    for task, agents in found.items():
        if task not in FAMILIES:
            cells = [f"{agents[a][0]['final']['mean']:.1f}" for a in AGENTS]
            lines.append("| " + " | ".join([f"`{task}`", *cells, _difference(agents, "final")]) + " |")
    return "\n".join(lines) + "\n"


def claims(found: Found) -> str:
    """What the paper says of these tasks, beside what came out."""
    noisy = {task: agents for task, agents in found.items() if task not in FAMILIES and set(AGENTS) <= agents.keys()}
    if len(noisy) < 9:
        return ""

    def tasks(key: str, holds) -> str:
        return ", ".join(task for task, agents in noisy.items() if holds(*_gap(agents, key))) or "none"

    def solved(agent: str) -> str:
        poles = [task for task in noisy if task.startswith("cartpole")]
        return ", ".join(f"{sum(x >= 195 for x in noisy[t][agent][0]['final']['per_seed'])} of 10 on {t}" for t in poles)

    parts = {part: [noisy[t]["mbec++"][0]["metrics"][part] for t in noisy] for part in ("episodic", "semantic", "beta")}
    share = {part: (np.mean([x[:10] for x in values]), np.mean([x[-20:] for x in values])) for part, values in parts.items()}
    below = [t for t in noisy if noisy[t]["mbec"][0]["final"]["mean"] < noisy[t]["dqn"][0]["final"]["mean"]]
    return f"""
## Against the paper's claims

- *MBEC++ leads on all nine noisy tasks.* In area, it leads DQN on {tasks("auc", lambda low, high: low > 0)}; it trails on
  {tasks("auc", lambda low, high: high < 0)}; the rest is undecided at 10 seeds. In final score it leads on
  {tasks("final", lambda low, high: low > 0)}; it trails on {tasks("final", lambda low, high: high < 0)}.
- *MBEC++ alone completely solves noisy Cart Pole within 10,000 steps.* Seeds whose final score is at least 195 of 200: MBEC++
  {solved("mbec++")}; DQN {solved("dqn")}.
- *MBEC alone performs badly.* Its mean final score is below DQN's on {len(below)} of the nine.
- *The episodic contribution starts high and is replaced by the semantic one.* From the first twentieth of training to the last tenth, over
  the nine tasks: episodic {share["episodic"][0]:.2f} to {share["episodic"][1]:.2f}, semantic {share["semantic"][0]:.2f} to
  {share["semantic"][1]:.2f}, mean weight {share["beta"][0]:.2f} to {share["beta"][1]:.2f}.
"""


def _gap(agents: dict, key: str) -> tuple[float, float]:
    """The interval of MBEC++ less DQN."""
    gaps = np.array(agents["mbec++"][0][key]["per_seed"]) - np.array(agents["dqn"][0][key]["per_seed"])
    return interval(gaps, mean)


def _difference(agents: dict, key: str) -> str:
    if not {"dqn", "mbec++"} <= agents.keys():
        return "–"
    low, high = _gap(agents, key)
    sign = "**" if low > 0 or high < 0 else ""
    gap = agents["mbec++"][0][key]["mean"] - agents["dqn"][0][key]["mean"]
    return f"{sign}{gap:+.1f}{sign} [{low:+.1f}, {high:+.1f}]"


def _cell(row: dict) -> str:
    low, high = row["ci95"]
    return f"{row['mean']:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
