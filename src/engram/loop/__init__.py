"""Drives environments and agents; knows nothing of files. Two drivers with one face: `Scan` for tasks written in JAX, `Host` for any
Gymnasium environment."""

from collections.abc import Sequence

from engram.loop.host import EnvironmentFault, Host
from engram.loop.program import Carry, Driver, Options, Program, may_differ
from engram.loop.scan import Scan
from engram.tasks import Task
from engram.types import Agent, Spec


def driver(agent: Agent, tasks: Sequence[Task], seeds: Sequence[int], spec: Spec, host: bool = False, options: Options = None) -> Driver:
    """The fastest driver for one run a seed, each on its task; all tasks must share one spec. Runs that differ in numbers among the
    agent's options, such as learning rates, share the program too: `options` has one number a run for each of these."""
    dynamics = tasks[0].dynamics
    if host or dynamics is None or any(task.dynamics != dynamics for task in tasks):
        return Host(agent, tasks, seeds, spec, options)
    return Scan(agent, tasks, seeds, spec, options)


def every_seed(tasks: Sequence[Task], seeds: Sequence[int]) -> tuple[list[Task], list[int]]:
    """Every seed on every task: the tasks and the seeds of all runs."""
    return [task for task in tasks for _ in seeds], [seed for _ in tasks for seed in seeds]


__all__ = ["Carry", "Driver", "EnvironmentFault", "Host", "Options", "Program", "Scan", "driver", "every_seed", "may_differ"]
