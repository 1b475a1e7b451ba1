"""A page of headings, paragraphs, tables and images, as Markdown and as one offline HTML file."""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 3rem; border-bottom: 1px solid #ddd; padding-bottom: .3rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; }
th, td { border-bottom: 1px solid #e6e6e6; padding: .3rem .6rem; }
th { text-align: left; } td { vertical-align: top; } img { max-width: 100%; }
details { margin: .5rem 0; color: #555; font-size: 14px; }
code { background: #f4f4f4; padding: 0 .2rem; }
"""


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; *emphasis* and `code` as in Markdown."""

    text: str


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str = ""
    """if given, the table is folded under this title"""


@dataclass(frozen=True)
class Image:
    file: Path
    description: str


Block = Heading | Text | Table | Image


def to_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """Markdown for a file in `folder`, to which the paths of images are relative."""
    return "\n".join(_block_to_markdown(block, folder) for block in blocks)


def to_html(blocks: Sequence[Block], title: str) -> str:
    body = "\n".join(_block_to_html(block) for block in blocks)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html>\n<html lang=en><head>{head}</head><body>\n{body}\n</body></html>\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    texts[1] = "|" + "|".join(lines[1]) + "|"
    return "\n".join(texts) + "\n"


def _block_to_markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}\n"
        case Text(text):
            return f"{text}\n"
        case Image(file, description):
            return f"![{description}]({file.relative_to(folder)})\n"
        case Table(head, rows, summary):
            table = markdown_table(head, rows)
            if not summary:
                return table
            return f"<details><summary>{summary}</summary>\n\n{table}\n</details>\n"


def _block_to_html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Image(file, description):
            data = base64.b64encode(file.read_bytes()).decode()
            return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'
        case Table(head, rows, summary):
            top = _html_row("th", head)
            body = "\n".join(_html_row("td", row) for row in rows)
            table = f"<table><thead>{top}</thead><tbody>\n{body}\n</tbody></table>"
            if not summary:
                return table
            return f"<details><summary>{_inline(summary)}</summary>{table}</details>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_inline(cell)}</{tag}>" for cell in cells) + "</tr>"


def _inline(text: str) -> str:
    safe = html.escape(text, quote=False)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    safe = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)
    return re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", safe)
