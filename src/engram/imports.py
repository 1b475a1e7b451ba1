"""Imports of modules that users name, such as `my_module:MyAgent` or `gym:my_module:MyEnv-v0`."""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from engram.errors import EngramError

OWN_PACKAGES = ("engram", "gymnasium")
"""packages that Engram imports anyway"""


@contextmanager
def working_directory_importable() -> Iterator[None]:
    """Within it modules of the working directory are found, after all others."""
    if "" in sys.path:
        yield
        return
    sys.path.append("")
    try:
        yield
    finally:
        sys.path.remove("")  # and nothing that the module itself may have added


def modules_of(agent: str, task: str, wrappers: Iterable[str]) -> list[str]:
    """The modules that an agent, a task and wrappers name, but for Engram's and Gymnasium's own."""
    names = [agent.rpartition(":")[0], task.removeprefix("gym:").rpartition(":")[0]]
    if not task.startswith("gym:"):
        names.pop()  # atari:GAME names none
    names += [wrapper.partition(":")[0] for wrapper in wrappers]
    return [
        name for name in dict.fromkeys(names) if name and name.split(".")[0] not in OWN_PACKAGES
    ]


def check_allowed(file: object, modules: Iterable[str], allowed: Collection[str]) -> None:
    """Raises if a file names a module that nobody has imported or allowed: its code would run."""
    missing = [
        name
        for name in modules
        if name not in sys.modules and not any(f"{name}.".startswith(f"{x}.") for x in allowed)
    ]
    if missing:
        raise EngramError(
            f"{file} would import {' and '.join(missing)}, and so run code: if you trust it, add "
            f"`--allow-module {' '.join(missing)}` to the command, or "
            f"`allow_modules={missing!r}` to the call."
        )
