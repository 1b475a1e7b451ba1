"""The commands that train: train, resume."""

import dataclasses
import json
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import tyro

from engram.cli.hooks import training_hooks, with_earlier_loggers
from engram.config import Count, Range, Seconds, WholeNumber, check, convert
from engram.errors import EngramError

Seed = Annotated[int, Range(0, 2**32 - 1)]

# Modules that import JAX are imported where they are used: `engram --help` must not wait for them.


@dataclass(frozen=True)
class AgentCommand:
    """A command that takes an agent, a task and the agent's options."""

    agent: str
    """a name (engram list) or module:Class; AGENT --help shows its options"""
    task: str
    """a name (engram list), gym:ID or atari:GAME"""
    steps: Count | None = None
    """agent steps per run; the task's default if None"""
    num_envs: Count | None = None
    """environments per run, stepped together; if None 1, with frame stacks 4 per gradient step"""
    env_kwargs: str | None = None
    """arguments of the environment: --env-kwargs size=7 trap=true"""
    max_episode_steps: Count | None = None
    """time limit of the environment of gym:ID, where it has none or another"""
    wrapper: str | None = None
    """wrappers module:Class around the environment of gym:ID, the innermost first"""
    observe: str | None = None
    """names of the parts of dictionaries that are observed, of gym:ID"""
    preset: str | None = None
    """a named set of options (engram list)"""
    use_gym: bool = False
    """step Gymnasium's environment even if the task is also written in JAX"""
    workers: WholeNumber | None = None
    """processes in which Gymnasium's environments step, 0 for none; as the task says if None"""
    device: str | None = None
    """cpu, gpu or tpu; the fastest available if None"""

    options: ClassVar[Any] = None  # the agent with its options; a field once its name is known
    given: ClassVar[Collection[str]] = ()
    """names of the options on the command line"""

    @classmethod
    def with_agent_options(
        cls,
        agent: str,
        task: str | None = None,
        preset: str | None = None,
        given: Collection[str] = (),
    ) -> type[Self]:
        """The command with an agent's options, whose defaults are those of the preset."""
        from engram.agents import default_preset, make
        from engram.envs import get_task

        if preset is None:
            preset = default_preset(agent, None if task is None else get_task(task).preset)
        default = make(agent, preset)
        group = Annotated[type(default), tyro.conf.arg(name=agent)]
        fields = [
            ("preset", str | None, dataclasses.field(default=preset)),
            ("options", group, dataclasses.field(default=default)),
        ]
        command = dataclasses.make_dataclass(cls.__name__, fields, bases=(cls,), frozen=True)
        command.__doc__ = cls.__doc__
        command.given = given
        return command


@dataclass(frozen=True)
class Train(AgentCommand):
    """Train an agent, ten seeds at once, and write a run folder."""

    seeds: str = "10"
    """number of runs, with seeds 0, 1, ...; or the seeds themselves: 1,2,3"""
    seed: int | None = None
    """one run with this seed, instead of --seeds"""
    out: str | None = None
    """the run folder; runs/AGENT-TASK if None"""
    tensorboard: bool = False
    """write returns and metrics for TensorBoard too (pip install tensorboard)"""
    wandb: str | None = None
    """a project of Weights & Biases that returns and metrics are sent to
    (pip install 'engram-rl[wandb]')"""
    trackio: str | None = None
    """a project of trackio that returns and metrics are sent to
    (pip install 'engram-rl[trackio]')"""
    checkpoint_every: Seconds = 60.0
    """seconds between two checkpoints at least; they take at most a twentieth of the time"""
    quiet: bool = False
    """print warnings, errors and a line with the result alone (-q)"""
    verbose: bool = False
    """print what is compiled, speed and checkpoints, with times (-v)"""
    config: str | None = None
    """a TOML file, a run folder or its config.json with agent, task and options, instead of them;
    options beside it come first"""
    allow_module: str | None = None
    """modules that the run folder of --config names and may import: they run code"""

    def run(self) -> None:
        from engram import training
        from engram.loggers import console

        seeds = read_seeds(self.seeds, self.seed)
        task = read_task(self, self.steps)
        warn_of_no_learning(self.options, task, self.num_envs)
        name = "-".join([self.agent, task.name, *kwargs_words(task)])
        out = self.out or unused_path("runs", name)
        runs = console.count_seeds(seeds if isinstance(seeds, int) else len(seeds))
        title = f"{self.agent} on {task.name}, {runs}, {task.format_steps(task.steps)}, into {out}"
        hooks = training_hooks(self, title, out)
        with use_device(self.device), console.plain_warnings():
            result = training.train(
                self.options,
                task,
                seeds=seeds,
                steps=self.steps,
                num_envs=self.num_envs,
                out=out,
                use_gym=self.use_gym,
                workers=self.workers,
                hooks=hooks,
                checkpoint_every=self.checkpoint_every,
            )
        console.print_result(result, self.quiet)


def read_task(command: Any, steps: int | None = None) -> Any:
    """The task of a command, with its environment's arguments, limit, wrappers and parts."""
    from engram.envs import get_task

    env_kwargs = read_env_kwargs(command.env_kwargs)
    if command.max_episode_steps is not None:
        if not command.task.startswith("gym:"):
            raise EngramError(
                f"--max-episode-steps is for gym:ID, and {command.task} has a limit of its own: "
                "leave it out."
            )
        env_kwargs["max_episode_steps"] = command.max_episode_steps
    wrappers, observe = split_words(command.wrapper), split_words(command.observe)
    return get_task(command.task, steps, env_kwargs, wrappers, observe)


def read_env_kwargs(text: str | None) -> dict[str, Any]:
    """The arguments of an environment that words like size=7 spell, as a shell quotes them."""
    if (text or "").startswith("{"):  # of a file, with types of its own
        return json.loads(str(text))
    env_kwargs: dict[str, Any] = {}
    for word in (one for given in split_words(text) for one in split_word(given)):
        name, equals, value = word.partition("=")
        if not name.isidentifier() or not equals:
            raise EngramError(
                f"--env-kwargs takes words like size=7 or trap=true, not {word!r}: write "
                "name=value, with a space between two."
            )
        if name in env_kwargs:
            raise EngramError(f"--env-kwargs has two values of {name}: leave one of them out.")
        env_kwargs[name] = read_value(value)
    return env_kwargs


def split_words(text: str | None) -> list[str]:
    """The words of a text, as a shell quotes them."""
    try:
        return shlex.split(text or "")
    except ValueError:
        raise EngramError(f"{text} has a quote without its other: add it.") from None


def split_word(word: str) -> list[str]:
    """The words in one, if all are like size=7; else it is one, whose value has spaces."""
    try:
        parts = shlex.split(word)
    except ValueError:  # a quote without its other
        return [word]
    is_several = all(part.partition("=")[0].isidentifier() and "=" in part for part in parts)
    return parts if len(parts) > 1 and is_several else [word]


def read_value(text: str) -> Any:
    """The number, switch or None that a text spells, else the text itself."""
    if text in ("None", "none"):
        return None
    for kind in (bool, int, float):
        if not isinstance(value := convert(text, kind), str):
            return value
    return text


def kwargs_words(task: Any) -> list[str]:
    """The arguments of a task's environment, for the name of a run folder; a drawing is cut."""
    return [f"{name}={value}"[:40] for name, value in task.env_kwargs]


def read_seeds(seeds: str, seed: int | None = None) -> int | tuple[int, ...]:
    """A number of seeds, or the seeds that are listed."""
    if seed is not None and seeds != Train.seeds:
        raise EngramError("--seed trains one run and --seeds several: choose one of the two.")
    if seed is not None:
        check("--seed", seed, Seed)
        return (seed,)
    if "," not in seeds:
        number = convert(seeds, int)
        check("--seeds", number, Count)
        return number
    numbers = [convert(text, int) for text in seeds.split(",") if text.strip()]
    for number in numbers:
        check("Each of --seeds", number, Seed)
    return tuple(numbers)


def warn_of_no_learning(agent: Any, task: Any, num_envs: int | None) -> None:
    """Warn if the run is too short for the first update."""
    from engram.loggers.console import print_warning
    from engram.runners import default_num_envs

    starts = agent.learning_starts
    if starts > task.steps - (num_envs or default_num_envs(agent, task)):
        print_warning(
            f"No network will learn in {task.steps:,} steps: they begin after {starts:,}, "
            "which --learning-starts lowers."
        )


def run_path(folder: str, name: str) -> Path:
    """folder/name, where all but letters, digits and a few signs become dashes."""
    return Path(folder, re.sub(r"[^\w.+-]+", "-", name))


def unused_path(folder: str, name: str) -> Path:
    """The first of folder/name, folder/name-2, folder/name-3, ... that does not exist."""
    path = run_path(folder, name)
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not path.exists() else next(other for other in numbered if not other.exists())


@contextmanager
def use_device(name: str | None) -> Iterator[None]:
    """Within it programs run on a device of that kind."""
    if name is None:
        yield
        return
    import jax

    try:
        device = jax.devices(name)[0]
    except RuntimeError:
        available = sorted({device.platform for device in jax.devices()} | {"cpu"})
        choice = f"choose {' or '.join(available)}, or leave --device out"
        raise EngramError(f"There is no device {name!r} here: {choice}.") from None
    with jax.default_device(device):
        yield


@dataclass(frozen=True)
class Resume:
    """Continue a training that was stopped."""

    dir: str
    """the run folder"""
    tensorboard: bool = False
    """write returns and metrics for TensorBoard too, as a run that did goes on to"""
    wandb: str | None = None
    """a project of Weights & Biases; that of the run, unless its wandb.json was removed"""
    trackio: str | None = None
    """a project of trackio; that of the run, unless its trackio.json was removed"""
    allow_module: str | None = None
    """modules of agents and environments that the folder names and may import: they run code"""
    device: str | None = None
    """cpu, gpu or tpu; the fastest available if None"""
    checkpoint_every: Seconds = 60.0
    """seconds between two checkpoints at least; they take at most a twentieth of the time"""
    quiet: bool = False
    """print warnings, errors and a line with the result alone (-q)"""
    verbose: bool = False
    """print what is compiled, speed and checkpoints, with times (-v)"""

    def run(self) -> None:
        from engram import training
        from engram.loggers import console

        command = with_earlier_loggers(self, self.dir)
        hooks = training_hooks(command, f"resuming {self.dir}", self.dir)
        with use_device(self.device), console.plain_warnings():
            result = training.resume(
                self.dir,
                hooks=hooks,
                checkpoint_every=self.checkpoint_every,
                allow_modules=split_words(self.allow_module),
            )
        console.print_result(result, self.quiet)
