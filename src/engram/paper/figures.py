"""Figures of the paper's experiments: variants of an agent, scores by game, paths in a plane."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from engram.figures import (
    DARK,
    DPI,
    GREY,
    X_LABEL,
    Y_LABEL,
    colours,
    draw_curves,
    grid_of_axes,
    outer_labels,
    panel_title,
    save,
    style_axes,
)
from engram.run_dir import Curves

LABEL_HEIGHT = 0.09
"""of a line's label, as a share of the axes' height"""
ROW_HEIGHT, SCORES_WIDTH = 0.17, 2.1
"""inches of an agent's row and of a panel of scores"""
MANY_PANELS = 9
"""from so many panels of scores on there are six columns, not three"""
STALE, NEW = "#0072B2", "#D55E00"


def plot_variants(
    panels: Mapping[str, Mapping[str, Curves]], path: str | Path, columns: int = 3
) -> None:
    """Draws panels of a few learning curves each, on common axes, with labels at their ends."""
    columns = max(1, min(columns, len(panels)))
    figure, axes = grid_of_axes(len(panels), columns, (3.1, 2.1), 0.3)
    lines = []
    for ax, (title, curves) in zip(axes, panels.items(), strict=False):
        ax.sharey(axes[0])
        lines.append(draw_curves(ax, curves, colours(curves), draw_seeds=False))
        panel_title(ax, title)
    axes[0].yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    for ax, of_panel in zip(axes, lines, strict=False):  # once the common axis is known
        _label_ends(ax, of_panel)
    outer_labels(figure, X_LABEL, Y_LABEL if len(panels) > columns else Y_LABEL.split(" (")[0])
    save(figure, path)


def _label_ends(axes: Axes, lines: Mapping[str, Line2D]) -> None:
    """Writes each line's label beside its end, moved so that none hides another."""
    low, high = axes.get_ylim()
    heights = {label: np.asarray(line.get_ydata()) for label, line in lines.items()}
    ends = {label: (y[-1] - low) / (high - low) for label, y in heights.items() if len(y)}
    order = sorted(ends, key=lambda label: ends[label])
    places = spread([ends[label] for label in order], LABEL_HEIGHT)
    for label, place in zip(order, places, strict=True):
        style: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
        colour = lines[label].get_color()
        axes.annotate(label, (1, place), (4, 0), fontsize=8, color=colour, **style)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places in [0, 1], pushed up to be `gap` apart, then down from 1.

    The gap is smaller if so many places need it.
    """
    gap = min(gap, 1 / max(1, len(places) - 1))
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    ceiling = 1.0
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved


def plot_scores(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    path: str | Path,
    title: str,
    x_label: str,
) -> None:
    """Draws a panel per game with a row per agent: a dot per seed and a bar at their mean.

    Each panel has a linear axis of its own, with lines at 0 and at 100.
    """
    agents = list(dict.fromkeys(agent for scores in panels.values() for agent in scores))
    palette, columns = colours(agents), 3 if len(panels) < MANY_PANELS else 6
    columns = max(1, min(columns, len(panels)))
    size = SCORES_WIDTH, ROW_HEIGHT * len(agents) + 0.55
    figure, axes = grid_of_axes(len(panels), columns, size, 1.2)
    for i, (ax, (game, scores)) in enumerate(zip(axes, panels.items(), strict=False)):
        for reference, style in ((0, "-"), (100, ":")):
            ax.axvline(reference, color="#AAAAAA", linewidth=0.8, linestyle=style, zorder=0)
        for row, agent in enumerate(agents):
            values, colour = np.array(scores.get(agent, ())), palette[agent]
            ax.plot(values, np.full(len(values), row), "o", color=colour, alpha=0.55, markersize=4)
            if len(values):
                ax.plot(values.mean(), row, "|", color=colour, markersize=11, markeredgewidth=2)
        style_axes(ax)
        ax.grid(False)
        ax.spines["left"].set_visible(False)
        ax.set_ylim(len(agents) - 0.5, -0.5)
        ax.set_yticks(range(len(agents)), agents if i % columns == 0 else [""] * len(agents))
        ax.tick_params(axis="y", length=0)
        panel_title(ax, game)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=DARK)
    figure.supxlabel(x_label, fontsize=9, color=GREY)
    save(figure, path)


def plot_trajectories(
    state: tuple[tuple[str, str], np.ndarray],
    trajectories: Mapping[str, np.ndarray],
    is_stale: np.ndarray,
    values: np.ndarray,
    path: str | Path,
) -> None:
    """Draws an episode's observations, its trajectory vectors, and the memory's values of these.

    The observations come with the names of their two numbers. Earlier steps are fainter.
    """
    (names, observations), tau = state, ("$\\tau_1$", "$\\tau_2$")
    panels = {"observations": (names, observations)}
    panels |= {f"$\\tau$, {label}": (tau, points) for label, points in trajectories.items()}
    figure = Figure(figsize=(2.5 * (len(panels) + 1), 2.9), dpi=DPI, layout="constrained")
    *path_axes, map_axes = figure.subplots(1, len(panels) + 1)
    for ax, (title, (labels, points)) in zip(path_axes, panels.items(), strict=True):
        _draw_path(ax, points, is_stale)
        _name_axes(ax, title, labels)
    extent = (-1, 1, -1, 1)
    image = map_axes.imshow(values, origin="lower", extent=extent, cmap="viridis", aspect="auto")
    _name_axes(map_axes, "the memory's value of $\\tau$", tau)
    bar = figure.colorbar(image, ax=map_axes)
    bar.ax.tick_params(labelsize=7, colors=GREY)
    bar.set_label("value", fontsize=8, color=GREY)
    dots = [Line2D([], [], color=colour, marker="o", linestyle="") for colour in (NEW, STALE)]
    names_of_dots = ["the observation is new", "it is the last one again"]
    style: Any = {"frameon": False, "fontsize": 8.5, "labelcolor": DARK, "ncols": 2}
    figure.legend(dots, names_of_dots, loc="outside upper left", **style)
    save(figure, path)


def _draw_path(axes: Axes, points: np.ndarray, is_stale: np.ndarray) -> None:
    axes.plot(*points.T, color="#CCCCCC", linewidth=0.6, zorder=1)
    opacity = np.linspace(0.15, 1.0, len(points))
    for mask, colour in ((is_stale, STALE), (~is_stale, NEW)):
        style: Any = {"alpha": opacity[mask], "s": 14, "linewidths": 0, "zorder": 2}
        axes.scatter(*points[mask].T, c=colour, **style)


def _name_axes(axes: Axes, title: str, labels: tuple[str, str]) -> None:
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold", color=DARK)
    axes.set_xlabel(labels[0], fontsize=8, color=GREY)
    axes.set_ylabel(labels[1], fontsize=8, color=GREY)
    axes.tick_params(colors=GREY, labelsize=7)
