"""TensorBoard: a training's scores and metrics, written while it runs for those who watch it there."""

from pathlib import Path

from engram.errors import EngramError
from engram.training import Progress


class Events:
    """Writes what a training tells, a folder a seed. Give it to `train` or `resume` as `watch`, or call it from a watch of your own."""

    def __init__(self, folder: str | Path):
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise EngramError("TensorBoard is not installed: pip install tensorboard, or leave it out.") from None
        self.folder, self.writer, self.writers = Path(folder), Writer, {}

    def __call__(self, now: Progress) -> None:
        for seed, score in now.scores.items():
            if seed not in self.writers:
                self.writers[seed] = self.writer(str(self.folder / f"seed-{seed}"))
            told = {"score": score, "steps per second of all seeds": now.steps_per_second} | now.metrics.get(seed, {})
            for name, value in told.items():
                if value == value:  # NaN: no episode has ended
                    self.writers[seed].add_scalar(name, value, now.step)
            self.writers[seed].flush()
