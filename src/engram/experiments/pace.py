"""How long runs of the Atari campaign take, by the rows of those that are done and by their own pace."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

VALIDATIONS, VALIDATION_GAMES, TEST_GAMES = 5, 10, 100
"""how a run is judged: so many times in its training by a few whole games, and in the end"""
SPEED_ALONE, SPEED_OF_MANY = 4_000.0, 13_500.0
"""agent steps a second of one run, and what those of ever more in one program come near, on an H200, where nothing was measured yet"""
LOOKS, COUNTED, MARGIN = 20, 4, 1.05
"""how often in a training it is looked whether it will be done in time, by the pace since so many looks, and how much longer it may take"""
COMPILATION, LOADING, JUDGING = 30.0, 4.0, 0.15
"""seconds before the first step, for each run's consoles, and, where nothing was measured yet, for a game of its validations and tests"""


def speed(agent: str, runs: int, known: Sequence[dict[str, Any]]) -> float:
    """Agent steps a second of so many runs in one program: the slowest measured; else what is expected, as much slower or faster as
    other numbers of runs were."""
    own = _like(agent, known)
    alike = [row for row in own if row["runs_in_one_program"] == runs]
    return expected(runs) * min((row["steps_per_second"] / expected(row["runs_in_one_program"]) for row in alike or own), default=1.0)


def expected(runs: int) -> float:
    """Their speed where nothing was measured. On an H200 eight runs of MBEC++ had 10,700 and thirty 12,400, where this says 10,400 and
    12,500."""
    return runs / takes(runs)


def takes(runs: int) -> float:
    """Seconds for a step of each of so many runs: each after the first takes the same time more."""
    return 1 / SPEED_ALONE + (runs - 1) / SPEED_OF_MANY


def needed(agent: str, steps: int, runs: int, known: Sequence[dict[str, Any]]) -> float:
    """Seconds for so many runs of so many steps in a program: compiling, training and judging them."""
    games = VALIDATIONS * VALIDATION_GAMES + TEST_GAMES
    return COMPILATION + (LOADING + steps / speed(agent, runs, known) + judging(agent, steps, known) * games) * runs


def judging(agent: str, steps: int, known: Sequence[dict[str, Any]]) -> float:
    """Seconds for a game of a run's validations and tests: the most measured."""
    own = _like(agent, known)
    alike = [row for row in own if row["steps"] == steps]

    def a_game(row: dict[str, Any]) -> float:
        return row["judging_seconds"] / row["runs_in_one_program"] / (len(row["validation"]) * VALIDATION_GAMES + len(row["test_games"]))

    return max(map(a_game, alike or own), default=JUDGING)


def _like(agent: str, known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the agent; but where runs were given up, times are of more runs than there are rows."""
    return [row for row in known if row["agent"] == agent and not row.get("runs_given_up")]


class Deadline:
    """Tells whether runs that are trained together will be done in time. Their pace is that of a fifth of the training, since others may
    use the processors for a minute or two, and leave them again; runs that were given up meanwhile are allowed for."""

    def __init__(self, until: float, iterations: int, a_game: float):
        self.until, self.iterations, self.a_game = until, iterations, a_game
        """`a_game`: seconds that one takes by which a run is judged"""
        self.last: tuple[int, int, float] | None = None
        """so many runs at an iteration, and when that was"""
        self.work = self.seconds = 0.0
        """what training took so far, as it was expected and as it was"""
        self.looks = 0
        self.past: deque[tuple[float, float]] = deque(maxlen=COUNTED + 1)
        """both, at the last looks"""

    def is_missed(self, iteration: int, runs: int, games: int, judging: float) -> bool:
        """Asked again and again. `games` are those by which each run is still to be judged, `judging` the seconds that went into others so
        far, which do not count. One run is never given up."""
        last, self.last = self.last, (runs, iteration, time.monotonic() - judging)
        if last is not None and last[0] == runs:  # else it has compiled meanwhile
            self.work += (iteration - last[1]) * takes(runs)
            self.seconds += self.last[2] - last[2]
        looks = iteration * LOOKS // self.iterations
        if looks == self.looks:
            return False
        self.looks = looks
        self.past.append((self.work, self.seconds))
        (work, seconds), (work_now, seconds_now) = self.past[0], self.past[-1]
        if runs == 1 or work_now == work:
            return False
        training = (self.iterations - iteration) * takes(runs) * (seconds_now - seconds) / (work_now - work)
        return MARGIN * (training + self.a_game * games * runs) > self.until - time.monotonic()
