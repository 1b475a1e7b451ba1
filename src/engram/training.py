"""Train, resume, evaluate and load agents: the functions of the public API."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from jaxtyping import Float, PyTree

from engram import checkpoint, compilation_cache, policy_dir, run_config, run_dir, runners
from engram.agents import agent_name, default_preset
from engram.agents import make as make_agent
from engram.config import Count, Seconds, WholeNumber
from engram.config import check as check_option
from engram.encoders import is_image
from engram.envs import Task, get_task
from engram.envs.atari import FRAME_SKIP
from engram.errors import EngramError
from engram.evaluation import evaluate_policy
from engram.figures import learning_curves
from engram.policy import Policy
from engram.provenance import memory_size
from engram.run_dir import Curves, RunDir
from engram.stats import MIN_SEEDS, summary
from engram.training_loop import CHECKPOINT_SECONDS, Hook, Progress, Training
from engram.types import Agent

__all__ = ["Hook", "Progress", "Result", "Training", "evaluate", "load", "resume", "train"]


@dataclass(frozen=True)
class Result:
    """Learning curves and trained agents of a training."""

    agent: Agent
    task: Task
    seeds: tuple[int, ...]
    steps: int
    curves: Curves
    """for each seed its steps and the mean un-noised return of the last 10 episodes there"""
    metrics: list[dict[str, float]]
    """rows with a seed, a step and the agent's metrics"""
    summary: dict[str, Any]
    policies: dict[int, Policy]
    """for each seed its trained agent"""
    folder: Path | None
    stopped: str | None = None
    """why a hook stopped the training, if one did"""

    def __repr__(self) -> str:
        final = self.summary["final"]["mean"]
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        where = f", {self.folder}" if self.folder else ""
        return (
            f"Result({agent_name(self.agent)} on {self.task.name}, {seeds}, "
            f"mean final return {final:.1f}{where})"
        )


def train(
    agent: Agent | str,
    task: str | Task | Callable[..., gym.Env],
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    num_envs: int | None = None,
    out: str | Path | None = None,
    use_gym: bool = False,
    hooks: Sequence[Hook] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | type] = (),
    observe: Sequence[str] = (),
    workers: int | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
) -> Result:
    """Trains `agent` on `task`, one run for each seed, all runs in one program.

    `agent` is an agent with its options, or a name. `task` is a registered name, `gym:ID`, or a
    function that makes an environment. `steps` counts the environment steps of one run, over all
    its `num_envs` environments. With `out`, a run folder is written there. `use_gym` steps
    Gymnasium's environment even where the task is also written in JAX. `env_kwargs` are arguments
    of the environment of a maze, of a room or of `gym:ID`. Of `gym:ID` alone `wrappers` are classes
    around the environment, and `observe` the parts of dictionaries that are observed. `workers` is
    the number of processes in which Gymnasium's environments step, 0 for none: it changes no
    result. If None the task decides. `checkpoint_every` is the number of seconds between two
    checkpoints at least; they also take at most a twentieth of the time.
    """
    compilation_cache.enable()
    for name, value in (("num_envs", num_envs), ("steps", steps)):
        check_option(name, value, Count | None)
    check_option("workers", workers, WholeNumber | None)
    check_option("checkpoint_every", checkpoint_every, Seconds)
    task = get_task(task, steps, env_kwargs, wrappers, observe)
    if task.steps >= 2**31:
        raise EngramError(
            f"A run can have 2**31 - 1 steps at most, not {task.steps:,}: lower steps."
        )
    if isinstance(agent, str):
        agent = make_agent(agent, default_preset(agent, task.preset))
    if not isinstance(agent, Agent):
        raise EngramError(
            f"{agent!r} is not an agent: give one with its options, such as engram.DQN(), or "
            "derive your own from engram.Agent."
        )
    numbers = run_config.seed_numbers(seeds)
    num_envs = num_envs or runners.default_num_envs(agent, task)
    spec = task.inspect(num_envs, -(-task.steps // num_envs), warn=True)
    tasks = [task] * len(numbers)
    try:
        run = Training(
            agent,
            tasks,
            numbers,
            spec,
            use_gym=use_gym,
            hooks=hooks,
            workers=workers,
            checkpoint_every=checkpoint_every,
        )
    except OverflowError as error:
        raise EngramError(
            f"An option of the agent is too large a number to count with ({error}): lower it."
        ) from error
    _check_memory(run)
    if out is not None:
        config = run_config.describe(agent, task, numbers, spec, use_gym, workers)
        run.folder = run_dir.create(out, config)
    return _train_to_result(run)


def resume(
    path: str | Path,
    task: Task | Callable[..., gym.Env] | None = None,
    hooks: Sequence[Hook] = (),
    agent: Agent | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
    allow_modules: Sequence[str] = (),
) -> Result:
    """Continues a training where it stopped, exactly.

    A task that was a function must be given again. So must an agent whose class cannot be imported.
    Modules of agents and environments that the folder names are imported only if `allow_modules`
    names them too.
    """
    compilation_cache.enable()
    check_option("checkpoint_every", checkpoint_every, Seconds)
    run = load_training(path, task, agent, hooks, allow_modules=allow_modules)
    run.checkpoint_every = checkpoint_every
    return _train_to_result(run)


def evaluate(
    path: str | Path,
    task: Task | Callable[..., gym.Env] | None = None,
    episodes: int = 100,
    agent: Agent | None = None,
    allow_modules: Sequence[str] = (),
) -> dict[int, Float[np.ndarray, "episodes"]]:
    """The un-noised returns of greedy episodes, for each seed.

    A task that was a function must be given again. So must an agent whose class cannot be imported.
    Modules that the folder names are imported only if `allow_modules` names them too.
    """
    compilation_cache.enable()
    check_option("episodes", episodes, Count)
    call = "engram.evaluate({path!r}, task=...)"
    run = load_training(path, task, agent, call=call, allow_modules=allow_modules)
    policies = load_policies(run)
    return {s: evaluate_policy(policy, run.task, episodes, s) for s, policy in policies.items()}


def load(
    path: str | Path,
    seed: int | None = None,
    agent: Agent | None = None,
    allow_modules: Sequence[str] = (),
) -> Policy:
    """The trained agent of a run folder: of one seed, or of the first.

    An agent whose class cannot be imported must be given again. Modules that the folder names are
    imported only if `allow_modules` names them too.
    """
    compilation_cache.enable()
    run = load_training(path, agent=agent, needs_env=False, allow_modules=allow_modules)
    policies = load_policies(run)
    if seed is None:
        return next(iter(policies.values()))
    if seed not in policies:
        trained = ", ".join(map(str, policies))
        raise EngramError(f"{path} has no seed {seed}: it was trained with {trained}.")
    return policies[seed]


def load_policies(run: Training) -> dict[int, Policy]:
    """The trained agents of a training's run folder, by seed."""
    assert run.folder is not None
    if run.folder.is_policy:
        template = jax.eval_shape(run.agent.policy_state, run.runner.template()[0].agent)
        return _make_policies(run, partial(policy_dir.restore, run.folder, template))
    # Only this part of a checkpoint is alike for all runners: the task may be unknown here.
    run_state_alone = ((run.runner.template()[0],),)
    (((run_state,),), _) = run.folder.restore(run_state_alone, partial=True)
    return _policies(run, run_state)


def load_training(
    path: str | Path,
    task: Task | Callable[..., gym.Env] | None = None,
    agent: Agent | None = None,
    hooks: Sequence[Hook] = (),
    needs_env: bool = True,
    call: str = "engram.resume({path!r}, task=...)",
    allow_modules: Sequence[str] = (),
) -> Training:
    """The training of a run folder, before its checkpoint is read.

    `call` is shown where a function that makes the environment is needed and missing.
    """
    folder = RunDir.load(path)
    config = run_config.read(folder, agent, task is not None, allow_modules)
    if config.is_custom_task and task is None:
        if needs_env:
            raise EngramError(
                f"{path} trained on {config.task}, an environment of your own: use "
                f"`{call.format(path=str(path))}`."
            )
        known_task = Task(config.task, "", partial(_missing_env, config.task), config.steps)
    else:
        known_task = (
            get_task(config.task, config.steps, config.env_kwargs, config.wrappers, config.observe)
            if task is None
            else get_task(task, config.steps)
        )
        spec = known_task.inspect(config.spec.num_envs, config.spec.num_iterations)
        run_config.check_same_env(path, known_task.name, config.spec, spec)
    tasks = [known_task] * len(config.seeds)
    return Training(
        config.agent,
        tasks,
        config.seeds,
        config.spec,
        folder,
        config.use_gym,
        hooks=hooks,
        workers=config.workers,
    )


def trained_steps(path: str | Path) -> int:
    """Environment steps that the runs of a folder have done."""
    return RunDir.load(path).meta()["step"]


def _train_to_result(run: Training) -> Result:
    """Trains, writes summary and picture, and collects the result."""
    with _explain_out_of_memory():
        run.run()
    steps = run.stats.steps(run.spec.num_envs)
    curves = {s: (steps, run.stats.returns[: len(steps), r]) for r, s in enumerate(run.seeds)}
    name = agent_name(run.agent)
    figures: dict[str, Any] = {"agent": name, "task": run.task.name, "seeds": list(run.seeds)}
    figures["steps"] = run.steps
    if run.task.atari:
        figures["emulator_frames"] = run.steps * FRAME_SKIP
    if run.stopped is not None:
        figures |= {"stopped": run.stopped, "stopped_at_step": run.step}
    figures |= summary(curves) | {"steps_per_second": run.steps_per_second}
    policies = _policies(run, run.runner.run_state)
    run.runner.close()
    path = None
    if run.folder is not None:
        path = run.folder.path
        run.folder.write_summary(figures)
        amount = run.task.format_steps(min(run.step, run.steps))
        subtitle = f"1 seed, {amount}"
        if len(run.seeds) > 1:
            drawn = "mean, its 95% interval" if len(run.seeds) >= MIN_SEEDS else "mean"
            subtitle = f"{len(run.seeds)} seeds, {amount}: {drawn}, every seed"
        title = f"{name} on {run.task.name}"
        learning_curves({name: curves}, path / "curves.png", title, subtitle)
    rows = run.stats.metric_rows(run.seeds, run.spec.num_envs)
    return Result(
        run.agent,
        run.task,
        run.seeds,
        run.steps,
        curves,
        rows,
        figures,
        policies,
        path,
        run.stopped,
    )


def _policies(run: Training, run_state: runners.RunState) -> dict[int, Policy]:
    """For each seed its agent, whose state is taken when it first acts: it may be large."""
    return _make_policies(run, partial(run.agent.policy_state, run_state.agent))


def _make_policies(run: Training, states: Callable[[], PyTree]) -> dict[int, Policy]:
    """For each seed its agent, given the policy states of all."""
    return {
        seed: Policy(run.agent, run.spec, partial(_take_run, states, r))
        for r, seed in enumerate(run.seeds)
    }


def _take_run(states: Callable[[], PyTree], run: int) -> PyTree:
    return jax.tree.map(lambda x: x[run], states())


@contextmanager
def _explain_out_of_memory() -> Iterator[None]:
    """Turns JAX's error into a sentence: `_check_memory` knows the agents' states only."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        raise EngramError(
            "The device's memory does not suffice: lower seeds, batch_size, buffer_size or "
            "whatever option is very large."
        ) from error


def _check_memory(run: Training) -> None:
    """Raises if the runs need more memory than there is."""
    needed = checkpoint.size(run.runner.template())
    available = memory_size()
    if available is None or needed <= available:
        return
    is_custom_image = is_image(run.spec) and not run.spec.frame_stack
    smaller_images = ", or make images smaller" if is_custom_image else ""
    raise EngramError(
        f"These {len(run.seeds)} runs need {needed / 1e9:,.1f} GB and there are "
        f"{available / 1e9:,.1f}: lower seeds, buffer_size or, where there is one, "
        f"memory_size{smaller_images}."
    )


def _missing_env(name: str, **_: Any) -> gym.Env:
    raise EngramError(f"{name} is an environment of your own: give the function that makes it.")
