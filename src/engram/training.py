"""Training from the first step to the last: curves, checkpoints, interruption, and going on."""

import dataclasses
import operator
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Float, PyTree

from engram import loop, records
from engram.agents import make as make_agent
from engram.agents import name_of, usual
from engram.errors import EngramError, Interrupted
from engram.evaluation import play
from engram.options import Count
from engram.options import check as check_option
from engram.policy import Policy, without_learning
from engram.provenance import describe_machine, memory_size
from engram.records import Curves, RunFolder, size
from engram.report.figures import learning_curves
from engram.report.statistics import summary
from engram.scores import Scores
from engram.tasks import Task, check, find, is_known
from engram.tasks.atari import SKIP
from engram.types import Agent, Part, Spec
from engram.vision import is_image

POINTS = 100
"""at least so many points has a curve"""
LONGEST = 1_000
"""iterations between two points at most"""
PATIENCE = 60.0
"""seconds between two checkpoints, or twenty times as many as it takes to write one"""


class Progress(NamedTuple):
    """How far a training is, for whoever watches."""

    step: int
    steps: int
    steps_per_second: float
    """of all runs together; 0 until the program is compiled"""
    score: float
    """mean over the runs; NaN before the first episode has ended"""
    curve: Float[np.ndarray, "P"]
    """that mean at all points so far"""
    scores: dict[int, float]
    """of each seed"""
    metrics: dict[int, dict[str, float]]
    """of each seed, what the agent reported of itself last"""


@dataclass(frozen=True)
class Result:
    """What a training leaves: its curves and the trained agents."""

    agent: Agent
    task: Task
    seeds: tuple[int, ...]
    steps: int
    curves: Curves
    """for each seed its steps and its scores: the un-noised return, mean of the last 10 episodes"""
    metrics: list[dict[str, float]]
    """rows with a seed, a step and what the agent reports of itself"""
    summary: dict[str, Any]
    policies: dict[int, Policy]
    """for each seed its trained agent"""
    folder: Path | None


class Training:
    """One training of one agent on one task with several seeds; every public way in leads here."""

    def __init__(self, agent: Agent, task: Task, seeds: Sequence[int], steps: int, spec: Spec, folder: RunFolder | None, host: bool):
        self.agent, self.task, self.seeds, self.steps, self.spec, self.folder = agent, task, tuple(seeds), steps, spec, folder
        self.driver = loop.driver(agent, *loop.every_seed([task], self.seeds), spec, host)
        names = sorted(self.driver.template()[0].sums)
        interval = min(max(spec.iterations // POINTS, 1), LONGEST)
        self.scores = Scores(len(self.seeds), spec.iterations, interval, names)
        self.seconds, self.trained = 0.0, 0  # of training once compiled, and iterations done in them
        self.is_compiled = False
        self.saved: float | None = None
        self.patience = PATIENCE

    def check_size(self) -> None:
        """Raises if the runs need more memory than there is."""
        needed = size(self.driver.template())
        there = memory_size()
        if there is not None and needed > there:
            smaller = ", or make images smaller" if is_image(self.spec) and not self.spec.stack else ""
            raise EngramError(
                f"These {len(self.seeds)} runs need {needed / 1e9:,.1f} GB and there are {there / 1e9:,.1f}: "
                f"lower seeds, replay or, where there is one, slots{smaller}."
            )

    def restore(self) -> None:
        assert self.folder is not None
        (tree, scores), meta = self.folder.restore((self.driver.template(), self.scores.tree()))
        self.driver.restore(tree, meta["notes"])
        self.scores.restore(scores)
        self.seconds, self.trained = meta["seconds"], meta["trained"]

    def save(self) -> None:
        """Writes a checkpoint, the curves and the metrics."""
        if self.folder is None:
            return
        began = time.monotonic()
        tree, notes = self.driver.save()
        meta = {
            "step": self.driver.iteration * self.spec.envs,
            "notes": notes,
            "seconds": self.seconds,
            "trained": self.trained,
        }
        self.folder.save((tree, self.scores.tree()), meta)
        steps = self.scores.steps(self.spec.envs)
        self.folder.write_curves(
            (seed, int(step), repr(float(score)))
            for r, seed in enumerate(self.seeds)
            for step, score in zip(steps, self.scores.curve[:, r], strict=False)
        )
        self.folder.write_metrics(self.rows())
        self.saved = time.monotonic()
        self.patience = max(PATIENCE, 20 * (self.saved - began))  # a replay of images takes long to write

    def rows(self) -> list[dict[str, float]]:
        steps = self.scores.steps(self.spec.envs)
        return [
            {"seed": seed, "step": int(step)} | dict(zip(self.scores.names, map(float, self.scores.metrics[p, r]), strict=True))
            for r, seed in enumerate(self.seeds)
            for p, step in enumerate(steps)
        ]

    def run(self, begin: Callable[[], None], watch: Callable[[Progress], None]) -> Result:
        """Begins, and trains to the end. Ctrl-C, a broken environment or a loss that is no number stop it, with what was learnt saved."""
        with self.folder.alone() if self.folder else nullcontext(), _interrupts() as interrupted:
            begin()
            while self.driver.iteration < self.spec.iterations:
                self._advance(interrupted)
                watch(self._progress())
                if interrupted():
                    raise Interrupted(self._saved_at("Interrupted"))
        self.save()
        return self._result()

    def _advance(self, interrupted: Callable[[], bool]) -> None:
        done = self.driver.iteration
        wanted = min(self.scores.interval - done % self.scores.interval, self.spec.iterations - done)
        began = time.monotonic()
        self.scores.add(self.driver.advance(wanted, interrupted))
        if self.is_compiled:  # which it is after the first stretch at the latest
            self.seconds += time.monotonic() - began
            self.trained += self.driver.iteration - done
        self.is_compiled = True
        if self.driver.iteration % self.scores.interval == 0 or self.driver.iteration == self.spec.iterations:
            metrics = self.driver.metrics()
            self._check(metrics)
            self.scores.mark(metrics)
            if self.saved is None or time.monotonic() - self.saved > self.patience:
                self.save()
        if self.driver.fault is not None:
            broken = str(self.driver.fault).rstrip(".")
            raise type(self.driver.fault)(self._saved_at(f"{broken}. Mend it")) from self.driver.fault

    def _saved_at(self, what: str) -> str:
        if self.folder is None:
            return f"{what}."
        sums = jax.device_get(self.driver.save()[0][0].sums)
        self._check(sums)
        self.save()
        step = self.driver.iteration * self.spec.envs
        return f"{what}; all until step {step:,} is saved: go on with `{self.folder.way_on}`."

    def _check(self, metrics: dict[str, Float[np.ndarray, "R"]]) -> None:
        for name, values in metrics.items():
            if not np.all(np.isfinite(values)):
                seed = self.seeds[int(np.argmin(np.isfinite(values)))]
                step = self.driver.iteration * self.spec.envs
                kept = "" if self.folder is None or self.saved is None else f" The checkpoint in {self.folder.path} is from before that."
                raise EngramError(
                    f"{name} of seed {seed} was no finite number within the steps up to {step:,}: "
                    f"lower the learning rates, or scale the inputs or rewards.{kept}"
                )

    def _progress(self) -> Progress:
        now, points = self.scores.now(), int(self.scores.points)
        last = self.scores.metrics[points - 1] if points else []
        return Progress(
            step=self.driver.iteration * self.spec.envs,
            steps=self.steps,
            steps_per_second=self.speed,
            score=float(_mean_known(now)),
            curve=_mean_known(self.scores.curve[:points]),
            scores=dict(zip(self.seeds, map(float, now), strict=True)),
            metrics={s: dict(zip(self.scores.names, map(float, row), strict=True)) for s, row in zip(self.seeds, last, strict=False)},
        )

    @property
    def speed(self) -> float:
        return self.trained * self.spec.envs * len(self.seeds) / self.seconds if self.trained else 0.0

    def policies(self, carry: loop.Carry) -> dict[int, Policy]:
        """For each seed its agent; taken out of the carry only when it first acts, since it may be large."""

        def state_of(r: int) -> Callable[[], PyTree]:
            return lambda: jax.tree.map(lambda x: x[r], without_learning(self.agent, carry.agent))

        return {seed: Policy(self.agent, self.spec, state_of(r)) for r, seed in enumerate(self.seeds)}

    def _result(self) -> Result:
        steps = self.scores.steps(self.spec.envs)
        curves = {seed: (steps, self.scores.curve[: len(steps), r]) for r, seed in enumerate(self.seeds)}
        head = {"agent": name_of(self.agent), "task": self.task.name, "seeds": list(self.seeds), "steps": self.steps}
        head |= {"emulator_frames": self.steps * SKIP} if self.task.arcade else {}
        figures = head | summary(curves) | {"steps_per_second": self.speed}
        policies = self.policies(self.driver.save()[0][0])
        self.driver.close()
        path = None
        if self.folder is not None:
            path = self.folder.path
            self.folder.write_summary(figures)
            subtitle = f"{len(self.seeds)} seeds, {self.task.amount(self.steps)}: mean, its 95% interval, every seed"
            learning_curves({head["agent"]: curves}, path / "curves.png", f"{head['agent']} on {self.task.name}", subtitle)
        return Result(self.agent, self.task, self.seeds, self.steps, curves, self.rows(), figures, policies, path)


@contextmanager
def _memory_that_suffices() -> Iterator[None]:
    """Within it arrays that are too large are told in a sentence: `check_size` knows what agents carry, not what they need to learn."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        told = "The device's memory does not suffice: lower seeds, batch, replay or whatever option is very large."
        raise EngramError(told) from error


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Within it Ctrl-C, or being told to end, only raises a flag: an exception could lose what the device is working on. A second one
    kills."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    flag = threading.Event()

    def restore() -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)

    def raise_flag(*_: Any) -> None:
        flag.set()
        restore()

    before = {kind: signal.signal(kind, raise_flag) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag.is_set
    finally:
        restore()


def train(
    agent: Agent | str,
    task: str | Task | Callable[..., gym.Env],
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    envs: int | None = None,
    out: str | Path | None = None,
    host: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Trains `agent` on `task`, one run a seed, all runs in one program.

    `agent` is an agent with its options, or the name of one. `task` is a registered name, `gym:ID`, or a function that makes an
    environment. `steps` counts the actions of one run, over all its `envs` environments. With `out`, a run folder is written there.
    `host` steps Gymnasium's environment even where the task is also written in JAX.
    """
    for name, value in (("envs", envs), ("steps", steps)):
        check_option(name, value, Count | None)
    task = find(task, steps)
    if task.steps >= 2**31:
        raise EngramError(f"A run can have 2**31 - 1 steps at most, not {task.steps:,}: lower steps.")
    agent = make_agent(agent, usual(agent, task.arcade is not None)) if isinstance(agent, str) else agent
    if isinstance(agent, type) or not hasattr(agent, "init"):
        raise EngramError(f"{agent!r} is no agent: give one with its options, such as engram.DQN().")
    numbers = _numbers(seeds)
    _try_out(task)
    envs = envs or loop.usual_envs(agent, task)
    spec = task.spec(envs, -(-task.steps // envs))
    try:
        training = Training(agent, task, numbers, task.steps, spec, None, host)
    except OverflowError as error:
        raise EngramError(f"An option of the agent is too large a number to count with ({error}): lower it.") from error
    training.check_size()
    with _memory_that_suffices():
        if out is not None:
            training.folder = records.create(out, _config(agent, task, numbers, task.steps, spec, host))
        return training.run(training.driver.start, watch)


def resume(
    path: str | Path,
    task: Task | Callable[..., gym.Env] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Goes on where a training stopped, exactly. A task that was a function must be given again."""
    with _memory_that_suffices():
        training = reopen(path, task)
        assert training.folder is not None
        return training.run(training.restore if training.folder.has_begun else training.driver.start, watch)


def reopen(
    path: str | Path,
    task: Task | Callable[..., gym.Env] | None = None,
    alone: bool = False,
    way: str = "engram.resume({path!r}, task=...)",
) -> Training:
    """The training of a run folder, not yet restored; `alone` if its environments will not be needed. `way` is how to give a function
    again that is needed and not there."""
    folder = RunFolder.load(path)
    config = folder.config
    try:
        agent = make_agent(config["agent"], "paper", **config["options"])
        spec, seeds = _spec(config["spec"]), _numbers(list(config["seeds"]))
        steps, host, name, is_own = (config[entry] for entry in ("steps", "host", "task", "own_task"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngramError(f"{path}/config.json lacks or garbles {error}: restore it from a copy, or train anew.") from error
    if is_own and task is None:
        if not alone:
            raise EngramError(f"{path} trained on {name}, an environment of your own: use `{way.format(path=str(path))}`.")
        return Training(agent, Task(name, "", lambda **_: _unknown(name)), seeds, steps, spec, folder, host)
    found = find(name if task is None else task, steps)
    now = found.spec(spec.envs, spec.iterations)
    for field in ("shape", "actions", "dtype", "parts"):
        if getattr(now, field) != getattr(spec, field):
            raise EngramError(
                f"{path} was trained on an environment whose {field} was {getattr(spec, field)}, but {found.name}'s is "
                f"{getattr(now, field)}: go on with the same one, or train anew."
            )
    return Training(agent, found, seeds, steps, spec, folder, host)


def evaluate(
    path: str | Path, task: Task | Callable[..., gym.Env] | None = None, episodes: int = 100
) -> dict[int, Float[np.ndarray, "episodes"]]:
    """The un-noised returns of each seed's greedy episodes, as `engram eval` plays them. A task that was a function must be given again."""
    check_option("episodes", episodes, Count)
    training = reopen(path, task, way="engram.evaluate({path!r}, task=...)")
    return {seed: play(policy, training.task, episodes, seed) for seed, policy in load_all(path).items()}


def load(path: str | Path, seed: int | None = None) -> Policy:
    """The trained agent of a run folder: of one seed, or of the first."""
    policies = load_all(path)
    if seed is None:
        return next(iter(policies.values()))
    if seed not in policies:
        raise EngramError(f"{path} has no seed {seed}: it was trained with {', '.join(map(str, policies))}.")
    return policies[seed]


def load_all(path: str | Path) -> dict[int, Policy]:
    """The trained agents of a run folder, by seed."""
    training = reopen(path, alone=True)
    assert training.folder is not None
    (tree, _), _ = training.folder.restore((training.driver.template(), training.scores.tree()))
    return training.policies(tree[0])


def trained_steps(path: str | Path) -> int:
    """How far the training of a run folder has come."""
    return RunFolder.load(path).meta()["step"]


def _mean_known(scores: Float[np.ndarray, "*P R"]) -> Float[np.ndarray, "*P"]:
    """Over the runs that have a score; NaN where none has."""
    known = ~np.isnan(scores)
    return np.where(known, scores, 0).sum(axis=-1) / np.where(known.any(axis=-1), known.sum(axis=-1), np.nan)


def _unknown(name: str) -> gym.Env:
    raise EngramError(f"{name} is an environment of your own: give the function that makes it.")


def _spec(saved: dict[str, Any]) -> Spec:
    """A spec as it was before JSON, which knows neither tuples nor infinity."""
    low = tuple(-np.inf if x is None else x for x in saved["low"])
    high = tuple(np.inf if x is None else x for x in saved["high"])
    parts = tuple(Part(*map(tuple, part)) for part in saved.get("parts", ()))
    rest = {name: value for name, value in saved.items() if name not in ("counts", "starts")}
    if counts := tuple(saved.get("counts", ())):  # so were numbered observations saved before there were parts
        parts = (Part((), () if len(counts) == 1 else (len(counts),), counts, tuple(saved["starts"])),)
    return Spec(**rest | {"shape": tuple(saved["shape"]), "low": low, "high": high, "parts": parts})  # pyright: ignore[reportArgumentType]


def _numbers(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int | np.integer):
        check_option("seeds", seeds if isinstance(seeds, bool) else int(seeds), Count)
        return tuple(range(seeds))
    try:
        numbers = tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        numbers = ()
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0 or max(numbers) >= 2**32:
        raise EngramError(f"seeds must be a count, or different whole numbers from 0 to 2**32 - 1, not {seeds!r}.")
    return numbers


def _try_out(task: Task) -> None:
    env = task.make()
    try:
        check(env, task.name)
    finally:
        env.close()


def _config(agent: Agent, task: Task, seeds: Sequence[int], steps: int, spec: Spec, host: bool) -> dict[str, Any]:
    """All that is needed to train the same again, or to go on."""
    return {
        "agent": name_of(agent),
        "options": dataclasses.asdict(agent),  # pyright: ignore[reportArgumentType]
        "task": task.name,
        "own_task": not is_known(task),
        "seeds": list(seeds),
        "steps": steps,
        "host": host,
        "spec": dataclasses.asdict(spec),
    } | describe_machine()
