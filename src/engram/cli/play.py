"""The command that walks through a maze: play."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from typing import Any

from tyro.conf import Positional

from engram.cli.training import Seed
from engram.errors import EngramError, nearest_names

ACTIONS = {
    key: action
    for action, keys in enumerate(("up w k", "down s j", "right d l", "left a h"))
    for key in keys.split()
}
"""actions by key: north, south, east, west"""
HELP = "arrow keys, wasd or hjkl walk, r resets, q quits"
HELP_WITH_LINES = "wasd or hjkl walk, r resets, q quits, each line after Enter"
ESCAPE_SECONDS = 0.05
"""the rest of an arrow key's code follows its first byte sooner; else the key is Esc"""
MAX_FPS = 60
"""pictures per second in a window"""
STATUS_LINES = 4
"""of the screen, below the maze"""


@dataclass(frozen=True)
class Play:
    """Walk through a maze with the arrow keys."""

    task: Positional[tuple[str, ...]] = ()
    """maze (the default) or one of the maze tasks (engram list), such as maze3-trap"""
    size: int | None = None
    """rows and columns; the task's if None"""
    seed: Seed = 0
    """seed of random mazes and traps"""
    window: bool = False
    """in a window, instead of the terminal"""

    def run(self) -> None:
        from engram.envs import get_task

        # Nobody sees the observations, and image features take time.
        kwargs = {"maze_seed": self.seed, "observation": "position", "dropout_rate": 0.0}
        if self.size is not None:
            kwargs["size"] = self.size
        task = get_task(self.task_name(), env_kwargs=kwargs)
        game = Game(task.make(render_mode="rgb_array" if self.window else "ansi"), self.seed)
        with closing(game.env), suppress(KeyboardInterrupt):
            if self.window:
                play_in_window(game, f"engram play {task.name}")
            elif is_interactive():
                play_in_terminal(game)
            else:
                play_by_lines(game)
        print(game.summary())

    def task_name(self) -> str:
        """The task's name, after a check that it is a maze."""
        from engram.envs.maze.tasks import MAZE_TASKS

        if len(self.task) > 1:
            raise EngramError("The form is `engram play TASK [options]`: see `engram play --help`.")
        name = self.task[0] if self.task else "maze"
        if name not in ("maze", *MAZE_TASKS):
            raise EngramError(
                f"There is no maze {name!r} to play.{nearest_names(name, ['maze', *MAZE_TASKS])}"
            )
        return "maze3" if name == "maze" else name


class Game:
    """A maze that is played, with steps and return of the episode."""

    def __init__(self, env: Any, seed: int):
        self.env = env
        self.reset(seed)

    def reset(self, seed: int | None = None) -> None:
        self.env.reset(seed=seed)
        self.steps = 0
        self.reward = self.episode_return = 0.0
        self.terminated = self.truncated = False

    def press(self, key: str) -> bool:
        """Does what a key stands for; whether the game goes on."""
        if key == "r":
            self.reset()
        elif key in ACTIONS and not (self.terminated or self.truncated):
            _, reward, self.terminated, self.truncated, _ = self.env.step(ACTIONS[key])
            self.steps += 1
            self.reward = float(reward)
            self.episode_return += self.reward
        return key not in ("q", "escape")

    def status(self) -> str:
        """The numbers of the episode, and whether it has ended."""
        numbers = f"step {self.steps}  reward {self.reward:.4g}  return {self.episode_return:.4g}"
        if self.terminated:
            return f"{numbers}  The goal is reached."
        return f"{numbers}  The time is up." if self.truncated else numbers

    def summary(self) -> str:
        """The closing line."""
        from engram.envs.maze.layout import distances

        shortest = int(distances(self.env.unwrapped.layout)[0, 0])
        outcome = "the goal is reached" if self.terminated else "the goal is not reached"
        return (
            f"{count_steps(self.steps)}, return {self.episode_return:.4g}: {outcome}, "
            f"and the shortest path has {count_steps(shortest)}."
        )


def count_steps(steps: int) -> str:
    return f"{steps:,} step{'s' * (steps != 1)}"


def play(game: Game, inputs: Iterable[Iterable[str]], show: Callable[[], None]) -> None:
    """Show the game at first and after each input, which is some keys, until one quits."""
    show()
    for keys in inputs:
        for key in keys:
            if not game.press(key):
                return
        show()


def is_interactive() -> bool:
    """Whether there is a terminal on which a drawing can be replaced."""
    is_dumb = os.environ.get("TERM") == "dumb"
    return bool(sys.stdin) and sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb


# Window


def play_in_window(game: Game, title: str) -> None:
    """Show the maze in a window, whose title has the numbers, and read its keys."""
    from engram.envs.window import Window

    window = Window(title)

    def show() -> None:
        window.title = f"{title}  {game.status()}"
        window.show(game.env.render(), MAX_FPS)

    with closing(window):
        play(game, ([key] for key in iter(window.wait_for_key, None)), show)


# Lines


def play_by_lines(game: Game) -> None:
    """Print the maze, and read letters from lines: where there is no terminal."""
    print(HELP_WITH_LINES)
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # so that any byte is at most an unknown letter
    lines = (line.strip().lower() for line in sys.stdin or ())
    play(game, lines, lambda: print(f"{game.env.render()}\n{game.status()}", flush=True))


# Terminal


def play_in_terminal(game: Game) -> None:
    """Draw the maze in place, and read single keys."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with (
        windows_keys() if sys.platform == "win32" else posix_keys() as keys,
        Live(console=console, auto_refresh=False) as live,
    ):
        play(game, keys, lambda: live.update(draw_screen(game, *console.size), refresh=True))


def draw_screen(game: Game, width: int, height: int) -> Any:
    """The part of the maze around the agent for which there is room, the numbers and the keys."""
    from rich.text import Text

    lines = game.env.render().splitlines()
    x, y = game.env.unwrapped.position
    height = max(1, height - STATUS_LINES)
    top = max(0, min(2 * y + 1 - height // 2, len(lines) - height))
    left = max(0, min(4 * x + 2 - width // 2, len(lines[0]) - width))
    maze = Text("\n".join(line[left : left + width] for line in lines[top : top + height]))
    for letter, style in (("A", "bold #e55827"), ("G", "bold #d79b00"), ("T", "bold #a0489a")):
        maze.highlight_regex(letter, style)
    text = Text.assemble(maze, f"\n{game.status()}\n", (HELP, "dim"))
    text.no_wrap = True
    return text


@contextmanager
def posix_keys() -> Iterator[Iterator[list[str]]]:
    """The keys that are pressed, until the end of input; the terminal is restored at last."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSANOW)
        yield ([key] for key in iter(partial(read_key, terminal), None))
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, settings)


def read_key(terminal: int) -> str | None:
    """Name of the next key; None at the end of input, or after Ctrl-D."""
    first = read_byte(terminal)
    if first in ("", "\x04"):
        return None
    if first != "\x1b":
        return first.lower()
    code = ""
    while is_readable(terminal) and (byte := read_byte(terminal)):
        code += byte
        if (len(code) > 1 or code not in "[O") and "@" <= byte <= "~":
            break
    arrows = {"A": "up", "B": "down", "C": "right", "D": "left"}
    return arrows.get(code[-1], "unknown") if code else "escape"


def read_byte(terminal: int) -> str:
    try:
        return os.read(terminal, 1).decode("latin-1")
    except OSError:  # the terminal was closed
        return ""


def is_readable(terminal: int) -> bool:
    from select import select

    return bool(select([terminal], [], [], ESCAPE_SECONDS)[0])


@contextmanager
def windows_keys() -> Iterator[Iterator[list[str]]]:
    """The keys that are pressed in a terminal of Windows."""
    yield ([key] for key in iter(read_windows_key, None))


def read_windows_key() -> str | None:
    """Name of the next key; None after Ctrl-C, Ctrl-D or Ctrl-Z."""
    if sys.platform != "win32":
        return None
    import msvcrt

    key = msvcrt.getwch()
    if key in ("\x00", "\xe0"):
        arrows = {"H": "up", "P": "down", "M": "right", "K": "left"}
        return arrows.get(msvcrt.getwch(), "unknown")
    names = {"\x03": None, "\x04": None, "\x1a": None, "\x1b": "escape"}
    return names.get(key, key.lower())
