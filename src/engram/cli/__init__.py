"""The command line: one command for each of `COMMANDS` in `arguments`."""

import signal
import sys
import threading
import traceback

from engram.cli.output import standard_streams
from engram.errors import EngramError, Interrupted


def main(arguments: list[str] | None = None) -> None:
    """Run a command; what the user can put right is one sentence and exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    if threading.current_thread() is threading.main_thread():
        # A command that is asked to end cleans up as after Ctrl-C, and so it does if it was started
        # in the background, where shells ignore Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
    with standard_streams() as output:
        try:
            run([word for word in words if word != "--traceback"])
            output.check()
        except EngramError as error:
            print_error(error, show_traceback="--traceback" in words)
            sys.exit(130 if isinstance(error, Interrupted) else 2)
        except KeyboardInterrupt as error:
            text = "Stopped at once; the last checkpoint, if there is one, is as it was."
            print_error(error, text, show_traceback="--traceback" in words)
            sys.exit(130)


def run(arguments: list[str]) -> None:
    """Run the command that the arguments spell."""
    if arguments[:1] == ["--version"]:
        from importlib.metadata import version

        print(f"engram {version('engram-rl')}")
        return
    from engram.cli.arguments import read_command

    read_command(arguments or ["--help"]).run()


def print_error(error: BaseException, text: str = "", show_traceback: bool = False) -> None:
    """Print an error to stderr as one sentence, or its traceback."""
    from rich.console import Console
    from rich.markup import escape

    if show_traceback:
        traceback.print_exception(error)
        return
    sentence = escape(text or str(error))
    screen = Console(stderr=True, emoji=False)
    screen.print(f"[bold red]engram:[/] {sentence}", soft_wrap=True, highlight=False)
