"""Runners step environments and train agents on them; they read and write no files.

`JaxRunner` is for environments written in JAX, `AtariRunner` for Atari games, and `GymRunner` for
any Gymnasium environment. All train many runs in one program.
"""

from collections.abc import Sequence
from dataclasses import replace

from engram.envs import Task
from engram.errors import EngramError
from engram.runners.atari import AtariRunner
from engram.runners.base import Runner, RunState
from engram.runners.gym_env import EnvironmentFault, GymRunner
from engram.runners.jax_env import JaxRunner
from engram.runners.parallel import PerRunOptions, VmappedAgent, is_vmappable
from engram.runners.workers import WorkerRunner
from engram.types import Agent, Spec


def make_runner(
    agent: Agent,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    spec: Spec,
    use_gym: bool = False,
    options: PerRunOptions = None,
    workers: int | None = None,
) -> Runner:
    """The fastest runner that trains run r on `tasks[r]` with `seeds[r]`.

    All tasks share the spec, except that Atari games may have fewer actions. Runs may also differ
    in real-valued options of the agent: `options` has one number per run for each of these.
    `workers` is the number of processes in which Gymnasium's environments step, 0 for none; if None
    the task decides. It changes no result.
    """
    task = tasks[0]
    is_gym = use_gym or task.jax_env is None or any(x.jax_env != task.jax_env for x in tasks)
    if workers is not None and (task.atari is not None or not is_gym):
        where = "threads" if task.atari is not None else "the compiled program"
        remedy = "leave workers out" + (", or add use_gym" if task.atari is None else "")
        raise EngramError(f"Environments of {task.name} step in {where}: {remedy}.")
    if task.atari is not None:
        return _make_atari_runner(agent, tasks, seeds, spec, options)
    if not is_gym:
        return JaxRunner(agent, tasks, seeds, spec, options)
    in_workers = task.in_workers and len(seeds) * spec.num_envs > 1
    if workers == 0 or (workers is None and not in_workers):
        return GymRunner(agent, tasks, seeds, spec, options)
    runner = WorkerRunner(agent, tasks, seeds, spec, options)
    runner.num_workers = workers
    return runner


def _make_atari_runner(
    agent: Agent,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    spec: Spec,
    options: PerRunOptions,
) -> AtariRunner:
    num_actions = [task.atari.num_actions() for task in tasks if task.atari is not None]
    if max(num_actions) > spec.num_actions:
        raise EngramError(
            f"A game has {max(num_actions)} actions but the spec only {spec.num_actions}: "
            "use the spec of `runners.joint_spec(tasks, ...)`."
        )
    if set(num_actions) == {spec.num_actions}:
        return AtariRunner(agent, tasks, seeds, spec, options)
    if not agent.supports_action_mask:
        raise EngramError(
            f"{type(agent).__name__} cannot train on games with different numbers of actions in "
            "one program: train them separately."
        )
    return AtariRunner(agent, tasks, seeds, spec, options, num_actions)


def joint_spec(tasks: Sequence[Task], num_envs: int, num_iterations: int) -> Spec:
    """The spec of several Atari games; actions that a game lacks are masked."""
    by_name = {task.name: task for task in tasks}  # once each, since a spec starts an emulator
    specs = [task.spec(num_envs, num_iterations) for task in by_name.values()]
    return replace(specs[0], num_actions=max(spec.num_actions for spec in specs))


def default_num_envs(agent: Agent, task: Task) -> int:
    """The number of environments per run.

    Where a task has several, it grows with the gradient steps per learning iteration, so that
    their number per environment step stays the same.
    """
    return task.num_envs if task.num_envs == 1 else task.num_envs * agent.gradient_steps


def cross_seeds(tasks: Sequence[Task], seeds: Sequence[int]) -> tuple[list[Task], list[int]]:
    """Every seed on every task: the tasks and the seeds of all runs."""
    return [task for task in tasks for _ in seeds], [seed for _ in tasks for seed in seeds]


__all__ = [
    "AtariRunner",
    "EnvironmentFault",
    "GymRunner",
    "JaxRunner",
    "PerRunOptions",
    "RunState",
    "Runner",
    "VmappedAgent",
    "WorkerRunner",
    "cross_seeds",
    "default_num_envs",
    "is_vmappable",
    "joint_spec",
    "make_runner",
]
