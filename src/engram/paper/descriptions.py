"""Presets and machines in words, for tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from engram.agents import PRESETS, agent_name, make
from engram.paper.runs import Run, agent_options
from engram.types import Agent


def describe_preset(agent: Agent) -> str:
    """The preset with the fewest differing options, and those options."""
    name, options = agent_name(agent), agent_options(agent)
    if not options:
        return "no options"
    differences: dict[str, dict[str, Any]] = {}
    for preset in ("paper", *(preset for preset in PRESETS if name in PRESETS[preset].options)):
        defaults = agent_options(make(name, preset))
        differing = {option: x for option, x in options.items() if defaults[option] != x}
        differences[preset] = differing
    nearest = min(differences, key=lambda preset: len(differences[preset]))
    changes = [f"{option}={value}" for option, value in differences[nearest].items()]
    return f"preset `{nearest}`" + (f" with {', '.join(changes)}" if changes else "")


def preset_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Table rows of label, agent and preset."""
    agents = {run.label: run.agent for run in runs}
    return [[label, agent_name(agent), describe_preset(agent)] for label, agent in agents.items()]


def describe_layers(summaries: Iterable[dict[str, Any]]) -> str:
    """The number of hidden layers of each Q-network."""
    agents: dict[int, set[str]] = {}
    for summary in summaries:
        if "num_layers" in summary["options"]:
            agents.setdefault(summary["options"]["num_layers"], set()).add(summary["agent"])
    words = {1: "one hidden layer", 2: "two hidden layers", 3: "three hidden layers"}
    parts = [
        f"{words.get(layers, f'{layers} hidden layers')} ({', '.join(sorted(names))})"
        for layers, names in sorted(agents.items())
    ]
    return "; ".join(parts) or "none"


def describe_environments(summaries: Iterable[dict[str, Any]]) -> str:
    """The number of environments of each agent's runs."""
    agents: dict[int, set[str]] = {}
    for summary in summaries:
        agents.setdefault(summary["environments"], set()).add(summary["agent"])
    if len(agents) == 1:
        return str(next(iter(agents)))
    return "; ".join(f"{n} ({', '.join(sorted(names))})" for n, names in sorted(agents.items()))


def describe_machines(protocols: Iterable[dict[str, Any]]) -> str:
    """The devices, JAX versions and commits of several results."""
    commits: dict[str, set[str]] = {}
    for protocol in protocols:
        machine = f"{protocol['device']}, JAX {protocol['versions']['jax']}"
        commits.setdefault(machine, set()).add(_short_commit(str(protocol["commit"])))
    parts = []
    for machine in sorted(commits):
        names = sorted(commits[machine])
        parts.append(f"{machine}, commit{'s' * (len(names) > 1)} {', '.join(names)}")
    return "; ".join(parts)


def _short_commit(commit: str) -> str:
    """The first nine digits, with the mark of a changed source tree."""
    digits, dash, mark = commit.partition("-")
    return digits[:9] + dash + mark
