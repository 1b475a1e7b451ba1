"""The report: every experiment with its picture, its protocol and its verdicts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engram.errors import EngramError
from engram.experiments.catalogue import EXPERIMENTS
from engram.experiments.experiment import Experiment
from engram.experiments.running import machines
from engram.experiments.verdicts import MISSING, RULE, Test, holm
from engram.records import replacing
from engram.report.page import Block, Heading, Picture, Table, Text, to_html, to_markdown

TITLE = "The paper, tested"
VERSIONS = {"cartpole": "CartPole-v1 cut at 200 steps", "mountaincar": "MountainCar-v0", "lunarlander": "LunarLander-v3"}


def state(experiment: Experiment, results: Path) -> str:
    """In a few words."""
    if experiment.later:
        return f"not yet: {experiment.later}"
    missing = len(experiment.missing(results))
    if missing:
        return f"{len(experiment.lines) - missing} of {len(experiment.lines)} lines"
    if not experiment.is_done(results):
        return "not run yet"
    return experiment.found(results).numbers.get("state", "done")


def overview(results: Path, quick: bool = False) -> list[list[str]]:
    """A row for each claim: experiment, state, claim, verdict. What is wrong with one experiment's files does not hide the others."""
    rows = []
    for experiment in EXPERIMENTS.values():
        experiment = experiment.quick() if quick else experiment
        try:
            now, verdicts = state(experiment, results), [verdict for verdict, _ in experiment.verdicts(results).values()]
        except EngramError as error:
            now, verdicts = str(error), [MISSING] * len(experiment.claims)
        for i, (claim, verdict) in enumerate(zip(experiment.claims, verdicts, strict=True)):
            rows.append([experiment.name if i == 0 else "", now if i == 0 else "", claim.says, verdict])
    return rows


def write(results: Path) -> Path:
    """Draws what is there and writes the page, as Markdown and as HTML; gives the latter's place."""
    out = results / "report"
    for experiment in EXPERIMENTS.values():
        experiment.illustrate(results)
    blocks = page(results)
    for file, text in ((out / "README.md", to_markdown(blocks, out)), (out / "report.html", to_html(blocks, TITLE))):
        with replacing(file) as target:
            target.write(text.encode())
    return out / "report.html"


def page(results: Path) -> list[Block]:
    blocks: list[Block] = [
        Heading(TITLE, 1),
        Text(
            "Every figure, table and analysis of *Model-Based Episodic Memory Induces Dynamic Hybrid Controls* (Le et al., NeurIPS 2021), "
            "with what came out here. Written by `engram report` from the files in `results`; never by hand."
        ),
        Text(f"How a verdict comes about. {RULE}"),
        Table(["experiment", "state", "the paper says", "verdict"], [[a, b, c, f"**{d}**"] for a, b, c, d in overview(results)]),
    ]
    for experiment in EXPERIMENTS.values():
        if not experiment.later:
            blocks += section(experiment, results)
    return blocks


def section(experiment: Experiment, results: Path) -> list[Block]:
    """A picture, the claims with their comparisons, and how it came about."""
    blocks: list[Block] = [Heading(experiment.name), Text(f"{experiment.paper}. State: {state(experiment, results)}.")]
    if not experiment.is_done(results):
        return [*blocks, Text(f"`{experiment.by or f'engram reproduce {experiment.name}'}` runs what is missing.")]
    if experiment.picture(results).exists():
        blocks.append(Picture(experiment.picture(results), experiment.paper))
    for claim, (verdict, tests) in experiment.verdicts(results).items():
        blocks += [Heading(f"{claim.says} — {verdict}", 3), Text(f"Compared: {claim.how}."), *([evidence(tests)] if tests else [])]
    return [*blocks, Heading("Protocol", 3), Table(["", ""], protocol(experiment, results))]


def evidence(tests: Iterable[Test]) -> Table:
    tests = list(tests)
    ups, downs = holm([t.for_it for t in tests]), holm([t.against for t in tests])
    rows = [
        [t.what, f"{t.middle:.4g}", f"{t.low:.4g} to {t.high:.4g}", f"{up:.3g}", f"{down:.3g}"]
        for t, up, down in zip(tests, ups, downs, strict=True)
    ]
    head = ["comparison (positive as claimed)", "mean", "95% interval", "p, as claimed", "p, the other way"]
    return Table(head, rows, folded=f"{len(rows)} comparison{'s' * (len(rows) != 1)}")


def protocol(experiment: Experiment, results: Path) -> list[list[str]]:
    """The card that every published figure has."""
    found = experiment.found(results)
    if experiment.card:
        return experiment.card(found)
    rows = [["command", f"`engram reproduce {experiment.name}`"]]
    if not found.lines:
        numbers: dict[str, Any] = found.numbers
        seeds = f"{len(numbers['seeds'])}" if "seeds" in numbers else "none needed"
        return [*rows, ["seeds", seeds], ["computed on", f"{machines([numbers])}; {numbers['seconds']:.0f} s"]]
    summaries = [result.summary for result in found.lines.values()]
    steps = {s["task"]: f"{s['steps']:,}" for s in summaries}
    programs = {(s["agent"], s["seconds_with_compilation"]) for s in summaries}
    return [
        *rows,
        [
            "tasks",
            "CartPole-v1 cut at 200 steps, MountainCar-v0, LunarLander-v3; a time limit counts as an end",
        ],
        ["agent steps", "; ".join(f"{task} {count}" for task, count in steps.items())],
        ["environment frames", "as many as agent steps: no frame is skipped"],
        ["seeds", ", ".join(sorted({str(len(s["seeds"])) for s in summaries})) + " of each line, paired by number"],
        ["score", summaries[0]["score"] + "; area: its mean over the run"],
        ["trained on", machines(summaries)],
        ["time", f"{sum(seconds for _, seconds in programs):,.0f} s in {len(programs)} programs, compilation included"],
    ]
