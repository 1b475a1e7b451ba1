"""A page of headings, paragraphs, tables and pictures, as Markdown and as one HTML file that needs no network."""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-bottom: 1px solid #ddd; padding-bottom: .3rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; } th, td { border-bottom: 1px solid #e6e6e6; padding: .3rem .6rem; }
th { text-align: left; } td { vertical-align: top; } img { max-width: 100%; } details { margin: .5rem 0; color: #555; font-size: 14px; }
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
    folded: str = ""
    """where given, the table is folded under this title"""


@dataclass(frozen=True)
class Picture:
    file: Path
    about: str


Block = Heading | Text | Table | Picture


def to_markdown(blocks: Sequence[Block], beside: Path) -> str:
    """For a file in the folder `beside`, by which pictures are named."""
    return "\n".join(_markdown(block, beside) for block in blocks)


def to_html(blocks: Sequence[Block], title: str) -> str:
    body = "\n".join(_html(block) for block in blocks)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html>\n<html lang=en><head>{head}</head><body>\n{body}\n</body></html>\n"


def _markdown(block: Block, beside: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}\n"
        case Text(text):
            return f"{text}\n"
        case Picture(file, about):
            return f"![{about}]({file.relative_to(beside)})\n"
        case Table(head, rows, folded):
            lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] * len(head)) + "|"]
            text = "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"
            return f"<details><summary>{folded}</summary>\n\n{text}\n</details>\n" if folded else text


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Picture(file, about):
            return f'<img alt="{html.escape(about)}" src="data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}">'
        case Table(head, rows, folded):
            top = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
            body = "\n".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            text = f"<table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table>"
            return f"<details><summary>{_inline(folded)}</summary>{text}</details>" if folded else text


def _inline(text: str) -> str:
    safe = html.escape(text, quote=False)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    safe = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)
    return re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", safe)
