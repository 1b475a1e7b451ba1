"""The report: every experiment with its figure, its verdicts and its protocol."""

from collections.abc import Sequence
from pathlib import Path

from engram.errors import EngramError
from engram.files import atomic_write
from engram.page import Block, Heading, Image, Table, Text, to_html, to_markdown
from engram.paper import atari_page, maze_page, noisy_control_page, pickup_page
from engram.paper.descriptions import (
    describe_environments,
    describe_layers,
    describe_machines,
    preset_rows,
)
from engram.paper.experiment import ClaimVerdict, Experiment
from engram.paper.experiments import EXPERIMENTS
from engram.paper.verdicts import MISSING, RULE, Comparison, holm, verdict

TITLE = "The paper, tested"
INTRODUCTION = (
    "Every figure, table and analysis of *Model-Based Episodic Memory Induces Dynamic Hybrid "
    "Controls* (Le et al., NeurIPS 2021), with our results. Written by `engram report` from the "
    "files in `results`; never by hand."
)
RETURN = "un-noised, mean of the last 10 training episodes; area: under this curve, per step"


def write(results: Path) -> Path:
    """Draws all figures, writes all pages, and returns the path of the report as HTML."""
    for experiment in EXPERIMENTS.values():
        experiment.draw_figure(results)
    noisy_control_page.write_all(results)
    if (results / "maze").is_dir():
        maze_page.write(results)
    if (results / "pickup").is_dir():
        pickup_page.write(results)
    if (results / "atari").is_dir():
        atari_page.write(results)
    folder = results / "report"
    blocks = page(results)
    texts = {"README.md": to_markdown(blocks, folder), "report.html": to_html(blocks, TITLE)}
    for name, text in texts.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())
    return folder / "report.html"


def page(results: Path) -> list[Block]:
    rows = [[name, state, text, f"**{result}**"] for name, state, text, result in overview(results)]
    blocks: list[Block] = [
        Heading(TITLE, 1),
        Text(INTRODUCTION),
        Text(f"How verdicts are computed. {RULE}"),
        Table(["experiment", "state", "claim", "verdict"], rows),
    ]
    for experiment in EXPERIMENTS.values():
        blocks += section(experiment, results)
    return blocks


def overview(results: Path, quick: bool = False) -> list[list[str]]:
    """One row per claim: experiment, state, claim, verdict.

    An experiment whose files cannot be read shows the error as its state."""
    rows = []
    for experiment in EXPERIMENTS.values():
        experiment = experiment.quick() if quick else experiment
        try:
            current = state(experiment, results)
            verdicts = [describe_verdict(v) for v in experiment.verdicts(results).values()]
        except EngramError as error:
            current, verdicts = str(error), [MISSING] * len(experiment.claims)
        texts = [claim.text for claim in experiment.claims] or ["–"]
        for i, (text, result) in enumerate(zip(texts, verdicts or ["–"], strict=True)):
            first = [experiment.name, current] if i == 0 else ["", ""]
            rows.append([*first, text, result])
    return rows


def describe_verdict(result: ClaimVerdict) -> str:
    """The verdict, with that of the same claim about DQN if there is one."""
    if not result.baseline:
        return result.verdict
    return f"{result.verdict} (of dqn: {verdict(result.baseline)})"


def state(experiment: Experiment, results: Path) -> str:
    missing = len(experiment.missing(results))
    if missing:
        return f"{len(experiment.runs) - missing} of {len(experiment.runs)} runs"
    if not experiment.is_done(results):
        return MISSING
    return experiment.load(results).numbers.get("state", "done")


def section(experiment: Experiment, results: Path) -> list[Block]:
    """The figure, the claims with their comparisons, and the protocol."""
    blocks: list[Block] = [
        Heading(experiment.name),
        Text(f"{experiment.paper}. State: {state(experiment, results)}."),
    ]
    if experiment.runs:
        blocks.append(Table(["label", "agent", "preset"], preset_rows(experiment.runs)))
    else:
        blocks.append(Text(f"Agents: {experiment.presets}."))
    if not experiment.is_done(results):
        command = experiment.command or f"engram reproduce {experiment.name}"
        return [*blocks, Text(f"`{command}` runs what is missing.")]
    if experiment.figure(results).exists():
        blocks.append(Image(experiment.figure(results), experiment.paper))
    for claim, result in experiment.verdicts(results).items():
        blocks += [Heading(f"{claim.text} — {result.verdict}", 3)]
        blocks += [Text(f"Compared: {claim.compared}.")]
        if result.comparisons:
            blocks.append(comparison_table(result.comparisons))
        if result.baseline:
            blocks += [
                Text(f"The same comparison of our DQN: *{verdict(result.baseline)}*."),
                comparison_table(result.baseline),
            ]
    return [*blocks, Heading("Protocol", 3), Table(["", ""], protocol(experiment, results))]


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    corrected = holm([comparison.p_against for comparison in comparisons])
    rows = [
        [c.what, f"{c.mean:.4g}", f"{c.low:.4g} to {c.high:.4g}", f"{c.p_for:.3g}", f"{p:.3g}"]
        for c, p in zip(comparisons, corrected, strict=True)
    ]
    head = ["comparison (positive as claimed)", "mean", "95% interval"]
    head += ["p, as claimed", "p, the other way (Holm)"]
    summary = f"{len(rows)} comparison{'s' * (len(rows) != 1)}"
    return Table(head, rows, summary)


def protocol(experiment: Experiment, results: Path) -> list[list[str]]:
    """How the results of an experiment were obtained."""
    loaded = experiment.load(results)
    if experiment.protocol:
        return experiment.protocol(loaded)
    rows = [["command", f"`engram reproduce {experiment.name}`"]]
    if not loaded.runs:
        numbers = loaded.numbers
        seeds = str(len(numbers["seeds"])) if "seeds" in numbers else "none needed"
        machine = f"{describe_machines([numbers])}; {numbers['seconds']:.0f} s"
        return [*rows, ["seeds", seeds], ["computed on", machine]]
    summaries = [result.summary for result in loaded.runs.values()]
    steps = {summary["task"]: f"{summary['steps']:,}" for summary in summaries}
    seeds = sorted({str(len(summary["seeds"])) for summary in summaries})
    programs = {(s["agent"], s["seconds_with_compilation"]) for s in summaries}
    seconds = sum(seconds for _, seconds in programs)
    return [
        *rows,
        ["tasks", experiment.tasks],
        ["agent steps", "; ".join(f"{task} {count}" for task, count in steps.items())],
        ["environment frames", "as many as agent steps: no frame is skipped"],
        ["environments per run", describe_environments(summaries)],
        ["Q-networks", describe_layers(summaries)],
        ["seeds", f"{', '.join(seeds)} per run, paired by number"],
        ["return", RETURN],
        ["trained on", describe_machines(summaries)],
        ["time", f"{seconds:,.0f} s in {len(programs)} programs, compilation included"],
    ]
