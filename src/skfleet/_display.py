"""Sizes, values and tables as representations show them, in a terminal and in a notebook."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

# The style of all tables. Text has the colours of the page, so that it is read on light and dark.
_LINE = "border: 0; border-bottom: 1px solid rgba(128, 128, 128, 0.4)"
_CELL = f"text-align: left; vertical-align: top; padding: 0.25em 1em 0.25em 0; {_LINE}"
_TABLE = "border: 0; border-collapse: collapse; margin: 0.5em 0"
_CAPTION = "caption-side: top; text-align: left; font-weight: bold; color: inherit"

_MAX_CHARACTERS = 160

# It cuts long and nested values, and takes those whose repr fails.
_reprs = reprlib.Repr()
_reprs.maxother = _reprs.maxstring = _reprs.maxlong = _MAX_CHARACTERS
_reprs.maxlist = _reprs.maxtuple = _reprs.maxdict = _reprs.maxset = _reprs.maxfrozenset = 10


class Link(NamedTuple):
    """An address that is shown as a link."""

    address: str


Cell = str | Link | Sequence[str]


def format_bytes(n_bytes: float) -> str:
    """Return bytes as text in MB or GB."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 999.5e6 else f"{n_bytes / 1e6:.0f} MB"


def count(n: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is one."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def format_value(value: object) -> str:
    """Return the repr of a value in one line, cut where it is long."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufcU":
        value = value.item()  # 0.1 for np.float64(0.1)
    return shorten(" ".join(_reprs.repr(value).split()))


def shorten(text: str) -> str:
    """Return a text, cut where it is long."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def html_table(
    caption: str, rows: Iterable[tuple[str, *tuple[Cell, ...]]], header: Sequence[str] = ()
) -> str:
    """Return a table of HTML, whose texts are escaped here; each row begins with its name.

    A sequence of texts stands below one another in its cell.
    """
    lines = [
        f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>'
        + "".join(f'<td style="{_CELL}">{_cell_html(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in rows
    ]
    if header:
        names = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in header)
        lines.insert(0, f"<tr>{names}</tr>")
    return (
        f'<table style="{_TABLE}"><caption style="{_CAPTION}">{escape(caption)}</caption>'
        f"{''.join(lines)}</table>"
    )


def _cell_html(cell: Cell) -> str:
    if isinstance(cell, Link):
        address = escape(cell.address)
        return f'<a href="{address}" target="_blank" rel="noopener noreferrer">{address}</a>'
    return "<br>".join(map(escape, [cell] if isinstance(cell, str) else cell))
