"""The progress of a training: a bar in a terminal, else a line after every tenth of the steps."""

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from engram.agents import agent_name
from engram.loggers.console import count_seeds
from engram.provenance import memory_in_use, memory_size
from engram.stats import format_return
from engram.training_loop import Logger, Progress, Training


class ProgressBar(Logger):
    """Shows steps, speed, the device's memory in use, time left, the mean return and its curve;
    where there is no terminal, a line after every tenth of the steps."""

    def __init__(self, title: str | None = None):
        self.title = title
        """what is trained; agent, task and seeds if None"""

    def on_start(self, run: Training) -> None:
        self.screen = Console(emoji=False)
        self.tenths_printed = -1
        self.bar = RichProgress(
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left  return {task.fields[mean_return]}"),
            console=self.screen,
            expand=True,
        )
        self.row = self.bar.add_task("compiling", total=None, mean_return="–")
        # FORCE_COLOR makes Rich take a pipe for a terminal, and some terminals cannot redraw.
        self.is_live = self.screen.file.isatty() and self.screen.is_interactive
        title = (
            self.title
            or f"{agent_name(run.agent)} on {run.task.name}, {count_seeds(len(run.seeds))}"
        )
        self.screen.print(title, markup=False, highlight=False, soft_wrap=True)
        if self.is_live:
            self.bar.start()

    def on_end(self, run: Training) -> None:
        if self.is_live:
            self.bar.stop()

    def on_log(self, run: Training, progress: Progress) -> None:
        step = min(progress.step, progress.steps)
        mean_return = format_return(progress.mean_return)
        facts = [f"{step:,}/{progress.steps:,} steps", "compiled", *_memory_in_use()]
        if progress.steps_per_second:
            facts[1] = f"{progress.steps_per_second:,.0f} steps/s"
        self.bar.update(
            self.row,
            description="  ".join(facts),
            completed=step,
            total=progress.steps,
            mean_return=f"{mean_return} {sparkline(progress.curve)}",
        )
        tenths = 10 * step // progress.steps
        if not self.is_live and tenths > self.tenths_printed:
            self.tenths_printed = tenths
            facts += [*_time_left(progress), f"mean return {mean_return}"]
            self.screen.print(", ".join(facts), highlight=False, soft_wrap=True)


def sparkline(curve: Float[np.ndarray, "P"], width: int = 16) -> str:
    """A curve as a word: the height of each character is the mean of a part of it."""
    known = curve[~np.isnan(curve)]
    if not len(known):
        return ""
    parts = np.array_split(known, min(width, len(known)))
    means = np.array([part.mean() for part in parts])
    heights = (means - means.min()) / (np.ptp(means) or 1.0)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * height)] for height in heights)


def _memory_in_use() -> list[str]:
    """Gigabytes of an accelerator's memory in use, if known."""
    used, total = memory_in_use(), memory_size()
    return [f"{used / 1e9:.1f}/{total / 1e9:.0f} GB"] if used and total else []


def _time_left(progress: Progress) -> list[str]:
    """The estimated time to the end, if known."""
    if not progress.steps_per_second or progress.step >= progress.steps:
        return []
    seconds = (progress.steps - progress.step) * len(progress.returns) / progress.steps_per_second
    return [f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"]
