"""`engram play`: keys of a terminal, of lines and of a window walk through a maze."""

import io
import os
import re
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from engram.cli import main, play
from engram.cli.play import Game, draw_screen, read_key
from engram.envs import get_task

DOWN, RIGHT = b"\x1b[B", b"\x1b[C"
SOLUTION = "4 steps, return 0.9667: the goal is reached, and the shortest path has 4 steps."


def played(capsys, monkeypatch, arguments, text):
    """The output of a game whose keys come from a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    main(["play", *arguments.split()])
    return capsys.readouterr().out


def last_line(output):
    return output.strip().splitlines()[-1].strip()


# Terminals


class Terminal:
    """A pseudo-terminal in which a game runs."""

    def __init__(self, *arguments):
        import pty
        import termios

        self.master, self.slave = pty.openpty()
        self.settings = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engram.cli", "play", *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=os.environ | {"TERM": "xterm"},
        )
        self.output = ""
        self.read_until("q quits")

    def read_until(self, text):
        while text not in self.output:
            assert select.select([self.master], [], [], 60)[0], f"no {text!r} in {self.output!r}"
            self.output += os.read(self.master, 4_096).decode()

    def press(self, keys):
        os.write(self.master, keys)

    def finish(self):
        """The closing line, after the checks that the game ended well and the terminal is as it
        was."""
        import termios

        self.read_until("shortest path has")
        self.read_until("steps.")
        assert self.process.wait(timeout=10) == 0
        assert termios.tcgetattr(self.slave) == self.settings
        assert self.output.rindex("\x1b[?25h") > self.output.rindex("\x1b[?25l")  # the cursor
        return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", last_line(self.output))


@contextmanager
def terminal(*arguments):
    pytest.importorskip("pty")
    game = Terminal(*arguments)
    try:
        yield game
    finally:
        game.process.kill()
        game.process.wait()
        os.close(game.master)
        os.close(game.slave)


def test_arrow_keys_walk_to_the_goal():
    with terminal("maze3") as game:
        game.press(DOWN + DOWN + RIGHT + RIGHT)
        game.read_until("The goal is reached.")
        game.press(b"q")
        assert game.finish() == SOLUTION


def test_ctrl_c_ends_the_game_and_restores_the_terminal():
    with terminal() as game:
        game.press(DOWN)
        game.read_until("step 1")
        game.process.send_signal(signal.SIGINT)
        assert game.finish().startswith("1 step, return -0.01111: the goal is not reached")


@pytest.mark.parametrize(
    ("code", "key"),
    [
        (b"\x1b[A", "up"),
        (b"\x1b[B", "down"),
        (b"\x1bOC", "right"),  # in the keypad's application mode
        (b"\x1b[1;2D", "left"),  # with Shift
        (b"\x1b[15~", "unknown"),  # F5
        (b"\x1b", "escape"),
        (b"W", "w"),
        (b"\x04", None),  # Ctrl-D
        (b"", None),  # the end of input
    ],
)
def test_codes_of_keys_are_read(code, key):
    source, sink = os.pipe()
    os.write(sink, code if code in (b"", b"\x1b") else code + b"x")
    if not code:
        os.close(sink)
    assert read_key(source) == key
    if code not in (b"", b"\x1b"):
        assert read_key(source) == "x"
    os.close(source)


def test_of_a_large_maze_the_part_around_the_agent_is_drawn():
    env = get_task("maze3", env_kwargs={"size": 40}).make(render_mode="ansi")
    game = Game(env, seed=0)
    for position in ((0, 0), (39, 39), (20, 17)):
        env.unwrapped.position = position
        lines = draw_screen(game, width=50, height=20).plain.splitlines()
        assert len(lines) <= 20
        assert max(map(len, lines[:-2])) == 50
        assert sum("A" in line for line in lines[:-2]) == 1


# Lines


def test_lines_walk_to_the_goal(capsys, monkeypatch):
    output = played(capsys, monkeypatch, "maze3", "ss\nDD\n")
    assert output.count("G |") == 2  # the agent hides it at last
    assert "step 2  reward -0.01111  return -0.02222" in output
    assert last_line(output) == SOLUTION


@pytest.mark.parametrize("keys", ["ssdd", "jjll", "ssddwwq", "wrssdd", "ss?dd"])
def test_letters_are_keys(capsys, monkeypatch, keys):
    assert last_line(played(capsys, monkeypatch, "maze", keys)) == SOLUTION


def test_a_wall_costs_1(capsys, monkeypatch):
    output = played(capsys, monkeypatch, "", "w\n")
    assert last_line(output).startswith("1 step, return -1: the goal is not reached")


def test_time_is_up_after_1000_steps(capsys, monkeypatch):
    output = played(capsys, monkeypatch, "maze3", "w" * 1_001)
    assert "The time is up." in output
    assert last_line(output).startswith("1,000 steps, return -1000: the goal is not reached")


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ("maze --size 7", 7),
        ("maze5", 5),
        ("maze3-trap", 3),
        ("maze3-dynamic --size 4", 4),
        ("maze3-noisy", 3),
    ],
)
def test_every_maze_can_be_played(capsys, monkeypatch, arguments, rows):
    output = played(capsys, monkeypatch, arguments, "")
    assert output.count("+---" * rows + "+\n") == 2
    assert ("T" in output) == ("trap" in arguments)
    assert last_line(output).startswith("0 steps, return 0: the goal is not reached")


def test_the_seed_chooses_the_maze(capsys, monkeypatch):
    drawings = [
        played(capsys, monkeypatch, f"maze --size 9 --seed {seed}", "q") for seed in (0, 0, 1)
    ]
    assert drawings[0] == drawings[1] != drawings[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("mazes", "There is no maze 'mazes' to play. Did you mean maze"),
        ("cartpole", "There is no maze 'cartpole' to play. Known are maze, maze3"),
        ("maze maze", "The form is `engram play TASK [options]`"),
        ("--size 1", "A maze cannot have size 1: give a whole number from 2 to 100."),
        ("--size x", "--size must be a whole number, not 'x'"),
        ("--seed -1", "--seed must be between 0 and"),
        ("--windw", "There is no option --windw. Did you mean --window?"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as exit:
        main(["play", *arguments.split()])
    assert exit.value.code == 2
    output = capsys.readouterr()
    assert sentence in output.err
    assert output.err.count("\n") == 1
    assert not output.out


# Windows


@pytest.mark.parametrize("last", ["q", "escape", "the window is closed"])
def test_keys_of_a_window_walk_to_the_goal(capsys, monkeypatch, last):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(play, "MAX_FPS", 1_000)
    pygame.display.init()
    for key in (pygame.K_s, pygame.K_DOWN, pygame.K_RIGHT, pygame.K_l):
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
    keys = {"q": pygame.K_q, "escape": pygame.K_ESCAPE}
    titles = []
    monkeypatch.setattr(pygame.display, "set_caption", titles.append)
    if last in keys:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=keys[last]))
        main(["play", "maze3", "--window"])
        assert last_line(capsys.readouterr().out) == SOLUTION
        assert (
            titles[-1] == "engram play maze3  step 4  reward 1  return 0.9667  The goal is reached."
        )
    else:
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        main(["play", "maze3", "--window"])
        assert "the goal is not reached" in last_line(capsys.readouterr().out)
    assert not pygame.display.get_init()


def test_without_any_input_the_maze_is_only_shown(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as Python does where a shell closed it
    main(["play"])
    assert "A" in capsys.readouterr().out


def test_a_byte_that_is_no_letter_is_an_unknown_key(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\nq\n"), encoding="utf-8"))
    main(["play"])
    assert "the goal is not reached" in last_line(capsys.readouterr().out)
