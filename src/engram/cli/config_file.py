"""A training's configuration in a file: a run's config.json, or TOML with the same names."""

import json
import shlex
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engram import zoo
from engram.cli.training import split_words
from engram.config import check, convert
from engram.errors import EngramError, nearest_names
from engram.files import refuse_special
from engram.imports import check_allowed, modules_of

OF_RUNS = {"custom_task", "spec", "versions", "commit", "device", "processors", "system"}
"""what config.json holds beside the command's options"""
OTHER_NAMES = {"wrappers": "wrapper"}
"""options of the command that a file may call as Python does"""
WORDS = ("wrapper", "observe")
"""options that are lists of words"""


class ConfigFile(NamedTuple):
    """What a file says of a training."""

    path: Path
    agent: str
    task: str
    options: dict[str, Any]
    """of the command and of the agent, by name"""

    @property
    def modules(self) -> list[str]:
        """The modules of the agent, the environment and its wrappers."""
        wrappers = split_words(_to_text("wrapper", self.options.get("wrapper", [])))
        return modules_of(self.agent, self.task, wrappers)

    def check_modules(self, allowed: Collection[str]) -> None:
        """Raises for modules that are not allowed, but for those of TOML, which users write."""
        if self.path.suffix != ".toml":
            check_allowed(self.path, self.modules, allowed)


def read_config_file(name: str) -> ConfigFile:
    """A TOML or JSON file, or the config.json of a run folder or of zoo:NAME."""
    path = zoo.resolve(name)
    if path.is_dir():
        path /= "config.json"
        if not zoo.is_name(name):
            refuse_special(path)
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise EngramError(
            f"{path} cannot be read ({error.strerror}): name a TOML file, a run folder, or its "
            "config.json."
        ) from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise EngramError(f"{path} is not {kind} ({error}): correct it.") from error
    if not isinstance(content, Mapping):
        raise EngramError(f"{path} must hold names and values, and not {content!r}: correct it.")
    return _from_content(path, dict(content))


def _from_content(path: Path, content: dict[str, Any]) -> ConfigFile:
    if content.get("custom_task"):
        raise EngramError(
            f"{path} is of an environment of your own: train it again with engram.train, which "
            "takes the function that makes it."
        )
    names = [content.pop(name, None) for name in ("agent", "task")]
    for what, name in zip(("agent", "task"), names, strict=True):
        if not isinstance(name, str):
            raise EngramError(f"{path} names no {what}: add a line {what} = ...")
    own_options = content.pop("options", {})
    if not isinstance(own_options, Mapping):
        raise EngramError(f"options in {path} must be a table of the agent's options.")
    if "spec" in content:
        spec = content["spec"]
        content["num_envs"] = spec.get("num_envs") if isinstance(spec, Mapping) else None
        content = {name: x for name, x in content.items() if name not in OF_RUNS and x is not None}
    options = {OTHER_NAMES.get(name, name): value for name, value in content.items()}
    return ConfigFile(path, names[0], names[1], options | dict(own_options))


def parse_options(file: ConfigFile, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file, as the command line would have them."""
    options = {}
    for name, value in file.options.items():
        if name not in kinds or name == "config":
            hint = nearest_names(name, kinds)
            raise EngramError(f"{file.path} has an option {name!r} that there is not.{hint}")
        if name == "seeds" and value == []:
            raise EngramError(f"seeds in {file.path} are none: name some, or give their number.")
        if text := _to_text(name, value):
            options[name] = convert(text, kinds[name])
            check(f"{name} in {file.path}", options[name], kinds[name])
    return options


def _to_text(name: str, value: Any) -> str:
    """The value as it is spelled on the command line; empty if there is nothing to say."""
    match value:
        case Mapping() if name == "env_kwargs":
            return json.dumps(value) if value else ""
        case list() if name in WORDS:
            return shlex.join(map(str, value))
        case list() if name == "seeds":
            return ",".join(map(str, value)) + ("," if len(value) == 1 else "")
        case bool():
            return str(value).lower()
        case _:
            return str(value)
