"""The one exception users meet: a sentence that names the cause and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class EngramError(Exception):
    """Something the user can put right; the command line prints it and exits with code 2."""


class Interrupted(EngramError):
    """Ctrl-C, or no time left, after everything was saved."""


def nearest_names(word: str, names: Iterable[str]) -> str:
    """' Did you mean ...?' with the closest names, or the whole list where none is close."""
    names = sorted(names)
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(close)}?" if close else f" Known are {', '.join(names)}."
