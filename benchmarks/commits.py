"""Part `commits`: the speed of an old checkout of Engram next to this one, in one run."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.contenders import interleave
from benchmarks.options import Options
from benchmarks.processes import ONE_THREAD, start_worker, worker_core
from benchmarks.report import ROOT, commit_of
from benchmarks.tables import Table, number

PROTOCOL = (
    "Cart Pole in JAX, one run, preset `paper`, `engram.train` as users call it. Both commits have "
    "their own process, pinned to the same core, with one thread. Each trains once. Compilation "
    "and the first turn are not timed. Then they are measured in turn, between log points. Speeds "
    "are medians over the turns."
)
STEPS_PER_TURN = {"dqn": 10_000, "mbec++": 3_000, "ppo": 50_000}
NAMES = {"dqn": "DQN", "mbec++": "MBEC++", "ppo": "PPO"}
SIDES = ("old", "new")


def measure(options: Options) -> dict:
    assert options.old is not None
    turns = 3 if options.quick else 15
    checkouts = {"old": options.old.resolve(), "new": ROOT}
    core = worker_core()
    measured = []
    for agent, steps in STEPS_PER_TURN.items():
        if not options.only or agent in options.only:
            steps_per_turn = max(1_000, steps // 10) if options.quick else steps
            try:
                measured += measure_agent(agent, steps_per_turn, turns, checkouts, core, options)
            except (OSError, RuntimeError) as error:
                measured.append({"agent": agent, "failed": str(error)})
    commits = {side: commit_of(checkout) for side, checkout in checkouts.items()}
    settings = {"rounds": turns, "core": core, "environment": ONE_THREAD, "commits": commits}
    return {"protocol": PROTOCOL, "settings": settings, "measured": measured}


def measure_agent(
    agent: str,
    steps_per_turn: int,
    turns: int,
    checkouts: Mapping[str, Path],
    core: int,
    options: Options,
) -> list[dict]:
    """One training of each commit, timed in turn; raises RuntimeError if one of them fails."""
    sizes = [str(steps_per_turn), str(turns), str(core)]
    with ExitStack() as stack:
        workers = {}
        for side, checkout in checkouts.items():
            options.log(f"warming up {agent}, {side}")
            command = [sys.executable, "-m", "benchmarks.commit_worker", agent, *sizes]
            environment = {"PYTHONPATH": str(checkout / "src")}
            worker = stack.enter_context(start_worker(command, environment))
            package = Path(worker.description["package"])
            if not package.is_relative_to(checkout):
                raise RuntimeError(f"{checkout} has no src/engram: {package} was imported instead.")
            workers[side] = worker
        times = interleave(workers, turns, options.log)
    return [
        {"agent": agent, "side": side}
        | {key: [turn[key] for turn in times[side]] for key in ("steps", "wall", "cpu")}
        for side in SIDES
    ]


def tables(result: dict) -> list[Table]:
    columns = [
        *("", "old, steps/s", "new, steps/s", "new / old"),
        *(f"{side}, slowest to fastest turn" for side in SIDES),
    ]
    by_agent: dict[str, list[dict]] = {}
    for m in result["measured"]:
        by_agent.setdefault(m["agent"], []).append(m)
    rows = [[NAMES[agent], *_cells(measured)] for agent, measured in by_agent.items()]
    commits = result["settings"]["commits"]
    note = ", ".join(f"{side}: commit {commits[side]}" for side in SIDES)
    title = "Commits: training on Cart Pole, one core"
    return [Table(title, columns, rows, result["protocol"], note)]


def _cells(measured: list[dict]) -> list[str]:
    """Speeds of the old and the new side of one agent, or why there are none."""
    if "failed" in measured[0]:
        return ["not measured: " + measured[0]["failed"], "", "", "", ""]
    speeds = [
        [steps / wall for steps, wall in zip(m["steps"], m["wall"], strict=True)] for m in measured
    ]
    old, new = map(median, speeds)
    spreads = (f"{number(min(side))} to {number(max(side))}" for side in speeds)
    return [number(old), number(new), f"{new / old:.3f}", *spreads]
