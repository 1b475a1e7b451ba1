"""Searches the options of an agent: each trial trains all its seeds in one program."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium as gym

from engram import config
from engram.agents import agent_name, default_preset
from engram.agents import make as make_agent
from engram.envs import Task, get_task, is_registered
from engram.errors import EngramError, Interrupted
from engram.files import to_json, write_json
from engram.run_config import seed_numbers
from engram.search_space import read_space
from engram.stats import area, iqm
from engram.study import REPORTS, Study
from engram.training import train
from engram.training_loop import Hook, Progress, Training
from engram.types import Agent

FIRST_SEED = 100
"""tuning begins with this seed, so that seeds of reported runs play no part in it"""
MAX_FIRST_FAILURES = 3
"""so many failures before any success end a tuning"""
BEST_FILE = "best.json"
STATES = {"RUNNING": "running", "COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}

Objective = Literal["auc", "final"]


class Trial(NamedTuple):
    """A training with options that were searched."""

    number: int
    state: str
    """running, complete, pruned or failed"""
    value: float | None
    """of a complete one: interquartile mean over seeds of the area or of the final return"""
    options: dict[str, Any]
    """those that are searched"""
    error: str | None
    """why it failed"""


@dataclass(frozen=True)
class TuneResult:
    """The trials of a study, and the agent with the best options."""

    agent: Agent
    best: Trial
    trials: list[Trial]
    importance: dict[str, float]
    """each option's share in what makes a trial good; empty while too few trials are complete"""
    folder: Path
    config: Path
    """a file of the best options, for `engram train --config`"""


class Report(Hook):
    """Tells the study how good a trial is so far, and stops the trial if others were better."""

    def __init__(self, study: Study, trial: Any, objective: Objective):
        self.study, self.trial, self.objective = study, trial, objective
        self.num_reports = 0

    def on_log(self, run: Training, progress: Progress) -> None:
        number = min(REPORTS * progress.step // progress.steps, REPORTS)
        if number == self.num_reports:
            return
        self.num_reports = number
        steps = run.stats.steps(run.spec.num_envs)
        returns = run.stats.returns[: len(steps)].T
        values = [area(steps, x) if self.objective == "auc" else float(x[-1]) for x in returns]
        value = float(iqm(values))
        if math.isfinite(value) and self.study.report(self.trial, value, number):
            run.stop("it is worse than others were")


def tune(
    agent: Agent | str,
    task: str | Task | Callable[..., gym.Env],
    out: str | Path,
    space: str | Sequence[str] = (),
    trials: int = 50,
    objective: Objective = "auc",
    seeds: int | Sequence[int] = 5,
    steps: int | None = None,
    num_envs: int | None = None,
    use_gym: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | type] = (),
    observe: Sequence[str] = (),
    workers: int | None = None,
    fixed: Collection[str] = (),
    on_trial: Callable[[Trial], Any] = lambda trial: None,
) -> TuneResult:
    """Searches the options of `agent` that are best on `task`, and keeps the study in `out`.

    `space` has words such as `learning_rate=1e-5..1e-2:log`, `n_step=1,3,5`, or `n_step` alone for
    its default range. Without words the options that usually matter are searched around the agent's
    own, but for those in `fixed`. The first trial has the agent's own options. A number of `seeds`
    counts from 100. The study goes on until it has so many `trials`, of all processes that work on
    it. `on_trial` is called when a trial begins and when it has ended.
    """
    config.check("trials", trials, config.Count)
    config.check("objective", objective, Objective)
    task = get_task(task, steps, env_kwargs, wrappers, observe)
    if isinstance(agent, str):
        agent = make_agent(agent, default_preset(agent, task.preset))
    numbers = tuning_seeds(seeds)
    searched = read_space(agent, space, fixed)
    task.inspect(num_envs or 1)
    content = _describe(agent, task, num_envs, use_gym)
    own = {name: content["options"][name] for name in searched}
    words = " ".join(f"{name}={searched[name]}" for name in sorted(searched))
    settings = {"space": words, "objective": objective, "seeds": numbers}
    settings |= content | content["options"]
    settings = {name: x for name, x in settings.items() if name not in {"options", *searched}}
    study = Study(Path(out), to_json(settings), searched, own)
    try:
        arguments = {"seeds": numbers, "num_envs": num_envs, "use_gym": use_gym, "workers": workers}
        failures, has_success = 0, False
        while (claimed := study.claim(trials)) is not None:
            on_trial(_read(claimed, "running"))
            _train(study, claimed, objective, agent, task, arguments)
            trial = _write_best(study, claimed.number, content)
            on_trial(trial)
            failures += trial.state == "failed"
            has_success |= trial.state != "failed"
            if failures == MAX_FIRST_FAILURES and not has_success:
                raise EngramError(f"The first {failures} trials failed. {trial.error}")
        return _result(study, agent)
    finally:
        study.close()


def tuning_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds of a trial: those given, or so many from the first."""
    first = FIRST_SEED if isinstance(seeds, int) else 0
    return tuple(first + number for number in seed_numbers(seeds))


def _train(
    study: Study,
    trial: Any,
    objective: Objective,
    agent: Agent,
    task: Task,
    arguments: Mapping[str, Any],
) -> None:
    """Trains with the options of a trial and ends it; one that equals another is not repeated."""
    with study.exclusive():
        known = [other for other in _complete(study) if other.params == trial.params]
    if known:
        return study.complete(trial, known[0].value)
    try:
        hooks = [Report(study, trial, objective)]
        result = train(config.replace(agent, **trial.params), task, hooks=hooks, **arguments)
    except Interrupted as error:
        study.abandon(trial)
        raise Interrupted(
            f"Interrupted; the trials before are saved in {study.folder}: go on by repeating what "
            "began it."
        ) from error
    except EngramError as error:
        return study.fail(trial, str(error))
    value = result.summary[objective]["iqm"]
    if result.stopped is not None:
        study.prune(trial)
    elif math.isfinite(value):
        study.complete(trial, value)
    else:
        study.fail(trial, "In some seed no episode has ended, so there is no return: raise steps.")


def _complete(study: Study) -> list[Any]:
    """The trials that have a value, the best first."""
    complete = [trial for trial in study.trials() if trial.state.name == "COMPLETE"]
    return sorted(complete, key=lambda trial: -trial.value)


def _write_best(study: Study, number: int, content: Mapping[str, Any]) -> Trial:
    """Writes the file of the best options so far, and gives the trial of this number."""
    with study.exclusive():  # two processes would write to one file
        if best := _complete(study)[:1]:
            options = content["options"] | best[0].params
            write_json(study.folder / BEST_FILE, {**content, "options": options})
        return next(_read(x, STATES[x.state.name]) for x in study.trials() if x.number == number)


def _read(trial: Any, state: str) -> Trial:
    """A trial of Optuna in Engram's words."""
    value = trial.value if state == "complete" else None
    return Trial(trial.number, state, value, trial.params, trial.user_attrs.get("error"))


def _result(study: Study, agent: Agent) -> TuneResult:
    with study.exclusive():
        best = _complete(study)[:1]
        trials = [_read(trial, STATES[trial.state.name]) for trial in study.trials()]
    if not best:
        errors = [trial.error for trial in trials if trial.error]
        reason = f"the last failed so: {errors[-1]}" if errors else "raise the number of trials."
        raise EngramError(f"No trial in {study.folder} is complete; {reason}")
    return TuneResult(
        config.replace(agent, **best[0].params),
        _read(best[0], "complete"),
        trials,
        study.importance(),
        study.folder,
        study.folder / BEST_FILE,
    )


def _describe(agent: Agent, task: Task, num_envs: int | None, use_gym: bool) -> dict[str, Any]:
    """What a file for `engram train --config` says, but for seeds: reported ones are others."""
    if not dataclasses.is_dataclass(agent):
        raise EngramError(
            f"{agent!r} is not an agent with options: give one that derives from engram.Agent and "
            "is a frozen dataclass."
        )
    optional = {
        "custom_task": not is_registered(task),
        "env_kwargs": dict(task.env_kwargs),
        "wrappers": list(task.wrappers),
        "observe": list(task.observe),
        "num_envs": num_envs,
        "use_gym": use_gym,
    }
    return {
        "agent": agent_name(agent),
        "task": task.name,
        "steps": task.steps,
        **{name: value for name, value in optional.items() if value},
        "options": dataclasses.asdict(agent),  # pyright: ignore[reportArgumentType]
    }
