"""Tables for the terminal."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.contenders import cores, seconds, speed, steps


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    protocol: str = ""
    note: str = ""

    def show(self, console: Console) -> None:
        """Prints the table, and its protocol and note below it."""
        table = RichTable(
            title=self.title,
            title_justify="left",
            caption="\n".join(filter(None, (self.protocol, self.note))) or None,
            caption_justify="left",
        )
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def number(x: float) -> str:
    """A number with three significant digits and commas; an integer in full."""
    if x < 100:
        return f"{x:.3g}"
    digits = 10 ** max(0, len(str(int(x))) - 3)
    return f"{x if isinstance(x, int) else round(x / digits) * digits:,.0f}"


Cell = Callable[[dict], str]
"""from a measurement to what a table says of it"""


def cells(measured: dict, *functions: Cell) -> list[str]:
    """The cells of a measurement, or why it failed."""
    if "wall" in measured:
        return [function(measured) for function in functions]
    return ["not measured: " + measured["failed"], *[""] * (len(functions) - 1)]


def steps_per_second(measured: dict) -> str:
    return number(speed(measured))


def milliseconds(digits: int) -> Cell:
    """Per iteration."""
    return lambda measured: f"{1e3 * seconds(measured) / measured['iterations']:.{digits}f}"


def spread(measured: dict) -> str:
    """Steps per second of the slowest and of the fastest turn."""
    walls = max(measured["wall"]), min(measured["wall"])
    slowest, fastest = (number(steps(measured) / wall) for wall in walls)
    return f"{slowest} to {fastest}"


def cores_used(measured: dict) -> str:
    return f"{cores(measured):.2f}"


def environment(measured: dict) -> str:
    """The software that steps the environment."""
    return "Gymnasium" if measured["host"] else "JAX"
