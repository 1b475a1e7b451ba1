"""Videos of episodes as .gif, .webp or .mp4 files."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from matplotlib.animation import FFMpegWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from engram.errors import EngramError
from engram.files import atomic_write

MIN_FRAME_DURATION = 20
"""milliseconds; viewers play shorter frames slower instead"""


def check_name(path: str | Path) -> None:
    """Raises if no video can be written to that path; call it before an episode is played."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".gif", ".webp", ".mp4"):
        raise EngramError(
            f"{path} is not a video that Engram can write: let its name end in .gif, .webp or .mp4."
        )
    if suffix == ".mp4" and not FFMpegWriter.isAvailable():
        raise EngramError(
            f"{path} needs ffmpeg, which is not installed: install it, or let the name end in .gif."
        )


def save_video(frames: Sequence[UInt8[np.ndarray, "H W 3"]], path: str | Path, fps: float) -> None:
    """Writes frames of one size as .gif, .webp or, if ffmpeg is installed, .mp4."""
    check_name(path)
    path = Path(path)
    suffix = path.suffix.lower()
    if len({np.shape(frame) for frame in frames}) != 1:
        fault = "the frames differ in size" if len(frames) else "there are no frames"
        raise EngramError(f"{path} cannot be written: {fault}.")
    if suffix == ".mp4":
        return _save_mp4(frames, path, fps)
    first, *rest = map(Image.fromarray, frames)
    duration = max(MIN_FRAME_DURATION, round(1000 / fps))
    with atomic_write(path) as file:
        first.save(
            file, format=suffix[1:], save_all=True, append_images=rest, duration=duration, loop=0
        )


def _save_mp4(frames: Sequence[np.ndarray], path: Path, fps: float) -> None:
    height, width = frames[0].shape[:2]
    # H.264 needs even sizes, so that the last line of an odd one is repeated.
    padding = ((0, height % 2), (0, width % 2), (0, 0))
    frames = [np.pad(frame, padding, mode="edge") for frame in frames]
    height, width = frames[0].shape[:2]
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    FigureCanvasAgg(figure)
    image = figure.figimage(frames[0])
    writer = FFMpegWriter(fps=fps)  # pyright: ignore[reportArgumentType]
    try:
        with writer.saving(figure, path, dpi=100):
            for frame in frames:
                image.set_data(frame)
                writer.grab_frame()
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngramError(
            f"ffmpeg could not write {path} ({error}): let the name end in .gif."
        ) from error
