"""Figures and videos show their data."""

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.animation import FFMpegWriter
from matplotlib.colors import to_rgb
from PIL import Image

from engram.errors import EngramError
from engram.figures import COLOURS, colours, learning_curves, plot_grid
from engram.paper.figures import plot_scores, plot_variants, spread
from engram.video import save_video

STEPS = np.arange(0, 1000, 50)


def curves(height, seeds=3):
    return {seed: (STEPS, np.full(len(STEPS), height + 5.0 * seed)) for seed in range(seeds)}


def share(path, colour):
    """The share of an image's pixels that have this colour."""
    pixels = np.asarray(Image.open(path).convert("RGB"), float)
    return np.mean(np.abs(pixels - 255 * np.array(to_rgb(colour))).max(axis=-1) < 8)


def test_learning_curves_draw_every_agent_in_its_colour(tmp_path):
    path = tmp_path / "curves.png"
    learning_curves({"mbec++": curves(100.0), "dqn": curves(20.0)}, path, "Cart Pole", "3 seeds")
    assert Image.open(path).size == (1280, 800)
    assert share(path, COLOURS["mbec++"]) > share(path, COLOURS["dqn"]) > 0.001
    assert share(path, COLOURS["nec"]) == 0
    assert os.listdir(tmp_path) == ["curves.png"]


def test_every_seed_is_drawn_faintly(tmp_path):
    half = {seed: (STEPS[:10], returns[:10]) for seed, (_, returns) in curves(0.0).items()}
    learning_curves(
        {"dqn": half | {9: (STEPS, np.full(len(STEPS), 7.0))}}, tmp_path / "a.png", "Task"
    )
    right = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"), int)[100:650, 750:1200]
    assert (
        (right[..., 2] - right[..., 0]) > 15
    ).any()  # blue, though the mean ends where the shorter seeds do
    assert share(tmp_path / "a.png", COLOURS["dqn"]) > 0


def test_fewer_than_five_seeds_are_drawn_without_an_interval(tmp_path):
    panels = {n: {"task": {"dqn": curves(0.0, n)}} for n in (4, 5)}
    band = 255 * (1 - 0.2 * (1 - np.array(to_rgb(COLOURS["dqn"]))))
    for count, panel in panels.items():
        plot_grid(panel, tmp_path / f"{count}.png")
        pixels = np.asarray(Image.open(tmp_path / f"{count}.png").convert("RGB"), float)
        has_band = np.mean(np.abs(pixels - band).max(axis=-1) < 3) > 0.01
        assert has_band == (count == 5)


def test_curves_without_returns_are_drawn_empty(tmp_path):
    learning_curves(
        {"dqn": {0: (STEPS, np.full(len(STEPS), math.nan))}}, tmp_path / "a.png", "Task"
    )
    learning_curves({}, tmp_path / "b.png", "Task")
    assert Image.open(tmp_path / "a.png").size == Image.open(tmp_path / "b.png").size == (1280, 800)


@pytest.mark.parametrize(("tasks", "size"), [(1, (600, 560)), (3, (1680, 560)), (4, (1680, 970))])
def test_grid_grows_with_its_tasks_and_shows_each_agent(tmp_path, tasks, size):
    panels = {f"task {i}": {"mbec++": curves(50.0), "dqn": curves(0.0)} for i in range(tasks)}
    panels["task 0"]["random"] = curves(-20.0)
    plot_grid(panels, tmp_path / "grid.png")
    assert Image.open(tmp_path / "grid.png").size == size
    assert all(
        share(tmp_path / "grid.png", COLOURS[name]) > 0.0005 for name in ("mbec++", "dqn", "random")
    )


def test_variants_have_one_axis_and_a_label_each_in_their_colour(tmp_path):
    path = tmp_path / "variants.png"
    plot_variants({"low": {"dqn": curves(0.0)}, "high": {"mbec++": curves(50.0), "mine": {}}}, path)
    halves = np.split(np.asarray(Image.open(path).convert("RGB"), float), 2, axis=1)
    heights = []
    for half, name in zip(halves, ("dqn", "mbec++"), strict=True):
        is_drawn = np.abs(half - 255 * np.array(to_rgb(COLOURS[name]))).max(axis=-1) < 8
        heights.append(np.median(np.flatnonzero(is_drawn.any(axis=1))))
        last_column = np.flatnonzero(is_drawn.any(axis=0))[-1]
        assert last_column > 0.75 * half.shape[1]  # the label is right of the axes
    assert heights[1] < heights[0] - 100


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_labels_are_apart_in_order_and_not_moved_without_need(places):
    places, gap = sorted(places), min(0.1, 1 / max(1, len(places) - 1))
    moved = spread(places, 0.1)
    assert -1e-9 <= min(moved) <= max(moved) <= 1
    assert all(np.diff(moved) >= gap - 1e-9)
    if all(np.diff(places) >= gap):
        assert moved == places


def test_scores_show_every_seed_and_their_mean(tmp_path):
    scores = {"dqn": [0.0, 50.0, 100.0], "mbec++": [80.0]}
    plot_scores({"pong": scores, "hero": {"mbec++": [10.0]}}, tmp_path / "a.png", "Title", "%")
    plot_scores({"pong": scores, "hero": scores}, tmp_path / "b.png", "Title", "%")
    of_dqn = [share(tmp_path / name, COLOURS["dqn"]) for name in ("a.png", "b.png")]
    assert 0 < 1.5 * of_dqn[0] < of_dqn[1]  # hero has dqn's dots in one of them alone


def test_grid_without_tasks_is_an_empty_figure(tmp_path):
    plot_grid({}, tmp_path / "grid.png")
    assert Image.open(tmp_path / "grid.png").size == (600, 560)


def test_agent_has_the_same_colour_in_every_figure():
    assert (
        colours(["dqn", "mbec++"])["dqn"]
        == colours(["mine", "random", "DQN"])["DQN"]
        == COLOURS["dqn"]
    )
    others = colours(["mine", "yours", *COLOURS])
    assert len(set(others.values())) == len(others)


def test_drawing_does_not_use_pyplot(tmp_path):
    learning_curves({"dqn": curves(0.0)}, tmp_path / "a.png", "Task")
    assert pyplot.get_fignums() == []


def test_unknown_image_format_is_refused(tmp_path):
    with pytest.raises(EngramError, match=r"\.png"):
        learning_curves({"dqn": curves(0.0)}, tmp_path / "a.doc", "Task")
    assert os.listdir(tmp_path) == []


def frames_of(count=4, height=10, width=12):
    """Frames of different, plain colours."""
    return [
        np.full((height, width, 3), (60 * i, 255 - 60 * i, 128), np.uint8) for i in range(count)
    ]


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".GIF"])
def test_video_has_every_frame_at_its_time(tmp_path, suffix):
    path = tmp_path / f"play{suffix}"
    save_video(frames_of(), path, fps=10)
    with Image.open(path) as video:
        assert video.n_frames == 4
        for i, frame in enumerate(frames_of()):
            video.seek(i)
            video.load()
            assert video.info["duration"] == 100
            assert np.abs(np.asarray(video.convert("RGB"), int) - frame).max() <= 6


def test_mp4_without_ffmpeg_points_to_gif(tmp_path, monkeypatch):
    monkeypatch.setattr(FFMpegWriter, "isAvailable", classmethod(lambda cls: False))
    with pytest.raises(EngramError, match=r"ffmpeg.*\.gif"):
        save_video(frames_of(), tmp_path / "play.mp4", fps=10)
    assert os.listdir(tmp_path) == []


def fake_ffmpeg(tmp_path, monkeypatch, script):
    """Puts a shell script in place of ffmpeg."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ffmpeg").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_ffmpeg_receives_every_pixel(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path, monkeypatch, 'for last; do :; done; cat > "$last"')
    noise = [np.random.default_rng(i).integers(0, 256, (9, 12, 3), np.uint8) for i in range(3)]
    save_video(noise, tmp_path / "play.mp4", fps=10)
    received = np.fromfile(tmp_path / "play.mp4", np.uint8).reshape(
        3, 10, 12, 4
    )  # even, as h264 wants
    np.testing.assert_array_equal(received[:, :9, :, :3], noise)


def test_failing_ffmpeg_is_reported(tmp_path, monkeypatch):
    fake_ffmpeg(tmp_path, monkeypatch, "cat > /dev/null; exit 3")
    with pytest.raises(EngramError, match="ffmpeg"):
        save_video(frames_of(), tmp_path / "play.mp4", fps=10)


def test_invalid_videos_are_refused(tmp_path):
    with pytest.raises(EngramError, match=r"\.gif, \.webp or \.mp4"):
        save_video(frames_of(), tmp_path / "play.avi", fps=10)
    with pytest.raises(EngramError, match="no frames"):
        save_video([], tmp_path / "play.gif", fps=10)
    with pytest.raises(EngramError, match="differ in size"):
        save_video([*frames_of(1), *frames_of(1, height=20)], tmp_path / "play.gif", fps=10)
    assert os.listdir(tmp_path) == []
