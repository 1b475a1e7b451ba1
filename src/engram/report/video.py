"""Videos of an agent at play."""

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
from engram.records import replacing


def check_name(path: str | Path) -> None:
    """Raises if no video can be written under that name: better before an episode is played than after."""
    kind = Path(path).suffix.lower()
    if kind not in (".gif", ".webp", ".mp4"):
        raise EngramError(f"{path} is no video that Engram can write: let its name end in .gif, .webp or .mp4.")
    if kind == ".mp4" and not FFMpegWriter.isAvailable():
        raise EngramError(f"{path} needs ffmpeg, which is not installed: install it, or let the name end in .gif.")


def save_video(frames: Sequence[UInt8[np.ndarray, "H W 3"]], path: str | Path, fps: float) -> None:
    """Writes frames of one size as .gif, .webp or, where ffmpeg is installed, .mp4."""
    check_name(path)
    path, kind = Path(path), Path(path).suffix.lower()
    if len({np.shape(frame) for frame in frames}) != 1:
        raise EngramError(f"{path} cannot be written: {'the frames differ in size' if len(frames) else 'there are no frames'}.")
    if kind == ".mp4":
        return _with_ffmpeg(frames, path, fps)
    first, *rest = map(Image.fromarray, frames)
    duration = max(20, round(1000 / fps))  # viewers slow down whatever asks for less
    with replacing(path) as file:
        first.save(file, format=kind[1:], save_all=True, append_images=rest, duration=duration, loop=0)


def _with_ffmpeg(frames: Sequence[np.ndarray], path: Path, fps: float) -> None:
    height, width = frames[0].shape[:2]
    # h264 wants even sizes, so an odd one is enlarged by repeating its last line
    frames = [np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge") for frame in frames]
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
        raise EngramError(f"{path} could not be written by ffmpeg ({error}): let the name end in .gif.") from error
