"""Drives environments and agents; knows nothing of files. Three drivers with one face: `Scan` for tasks written in JAX, `Consoles` for
Atari, `Host` for any Gymnasium environment."""

from collections.abc import Sequence
from dataclasses import replace

from engram.errors import EngramError
from engram.loop.consoles import Consoles
from engram.loop.host import EnvironmentFault, Host
from engram.loop.program import Carry, Driver, Options, Program, may_differ
from engram.loop.scan import Scan
from engram.tasks import Task
from engram.types import Agent, Spec


def driver(agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec, host: bool = False, options: Options = None) -> Driver:
    """The fastest driver for one run a seed, each on its task; all tasks must share one spec, but that Atari's games may have fewer
    actions. Runs that differ in numbers among the agent's options, such as learning rates, share the program too: `options` has one number
    a run for each of these."""
    if tasks[0].arcade is not None:
        actions = [task.arcade.actions() for task in tasks if task.arcade is not None]
        if max(actions) > spec.actions:
            raise EngramError(f"A game has {max(actions)} actions but the spec {spec.actions}: take that of `loop.joint_spec(tasks, ...)`.")
        unlike = set(actions) != {spec.actions}
        if unlike and not getattr(agent, "mixes_games", True):
            raise EngramError(f"{type(agent).__name__} cannot learn games with unlike numbers of actions in one program: train them apart.")
        return Consoles(agent, tasks, seeds, spec, options, actions if unlike else None)
    dynamics = tasks[0].dynamics
    if host or dynamics is None or any(task.dynamics != dynamics for task in tasks):
        return Host(agent, tasks, seeds, spec, options)
    return Scan(agent, tasks, seeds, spec, options)


def joint_spec(tasks: Sequence[Task], envs: int, iterations: int) -> Spec:
    """What Atari's games have in common; actions that a game lacks are masked."""
    specs = [task.spec(envs, iterations) for task in {task.name: task for task in tasks}.values()]  # each makes a console
    return replace(specs[0], actions=max(spec.actions for spec in specs))


def usual_envs(agent: Agent, task: Task) -> int:
    """Environments of a run where nothing else is said. Of Atari so many an update, so that an agent that learns several times in an
    iteration still learns as often a step."""
    return task.envs * getattr(agent, "updates", 1) if task.arcade else task.envs


def every_seed(tasks: Sequence[Task], seeds: Sequence[int]) -> tuple[list[Task], list[int]]:
    """Every seed on every task: the tasks and the seeds of all runs."""
    return [task for task in tasks for _ in seeds], [seed for _ in tasks for seed in seeds]


__all__ = [
    "Carry",
    "Consoles",
    "Driver",
    "EnvironmentFault",
    "Host",
    "Options",
    "Program",
    "Scan",
    "driver",
    "every_seed",
    "joint_spec",
    "may_differ",
    "usual_envs",
]
