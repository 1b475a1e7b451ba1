"""A training of one checkout of Engram in its own process, which times a turn for every line.

Uses only what all commits have: `engram.make`, and `engram.train` with a function that it calls at
every log point. That is a hook now, and was the argument `watch` before.
"""

import inspect
import json
import sys
import time
from typing import IO, Any

import engram
from benchmarks.worker import pin

MIN_STEPS = 100_000
"""of a training; from here on a log point comes every 1,000 iterations"""


class Turns:
    """Answers at the first log point after a turn's steps, then waits for the next request."""

    def __init__(self, steps_per_turn: int, answers: IO[str]):
        self.steps_per_turn = steps_per_turn
        self.answers = answers
        self.is_warm = False
        self.first_step, self.wall, self.cpu = 0, 0.0, 0.0

    def on_log(self, step: int) -> None:
        """Called with the environment steps so far."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        steps = step - self.first_step
        if steps < self.steps_per_turn:
            return
        answer: dict[str, Any] = {"package": engram.__file__}
        if self.is_warm:
            answer = {"steps": steps, "wall": wall, "cpu": cpu}
        print(json.dumps(answer), file=self.answers, flush=True)
        if not sys.stdin.readline():
            sys.exit()
        self.is_warm = True
        self.first_step = step
        self.wall, self.cpu = time.perf_counter(), time.process_time()


def callback_arguments(turns: Turns) -> dict[str, Any]:
    """The argument of `engram.train` that makes it call `turns.on_log`."""
    if "hooks" not in inspect.signature(engram.train).parameters:
        return {"watch": lambda progress: turns.on_log(progress.step)}
    hook = engram.Hook()
    hook.on_log = lambda run, progress: turns.on_log(progress.step)
    return {"hooks": [hook]}


def main() -> None:
    agent = sys.argv[1]
    steps_per_turn, num_turns, core = map(int, sys.argv[2:])
    pin(core)
    # What libraries print must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    turns = Turns(steps_per_turn, answers)
    # A turn is up to 1,000 steps too long, and the first is the warm-up.
    steps = max(MIN_STEPS, (num_turns + 2) * (steps_per_turn + 1_000))
    arguments = callback_arguments(turns)
    engram.train(engram.make(agent, "paper"), "cartpole", seeds=1, steps=steps, **arguments)


if __name__ == "__main__":
    main()
