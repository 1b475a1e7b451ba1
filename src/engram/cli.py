"""The command line: train, resume, eval, list, show, reproduce, campaign, report."""

import contextlib
import dataclasses
import functools
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import jax
import tyro
from rich.console import Console
from rich.markup import escape

from engram import agents, loop, screen, training
from engram.errors import EngramError, Interrupted, nearest_names
from engram.evaluation import play, record, to_film
from engram.events import Events
from engram.options import Count, Positive, check
from engram.report.video import check_name, save_video
from engram.tasks import Task, find, hardly_seen

USAGE = """\
[bold]engram[/]: reinforcement learning with episodic memory, many runs in one compiled program

  engram train AGENT TASK   train, ten seeds at once; writes a run folder
  engram resume DIR         go on where a training stopped
  engram eval DIR           play the trained agents greedily
  engram list               agents, tasks and presets
  engram show AGENT         an agent's options, with defaults and meaning
  engram reproduce [NAME]   the paper's figures, tables and claims, and what is missing of them
  engram campaign atari     train the next games of the Atari plan, for so many minutes
  engram report             one page with all of them and their verdicts

Each takes --help. For example:

  engram train mbec++ cartpole-gaussian
  engram train dqn gym:Acrobot-v1 --seeds 5 --steps 50000 --learning-rate 1e-3
  engram eval runs/mbec++-cartpole-gaussian --video episode.gif
"""


@dataclass(frozen=True)
class Train:
    """How to train."""

    seeds: int = 10
    """how many runs, with seeds 0, 1, 2 and so on"""
    steps: int | None = None
    """agent steps of each run; the task's own number where not given"""
    envs: int | None = None
    """environments of each run, in lockstep; where not given 1, of Atari 4 for each of an iteration's updates"""
    out: str | None = None
    """the run folder; runs/AGENT-TASK where not given"""
    preset: str | None = None
    """a named set of options (engram list); where not given engram for mbec++, atari for Atari, else paper"""
    device: str | None = None
    """cpu, gpu or tpu; the fastest there is where not given"""
    host: bool = False
    """step Gymnasium's own environment even where the task is also written in JAX"""
    tensorboard: bool = False
    """write scores and metrics for TensorBoard too, into the run folder (pip install tensorboard)"""


@dataclass(frozen=True)
class Resume:
    """How to go on."""

    tensorboard: bool = False
    """write scores and metrics for TensorBoard too, into the run folder (pip install tensorboard)"""
    device: str | None = None
    """cpu, gpu or tpu; the fastest there is where not given"""


@dataclass(frozen=True)
class Eval:
    """How to play."""

    episodes: int = 100
    """greedy episodes of each seed"""
    video: str | None = None
    """a file (.gif, .webp or, with ffmpeg, .mp4) for one episode of the best seed"""
    device: str | None = None
    """cpu, gpu or tpu; the fastest there is where not given"""


@dataclass(frozen=True)
class Reproduce:
    """How to reproduce."""

    quick: bool = False
    """a version of two minutes, in runs/quick, to see whether it works"""
    minutes: float = 60.0
    """stop, and save, after so many; the same command goes on"""
    results: str = "results"
    """where what was trained lies; nothing there is trained again"""
    scratch: str = "runs/reproduce"
    """where what is unfinished waits"""
    jobs: Count = 1
    """so many parts at a time, each in a process of its own; a GPU is full with 10 to 20"""
    part: int | None = None
    """only this part of the experiment, to share it among machines"""


@dataclass(frozen=True)
class Campaign:
    """How to go on with a campaign."""

    minutes: float = 25.0
    """how long this stretch may last; what is stopped goes on when it is started again on the same machine"""
    most: Count = 30
    """runs in one program"""
    only: tuple[str, ...] = ()
    """only runs that have one of these in their names, such as pong, dqn or 400k; what was stopped goes on first"""
    final: bool = False
    """nothing is left of this machine afterwards: no checkpoints are written, and runs that would keep others from being done in time are
    given up"""
    results: str = "results"
    """where the ledger lies"""
    scratch: str = "runs/campaign"
    """where what is unfinished waits"""


@dataclass(frozen=True)
class Report:
    """What to report."""

    results: str = "results"
    """where what was trained lies"""


def main(arguments: list[str] | None = None) -> None:
    """Entry point: whatever the user can put right is one sentence and exit code 2."""
    complain = Console(stderr=True).print
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # who is told to end tidies up, as after Ctrl-C
    try:
        run(sys.argv[1:] if arguments is None else arguments)
    except EngramError as error:
        complain(f"[bold red]engram:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(130 if isinstance(error, Interrupted) else 2)
    except KeyboardInterrupt:
        complain("\nStopped at once; the last checkpoint, if there is one, is as it was.", highlight=False)
        sys.exit(130)
    except BrokenPipeError:  # `engram list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: list[str]) -> None:
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": train,
        "resume": resume,
        "eval": evaluate,
        "list": list_all,
        "show": show,
        "reproduce": reproduce,
        "campaign": campaign,
        "report": report,
    }
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        Console().print(USAGE, highlight=False, end="")
    elif command == "--version":
        print(f"engram {version('engram-rl')}")
    elif command in commands:
        commands[command](rest)
    else:
        raise EngramError(f"There is no command {command!r}.{nearest_names(command, commands)}")


def words(arguments: list[str], usage: str, count: int) -> tuple[list[str], list[str]]:
    """The words before the options, which must be as many as `usage` names, and the options."""
    plain, options = parted(arguments)
    if len(plain) != count and not is_help(arguments):
        raise EngramError(f"The form is `engram {usage} [options]`: name these first, then the options.")
    return plain, options


def words_alone(arguments: list[str], usage: str, count: int) -> list[str]:
    """The words of a command without options."""
    plain, options = words(arguments, usage, count)
    if options:
        raise EngramError(f"`engram {usage}` has no options.")
    return plain


def parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The words before the options, and the options."""
    first = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return arguments[:first], arguments[first:]


def is_help(arguments: list[str]) -> bool:
    return "-h" in arguments or "--help" in arguments


def parse(kind: type, arguments: list[str], default: Any, usage: str) -> Any:
    """Options by tyro; its complaint as one sentence."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            given = switched(arguments, _fields(default))
            return tyro.cli(kind, args=given, default=default, prog=f"engram {usage}", config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit as exit:
        if not exit.code:
            raise
        raise EngramError(one_sentence(complaint.getvalue(), default, usage)) from None


def switched(arguments: list[str], fields: dict[str, Any]) -> list[str]:
    """The arguments, with every switch as tyro wants it: users may say --anneal, --no-anneal, --anneal False or --anneal=False."""
    given, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.replace("_", "-").partition("=")
        name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        kind = fields.get(name)
        if not flag.startswith("--") or kind not in (bool, bool | None):
            given.append(word)
            continue
        is_on = not flag.startswith("--no-")
        if equals or (is_on and rest and not rest[0].startswith("-")):
            value = value if equals else rest.pop(0)
            if not is_on or value.lower() not in ("true", "false"):
                raise EngramError(f"--{name.replace('_', '-')} takes True or False, or nothing for True, not {value!r}.")
            is_on = value.lower() == "true"
        plain = name.replace("_", "-")
        given += [f"--{plain}", str(is_on)] if kind == bool | None else [f"--{plain}" if is_on else f"--no-{plain}"]
    return given


def one_sentence(complaint: str, default: Any, usage: str) -> str:
    """What tyro says in a box, in brief."""
    lines = [line.strip(" │╭╮╰╯─-") for line in complaint.splitlines()]
    text = " ".join(line for line in lines[1:] if line)
    help = f"See `engram {usage} --help`."
    if unknown := re.search(r"Unrecognized options?:\s+(--?[^\s,=]+)", text):
        close = nearest_names(unknown[1].replace("_", "-"), [f"--{name.replace('_', '-')}" for name in _fields(default)])
        return f"There is no option {unknown[1]}.{close if 'mean' in close else ' ' + help}"
    if wrong := re.search(r"Error parsing (--[\w-]+):.*?'([^']*)'", text):
        kind = "whole number" if "int" in text.lower() else "number"
        return f"{wrong[1]} takes a {kind}, not {wrong[2]!r}. {help}"
    first = re.split(r"\s*(?:Argument helptext|For full helptext|Perhaps you meant)", text)[0].rstrip(" .")
    return f"{first[:1].upper()}{first[1:]}. {help}"


def _fields(options: Any) -> dict[str, Any]:
    """The options and their types, those of the parts included."""
    found: dict[str, Any] = {}
    kinds = get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        found |= _fields(value) if dataclasses.is_dataclass(value) else {field.name: kinds[field.name]}
    return found


@contextlib.contextmanager
def on(device: str | None) -> Iterator[None]:
    """Computes on a named kind of device."""
    if device is None:
        yield
        return
    try:
        chosen = jax.devices(device)[0]
    except RuntimeError:
        there = sorted({d.platform for d in jax.devices()} | {"cpu"})
        raise EngramError(f"There is no device {device!r} here: choose {' or '.join(there)}, or leave --device out.") from None
    with jax.default_device(chosen):
        yield


def train(arguments: list[str]) -> None:
    given, rest = words(arguments, "train AGENT TASK", 2)
    if not given:
        Console().print("An agent's own options: engram train AGENT TASK --help, or engram show AGENT.\n", highlight=False)
        parse(Train, rest, Train(), "train AGENT TASK")
        return
    name, task_name = given[0], given[1] if len(given) > 1 else "TASK"
    preset = _value_of("--preset", rest) or agents.usual(name, len(given) > 1 and find(task_name).arcade is not None)
    form = dataclasses.make_dataclass("Form", [("run", Train), ("agent", agents.kind_of(name))], frozen=True)
    chosen = parse(form, rest, form(Train(preset=preset), agents.make(name, preset)), f"train {name} {task_name}")
    options, agent = chosen.run, chosen.agent
    if agents.make(name, preset) == agents.make(name, "paper") and preset != "paper":
        screen.notice(f"The preset {preset} changes nothing for {name}.")
    for option in ("steps", "seeds", "envs"):
        check(option, getattr(options, option), Count | None)
    task = find(task_name, options.steps)
    _warn(agent, task, options.envs)
    out = options.out or _free(Path("runs") / re.sub(r"[^\w.+-]+", "-", f"{name}-{task.name}"))
    with (
        on(options.device),
        screen.progress(f"{name} on {task.name}, {screen.seeds(options.seeds)}, {task.amount(task.steps)}, into {out}") as watch,
    ):
        watch = _watched(watch, out, options.tensorboard)
        result = training.train(agent, task, options.seeds, options.steps, options.envs, out, options.host, watch)
    screen.report(result)


def _warn(agent: Any, task: Task, envs: int | None) -> None:
    """Of what an agent will not do, though it may be expected."""
    if getattr(agent, "learn_start", 0) > task.steps - (envs or loop.usual_envs(agent, task)):
        after = f"they begin after {agent.learn_start:,}, which --learn-start lowers"
        screen.notice(f"No network will learn in {task.steps:,} steps: {after}.")
    sees = hasattr(agent, "convolutions") and task.arcade is None and task.dynamics is None  # else there is no need to make an environment
    if sees and (sentence := hardly_seen(task)) is not None:
        screen.notice(sentence)


def _value_of(option: str, arguments: list[str]) -> str | None:
    """The value of an option that must be known before the others can be read."""
    for i, word in enumerate(arguments):
        if word == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if word.startswith(option + "="):
            return word.removeprefix(option + "=")
    return None


def _free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is not there yet."""
    tries = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in range(1, 100_000))
    return next(candidate for candidate in tries if not candidate.exists())


def resume(arguments: list[str]) -> None:
    given, rest = words(arguments, "resume DIR", 1)
    options = parse(Resume, rest, Resume(), "resume DIR")
    with on(options.device), screen.progress(f"going on with {given[0]}") as watch:
        result = training.resume(given[0], watch=_watched(watch, given[0], options.tensorboard))
    screen.report(result)


def _watched(watch: Callable[[training.Progress], None], folder: str | Path, tensorboard: bool) -> Callable[[training.Progress], None]:
    """The same, and TensorBoard's files if wanted."""
    if not tensorboard:
        return watch
    events = Events(Path(folder) / "tensorboard")

    def both(now: training.Progress) -> None:
        watch(now)
        events(now)

    return both


def evaluate(arguments: list[str]) -> None:
    given, rest = words(arguments, "eval DIR", 1)
    options = parse(Eval, rest, Eval(), "eval DIR")
    check("episodes", options.episodes, Count)
    if options.video:
        check_name(options.video)
    with on(options.device):
        run = training.reopen(given[0], way="engram.evaluate({path!r}, task=...)")
        if options.video:
            to_film(run.task).close()  # better refused before all episodes are played
        policies, done = training.load_all(given[0]), training.trained_steps(given[0])
        with Console().status("playing"):
            returns = {seed: play(policy, run.task, options.episodes, seed) for seed, policy in policies.items()}
        so_far = "" if done >= run.steps else f" after {done:,} of {run.steps:,} steps"
        screen.evaluation(f"{agents.name_of(run.agent)} on {run.task.name}{so_far}", returns)
        if options.video:
            best = max(returns, key=lambda seed: returns[seed].mean())
            frames, fps = record(policies[best], run.task, best)
            save_video(frames, options.video, fps)
            Console().print(f"One episode of seed {best}: {options.video}", highlight=False, soft_wrap=True)


def reproduce(arguments: list[str]) -> None:
    """Lists the paper's experiments, or runs what is missing of some, or of all."""
    from engram.experiments import apart, catalogue, reporting, running  # what only this needs

    names, rest = parted(arguments)
    if late := [word for word in rest if word in catalogue.NAMES]:
        raise EngramError(f"The form is `engram reproduce {late[0]} [options]`: the name comes first.")
    options = parse(Reproduce, rest, Reproduce(), f"reproduce {' '.join(names) or '[NAME]'}")
    results = Path("runs/quick") if options.quick else Path(options.results)
    if not names:
        screen.claims(reporting.overview(results, options.quick))
        return
    wanted = catalogue.experiments(names)
    if options.part is not None and len(wanted) > 1:
        raise EngramError(f"--part is one of an experiment's parts: name one experiment, not {len(wanted)}.")
    for experiment in wanted:
        if experiment.later:
            Console().print(f"{experiment.name}: not yet, {experiment.later}.", highlight=False)
        elif experiment.by:
            Console().print(f"{experiment.name}: {reporting.state(experiment, results)}, trained by `{experiment.by}`.", highlight=False)
    wanted = [experiment.quick() if options.quick else experiment for experiment in wanted if not experiment.later]
    scratch, until = Path(options.scratch), running.deadline(options.minutes)
    if options.jobs > 1 and options.part is not None:
        raise EngramError("--jobs runs all parts and --part one of them: choose one of the two.")
    if options.jobs > 1:
        alike = ["--results", options.results, "--scratch", options.scratch, *["--quick"] * options.quick]
        say = functools.partial(Console().print, highlight=False, soft_wrap=True)
        apart.run(apart.missing(wanted, results), options.jobs, alike, scratch, until, say)
    for experiment in wanted:
        say = functools.partial(Console().print, f"{experiment.name}:", highlight=False, soft_wrap=True)
        experiment.run(results, scratch, until, options.quick, say, options.part)
        if options.part is None:
            experiment.illustrate(results)
            if not options.quick:
                screen.claims([["", "", claim.says, verdict] for claim, (verdict, _) in experiment.verdicts(results).items()])


def campaign(arguments: list[str]) -> None:
    """Adds runs to the Atari campaign's ledger."""
    from engram.experiments import campaign as atari

    given, rest = words(arguments, "campaign atari", 1)
    options = parse(Campaign, rest, Campaign(), "campaign atari")
    if given and given[0] != "atari":
        raise EngramError(f"There is no campaign {given[0]!r}: the only one is `engram campaign atari`.")
    check("most", options.most, Count)
    check("minutes", options.minutes, Positive)
    results, say = Path(options.results), functools.partial(Console().print, highlight=False, soft_wrap=True)
    jax.config.update("jax_compilation_cache_dir", str(Path(options.scratch, "compiled").absolute()))  # one for all batches of a kind
    atari.stretch(results, Path(options.scratch), options.minutes, options.most, say, only=options.only, final=options.final)
    if (ledger := results / "atari" / "README.md").exists():
        say(f"The ledger: {ledger}")


def report(arguments: list[str]) -> None:
    """Writes the page."""
    from engram.experiments import reporting

    _, rest = words(arguments, "report", 0)
    options = parse(Report, rest, Report(), "report")
    if not Path(options.results).is_dir():
        raise EngramError(f"There is no folder {options.results}: run `engram reproduce NAME` first, or name one with --results.")
    Console().print(f"Written: {reporting.write(Path(options.results))}, and README.md beside it", highlight=False, soft_wrap=True)


def list_all(arguments: list[str]) -> None:
    if is_help(arguments):
        print("usage: engram list")
        return
    words_alone(arguments, "list", 0)
    screen.catalogue()


def show(arguments: list[str]) -> None:
    if is_help(arguments):
        print(f"usage: engram show AGENT, of {', '.join(agents.AGENTS)}")
        return
    screen.options(words_alone(arguments, "show AGENT", 1)[0])


if __name__ == "__main__":
    main()
