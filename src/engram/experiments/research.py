"""What was tried to make memory lead, from `results/research`, as the tables of docs/research.md.

python -m engram.experiments.research
"""

import json
from pathlib import Path

import numpy as np

from engram.experiments.running import FAMILIES, markdown
from engram.records import replacing

FILE, PAGE = Path("results/research/trials.json"), Path("docs/research.md")
BEGIN, END = "<!-- trials: written by `python -m engram.experiments.research` -->", "<!-- end of trials -->"


def tables(found: dict) -> str:
    """A table for each family, best area first."""
    parts = []
    for family in FAMILIES:
        trials = [trial for trial in found["trials"] if trial["family"] == family]
        rows = [_row(trial) for trial in sorted(trials, key=lambda t: -np.mean(t["area"]))]
        head = ["agent", "changed", "steps", "seeds", *found["noises"], "area, mean ± s.e.", "final, mean"]
        parts.append(f"**{family}**\n\n{markdown(head, rows)}")
    return "\n".join(parts)


def _row(trial: dict) -> list[str]:
    area, final = np.array(trial["area"]), np.array(trial["final"])
    changed = ", ".join(name if value is True else f"{name} {value:g}" for name, value in trial["options"].items())
    error = area.mean(axis=0).std(ddof=1) / np.sqrt(area.shape[1])
    cells = [f"{x:.0f}" for x in area.mean(axis=1)]
    return [
        trial["agent"],
        changed or "–",
        f"{trial['steps']:,}",
        str(area.shape[1]),
        *cells,
        f"{area.mean():.1f} ± {error:.1f}",
        f"{final.mean():.0f}",
    ]


def written(page: str, found: dict) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + tables(found) + END + rest.split(END)[1]


def main() -> None:
    text = written(PAGE.read_text(encoding="utf-8"), json.loads(FILE.read_text()))
    with replacing(PAGE) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
