"""Built-in hooks that need nothing else; see also `TensorBoard` and `BestPolicy`."""

import time

from engram.errors import EngramError
from engram.training_loop import Hook, Progress, Training

__all__ = ["Hook", "TimeBudget"]


class TimeBudget(Hook):
    """Stops a run, with everything saved, once some minutes are over since the hook was made."""

    def __init__(self, minutes: float):
        if not (isinstance(minutes, int | float) and minutes >= 0):
            raise EngramError(f"minutes must be a number of at least 0, not {minutes!r}.")
        self.minutes = minutes
        self.deadline = time.monotonic() + 60 * minutes

    def on_log(self, run: Training, progress: Progress) -> None:
        if time.monotonic() > self.deadline:
            run.stop(f"the time budget of {self.minutes:g} minutes is over")
