"""Figures: learning curves and the like, in which an agent has the same colour everywhere."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from engram.errors import EngramError
from engram.files import atomic_write
from engram.run_dir import Curves
from engram.stats import MIN_SEEDS, mean_curve

COLOURS = {
    "mbec++": "#D55E00",
    "dqn": "#0072B2",
    "mbec": "#E69F00",
    "mfec": "#009E73",
    "nec": "#CC79A7",
    "drqn": "#56B4E9",
    "ppo": "#332288",
    "random": "#8C8C8C",
}
"""Okabe and Ito's, distinguishable by the colour-blind"""
EXTRA_COLOURS = (
    "#117733",
    "#882255",
    "#AA8800",
    "#44AA99",
    "#AA4499",
    "#661100",
    "#EE6677",
    "#4477AA",
)
"""Paul Tol's, for labels that are no agents"""
PROMINENT = "mbec++"
DARK, GREY = "#222222", "#666666"
X_LABEL, Y_LABEL = "agent steps", "return (un-noised, mean of last 10 episodes)"
DPI = 200


def learning_curves(
    curves: Mapping[str, Curves], path: str | Path, title: str, subtitle: str = ""
) -> None:
    """Draws one panel: the mean over seeds, its 95% interval, and each seed faintly."""
    figure = Figure(figsize=(6.4, 4.0), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    draw_curves(axes, curves, colours(curves), draw_seeds=True)
    axes.set_xlabel(X_LABEL, fontsize=9, color=GREY)
    axes.set_ylabel(Y_LABEL, fontsize=9, color=GREY)
    pad = 22 if subtitle else 8
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=DARK, pad=pad)
    if subtitle:
        units = "axes fraction", "offset points"
        axes.annotate(subtitle, (0, 1), (0, 8), *units, fontsize=8.5, color=GREY)
    save(figure, path)


def plot_grid(
    panels: Mapping[str, Mapping[str, Curves]], path: str | Path, columns: int = 3
) -> None:
    """Draws one panel per task, as `learning_curves` but without single seeds, and one legend."""
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    columns = max(1, min(columns, len(panels)))
    figure, axes = grid_of_axes(len(panels), columns, (2.7, 2.05), 0.3)
    palette, lines = colours(labels), {}
    for ax, (title, curves) in zip(axes, panels.items(), strict=False):
        lines |= draw_curves(ax, curves, palette, draw_seeds=False)
        panel_title(ax, title)
    y_label = Y_LABEL if len(panels) > columns else Y_LABEL.replace(", ", ",\n")
    outer_labels(figure, X_LABEL, y_label)
    legend = {label: lines[label] for label in labels}
    _legend(figure, legend, "outside upper center", ncols=2 * columns)
    save(figure, path)


def plot_panels(
    panels: Mapping[str, tuple[str, Mapping[str, Curves]]], path: str | Path, columns: int = 3
) -> None:
    """Draws panels of curves as `plot_grid`, each with its own legend and label of the x axis."""
    columns = max(1, min(columns, len(panels)))
    figure, axes = grid_of_axes(len(panels), columns, (3.3, 2.7), 0.4)
    for ax, (title, (x_label, curves)) in zip(axes, panels.items(), strict=False):
        lines = draw_curves(ax, curves, colours(curves), draw_seeds=False)
        panel_title(ax, title)
        ax.set_xlabel(x_label, fontsize=8, color=GREY)
        style: Any = {"frameon": False, "fontsize": 7, "labelcolor": DARK, "handlelength": 1.2}
        ax.legend(list(lines.values()), list(lines), **style)
    save(figure, path)


def plot_shares(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    steps: Mapping[str, int],
    path: str | Path,
    columns: int = 3,
) -> None:
    """Draws one panel per task: shares between 0 and 1 over its steps, averaged over seeds."""
    series = {}
    for task, metrics in panels.items():
        series[task] = {
            label: (np.linspace(0, steps[task], len(values) + 1)[1:], np.array([values]))
            for label, values in metrics.items()
        }
    y_label = "share of decisions; weight"
    plot_series(series, path, X_LABEL, y_label, columns, limits=(0.0, 1.02))


def plot_series(
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
    path: str | Path,
    x_label: str,
    y_label: str,
    columns: int = 3,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draws panels of series: mean and range over seeds of y [seeds, P] at x [P] per label."""
    labels = list(dict.fromkeys(label for series in panels.values() for label in series))
    columns = max(1, min(columns, len(panels)))
    panel_size = (3.0, 2.3) if len(panels) > 1 else (5.6, 3.2)
    figure, axes = grid_of_axes(len(panels), columns, panel_size, 0.4)
    palette, lines = colours(labels), {}
    for ax, (title, series) in zip(axes, panels.items(), strict=False):
        for label, (x, y) in series.items():
            colour = palette[label]
            ax.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.15, linewidth=0)
            (lines[label],) = ax.plot(x, y.mean(axis=0), color=colour, linewidth=1.4)
        style_axes(ax)
        panel_title(ax, title)
        if limits:
            ax.set_ylim(*limits)
    outer_labels(figure, x_label, y_label)
    _legend(figure, lines, "outside upper center", ncols=max(3, 2 * columns))
    save(figure, path)


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label: the agent's own, or the next extra one."""
    labels = list(labels)
    no_agents = [label for label in labels if label.lower() not in COLOURS]
    extra = {label: EXTRA_COLOURS[i % len(EXTRA_COLOURS)] for i, label in enumerate(no_agents)}
    return {label: extra.get(label) or COLOURS[label.lower()] for label in labels}


def grid_of_axes(
    panels: int, columns: int, panel_size: tuple[float, float], margin: float
) -> tuple[Figure, Any]:
    """A figure with axes for all panels; axes left over are invisible."""
    rows = max(1, -(-panels // columns))
    width, height = panel_size
    size = width * columns + margin, height * rows + 0.75
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes


def panel_title(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=DARK)


def outer_labels(figure: Figure, x_label: str, y_label: str) -> None:
    figure.supxlabel(x_label, fontsize=9, color=GREY)
    figure.supylabel(y_label, fontsize=9, color=GREY)


def draw_curves(
    axes: Axes, curves: Mapping[str, Curves], palette: Mapping[str, str], draw_seeds: bool
) -> dict[str, Line2D]:
    """Draws the mean of each label's seeds and its 95% interval, and returns the lines.

    Fewer seeds than have an interval are drawn themselves.
    """
    lines = {}
    for label, seeds in curves.items():
        colour, is_prominent = palette[label], label.lower() == PROMINENT
        steps, mean, low, high = mean_curve(seeds)
        zorder, width = (3, 2.0) if is_prominent else (2, 1.4)
        has_interval = len(seeds) >= MIN_SEEDS
        if draw_seeds or not has_interval:
            style: Any = {"color": colour, "alpha": 0.22, "linewidth": 0.6, "zorder": zorder - 1.5}
            for seed_steps, returns in seeds.values():
                axes.plot(seed_steps, returns, **style)
        band: Any = {"color": colour, "alpha": 0.2, "linewidth": 0, "zorder": zorder - 1}
        if has_interval:
            axes.fill_between(steps, low, high, **band)
        (lines[label],) = axes.plot(steps, mean, color=colour, linewidth=width, zorder=zorder)
    style_axes(axes)
    ends = [steps[-1] for seeds in curves.values() for steps, _ in seeds.values() if len(steps)]
    axes.set_xlim(0, max(ends, default=1) or 1)
    return lines


def style_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.tick_params(colors=GREY, labelsize=8, length=3, width=0.6)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(_abbreviate))


def _abbreviate(number: float, _: int) -> str:
    """12000 as 12k, 2500000 as 2.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _legend(figure: Figure, lines: Mapping[str, Line2D], loc: Any, ncols: int = 1) -> None:
    if not lines:
        return
    style: Any = {"frameon": False, "fontsize": 9, "labelcolor": DARK, "handlelength": 1.4}
    ncols = min(ncols, len(lines))
    legend = figure.legend(list(lines.values()), list(lines), loc=loc, ncols=ncols, **style)
    for line in legend.get_lines():
        line.set_linewidth(3)


def save(figure: Figure, path: str | Path) -> None:
    path = Path(path)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # pyright: ignore
    canvas, suffix = FigureCanvasAgg(figure), path.suffix.lower()[1:]
    if suffix not in canvas.get_supported_filetypes():
        raise EngramError(
            f"Engram cannot draw {path}: choose a name that ends in .png, .pdf or .svg."
        )
    with atomic_write(path) as file:
        canvas.print_figure(file, format=suffix, dpi=DPI, facecolor="white")
