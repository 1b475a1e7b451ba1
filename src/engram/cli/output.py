"""Standard output that ends no command: pipes are closed, disks full, and terminals lack signs."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from engram.errors import EngramError


class Output:
    """A text stream that keeps its first error instead of raising it, and then writes no more.

    Signs that its encoding lacks become question marks.
    """

    def __init__(self, stream: Any):
        # A closed stream is None, and its number would be given to the next file that is opened.
        self.stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._attempt(self._write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def check(self) -> None:
        """Raises if something could not be written, but not if its reader, as `head`, has ended."""
        self.flush()
        if self.error is None or isinstance(self.error, BrokenPipeError):
            return
        reason = getattr(self.error, "strerror", None) or self.error
        raise EngramError(
            f"All is done, but not all that it printed could be written ({reason}): free some "
            "space, or let it print elsewhere."
        )

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            encoding = self.stream.encoding
            self.stream.write(text.encode(encoding, "replace").decode(encoding))

    def _attempt(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self.error is not None:
            return
        try:
            call(*arguments)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self.error = error
            with suppress(OSError, ValueError):  # what is buffered would fail again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def standard_streams() -> Iterator[Output]:
    """Within it no print raises; gives standard output."""
    before = sys.stdout, sys.stderr
    output = Output(sys.stdout)
    sys.stdout, sys.stderr = output, Output(sys.stderr)
    try:
        yield output
    finally:
        output.flush()
        sys.stdout, sys.stderr = before
