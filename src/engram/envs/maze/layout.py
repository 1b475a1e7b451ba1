"""Layouts of mazes: samples, random ones, drawings, and what is checked of them.

A layout is an array of booleans [x, y, direction]: whether one can go that way. x grows to the
east and y to the south; directions are numbered as actions are, north, south, east, west.
"""

from collections import deque
from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from engram.config import Probability, WholeNumber, check
from engram.errors import EngramError

ACTIONS = ("north", "south", "east", "west")
MOVES = np.array([(0, -1), (0, 1), (1, 0), (-1, 0)])
OPPOSITE = np.array([1, 0, 3, 2])
MIN_SIZE, MAX_SIZE = 2, 100
DRAWING_REMEDY = "draw it as `env.render()` does with render_mode='ansi'"

# Cells [x][y] as sums of N = 1, E = 2, S = 4, W = 8, for each side that is open.
_SAMPLES = {
    3: ((2, 1, 1), (2, 2, 8), (4, 8, 8)),
    5: ((2, 4, 1, 2, 1), (4, 4, 8, 4, 2), (8, 1, 1, 1, 1), (2, 4, 4, 4, 8), (4, 8, 1, 1, 1)),
}
SAMPLE_SIZES = tuple(_SAMPLES)

Layout = Bool[np.ndarray, "n n 4"]


def sample_layout(size: int) -> Layout:
    """The paper's maze of size 3 or 5."""
    if size not in _SAMPLES:
        raise EngramError(
            f"There is no sample maze of size {size}: choose size 3 or 5, or a random maze."
        )
    bits = np.array([1, 4, 2, 8])  # of north, south, east, west
    return _both_ways((np.array(_SAMPLES[size])[..., None] & bits) > 0)


def random_layout(
    uniforms: Float[np.ndarray, "2*n*n 4"], loops: Float[np.ndarray, "n n 4"], loop_rate: float
) -> Layout:
    """A maze by depth-first search from the start, from uniform random numbers.

    With `loop_rate` 0 any two cells are joined by one path; above 0 each remaining wall between
    two cells is removed with that probability (by `loops`), which makes loops.
    """
    size = loops.shape[0]
    layout = np.zeros((size, size, 4), bool)
    visited = np.zeros((size, size), bool)
    visited[0, 0] = True
    stack = [(0, 0)]
    for numbers in uniforms:
        x, y = stack[-1]
        score = [
            number if _is_inside(x + dx, y + dy, size) and not visited[x + dx, y + dy] else -1.0
            for number, (dx, dy) in zip(numbers, MOVES, strict=True)
        ]
        direction = int(np.argmax(score))
        if score[direction] < 0:  # a dead end
            if len(stack) > 1:
                stack.pop()
            continue
        layout[x, y, direction] = True
        x, y = (x, y) + MOVES[direction]
        visited[x, y] = True
        stack.append((x, y))
    return _both_ways(layout | ((loops < loop_rate) & _leads_to_south_or_east(size)))


def make_layout(size: int, seed: int, loop_rate: float = 0.0) -> Layout:
    """A random maze from a seed."""
    check_size(size)
    check("seed", seed, WholeNumber)
    check("loop_rate", loop_rate, Probability)
    rng = np.random.default_rng(seed)
    return random_layout(rng.random((2 * size**2, 4)), rng.random((size, size, 4)), loop_rate)


def check_size(size: int) -> None:
    """Raises unless a maze can have so many rows and columns."""
    is_whole = isinstance(size, Integral) and not isinstance(size, bool)
    if not is_whole or not MIN_SIZE <= size <= MAX_SIZE:
        raise EngramError(
            f"A maze cannot have size {size!r}: give a whole number from {MIN_SIZE} to {MAX_SIZE}."
        )


def check_layout(layout: Any, size: int) -> Layout:
    """A copy of a layout, after a check that it is that of a maze of this size."""
    try:
        array = np.array(layout)
    except ValueError:  # a ragged list
        array = np.array(None)
    shape = (size, size, 4)
    if array.shape != shape or array.dtype != bool:
        raise EngramError(
            f"A layout of a maze of size {size} must be an array of bool of shape {shape}, not of "
            f"{array.dtype} of shape {array.shape}: give whether one can go, for each "
            "[x, y, direction]."
        )
    if not np.array_equal(array, _both_ways(array)):
        raise EngramError(
            "A layout must open each passage from both of its sides, and none to the outside: make "
            "it of a drawing with `engram.envs.maze.layout.parse`."
        )
    _check_goal(array)
    return array


def distances(layout: Layout) -> Int[np.ndarray, "n n"]:
    """Steps from each cell to the goal in the last corner; -1 where it cannot be reached."""
    size = layout.shape[0]
    steps = np.full((size, size), -1)
    goal = size - 1, size - 1
    steps[goal] = 0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for direction in np.flatnonzero(layout[cell]):
            x, y = cell + MOVES[direction]
            if steps[x, y] < 0:
                steps[x, y] = steps[cell] + 1
                queue.append((int(x), int(y)))
    return steps


def _check_goal(layout: Layout) -> None:
    if distances(layout)[0, 0] < 0:
        raise EngramError(
            "The goal of this maze cannot be reached from the start: open a way from the first "
            "cell to the last."
        )


# Drawings


def draw(
    layout: Layout,
    agent: tuple[int, int] | None = None,
    trap: tuple[int, int] | None = None,
) -> str:
    """A drawing in text: A is the agent, G the goal, T the trap."""
    size = layout.shape[0]
    marks = {(size - 1, size - 1): "G"}
    if trap is not None:
        marks[trap] = "T"
    if agent is not None:
        marks[agent] = "A"
    lines = ["+" + "---+" * size]
    for y in range(size):
        cells = [
            f" {marks.get((x, y), ' ')} " + (" " if layout[x, y, 2] else "|") for x in range(size)
        ]
        lines.append("|" + "".join(cells))
        lines.append(
            "+" + "".join(("   " if layout[x, y, 1] else "---") + "+" for x in range(size))
        )
    return "\n".join(lines)


def parse(drawing: str) -> Layout:
    """The layout of a drawing as `draw` makes them; letters in cells are ignored."""
    if not isinstance(drawing, str):
        raise EngramError(f"A drawing of a maze must be a text, not {drawing!r}: {DRAWING_REMEDY}.")
    lines = [line.strip() for line in drawing.splitlines() if line.strip()]
    size = (len(lines) - 1) // 2
    is_square = len(lines) == 2 * size + 1 and all(len(line) == 4 * size + 1 for line in lines)
    if not is_square or not MIN_SIZE <= size <= MAX_SIZE:
        raise EngramError(
            "A drawing of a maze with n rows must have 2 n + 1 lines of 4 n + 1 characters, with n "
            f"from {MIN_SIZE} to {MAX_SIZE}: {DRAWING_REMEDY}."
        )
    layout = np.zeros((size, size, 4), bool)
    for x in range(size):
        for y in range(size):
            column, row = 4 * x + 2, 2 * y + 1
            layout[x, y, 1] = lines[row + 1][column] == " "
            layout[x, y, 2] = lines[row][column + 2] == " "
    layout = _both_ways(layout)
    for number, (line, redrawn) in enumerate(zip(lines, draw(layout).splitlines(), strict=True)):
        if _without_letters(line, number) != _without_letters(redrawn, number):
            raise EngramError(
                f"Line {number + 1} of the drawing of a maze is {line!r}, but must be like "
                f"{redrawn!r}: {DRAWING_REMEDY}."
            )
    _check_goal(layout)
    return layout


def _without_letters(line: str, number: int) -> str:
    """A line of a drawing without what is in its cells, if it has cells."""
    return line if number % 2 == 0 else line[::4]


def _both_ways(layout: Layout) -> Layout:
    """With every passage open from both of its sides."""
    both = layout.copy()
    size = layout.shape[0]
    for x, y, direction in np.argwhere(layout):
        dx, dy = MOVES[direction]
        if not _is_inside(x + dx, y + dy, size):
            both[x, y, direction] = False
            continue
        both[x + dx, y + dy, OPPOSITE[direction]] = True
    return both


def _is_inside(x: int, y: int, size: int) -> bool:
    return 0 <= x < size and 0 <= y < size


def _leads_to_south_or_east(size: int) -> Bool[np.ndarray, "n n 4"]:
    """The sides between two cells, each once."""
    sides = np.zeros((size, size, 4), bool)
    sides[:, :-1, 1] = True
    sides[:-1, :, 2] = True
    return sides
