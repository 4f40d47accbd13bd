"""A table of text, as HTML that reads in every notebook and as lines for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tgbench.base.words import aligned, printable

STYLE = (
    "border-collapse:collapse;font:13px/1.4 system-ui,sans-serif;font-variant-numeric:tabular-nums"
)
PADDING = "padding:1px 10px 1px 0"
WORD = 40  # letters of a word that is not broken
NUMBER = re.compile(r"-|[-+]?∞|[-+±]?[\d.,]+(e[-+]?\d+)?( ?(%|×|[KMG]?i?B|[nµm]?s))?( ±\d+%)?")


@dataclass(frozen=True)
class TextTable:
    """A caption, a header, and rows of text.

    >>> print(TextTable("sizes", ("node", "bytes"), (("q", "64"), ("scores", "1024"))))
    sizes
    node    bytes
    q          64
    scores   1024
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def _numeric(self) -> list[bool]:
        """Which columns hold numbers alone, or nothing here and there; these stand to the right."""
        columns = ([row[i] for row in self.rows if row[i]] for i in range(len(self.header)))
        return [bool(column) and all(map(_is_number, column)) for column in columns]

    def to_html(self) -> str:
        """Everything escaped; numbers, and what they are, stand to the right."""
        head = "".join(map(_head, self.header, self._numeric))
        body = "".join(f"<tr>{''.join(map(_cell, row, self._numeric))}</tr>" for row in self.rows)
        return (
            f'<table style="{STYLE}"><caption style="text-align:left">{escape(self.caption)}'
            f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def bundle(self) -> dict[str, str]:
        """By MIME type, for a notebook."""
        return {"text/html": self.to_html(), "text/plain": str(self)}

    def __str__(self) -> str:
        right = [i for i, numeric in enumerate(self._numeric) if numeric]
        rows = [[_on_a_line(cell) for cell in row] for row in (self.header, *self.rows)]
        return "\n".join([printable(self.caption), *aligned(rows, right)])


def _on_a_line(text: str) -> str:
    """What a database says may be of any kind."""
    return printable(text).replace("\n", " ")


def _is_number(text: str) -> bool:
    """A number, with its unit if it has one; not any text that begins with a digit.

    >>> [_is_number(text) for text in ("1.5 KiB", "376 ns ±50%", "-", "1.group_norm", "2 of 3")]
    [True, True, True, False, False]
    """
    return NUMBER.fullmatch(text) is not None


def _head(text: str, is_number: bool) -> str:
    side = "right" if is_number else "left"
    return f'<th style="text-align:{side};{PADDING}">{escape(text)}</th>'


def _cell(text: str, is_number: bool) -> str:
    side = "right;white-space:nowrap" if is_number else f"left{_broken(text)}"
    return f'<td style="text-align:{side};{PADDING}">{escape(printable(text))}</td>'


def _broken(text: str) -> str:
    """A word that is longer than a line ends where the line does: other columns stay in sight."""
    return ";overflow-wrap:anywhere" if max(map(len, text.split()), default=0) > WORD else ""
