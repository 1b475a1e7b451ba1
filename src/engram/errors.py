"""The exceptions users meet: one sentence each, with cause and remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class EngramError(Exception):
    """An error that the user can correct; the command line prints it and exits with code 2."""


class Interrupted(EngramError):
    """Training stopped by Ctrl-C or a time limit, after a checkpoint was saved."""


class EngramWarning(UserWarning):
    """Something that works but is probably not what the user wants."""


def nearest_names(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' with the closest known names, or the list of all if none is close."""
    known = sorted(known)
    if not known:
        return ""
    close = get_close_matches(name, known, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else f" Known are {', '.join(known)}."
