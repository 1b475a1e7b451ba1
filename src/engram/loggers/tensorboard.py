"""TensorBoard: returns and metrics of every seed, written while a training runs."""

from pathlib import Path
from typing import Any

from engram.errors import EngramError
from engram.training_loop import Logger, Progress, Training


class TensorBoard(Logger):
    """Writes event files for TensorBoard, one folder for each seed."""

    def __init__(self, folder: str | Path):
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise EngramError(
                "TensorBoard is not installed: pip install tensorboard, or leave it out."
            ) from None
        self.folder = Path(folder)
        self.make_writer = Writer
        self.writers: dict[int, Any] = {}

    def on_log(self, run: Training, progress: Progress) -> None:
        for seed in run.seeds:
            if seed not in self.writers:
                self.writers[seed] = self.make_writer(str(self.folder / f"seed-{seed}"))
            for name, value in progress.scalars(seed).items():
                self.writers[seed].add_scalar(name, value, progress.step)
            self.writers[seed].flush()

    def on_end(self, run: Training) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers = {}
