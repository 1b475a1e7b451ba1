"""The commands that read several run folders: plot, compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from engram.config import Count
from engram.errors import EngramError


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of several runs."""

    dirs: Positional[tuple[str, ...]] = ()
    """run folders, finished or not"""
    out: str = "learning-curves.png"
    """the figure, a .png, .svg or .pdf, which a later one replaces"""
    smooth: Count = 1
    """points of a running mean"""
    by: Literal["task", "agent"] = "task"
    """what has a panel of its own"""

    def run(self) -> None:
        check_given("plot", self.dirs)
        from engram.loggers.console import print_line
        from engram.run_figures import plot

        print_line(f"Learning curves: {plot(self.dirs, self.out, self.smooth, self.by)}")


@dataclass(frozen=True)
class Compare:
    """Compare the returns of several runs."""

    dirs: Positional[tuple[str, ...]] = ()
    """finished run folders"""
    baseline: str | None = None
    """the run folder that all are compared with; the first if None"""
    html: str | None = None
    """write one offline page (.html) with these tables and the learning curves"""
    markdown: bool = False
    """print Markdown"""

    def run(self) -> None:
        check_given("compare", self.dirs)
        from engram.comparison import compare
        from engram.files import atomic_write, check_target
        from engram.loggers.console import print_line

        if self.html:
            check_target(Path(self.html), (".html",))
        comparison = compare(self.dirs, self.baseline)
        if self.html:
            with atomic_write(Path(self.html)) as file:
                file.write(comparison.to_html().encode())
        if self.markdown:
            print(comparison)
            return
        print_blocks(comparison.blocks())
        if self.html:
            print_line(f"Written: {self.html}")


def check_given(command: str, dirs: Sequence[str]) -> None:
    """Raise one sentence if no run folder is named."""
    if not dirs:
        raise EngramError(
            f"The form is `engram {command} DIR... [options]`: see `engram {command} --help`."
        )


def print_blocks(blocks: Sequence[Any]) -> None:
    """Print the headings, tables and paragraphs of a page."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from engram import page

    screen = Console(emoji=False)
    for block in blocks:
        match block:
            case page.Heading(text):
                screen.print(f"[bold]{escape(text)}[/]", highlight=False)
            case page.Table(head, rows):
                table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False)
                for row in rows:
                    table.add_row(*map(escape, row))
                screen.print(table)
            case page.Text(text):
                screen.print(text, style="dim", highlight=False)
