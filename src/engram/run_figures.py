"""Learning curves of several run folders in one figure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from engram.config import Count, check
from engram.errors import EngramError
from engram.figures import (
    DARK,
    EXTRA_COLOURS,
    X_LABEL,
    Y_LABEL,
    colours,
    grid_of_axes,
    outer_labels,
    panel_title,
    save,
    style_axes,
)
from engram.files import check_target
from engram.run_dir import Curves
from engram.run_labels import LabelledRun, group_by, read_runs
from engram.stats import MIN_SEEDS, mean_curve, running_mean

DEFAULT_FILE = "learning-curves.png"
ENDINGS = (".png", ".svg", ".pdf")
MAX_LINES = 8
"""in a panel: more cannot be distinguished"""
MAX_COLUMNS = 3
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.3)), (0, (1.2, 1.1)), (0, (6, 1.3, 1.2, 1.3)))
"""of the runs of one agent, which share its colour"""
SHADES = (0.0, -0.35, 0.4, -0.6)
"""how much lighter, or darker, the colour of each of these runs is"""
PANEL_SIZE, SINGLE_PANEL_SIZE, LEGEND_ROW_HEIGHT = (2.7, 2.05), (3.9, 2.5), 0.17
"""inches"""
BAND_OPACITY = 0.16
"""of an interval; half of it where many lines overlap"""
CHARACTERS_PER_INCH, HANDLE_CHARACTERS = 15, 8
"""of a legend's text, and what the line before it takes"""

By = Literal["task", "agent"]


@dataclass(frozen=True)
class LineStyle:
    """Colour and dashes of a line."""

    colour: Any
    dashes: Any = "-"


def plot(
    paths: Sequence[str | Path] | str | Path,
    out: str | Path = DEFAULT_FILE,
    smooth: int = 1,
    by: By = "task",
) -> Path:
    """Draws the learning curves of run folders into the file `out`, and returns its path.

    Each panel is a task, or with by="agent" an agent. `smooth` is the number of points of a
    running mean. Runs may be unfinished."""
    out = Path(out)
    check("smooth", smooth, Count)
    check("by", by, By)
    check_target(out, ENDINGS)
    if (out.parent / "config.json").exists() and out.name == "curves.png":
        raise EngramError(f"{out} is a file of the run in {out.parent}: name another.")
    runs = read_runs([paths] if isinstance(paths, str | Path) else list(paths))
    panels = group_by(runs, lambda run: getattr(run, by))
    for title, of_panel in panels.items():
        _check_count(title, len(of_panel), by)
    _draw(panels, by, smooth, out)
    return out


def _check_count(title: str, count: int, by: By) -> None:
    if count > MAX_LINES:
        other = "agent" if by == "task" else "task"
        raise EngramError(
            f"The panel {title} would have {count} lines, of which nobody can tell more than "
            f"{MAX_LINES} apart: name fewer runs, or use --by {other}."
        )


def _draw(panels: Mapping[str, Sequence[LabelledRun]], by: By, smooth: int, path: Path) -> None:
    """Draws a panel for each group of runs: with one legend, if it needs no more than a panel's."""
    runs = [run for of_panel in panels.values() for run in of_panel]
    styles = line_styles(runs, by)
    has_one_legend = len(styles) <= MAX_LINES
    columns = min(len(panels), MAX_COLUMNS if has_one_legend and len(panels) != 4 else 2)
    figure, axes = _empty_panels(len(panels), columns, list(styles), has_one_legend)
    for ax, (title, of_panel) in zip(axes, panels.items(), strict=False):
        of_lines = styles if has_one_legend else line_styles(of_panel, by)
        opacity = BAND_OPACITY if len(of_panel) <= MAX_LINES // 2 else BAND_OPACITY / 2
        for run in of_panel:
            _draw_run(ax, run.curves, of_lines[line_label(run, by)], smooth, opacity)
        style_axes(ax)
        ax.set_xlim(0, max(steps[-1] for run in of_panel for steps, _ in run.curves.values()))
        panel_title(ax, title)
        if not has_one_legend:
            ax.legend(**_legend(of_lines), loc="upper left", bbox_to_anchor=(1.0, 1.05))
    if has_one_legend and len(styles) > 1:
        per_row = _entries_per_row(figure.get_figwidth(), styles)
        figure.legend(**_legend(styles), loc="outside upper center", ncols=per_row)
    characters = int(CHARACTERS_PER_INCH * (figure.get_figwidth() - 0.4))
    about = caption(runs)
    if len(about) > characters:
        about = about.replace("; faint", ";\nfaint")
    is_long = len(panels) > columns
    outer_labels(figure, f"{X_LABEL}\n{about}", y_label(smooth, is_long))
    save(figure, path)


def _empty_panels(
    count: int, columns: int, labels: Sequence[str], has_one_legend: bool
) -> tuple[Figure, Any]:
    """A figure with axes for the panels, and with room for the legend above or beside them."""
    width, height = PANEL_SIZE if count > 1 else SINGLE_PANEL_SIZE
    margin = 0.4
    if has_one_legend:
        lines = -(-len(labels) // _entries_per_row(width * columns + margin, labels))
        height += LEGEND_ROW_HEIGHT * (lines - 1) / -(-count // columns)
    else:
        margin += _entry_width(labels) * columns
    return grid_of_axes(count, columns, (width, height), margin)


def _entries_per_row(width: float, labels: Iterable[str]) -> int:
    return max(1, int(width / _entry_width(labels)))


def _entry_width(labels: Iterable[str]) -> float:
    """Inches of the longest entry of a legend."""
    return (max(map(len, labels)) + HANDLE_CHARACTERS) / CHARACTERS_PER_INCH


def y_label(smooth: int, is_long: bool) -> str:
    """What the curves show, in several lines unless a long one has room."""
    label = Y_LABEL if is_long else Y_LABEL.replace(", ", ",\n")
    return label if smooth == 1 else label[:-1] + f",\nrunning mean over {smooth} points)"


def line_label(run: LabelledRun, by: By) -> str:
    """What a line is called in its panel: by agent in panels of tasks, and the other way round."""
    return f"{_colour_group(run, by)} {run.variant}".strip()


def _colour_group(run: LabelledRun, by: By) -> str:
    return run.agent if by == "task" else run.task


def line_styles(runs: Sequence[LabelledRun], by: By) -> dict[str, LineStyle]:
    """For each label a colour of its own, or that of its agent with other dashes and shade."""
    groups = group_by(runs, lambda run: _colour_group(run, by))
    labels = {
        group: list(dict.fromkeys(line_label(run, by) for run in of_group))
        for group, of_group in groups.items()
    }
    palette = colours(labels)
    if len(labels) == 1:
        ((group, names),) = labels.items()
        others = [colour for colour in EXTRA_COLOURS if colour != palette[group]]
        own = [palette[group], *others]
        return {
            name: LineStyle(own[i % len(own)], DASHES[i // 4 % 2]) for i, name in enumerate(names)
        }
    return {
        name: LineStyle(shade(palette[group], SHADES[i % 4]), DASHES[(i + i // 4) % 4])
        for group, names in labels.items()
        for i, name in enumerate(names)
    }


def shade(colour: str, amount: float) -> tuple[float, ...]:
    """A colour mixed with white by `amount`, or with black by its negative."""
    goal = 1.0 if amount > 0 else 0.0
    return tuple(x + abs(amount) * (goal - x) for x in to_rgb(colour))


def caption(runs: Sequence[LabelledRun]) -> str:
    """What the lines, the bands and the faint lines are."""
    counts = sorted({len(run.curves) for run in runs})
    seeds = f"{counts[0]} seed{'s' * (counts[0] != 1)}"
    if len(counts) > 1:
        seeds = f"{counts[0]} to {counts[-1]} seeds"
    parts = [f"mean of {seeds}"] if counts[-1] > 1 else [seeds]
    if counts[-1] >= MIN_SEEDS:
        parts.append("shaded: its 95% bootstrap interval")
    if any(1 < count < MIN_SEEDS for count in counts):
        few = "" if counts[-1] < MIN_SEEDS else f" of runs with fewer than {MIN_SEEDS}"
        parts.append(f"faint: each seed{few}")
    return "; ".join(parts)


def _draw_run(axes: Axes, curves: Curves, style: LineStyle, smooth: int, opacity: float) -> None:
    """Draws the mean over seeds, and its interval, or with few seeds each of them faintly."""
    smoothed = {seed: (steps, running_mean(y, smooth)) for seed, (steps, y) in curves.items()}
    steps, mean, low, high = mean_curve(smoothed)
    if len(curves) >= MIN_SEEDS:
        axes.fill_between(
            steps, low, high, color=style.colour, alpha=opacity, linewidth=0, zorder=1
        )
    elif len(curves) > 1:
        for seed in smoothed.values():
            axes.plot(*seed, color=style.colour, alpha=0.3, linewidth=0.6, zorder=1.5)
    axes.plot(steps, mean, color=style.colour, linestyle=style.dashes, linewidth=1.4, zorder=2)


def _legend(styles: Mapping[str, LineStyle]) -> dict[str, Any]:
    """The arguments of a legend of these lines."""
    handles = [Line2D([], [], color=s.colour, linestyle=s.dashes, lw=2) for s in styles.values()]
    look = {"frameon": False, "fontsize": 8, "labelcolor": DARK, "handlelength": 2.2}
    return look | {"handles": handles, "labels": list(styles)}
