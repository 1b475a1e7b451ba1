"""What is printed while training."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from engram.agents import Random
from engram.loggers.progress_bar import ProgressBar, sparkline


@pytest.mark.parametrize(
    ("curve", "line"),
    [
        ([], ""),
        ([math.nan], ""),
        ([3.0], "▁"),
        ([0.0, 7.0], "▁█"),
        ([math.nan, 0.0, 1.0, 7.0], "▁▂█"),
    ],
)
def test_sparkline_draws_the_known_points(curve, line):
    assert sparkline(np.array(curve)) == line


def test_sparkline_averages_parts_of_a_long_curve():
    assert sparkline(np.array([0.0, 0.0, 7.0, 7.0]), width=2) == "▁█"


def test_progress_without_a_terminal_is_a_line_for_every_tenth(capsys):
    bar = ProgressBar("dqn on cartpole")
    bar.on_start(None)
    for step in (0, 4, 50, 55, 101):
        progress = SimpleNamespace(
            step=step,
            steps=100,
            steps_per_second=50.0 if step else 0.0,
            mean_return=12.34 if step else math.nan,
            curve=np.array([12.34]),
            returns={0: 12.34, 1: 12.34},
            metrics={},
        )
        bar.on_log(None, progress)
    bar.on_end(None)
    assert capsys.readouterr().out.splitlines() == [
        "dqn on cartpole",
        "0/100 steps, compiled, mean return –",
        "50/100 steps, 50 steps/s, 2 s left, mean return 12.3",
        "100/100 steps, 50 steps/s, mean return 12.3",
    ]


def progress_at(step, steps=100):
    return SimpleNamespace(
        step=step,
        steps=steps,
        steps_per_second=50.0,
        mean_return=1.0,
        curve=np.array([1.0]),
        returns={0: 1.0},
        metrics={},
    )


def test_a_pipe_gets_lines_even_if_colors_are_forced(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    bar = ProgressBar("dqn on cartpole")
    bar.on_start(None)
    for step in range(0, 101, 5):
        bar.on_log(None, progress_at(step))
    bar.on_end(None)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("dqn on cartpole") == 1
    assert len(lines) == 12
    assert "\x1b" not in "".join(lines)


def test_a_progress_bar_begins_anew_with_each_training(capsys):
    bar = ProgressBar()
    for name in ("cartpole", "acrobot"):
        task = SimpleNamespace(name=name)
        bar.on_start(SimpleNamespace(agent=Random(), task=task, seeds=(0,)))
        bar.on_log(None, progress_at(100))
        bar.on_end(None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["random on cartpole, 1 seed", "random on acrobot, 1 seed"]
    assert len(lines) == 4
