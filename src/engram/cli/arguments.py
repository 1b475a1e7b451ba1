"""Reads the command line: wrong names and values are found here, the rest is tyro's."""

import dataclasses
import shlex
from collections import deque
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, get_type_hints

import tyro

from engram.cli.comparison import Compare, Plot
from engram.cli.config_file import parse_options, read_config_file
from engram.cli.evaluation import Check, Doctor, Eval, List, Show
from engram.cli.exporting import Export
from engram.cli.paper import Campaign, Report, Reproduce
from engram.cli.play import Play
from engram.cli.training import AgentCommand, Resume, Train, split_words
from engram.cli.tuning import Tune
from engram.config import check, convert, split_type
from engram.errors import EngramError, nearest_names

COMMANDS: dict[str, type] = {
    "train": Train,
    "resume": Resume,
    "tune": Tune,
    "eval": Eval,
    "export": Export,
    "check": Check,
    "plot": Plot,
    "compare": Compare,
    "list": List,
    "show": Show,
    "play": Play,
    "doctor": Doctor,
    "reproduce": Reproduce,
    "campaign": Campaign,
    "report": Report,
}
DESCRIPTION = """\
Reinforcement learning with episodic memory, many runs in one compiled program.
  engram train mbec++ cartpole-gaussian
  engram train dqn gym:Acrobot-v1 --seeds 5 --steps 5e4 --learning-rate 1e-3
  engram --version   (--traceback, with any command, shows where an error arose)"""
SEVERAL_WORDS = ("env_kwargs", "wrapper", "observe", "space", "allow_module")
"""options whose value may be several words, and which may be given more than once"""
SHORT_FLAGS = {"-q": "--quiet", "-v": "--verbose"}
MARKERS = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.FlagConversionOff,
    tyro.conf.PositionalRequiredArgs,
    tyro.conf.PositionalMetavarFromFieldName,
)


def read_command(arguments: list[str]) -> Any:
    """The command with its options; bad input raises one sentence, and --help exits."""
    name, *rest = arguments
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    rest = [SHORT_FLAGS.get(word, word) for word in rest if word not in ("-h", "--help")]
    if name in ("-h", "--help", "help"):
        return call_tyro(COMMANDS, ["--help"])
    if name not in COMMANDS:
        raise EngramError(f"There is no command {name!r}.{nearest_names(name, COMMANDS)}")
    command = COMMANDS[name]
    first_flag = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
    names, flags = rest[:first_flag], rest[first_flag:]
    file = None
    if command is Train and not wants_help and (path := config_path(flags)) is not None:
        file = read_config_file(path)
        file.check_modules(allowed_modules(flags))
        names = names or [file.agent, file.task]
    if not wants_help:
        check_names(name, command, names)
    kinds = option_types(command)
    if issubclass(command, AgentCommand) and names:
        kinds |= agent_option_types(names[0], kinds)
    options = read_options(flags, kinds, f"engram {' '.join([name, *names])} --help")
    if file is not None:
        of_file = parse_options(file, kinds)
        if "seed" in options or "seeds" in options:  # each replaces both
            of_file = {name: x for name, x in of_file.items() if name not in ("seed", "seeds")}
        options = of_file | options
    if issubclass(command, AgentCommand) and names:
        command = command.with_agent_options(
            *names[:2], preset=options.get("preset"), given=tuple(options)
        )
    flags = [f"--{option.replace('_', '-')}={value}" for option, value in options.items()]
    return call_tyro(COMMANDS | {name: command}, [name, *names, *flags, *["--help"] * wants_help])


def config_path(flags: list[str]) -> str | None:
    """The value of --config, if it is among the words."""
    for word, following in pairwise([*flags, ""]):
        flag, equals, value = word.partition("=")
        if flag == "--config":
            path = value if equals else following
            if not path or path.startswith("--"):
                raise EngramError("--config takes a file: see `engram train --help`.")
            return path
    return None


def allowed_modules(flags: list[str]) -> list[str]:
    """The values of --allow-module among the words, which count before any module is imported."""
    modules: list[str] = []
    takes_more = False
    for word in flags:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            takes_more = flag.replace("_", "-") == "--allow-module"
            word = value if equals else ""
        if takes_more:
            modules += split_words(word)
    return modules


def call_tyro(commands: dict[str, type], arguments: list[str]) -> Any:
    """The command that the arguments spell, by tyro."""
    return tyro.extras.subcommand_cli_from_dict(
        commands, prog="engram", description=DESCRIPTION, args=arguments, config=MARKERS
    )


def check_names(name: str, command: type, names: list[str]) -> None:
    """Raise one sentence if there are fewer or more names before the options than required."""
    fields = dataclasses.fields(command)
    required = [field.name.upper() for field in fields if field.default is dataclasses.MISSING]
    takes_more = any(field.default == () for field in fields)
    if len(names) < len(required) or (len(names) > len(required) and not takes_more):
        form = " ".join(["engram", name, *required])
        raise EngramError(f"The form is `{form} [options]`: see `engram {name} --help`.")


def option_types(kind: type) -> dict[str, Any]:
    """The options of a command or an agent, each with its type."""
    kinds = get_type_hints(kind, include_extras=True)
    return {
        field.name: kinds[field.name]
        for field in dataclasses.fields(kind)
        if field.default not in (dataclasses.MISSING, ())  # those are names before the options
    }


def agent_option_types(name: str, taken: dict[str, Any]) -> dict[str, Any]:
    """The options of an agent, each with its type; none may be called as one of the command's."""
    from engram.agents import agent_class

    kinds = option_types(agent_class(name))
    if shared := kinds.keys() & taken:
        raise EngramError(
            f"The agent {name} has an option {min(shared)!r}, which the command has too: rename it."
        )
    return kinds


def read_options(words: list[str], kinds: dict[str, Any], help: str) -> dict[str, Any]:
    """The value of each option that is given; a wrong name or value raises one sentence.

    A switch may be spelled --anneal-lr, --anneal-lr True, --anneal-lr=true or --no-anneal-lr.
    """
    options = {}
    rest = deque(words)
    while rest:
        flag, equals, text = rest.popleft().partition("=")
        flag = flag.replace("_", "-")
        name, is_negated = find_option(flag, kinds, help)
        if is_negated and not equals:
            text = "False"
        elif not equals and rest and not rest[0].startswith("--"):
            text = rest.popleft()
        elif not equals and split_type(kinds[name])[0] is bool:
            text = "True"
        elif is_negated or not equals:
            raise EngramError(f"{flag} takes {'no' if is_negated else 'a'} value: see `{help}`.")
        if name in SEVERAL_WORDS:
            words_of_value = [text]
            while rest and not rest[0].startswith("--"):
                words_of_value.append(rest.popleft())
            text = f"{options.get(name, '')} {shlex.join(words_of_value)}".strip()
        value = convert(text, kinds[name])
        check(flag, value, kinds[name])
        options[name] = value
    return options


def find_option(flag: str, kinds: dict[str, Any], help: str) -> tuple[str, bool]:
    """The name of the option that a flag spells, and whether it is a switch turned off."""
    name = flag.removeprefix("--").replace("-", "_")
    if not flag.startswith("--"):
        raise EngramError(f"{flag!r} is neither an option nor its value: see `{help}`.")
    if name in kinds:
        return name, False
    positive = name.removeprefix("no_")
    if positive != name and positive in kinds and split_type(kinds[positive])[0] is bool:
        return positive, True
    close = get_close_matches(flag, [f"--{known.replace('_', '-')}" for known in kinds], n=1)
    remedy = f"Did you mean {close[0]}?" if close else f"See `{help}`."
    raise EngramError(f"There is no option {flag}. {remedy}")
