"""Learning curves, drawn so that they print well and an agent has the same colour everywhere."""

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
from engram.records import Curves, replacing
from engram.report.statistics import mean_curve

COLOURS = {
    "mbec++": "#D55E00",
    "dqn": "#0072B2",
    "mbec": "#E69F00",
    "mfec": "#009E73",
    "nec": "#CC79A7",
    "drqn": "#56B4E9",
    "ppo": "#332288",
    "random": "#8C8C8C",
}  # Okabe and Ito's, safe for the colour-blind
OTHERS = ("#117733", "#882255", "#AA8800", "#44AA99", "#AA4499", "#661100")  # Paul Tol's, for names of one's own
PROMINENT = "mbec++"
INK, QUIET = "#222222", "#666666"
X_LABEL, Y_LABEL = "agent steps", "return (un-noised, mean of last 10 episodes)"
DPI = 200


def learning_curves(curves: Mapping[str, Curves], path: str | Path, title: str, subtitle: str = "") -> None:
    """One panel: for each label the mean of its seeds, the 95% interval of that mean, and every seed faintly."""
    figure = Figure(figsize=(6.4, 4.0), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    lines = _panel(axes, curves, colours(curves), faint=True)
    axes.set_xlabel(X_LABEL, fontsize=9, color=QUIET)
    axes.set_ylabel(Y_LABEL, fontsize=9, color=QUIET)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=22 if subtitle else 8)
    if subtitle:
        axes.annotate(subtitle, (0, 1), (0, 8), "axes fraction", "offset points", fontsize=8.5, color=QUIET)
    if len(curves) > 1:
        highest_first = sorted(lines, key=lambda label: _end(lines[label]), reverse=True)  # as the lines are seen
        _legend(figure, {label: lines[label] for label in highest_first}, loc="outside right center")
    _save(figure, path)


def grid(panels: Mapping[str, Mapping[str, Curves]], path: str | Path, columns: int = 3) -> None:
    """A panel a task, as in `learning_curves` but without single seeds, and one legend for all."""
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    columns = max(1, min(columns, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(2.7 * columns + 0.3, 2.05 * rows + 0.75), dpi=DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    palette, lines = colours(labels), {}
    for place, (title, curves) in zip(axes, panels.items(), strict=False):
        lines |= _panel(place, curves, palette, faint=False)
        place.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    figure.supxlabel(X_LABEL, fontsize=9, color=QUIET)
    figure.supylabel(Y_LABEL if rows > 1 else Y_LABEL.replace(", ", ",\n"), fontsize=9, color=QUIET)
    _legend(figure, {label: lines[label] for label in labels}, loc="outside upper center", ncols=2 * columns)
    _save(figure, path)


def shares(panels: Mapping[str, Mapping[str, Sequence[float]]], steps: Mapping[str, int], path: str | Path, columns: int = 3) -> None:
    """A panel a task: shares between 0 and 1 over its steps, as means over seeds."""
    plain_curves(
        {
            task: {label: (np.linspace(0, steps[task], len(x) + 1)[1:], np.array([x])) for label, x in parts.items()}
            for task, parts in panels.items()
        },
        path,
        X_LABEL,
        "share of decisions; weight",
        columns,
        limits=(0.0, 1.02),
    )


def plain_curves(
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
    path: str | Path,
    x_label: str,
    y_label: str,
    columns: int = 3,
    limits: tuple[float, float] | None = None,
) -> None:
    """Panels of lines that are no learning curves: of each label its x, and its y of every seed, of which mean and range are drawn."""
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    columns = max(1, min(columns, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    width, height = (3.0, 2.3) if len(panels) > 1 else (5.6, 3.2)
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.75), dpi=DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    palette, handles = colours(labels), {}
    for place, (title, lines) in zip(axes, panels.items(), strict=False):
        for label, (x, y) in lines.items():
            place.fill_between(x, y.min(axis=0), y.max(axis=0), color=palette[label], alpha=0.15, linewidth=0)
            (handles[label],) = place.plot(x, y.mean(axis=0), color=palette[label], linewidth=1.4)
        _tidy(place)
        place.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK)
        if limits:
            place.set_ylim(*limits)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    figure.supxlabel(x_label, fontsize=9, color=QUIET)
    figure.supylabel(y_label, fontsize=9, color=QUIET)
    _legend(figure, handles, loc="outside upper center", ncols=max(3, 2 * columns))
    _save(figure, path)


def bars(names: Sequence[str], values: Mapping[str, Sequence[float]], path: str | Path, title: str, x_label: str) -> None:
    """A group of bars for each name, one for each label; even up to 100 and by powers of ten beyond. NaN has none."""
    figure = Figure(figsize=(6.4, 0.9 + 0.16 * len(names) * (len(values) + 1)), dpi=DPI, layout="constrained")
    axes, palette, width = figure.subplots(), colours(values), 0.8 / max(1, len(values))
    places = np.arange(len(names))
    for i, (label, heights) in enumerate(values.items()):
        axes.barh(places + (i - (len(values) - 1) / 2) * width, heights, 0.9 * width, color=palette[label], label=label)
    axes.set_yticks(places, list(names))
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=100)
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.axvline(0, color="#AAAAAA", linewidth=0.6)
    axes.axvline(100, color="#AAAAAA", linewidth=0.6, linestyle=":")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=QUIET, labelsize=8, length=0)
    axes.set_xlabel(x_label, fontsize=9, color=QUIET)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    _save(figure, path)


def scatter(panels: Mapping[str, np.ndarray], special: np.ndarray, values: np.ndarray, path: str | Path) -> None:
    """Panels of ways through a plane, earlier steps fainter, `special` steps blue and the others red; and last a map of values on
    [-1, 1] x [-1, 1]."""
    figure = Figure(figsize=(2.6 * (len(panels) + 1), 2.7), dpi=DPI, layout="constrained")
    *places, last = figure.subplots(1, len(panels) + 1)
    for place, (title, points) in zip(places, panels.items(), strict=True):
        place.plot(*points.T, color="#CCCCCC", linewidth=0.6, zorder=1)
        fade = np.linspace(0.15, 1.0, len(points))
        for kind, colour in ((special, "#0072B2"), (~special, "#D55E00")):
            place.scatter(*points[kind].T, c=colour, alpha=fade[kind], s=14, linewidths=0, zorder=2)
        place.set_title(title, loc="left", fontsize=9, fontweight="bold", color=INK)
        place.tick_params(colors=QUIET, labelsize=7)
    picture = last.imshow(values, origin="lower", extent=(-1, 1, -1, 1), cmap="viridis", aspect="auto")
    last.set_title("value by memory", loc="left", fontsize=9, fontweight="bold", color=INK)
    last.tick_params(colors=QUIET, labelsize=7)
    figure.colorbar(picture, ax=last).ax.tick_params(labelsize=7, colors=QUIET)
    _save(figure, path)


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label: an agent's own, or the next that is free."""
    labels = list(labels)
    strangers = [label for label in labels if label.lower() not in COLOURS]
    own = {label: OTHERS[i % len(OTHERS)] for i, label in enumerate(strangers)}
    return {label: own.get(label) or COLOURS[label.lower()] for label in labels}


def _panel(axes: Axes, curves: Mapping[str, Curves], palette: Mapping[str, str], faint: bool) -> dict[str, Line2D]:
    lines = {}
    for label, seeds in curves.items():
        colour, prominent = palette[label], label.lower() == PROMINENT
        steps, mean, low, high = mean_curve(seeds)
        above = 3 if prominent else 2
        if faint:
            for seed_steps, returns in seeds.values():
                axes.plot(seed_steps, returns, color=colour, alpha=0.22, linewidth=0.6, zorder=above - 1.5)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0, zorder=above - 1)
        (lines[label],) = axes.plot(steps, mean, color=colour, linewidth=2.0 if prominent else 1.4, zorder=above)
    _tidy(axes)
    longest = max((steps[-1] for seeds in curves.values() for steps, _ in seeds.values() if len(steps)), default=1)
    axes.set_xlim(0, longest or 1)
    return lines


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.tick_params(colors=QUIET, labelsize=8, length=3, width=0.6)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))


def _short(steps: float, _: int) -> str:
    """12000 as 12k, 2500000 as 2.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(steps) >= size:
            return f"{steps / size:g}{unit}"
    return f"{steps:g}"


def _end(line: Line2D) -> float:
    heights = np.asarray(line.get_ydata())
    return heights[-1] if len(heights) else -np.inf


def _legend(figure: Figure, lines: Mapping[str, Line2D], loc: Any, ncols: int = 1) -> None:
    if not lines:
        return
    ncols = min(ncols, len(lines))
    legend = figure.legend(
        list(lines.values()), list(lines), loc=loc, ncols=ncols, frameon=False, fontsize=9, labelcolor=INK, handlelength=1.4
    )
    for line in legend.get_lines():
        line.set_linewidth(3)


def _save(figure: Figure, path: str | Path) -> None:
    path = Path(path)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # pyright: ignore
    canvas = FigureCanvasAgg(figure)
    kinds = canvas.get_supported_filetypes()
    if path.suffix.lower()[1:] not in kinds:
        raise EngramError(f"{path} is no picture that Engram can draw: let its name end in .png, .pdf or .svg.")
    with replacing(path) as file:
        canvas.print_figure(file, format=path.suffix.lower()[1:], dpi=DPI, facecolor="white")
