"""The page of `results/pickup`: our 3D task against MiniWorld."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engram.figures import plot_panels
from engram.files import atomic_write
from engram.page import markdown_table
from engram.paper.descriptions import describe_machines
from engram.paper.miniworld import FOLDER, NUMBERS, PICTURE, TOLERANCE
from engram.paper.miniworld_learning import MINIWORLD, OURS
from engram.run_dir import Curves
from engram.stats import MIN_SEEDS, area, interval, mean

CURVES = "curves.png"
LABELS = {OURS: "our room", MINIWORLD: "MiniWorld"}


def write(results: Path) -> None:
    """Draws the curves and writes the page into its folder."""
    folder = results / FOLDER
    learned = [json.loads(file.read_text()) for file in sorted(folder.glob("learning-*.json"))]
    if learned:
        plot_panels({"DQN": ("agent steps", curves(learned))}, folder / CURVES)
    with atomic_write(folder / "README.md") as file:
        file.write(page(json.loads((folder / NUMBERS).read_text()), learned).encode())


def page(compared: dict[str, Any], learned: Sequence[dict[str, Any]]) -> str:
    rooms = [name for name in compared if name.endswith("objects")]
    transitions = {name: compared[name]["transitions"] for name in rooms}
    frames = {name: compared[name]["frames"] for name in rooms}
    return f"""\
# Our 3D task against MiniWorld

Written by `engram report` from the files in this folder; never by hand.

`pickup3-jax` and `pickup5-jax` are MiniWorld-PickupObjects-v0 in JAX
([page](../../docs/environments/pickup.md)). `python -m engram.paper.miniworld` measures (a) and
(b): MiniWorld 2.1.0, drawn by Mesa; {describe_machines([compared])}.

## (a) The same state and action lead to the same state

Every transition starts from MiniWorld's state. Half of the episodes are of an agent that goes to
the nearest object and picks it up, half of one that wanders into walls and objects. Both act at
random in 3 of 10 steps. A transition differs if a position or heading differs by more than
{TOLERANCE:g}, or what lies in the room, the reward or an end of the episode does at all.

{_table(transitions, rooms, TRANSITIONS)}
## (b) Frames of the same states

From random places in 100 rooms each. MiniWorld's are above, ours below.

![frames of MiniWorld above ours]({PICTURE})

{_table(frames, rooms, FRAMES)}
The overlap is of the pixels that objects change: those changed in both, divided by those changed
in either. Walls, floor and sky have MiniWorld's geometry and mean colours; of its textures only the
bricks are drawn, so that most of the difference is grain.

{_learning(learned)}"""


TRANSITIONS = {
    "transitions": ("transitions", "{:,}"),
    "transitions that differ": ("differing", "{:,}"),
    "largest difference of a position, meters": ("largest_gap_in_meters", "{:.1e}"),
    "largest difference of a heading, radians": ("largest_turn_in_radians", "{:.1e}"),
    "objects picked up": ("objects_picked_up", "{:,}"),
    "steps stopped by walls and objects": ("steps_into_walls_and_objects", "{:,}"),
    "episodes terminated": ("terminated", "{:,}"),
    "episodes truncated": ("truncated", "{:,}"),
}
FRAMES = {
    "frames": ("frames", "{:,}"),
    "mean difference of a byte": ("mean_difference", "{:.1f}"),
    "the same in the worst frame": ("mean_difference_of_worst_frame", "{:.1f}"),
    "pixels that differ by more than 16 of 255": ("share_of_pixels_that_differ_by_16", "{:.1%}"),
    "pixels that differ by more than 48": ("share_of_pixels_that_differ_by_48", "{:.2%}"),
    "correlation of bytes": ("correlation", "{:.4f}"),
    "overlap of objects": ("overlap_of_objects", "{:.3f}"),
}


def _table(
    found: dict[str, dict[str, float]], rooms: Sequence[str], rows: dict[str, tuple[str, str]]
) -> str:
    cells = [
        [text, *(form.format(found[room][name]) for room in rooms)]
        for text, (name, form) in rows.items()
    ]
    return markdown_table(["", *rooms], cells)


def _learning(learned: Sequence[dict[str, Any]]) -> str:
    """Parts (c) and (d)."""
    if not learned:
        return (
            "## (c) Learning curves and (d) policies\n\nNot trained yet: "
            "`python -m engram.paper.miniworld_learning`.\n"
        )
    steps, seeds = learned[0]["steps"], len(learned)
    areas = {room: [_area(one[room]) for one in learned] for room in LABELS}
    gap = np.subtract(areas[OURS], areas[MINIWORLD])
    area_rows = [[LABELS[room], _cell(areas[room])] for room in LABELS]
    area_rows.append(["our room − MiniWorld, by seed", _cell(gap)])
    played = [
        [str(one["seed"]), LABELS[trained_in], *_played(one[trained_in]["played_in"])]
        for one in learned
        for trained_in in LABELS
    ]
    episodes = len(learned[0][OURS]["played_in"][OURS])
    return f"""\
## (c) Learning curves in both

DQN, preset `pickup`, three objects, {steps:,} agent steps, {seeds} seeds;
{describe_machines(learned)}.

![learning curves of DQN in both]({CURVES})

{markdown_table(["area under the curve of returns", "mean and each seed"], area_rows)}
## (d) Policies of each played in both

Mean return of {episodes} greedy episodes, and its 95% bootstrap interval over episodes.

{markdown_table(["seed", "trained in", *(f"played in {x}" for x in LABELS.values())], played)}"""


def curves(learned: Sequence[dict[str, Any]]) -> dict[str, Curves]:
    """The learning curves of all seeds, by room."""
    return {
        label: {one["seed"]: _curve(one[room]) for one in learned} for room, label in LABELS.items()
    }


def _curve(found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(found["steps"], float), np.array(found["returns"], float)


def _area(found: dict[str, Any]) -> float:
    return area(*_curve(found))


def _played(returns: dict[str, list[float]]) -> list[str]:
    return [_cell(returns[room]) for room in LABELS]


def _cell(values: Sequence[float] | np.ndarray) -> str:
    """The mean with its interval or, of fewer values than have one, with all of them."""
    if len(values) < MIN_SEEDS:
        return f"{np.mean(values):.2f} ({', '.join(f'{x:.2f}' for x in values)})"
    low, high = interval(values, mean)
    return f"{np.mean(values):.2f} [{low:.2f}, {high:.2f}]"
