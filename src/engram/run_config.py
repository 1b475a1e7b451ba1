"""A run's config.json: all that is needed to train the same again, or to go on."""

import dataclasses
import operator
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram.agents import AGENTS, agent_name, make
from engram.config import Count, check
from engram.envs import Task, is_registered
from engram.errors import EngramError
from engram.files import to_json
from engram.imports import check_allowed
from engram.provenance import describe_machine
from engram.run_dir import RunDir
from engram.types import Agent, ObsLeaf, Spec

OLD_CONFIG_KEYS = {"own_task", "host"}
OLD_SPEC_KEYS = {"actions", "envs"}
"""keys that config.json had before options and fields were renamed"""
OLD_COMMIT = "ee690b4"
"""the last commit that can go on with such a run"""


class RunConfig(NamedTuple):
    """A config.json, read and checked."""

    agent: Agent
    task: str
    env_kwargs: dict[str, Any]
    wrappers: tuple[str, ...]
    observe: tuple[str, ...]
    is_custom_task: bool
    """whether a function made the environment, which must be given again"""
    seeds: tuple[int, ...]
    steps: int
    use_gym: bool
    workers: int | None
    spec: Spec


def describe(
    agent: Agent,
    task: Task,
    seeds: Sequence[int],
    spec: Spec,
    use_gym: bool,
    workers: int | None = None,
) -> dict[str, Any]:
    """The contents of config.json."""
    if not dataclasses.is_dataclass(agent):
        raise EngramError(
            f"{type(agent).__name__} cannot be saved, since its options are unknown: make it a "
            "frozen dataclass, or train without a run folder."
        )
    return {
        "agent": agent_name(agent),
        "options": dataclasses.asdict(agent),  # pyright: ignore[reportArgumentType]
        "task": task.name,
        "env_kwargs": dict(task.env_kwargs),
        "wrappers": list(task.wrappers),
        "observe": list(task.observe),
        "custom_task": not is_registered(task),
        "seeds": list(seeds),
        "steps": task.steps,
        "use_gym": use_gym,
        "workers": workers,
        "spec": dataclasses.asdict(spec),
    } | describe_machine()


def read(
    folder: RunDir,
    agent: Agent | None = None,
    has_task: bool = False,
    allow_modules: Collection[str] = (),
) -> RunConfig:
    """The configuration of a run folder; `agent` replaces the one that it names.

    Nothing is imported but `allow_modules`. With `has_task` the task that it names is not needed.
    """
    config = folder.config
    try:
        _refuse_old_layout(folder)
        own = {} if agent is None else {"agent": ""}
        own |= {"task": "", "wrappers": ()} if has_task else {}
        needed = RunDir(folder.path, folder.config | own).modules
        check_allowed(folder.path, needed, allow_modules)
        if agent is None:
            agent = make(config["agent"], "paper", **config["options"])
        else:
            _check_same_agent(folder, agent)
        return RunConfig(
            agent,
            config["task"],
            config.get("env_kwargs", {}),
            tuple(config.get("wrappers", ())),
            tuple(config.get("observe", ())),
            config["custom_task"],
            seed_numbers(list(config["seeds"])),
            config["steps"],
            config["use_gym"],
            config.get("workers"),
            _spec_from_json(config["spec"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngramError(
            f"{folder.path}/config.json lacks or garbles {error}: restore it from a copy, or train "
            "anew."
        ) from error


def seed_numbers(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds that a count, or a list of them, stands for."""
    if isinstance(seeds, int | np.integer):
        check("seeds", seeds if isinstance(seeds, bool) else int(seeds), Count)
        return tuple(range(seeds))
    try:
        numbers = tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        numbers = ()
    is_distinct = len(set(numbers)) == len(numbers)
    if not numbers or not is_distinct or min(numbers) < 0 or max(numbers) >= 2**32:
        raise EngramError(
            f"seeds must be a count, or different whole numbers from 0 to 2**32 - 1, not {seeds!r}."
        )
    return numbers


def check_same_env(path: str | Path, name: str, trained: Spec, spec: Spec) -> None:
    """Raises unless an environment looks like the one that the run was trained on."""
    fields = {
        "shape": "observation shape",
        "num_actions": "number of actions",
        "dtype": "observation dtype",
        "obs_leaves": "observation space",
        "obs_path": "observed part",
        "action_nvec": "action space",
        "action_start": "smallest number of each choice",
        "action_offset": "smallest action",
    }
    for field, words in fields.items():
        before, now = getattr(trained, field), getattr(spec, field)
        if before != now:
            raise EngramError(
                f"{path} was trained on an environment whose {words} was {before}, but {name}'s is "
                f"{now}: go on with the same one, or train anew."
            )


def _check_same_agent(folder: RunDir, agent: Agent) -> None:
    """Raises unless a given agent has the class and the options that the run was trained with."""
    name = agent_name(agent)
    if name != folder.config["agent"]:
        raise EngramError(
            f"{folder.path} was trained with the agent {folder.config['agent']}, not {name}: give "
            "that, or train anew."
        )
    options = to_json(dataclasses.asdict(agent))  # pyright: ignore[reportArgumentType]
    for option, before in folder.config["options"].items():
        if options.get(option) != before:
            raise EngramError(
                f"{folder.path} was trained with {option}={before!r}, not {options.get(option)!r}: "
                "give the agent the same options, or train anew."
            )


def _refuse_old_layout(folder: RunDir) -> None:
    """Raises for a run folder that an Engram with other names of options and fields made."""
    config = folder.config
    unknown_options = set()
    if config["agent"] in AGENTS:
        fields = dataclasses.fields(AGENTS[config["agent"]])  # pyright: ignore[reportArgumentType]
        unknown_options = set(config["options"]) - {field.name for field in fields}
    is_old = OLD_CONFIG_KEYS & set(config) or OLD_SPEC_KEYS & set(config["spec"])
    if is_old or unknown_options:
        raise EngramError(
            f"{folder.path} has the layout of an earlier Engram, which this one cannot read: "
            f"finish it with the version that made it (commit {OLD_COMMIT}), or train anew."
        )


def _spec_from_json(saved: dict[str, Any]) -> Spec:
    """A spec from JSON, where infinity is null and tuples are lists."""
    low = tuple(-np.inf if x is None else x for x in saved["low"])
    high = tuple(np.inf if x is None else x for x in saved["high"])
    leaves = tuple(ObsLeaf(*map(tuple, leaf)) for leaf in saved["obs_leaves"])
    changes = {"shape": tuple(saved["shape"]), "low": low, "high": high, "obs_leaves": leaves}
    for name in ("obs_path", "action_nvec", "action_start", "action_shape"):
        changes[name] = tuple(saved.get(name, ()))
    return Spec(**saved | changes)  # pyright: ignore[reportArgumentType]
