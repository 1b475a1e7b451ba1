"""Figures of several runs show each of them, so that they can be told apart."""

import os

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from run_dir_helpers import sentence, write_run

import engram
from engram.errors import EngramError
from engram.figures import COLOURS
from engram.run_figures import caption, line_styles, plot, y_label
from engram.run_labels import read_runs


def write_runs(folder, agents=("dqn",), tasks=("cartpole",), gammas=(0.9,), seeds=6):
    """Runs of all combinations, each at a height of its own."""
    paths = []
    for agent in agents:
        for task in tasks:
            for gamma in gammas:
                height = 10.0 * len(paths)
                returns = {seed: [height, height + seed] for seed in range(seeds)}
                path = folder / f"{agent}-{task}-{gamma}"
                paths.append(write_run(path, returns, agent, task, gamma=gamma))
    return paths


def styles_of(paths, by="task"):
    return line_styles(read_runs(paths), by)


def share(path, colour):
    """The share of an image's pixels that have this colour."""
    pixels = np.asarray(Image.open(path).convert("RGB"), float)
    return np.mean(np.abs(pixels - 255 * np.array(to_rgb(colour))).max(axis=-1) < 8)


def refused(*words, **arguments):
    with pytest.raises(EngramError) as excinfo:
        plot(**arguments)
    sentence(excinfo, *words)


def test_every_agent_has_its_own_colour_in_every_panel(tmp_path):
    paths = write_runs(tmp_path, ("dqn", "mbec++"), ("cartpole", "acrobot"))
    out = engram.plot(paths, tmp_path / "figure.png")
    assert out == tmp_path / "figure.png"
    left, right = (np.s_[:, :580], np.s_[:, 580:])
    pixels = np.asarray(Image.open(out).convert("RGB"), float)
    for half in (left, right):
        for agent in ("dqn", "mbec++"):
            colour = 255 * np.array(to_rgb(COLOURS[agent]))
            assert (np.abs(pixels[half] - colour).max(axis=-1) < 8).sum() > 300
    assert share(out, COLOURS["nec"]) == 0


def test_all_lines_of_a_panel_differ(tmp_path):
    gammas = tuple(0.9 + 0.01 * i for i in range(8))
    for agents, some in ((("dqn",), gammas), (("dqn", "ppo"), gammas[:4]), (("x", "y"), gammas)):
        styles = styles_of(write_runs(tmp_path / str(agents), agents, gammas=some))
        assert len(styles) == len(agents) * len(some)
        assert len({(str(x.colour), str(x.dashes)) for x in styles.values()}) == len(styles)


def test_variants_of_an_agent_among_others_have_shades_of_its_colour(tmp_path):
    styles = styles_of(write_runs(tmp_path, ("dqn", "ppo"), gammas=(0.9, 0.99)))
    first, second, *_ = styles.values()
    blue = to_rgb(COLOURS["dqn"])
    assert first.colour == blue
    assert second.colour == pytest.approx([0.65 * x for x in blue])
    assert first.dashes != second.dashes


def test_panels_by_agent_have_a_line_for_each_task(tmp_path):
    paths = write_runs(tmp_path, ("dqn", "ppo"), ("cartpole", "acrobot"))
    assert list(styles_of(paths, "agent")) == ["cartpole", "acrobot"]
    assert share(plot(paths, tmp_path / "a.png", by="agent"), COLOURS["dqn"]) == 0


def test_few_seeds_are_drawn_and_many_have_an_interval(tmp_path):
    (few,) = write_runs(tmp_path / "few", seeds=4)
    (many,) = write_runs(tmp_path / "many", ("ppo",), seeds=5)
    (one,) = write_runs(tmp_path / "one", ("nec",), seeds=1)
    interval = "shaded: its 95% bootstrap interval"
    assert caption(read_runs([few])) == "mean of 4 seeds; faint: each seed"
    assert caption(read_runs([many])) == f"mean of 5 seeds; {interval}"
    assert caption(read_runs([one])) == "1 seed"
    text = f"mean of 1 to 5 seeds; {interval}; faint: each seed of runs with fewer than 5"
    assert caption(read_runs([few, many, one])) == text


def test_the_axis_says_what_was_smoothed():
    assert y_label(1, is_long=True) == "return (un-noised, mean of last 10 episodes)"
    assert y_label(5, is_long=True).endswith("episodes,\nrunning mean over 5 points)")
    assert y_label(1, is_long=False) == "return (un-noised,\nmean of last 10 episodes)"


def test_unfinished_runs_are_drawn_and_the_format_follows_the_ending(tmp_path):
    path = write_run(tmp_path / "run", {0: [float("nan"), 1.0, 2.0], 1: [0.0, 1.0, 2.0]}, steps=30)
    config = (path / "config.json").read_text().replace('"steps": 30', '"steps": 90')
    (path / "config.json").write_text(config)
    assert b"<svg" in plot(path, tmp_path / "a.svg", smooth=2).read_bytes()[:1000]
    assert plot([path], tmp_path / "a.pdf").read_bytes()[:4] == b"%PDF"


def test_a_legend_too_long_for_all_is_drawn_beside_each_panel(tmp_path):
    gammas = tuple(0.9 + 0.01 * i for i in range(5))
    paths = write_runs(tmp_path, ("dqn",), ("cartpole",), gammas)
    paths += write_runs(tmp_path, ("ppo",), ("acrobot",), gammas)
    width, height = Image.open(plot(paths, tmp_path / "wide.png")).size
    assert width > 2 * height


def test_more_than_eight_lines_are_refused(tmp_path):
    paths = write_runs(tmp_path, gammas=tuple(range(9)))
    out = tmp_path / "a.png"
    refused("would have 9 lines", "more than 8", "--by agent", paths=paths, out=out)
    assert not out.exists()


def test_files_that_cannot_be_written_are_refused(tmp_path, monkeypatch):
    (path,) = write_runs(tmp_path)
    refused(".png, .svg or .pdf", paths=path, out=tmp_path / "a.gif")
    refused("There is no folder", "make it", paths=path, out=tmp_path / "no" / "a.png")
    refused("file of the run", "name another", paths=path, out=path / "curves.png")
    (tmp_path / "folder.png").mkdir()
    refused("it is a folder", paths=path, out=tmp_path / "folder.png")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    refused("not writable", "name another", paths=path, out=tmp_path / "a.png")


def test_wrong_arguments_are_refused(tmp_path):
    (path,) = write_runs(tmp_path)
    refused("smooth must be at least 1", paths=path, out=tmp_path / "a.png", smooth=0)
    refused("by must be one of task, agent", paths=path, out=tmp_path / "a.png", by="seed")
