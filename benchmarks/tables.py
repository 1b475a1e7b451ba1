"""Tables, for the terminal and for README.md."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    protocol: str = ""
    note: str = ""

    def show(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left", caption=self.note or None, caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        lines = [self.columns, [":--", *["--:"] * (len(self.columns) - 1)], *self.rows]
        grid = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
        return "\n\n".join(part for part in (f"**{self.title}**", self.protocol, grid, self.note) if part)


def number(x: float) -> str:
    """With three digits that count, and commas."""
    if x < 100:
        return f"{x:.3g}"
    digits = 10 ** max(0, len(str(int(x))) - 3)
    return f"{x if isinstance(x, int) else round(x / digits) * digits:,.0f}"
