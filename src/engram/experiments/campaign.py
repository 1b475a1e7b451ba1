"""The Atari campaign: a plan of runs, and stretches of GPU time that each add some of them to `results/atari`.

The ledger is what lies there: a file for each run that is done. A stretch takes the next runs of the plan that will be done in its
time, as many in one program as fit; a run that is stopped goes on when the same command is given on the same machine.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from engram import loop
from engram.agents import kind_of, make
from engram.errors import EngramError
from engram.experiments import pace, scoreboard
from engram.experiments.running import deadline, markdown, train
from engram.experiments.validation import Best
from engram.provenance import describe_machine, memory_size
from engram.records import replacing, size, write_json
from engram.scores import Scores
from engram.tasks import find
from engram.tasks.atari import PROTOCOLS, SKIP
from engram.types import Agent, Spec

CURVES = ("alien", "asterix", "breakout", "fishing_derby", "gopher", "hero")
"""the games whose learning curves the paper shows"""
NEXT = ("pong", "riverraid", "seaquest", "ms_pacman", "qbert", "kangaroo", "freeway", "boxing")
BETAS = (0.1, 0.5, 0.9)
"""fixed weights of the paper's ablation on River Raid; it names 0.1, the best there"""
SHORT, LONG = 100_000, 2_500_000
"""agent steps: 400,000 and 10 million emulator frames"""
OTHERWISE = "†"
"""marks rows that were trained otherwise than runs are now"""


def label(agent: str, beta: float | None) -> str:
    """What an agent is called in tables."""
    return agent if beta is None else f"{agent} beta={beta:g}"


@dataclass(frozen=True)
class Job:
    """One run of the plan."""

    agent: str
    game: str
    steps: int
    seed: int
    beta: float | None = None
    """a fixed weight of MBEC++'s memory, where it is not learnt"""

    @property
    def label(self) -> str:
        return label(self.agent, self.beta)

    @property
    def name(self) -> str:
        return f"{self.game}-{self.label.replace(' ', '-')}-{self.steps * SKIP // 1000}k-{self.seed}"

    @property
    def test(self) -> str:
        """How it is judged."""
        played = f"whole games, unclipped, epsilon {PROTOCOLS['classic'].epsilon}, trajectories by what is done"
        return f"{played}, the policy that did best of {pace.VALIDATIONS} validations of {pace.VALIDATION_GAMES} games each"

    def file(self, results: Path) -> Path:
        return results / "atari" / f"{self.name}.json"


PLAN = (
    *(Job(agent, game, SHORT, seed) for agent in ("mbec++", "dqn") for seed in range(5) for game in CURVES),
    *(Job(agent, game, LONG, 0) for games in (CURVES, NEXT) for agent in ("mbec++", "dqn") for game in games),
    *(Job("mbec++", "riverraid", LONG, 0, beta) for beta in BETAS),
)


def agent_of(job: Job) -> Agent:
    """The preset `atari`; in short runs learning begins, and exploration ends, earlier."""
    wanted = {"learn_start": min(50_000, job.steps // 20), "epsilon_decay": min(1e5, job.steps / 10)}
    has = {field.name for field in fields(kind_of(job.agent))}
    own = {} if job.beta is None else {"fixed_beta": job.beta}
    return make(job.agent, "atari", **{name: value for name, value in wanted.items() if name in has}, **own)


def of_row(row: dict[str, Any]) -> Job:
    """The run that a row of the ledger is of."""
    return Job(**{field.name: row[field.name] for field in fields(Job) if field.name in row})


class Batch(NamedTuple):
    """Runs that are trained in one program."""

    jobs: list[Job]
    seconds: float
    """that they will take, about"""


def missing(results: Path, plan: Sequence[Job] = PLAN) -> list[Job]:
    return [job for job in plan if not is_done(job, results)]


def is_done(job: Job, results: Path) -> bool:
    """Whether there is a row of the run, trained and judged as runs are now."""
    if not job.file(results).exists():
        return False
    row = read(job.file(results))
    return row["test"] == job.test and not other_options(row)


def other_options(row: dict[str, Any]) -> list[str]:
    """What was otherwise when a row was trained than it would be now. Options that came later had their defaults before."""
    agent = agent_of(of_row(row))
    had = options(type(agent)()) | row["options"]
    return [f"{name} {had[name]}, now {value}" for name, value in options(agent).items() if had[name] != value]


def options(agent: Agent) -> dict[str, Any]:
    return asdict(agent)  # pyright: ignore[reportArgumentType]


def rows(results: Path) -> list[dict[str, Any]]:
    return [read(file) for file in sorted((results / "atari").glob("*.json"))]


def latest(known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is shown: of each agent on each game the runs that were trained as they are now; where there are none, the older ones."""
    kinds: dict[tuple, list[dict[str, Any]]] = {}
    for row in known:
        kinds.setdefault(kind(row), []).append(row)
    return [row for own in kinds.values() for row in [row for row in own if not other_options(row)] or own]


def kind(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["game"], label(row["agent"], row.get("beta")), row["steps"]


def read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise EngramError(f"{file} cannot be read ({error}): remove it, and the campaign trains that run again.") from error


def next_batch(results: Path, seconds: float, most: int, plan: Sequence[Job] = PLAN, final: bool = False) -> Batch | None:
    """The first runs of the plan that will be done in time, with others of their kind, as many as fit; None where there are none. Of a
    `final` stretch as many as fit beside those of them that may have to go on without the others."""
    open_jobs, known = missing(results, plan), rows_of_device(results)
    for first in open_jobs:
        alike = [job for job in open_jobs if (job.label, job.steps) == (first.label, first.steps)]
        fit = (room(first) + 1) // 2 if final else room(first)
        for count in range(min(most, fit, len(alike)), 0, -1):
            if pace.needed(first.agent, first.steps, count, known) <= seconds:
                return Batch(alike[:count], pace.needed(first.agent, first.steps, count, known))
    return None


def rows_of_device(results: Path) -> list[dict[str, Any]]:
    """What was measured on devices like the one here."""
    device = describe_machine()["device"]
    return [row for row in rows(results) if row["device"] == device]


def begun(scratch: Path, results: Path) -> Batch | None:
    """Runs that were stopped: they go on first, together as they were."""
    file = scratch / "begun.json"
    if not file.exists():
        return None
    jobs = [Job(**job) for job in json.loads(file.read_text())]
    return Batch(jobs, 0.0) if any(not is_done(job, results) for job in jobs) else None


def room(job: Job) -> int:
    """How many such runs fit into the device's memory; a fifth is left for what comes and goes."""
    there = memory_size()
    if there is None:
        return 1
    agent = agent_of(job)
    state = jax.eval_shape(lambda: agent.init(jax.random.key(0), joint(agent, [job])))
    return max(1, int(0.8 * there / size(state)))


def joint(agent: Agent, jobs: Sequence[Job]) -> Spec:
    """What runs of an agent have in common."""
    tasks = [find(f"atari:{job.game}") for job in jobs]
    envs = loop.usual_envs(agent, tasks[0])
    return loop.joint_spec(tasks, envs, -(-jobs[0].steps // envs))


def stretch(
    results: Path,
    scratch: Path,
    minutes: float,
    most: int,
    say: Callable[[str], Any],
    plan: Sequence[Job] = PLAN,
    only: Sequence[str] = (),
    final: bool = False,
) -> None:
    """Adds to the ledger for so many minutes; only runs whose names have one of `only` in them, but for those that were stopped. Where
    nothing is left of the machine after a `final` stretch, it gives up runs that would keep others from being done in time."""
    until, whole, plan = deadline(minutes), plan, named(only, plan)
    while (batch := begun(scratch, results) or next_batch(results, until - time.monotonic(), most, plan, final)) is not None:
        how = f"about {_minutes(batch.seconds, batch.jobs[0].agent, rows_of_device(results))}" if batch.seconds else "begun before"
        say(f"{len(batch.jobs)} run{'s' * (len(batch.jobs) != 1)}, {how}: {', '.join(job.name for job in batch.jobs)}")
        if not final:
            with replacing(scratch / "begun.json") as file:
                file.write(json.dumps([asdict(job) for job in batch.jobs]).encode())
        try:
            run(batch.jobs, results, scratch, until, final)
            (scratch / "begun.json").unlink(missing_ok=True)
        finally:
            write_page(results, whole)
    left, known = missing(results, plan), rows_of_device(results)
    of = f"with {' or '.join(only)} in their names" if only else "of the plan"
    if left:
        seconds, shortest = min(((pace.needed(job.agent, job.steps, 1, known), job) for job in left), key=lambda pair: pair[0])
        time_needed = _minutes(seconds, shortest.agent, known)
        say(f"Left {of}: {len(left)}, for which the time does not suffice; the shortest would take {time_needed}.")
    else:
        say(f"All runs {of} are done.")


def named(only: Sequence[str], plan: Sequence[Job] = PLAN) -> list[Job]:
    """The runs of the plan that have one of `only` in their names; all where nothing is named."""
    if unknown := [text for text in only if not any(text in job.name for job in plan)]:
        raise EngramError(f"No run of the plan has {unknown[0]!r} in its name: they are called like {plan[0].name}.")
    return [job for job in plan if not only or any(text in job.name for text in only)]


def _minutes(seconds: float, agent: str, known: Sequence[dict[str, Any]]) -> str:
    """That runs of an agent take; and whose minutes these are, where `known` has none that was trained here."""
    minutes = math.ceil(seconds / 60)
    is_measured = any(row["agent"] == agent for row in known)
    where = "" if is_measured else " on an H200 (what it takes here is not known before one is done)"
    return f"{minutes} minute{'s' * (minutes != 1)}{where}"


def run(jobs: Sequence[Job], results: Path, scratch: Path, until: float, final: bool = False) -> None:
    """Trains runs of one kind in one program, judges them, and writes their rows."""
    agent, seeds = agent_of(jobs[0]), [job.seed for job in jobs]
    spec = joint(agent, jobs)
    tasks = [find(f"atari:{job.game}", job.steps) for job in jobs]
    a_game = pace.judging(jobs[0].agent, jobs[0].steps, rows_of_device(results))
    best = Best(agent, spec, tasks, seeds, pace.VALIDATIONS, pace.Deadline(until, spec.iterations, a_game) if final else None)
    label = f"atari {jobs[0].agent} {jobs[0].steps * SKIP:,} frames"

    def finish(scores: Scores, seconds: float) -> None:
        compiling, judged, began = float(best.compiling[0]), float(best.judging[0]), time.monotonic()
        training = seconds - judged
        tested = best.judge.scores(best.states, best.seeds, pace.TEST_GAMES)
        best.judge.close()
        spent = {
            "runs_in_one_program": len(best.seeds),
            "runs_given_up": len(jobs) - len(best.seeds),
            "steps_per_second": jobs[0].steps * len(best.seeds) / max(training - compiling, training / 4),
            "seconds_with_compilation": training,
            "judging_seconds": judged + time.monotonic() - began,
        }
        for r, job in enumerate(jobs[: len(best.seeds)]):
            write_json(job.file(results), row(job, agent, tested[r], curve(scores, r, spec.envs), best.past[1:, r]) | spent)

    train(label, agent, tasks, seeds, scratch, until, spec=spec, beside=best, then=finish, final=final)


def curve(scores: Scores, run: int, envs: int) -> dict[str, list[float]]:
    """A run's score at each point, the value that its agent expected, the return that followed and, of MBEC++, its memory's weight."""
    told = {name: scores.metrics[:, run, scores.names.index(name)] for name in ("value", "earned", "beta") if name in scores.names}
    return {"steps": scores.steps(envs).tolist()} | {
        name: [float(f"{x:.6g}") for x in points] for name, points in ({"score": scores.curve[:, run]} | told).items()
    }


def row(job: Job, agent: Agent, tested: np.ndarray, curve: dict[str, list[float]], past: np.ndarray) -> dict[str, Any]:
    """What is published of a run."""
    protocol = PROTOCOLS["classic"]
    return {
        **asdict(job),
        "emulator_frames": job.steps * SKIP,
        "protocol": asdict(protocol),
        "test_score": float(tested.mean()),
        "test_games": tested.tolist(),
        "test": job.test,
        "training_score": curve["score"][-1],
        "validation": past.tolist(),
        "curve": curve,
        "options": options(agent),
    } | describe_machine()


def judged(known: Sequence[dict[str, Any]]) -> str:
    """By what games scores came about."""
    kinds = Counter(row["test"] for row in known)
    return "; ".join(f"{kind} ({count} runs)" for kind, count in sorted(kinds.items())) or "no run is done yet"


def outdated(known: Sequence[dict[str, Any]]) -> str:
    """Says of which rows the ledger will have others."""
    others = Counter("; ".join(found) for row in known if (found := other_options(row)))
    told = "".join(f"\n- {count} run{'s' * (count != 1)}: {found}" for found, count in sorted(others.items()))
    said = f"{OTHERWISE} Trained with other options than runs are now, here and in all tables and pictures below; to be trained again"
    return f"\n{said}:\n{told}\n" if others else ""


def expectations(told: Sequence[dict[str, list[float]]]) -> str:
    """What runs expected and what they earned in the last tenth of training, by their curves; means."""
    ends = [
        [np.mean(curve[name][-max(1, len(curve[name]) // 10) :]) for name in ("value", "earned")] for curve in told if "earned" in curve
    ]
    return ", ".join(f"{mean:.1f}" for mean in np.mean(ends, axis=0)) if ends else "–"


def page(results: Path, plan: Sequence[Job] = PLAN) -> str:
    """The ledger: what is done, and how long the rest would take."""
    known = rows(results)
    shown = latest(known)
    kinds = list(dict.fromkeys((job.game, job.label, job.steps) for job in plan))
    lines = []
    for game, agent, steps in kinds:
        done = [row for row in shown if kind(row) == (game, agent, steps)]
        wanted = [job for job in plan if (job.game, job.label, job.steps) == (game, agent, steps)]
        cells = ["–", "–", "–", "–"]
        if done:
            tests = np.array([r["test_score"] for r in done])
            ended = [r["training_score"] for r in done if r["training_score"] is not None]  # where a game has ended at all
            trained = f"{np.mean(ended):,.1f}" if ended else "–"
            normalised = f"{scoreboard.human_normalised(float(tests.mean()), game):,.1f}"
            cells = [f"{tests.mean():,.1f}", trained, normalised, expectations([r["curve"] for r in done])]
        minutes = sum(pace.needed(job.agent, job.steps, 1, known) for job in wanted if not is_done(job, results)) / 60
        seeds = f"{len(done)} of {len(wanted)}" + f" {OTHERWISE}" * any(map(other_options, done))
        lines.append([game, agent, f"{steps * SKIP:,}", seeds, *cells, f"{minutes:.0f}" if minutes else ""])
    head = [
        "game",
        "agent",
        "emulator frames",
        "seeds",
        "test score",
        "training score",
        "human-normalised, %",
        "expected, earned",
        "minutes missing, one by one",
    ]
    return f"""\
# Atari

Written by `engram campaign atari`; never by hand. Agent steps are a quarter of the emulator frames. Classic protocol:
{PROTOCOLS["classic"].about}. *Test score*: mean of {pace.TEST_GAMES} games and of the seeds; {judged(shown)}.
*Training score*: mean of the last 10 games of training. *Human-normalised*: by the constants of DQN Zoo (`src/engram/data`).
*Expected, earned*: the value of the best action as the agent sees it, and the discounted return of clipped rewards that followed, in the
last tenth of training.
{outdated(shown)}
{markdown(head, lines)}{scoreboard.sections(shown)}"""


def write_page(results: Path, plan: Sequence[Job] = PLAN) -> None:
    """With its pictures."""
    scoreboard.draw(latest(rows(results)), results / "atari")
    with replacing(results / "atari" / "README.md") as file:
        file.write(page(results, plan).encode())
