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
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from engram import loop
from engram.agents import make
from engram.errors import EngramError
from engram.experiments import scoreboard
from engram.experiments.running import deadline, markdown, train
from engram.loop import games
from engram.policy import without_learning
from engram.provenance import describe_machine, memory_size
from engram.records import replacing, size, write_json
from engram.scores import Scores
from engram.tasks import Task, find
from engram.tasks.atari import PROTOCOLS, SKIP
from engram.types import Agent, Spec

CURVES = ("alien", "asterix", "breakout", "fishing_derby", "gopher", "hero")
"""the games whose learning curves the paper shows"""
NEXT = ("pong", "riverraid", "seaquest", "ms_pacman", "qbert", "kangaroo", "freeway", "boxing")
BETAS = (0.1, 0.5, 0.9)
"""fixed weights of the paper's ablation on River Raid; it names 0.1, the best there"""
SHORT, LONG = 100_000, 2_500_000
"""agent steps: 400,000 and 10 million emulator frames"""
VALIDATIONS, FEW_VALIDATIONS, VALIDATION_GAMES, TEST_GAMES = 10, 5, 10, 100
"""short runs have the few validations"""
SPEED_ALONE, SPEED_OF_MANY = 4_000.0, 13_500.0
"""agent steps a second of one run, and what those of ever more in one program come near, on an H200, where nothing was measured yet"""
OTHERWISE = "†"
"""marks rows that were trained otherwise than runs are now"""
COMPILATION, LOADING, JUDGING = 30.0, 4.0, 0.15
"""seconds before the first step, for each run's consoles, and, where nothing was measured yet, for a game of its validations and tests"""


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
    def validations(self) -> int:
        return VALIDATIONS if self.steps > SHORT else FEW_VALIDATIONS

    @property
    def judged_games(self) -> int:
        """Of its validations and its test."""
        return self.validations * VALIDATION_GAMES + TEST_GAMES

    @property
    def test(self) -> str:
        """How it is judged."""
        played = f"whole games, unclipped, epsilon {PROTOCOLS['classic'].epsilon}, trajectories by what is done"
        return f"{played}, the policy that did best of {self.validations} validations of {VALIDATION_GAMES} games each"

    def file(self, results: Path) -> Path:
        return results / "atari" / f"{self.name}.json"


PLAN = (
    *(Job(agent, game, SHORT, seed) for agent in ("mbec++", "dqn") for seed in range(5) for game in CURVES),
    *(Job(agent, game, LONG, 0) for games in (CURVES, NEXT) for agent in ("mbec++", "dqn") for game in games),
    *(Job("mbec++", "riverraid", LONG, 0, beta) for beta in BETAS),
)


def agent_of(job: Job) -> Agent:
    """The preset `atari`; in short runs learning begins, and exploration ends, earlier."""
    own = {} if job.beta is None else {"fixed_beta": job.beta}
    return make(job.agent, "atari", learn_start=min(50_000, job.steps // 20), epsilon_decay=min(1e5, job.steps / 10), **own)


def of_row(row: dict[str, Any]) -> Job:
    """The run that a row of the ledger is of."""
    return Job(**{field.name: row[field.name] for field in fields(Job) if field.name in row})


class Best:
    """Of each run the policy that did best in validation; a few whole games, several times in a training."""

    def __init__(self, agent: Agent, spec: Spec, tasks: Sequence[Task], seeds: Sequence[int], validations: int):
        self.agent, self.spec, self.tasks, self.seeds, self.count = agent, spec, tasks, seeds, validations
        self.every = max(1, spec.iterations // validations)
        self.scores = np.full(len(seeds), -np.inf)
        self.states: PyTree = ()
        self.past = np.zeros((0, len(seeds)))
        self.compiling, self.judging = np.zeros(1), np.zeros(1)  # seconds; arrays, since they are saved with the rest
        self.began = time.monotonic()

    def prepare(self, driver: Any) -> None:
        self.states = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), without_learning(self.agent, driver.template()[0].agent))
        self.past = np.full((self.count + 1, len(self.seeds)), np.nan)

    @cached_property
    def judge(self) -> games.Judge:
        return games.Judge(self.agent, self.spec, self.tasks, games.TOGETHER)

    def mark(self, driver: Any) -> None:
        if self.began:  # up to the first point of the curve it compiles
            self.compiling += time.monotonic() - self.began
            self.began = 0.0
        now = min(driver.iteration // self.every, self.count)
        if now <= 0 or not np.isnan(self.past[now, 0]):
            return
        began = time.monotonic()
        states = without_learning(self.agent, driver.carry.agent)
        found = self.judge.scores(states, [seed + 10_000 for seed in self.seeds], VALIDATION_GAMES)
        self.past[now] = found.mean(axis=1)
        better = found.mean(axis=1) > self.scores
        self.scores = np.where(better, found.mean(axis=1), self.scores)
        self.states = jax.tree.map(lambda new, old: np.where(_as_wide_as(old, better), np.asarray(new), old), states, self.states)
        self.judging += time.monotonic() - began
        told = ", ".join(f"{task.name.partition(':')[2]} {score:,.1f}" for task, score in zip(self.tasks, self.past[now], strict=True))
        print(f"validation {now} of {self.count}: {told}", flush=True)

    def tree(self) -> PyTree:
        return self.states, self.scores, self.past, self.compiling, self.judging

    def restore(self, tree: PyTree) -> None:
        self.states, self.scores, self.past, self.compiling, self.judging = tree


def _as_wide_as(array: np.ndarray, which: np.ndarray) -> np.ndarray:
    """A choice of runs, to be broadcast over an array that has them in front."""
    return which.reshape(-1, *[1] * (array.ndim - 1))


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


def speed(agent: str, runs: int, known: Sequence[dict[str, Any]]) -> float:
    """Agent steps a second of so many runs in one program: the slowest measured; else what is expected, as much slower or faster as
    other numbers of runs were."""
    own = [row for row in known if row["agent"] == agent]
    alike = [row for row in own if row["runs_in_one_program"] == runs]
    return expected(runs) * min((row["steps_per_second"] / expected(row["runs_in_one_program"]) for row in alike or own), default=1.0)


def expected(runs: int) -> float:
    """Their speed where nothing was measured: each run after the first takes the same time more. On an H200 eight runs of MBEC++ had
    10,700 and thirty 12,400, where this says 10,400 and 12,500."""
    return runs / (1 / SPEED_ALONE + (runs - 1) / SPEED_OF_MANY)


def needed(job: Job, runs: int, known: Sequence[dict[str, Any]]) -> float:
    """Seconds for so many runs like this one in a program: compiling, training and judging them."""
    own = [row for row in known if row["agent"] == job.agent]
    alike = [row for row in own if row["test"] == job.test]
    a_game = max((row["judging_seconds"] / row["runs_in_one_program"] / of_row(row).judged_games for row in alike or own), default=JUDGING)
    return COMPILATION + (LOADING + job.steps / speed(job.agent, runs, known) + a_game * job.judged_games) * runs


def next_batch(results: Path, seconds: float, most: int, plan: Sequence[Job] = PLAN) -> Batch | None:
    """The first runs of the plan that will be done in time, with others of their kind, as many as fit; None where there are none."""
    device, open_jobs = describe_machine()["device"], missing(results, plan)
    known = [row for row in rows(results) if row["device"] == device]
    for first in open_jobs:
        alike = [job for job in open_jobs if (job.label, job.steps) == (first.label, first.steps)][: min(most, room(first))]
        for count in range(len(alike), 0, -1):
            if needed(first, count, known) <= seconds:
                return Batch(alike[:count], needed(first, count, known))
    return None


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
) -> None:
    """Adds to the ledger for so many minutes; only runs whose names have one of `only` in them, but for those that were stopped."""
    until, whole = deadline(minutes), plan
    if unknown := [text for text in only if not any(text in job.name for job in whole)]:
        raise EngramError(f"No run of the plan has {unknown[0]!r} in its name: they are called like {whole[0].name}.")
    plan = [job for job in whole if not only or any(text in job.name for text in only)]
    while (batch := begun(scratch, results) or next_batch(results, until - time.monotonic(), most, plan)) is not None:
        how = f"about {batch.seconds / 60:.0f} minutes" if batch.seconds else "begun before"
        say(f"{len(batch.jobs)} run{'s' * (len(batch.jobs) != 1)}, {how}: {', '.join(job.name for job in batch.jobs)}")
        with replacing(scratch / "begun.json") as file:
            file.write(json.dumps([asdict(job) for job in batch.jobs]).encode())
        run(batch.jobs, results, scratch, until)
        (scratch / "begun.json").unlink()
        write_page(results, whole)
    left, known = missing(results, plan), rows(results)
    of = f"with {' or '.join(only)} in their names" if only else "of the plan"
    if left:
        shortest = math.ceil(min(needed(job, 1, known) for job in left) / 60)
        time_needed = f"{shortest} minute{'s' * (shortest != 1)}"
        say(f"Left {of}: {len(left)}, for which the time does not suffice; the shortest would take {time_needed}.")
    else:
        say(f"All runs {of} are done.")


def run(jobs: Sequence[Job], results: Path, scratch: Path, until: float) -> None:
    """Trains runs of one kind in one program, judges them, and writes their rows."""
    agent, seeds = agent_of(jobs[0]), [job.seed for job in jobs]
    spec = joint(agent, jobs)
    tasks = [find(f"atari:{job.game}", job.steps) for job in jobs]
    best = Best(agent, spec, tasks, seeds, jobs[0].validations)
    label = f"atari {jobs[0].agent} {jobs[0].steps * SKIP:,} frames"

    def finish(scores: Scores, seconds: float) -> None:
        compiling, judging, began = float(best.compiling[0]), float(best.judging[0]), time.monotonic()
        training = seconds - judging
        tested = best.judge.scores(best.states, seeds, TEST_GAMES)
        best.judge.close()
        spent = {
            "runs_in_one_program": len(jobs),
            "steps_per_second": jobs[0].steps * len(jobs) / max(training - compiling, training / 4),
            "seconds_with_compilation": training,
            "judging_seconds": judging + time.monotonic() - began,
        }
        for r, job in enumerate(jobs):
            write_json(job.file(results), row(job, agent, tested[r], curve(scores, r, spec.envs), best.past[1:, r]) | spent)

    train(label, agent, tasks, seeds, scratch, until, spec=spec, beside=best, then=finish)


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
        minutes = sum(needed(job, 1, known) for job in wanted if not is_done(job, results)) / 60
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
{PROTOCOLS["classic"].about}. *Test score*: mean of {TEST_GAMES} games and of the seeds; {judged(shown)}.
*Training score*: mean of the last 10 games of training. *Human-normalised*: by the constants of DQN Zoo (`src/engram/data`).
*Expected, earned*: the value of the best action as the agent sees it, and the discounted return of clipped rewards that followed, in the
last tenth of training; older rows have neither.
{outdated(shown)}
{markdown(head, lines)}{scoreboard.sections(shown)}"""


def write_page(results: Path, plan: Sequence[Job] = PLAN) -> None:
    """With its pictures."""
    scoreboard.draw(latest(rows(results)), results / "atari")
    with replacing(results / "atari" / "README.md") as file:
        file.write(page(results, plan).encode())
