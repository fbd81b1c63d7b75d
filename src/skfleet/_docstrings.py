"""Docstrings composed of texts that several public objects share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def compose_docstring(texts: Mapping[str, str]) -> Callable[[T], T]:
    """Return a decorator that fills the texts into the docstring of a class or function."""

    def decorate(obj: T) -> T:
        if obj.__doc__ is not None:  # as it is under ``python -OO``
            # Python removes the indentation itself from 3.13 on.
            obj.__doc__ = _fill(inspect.cleandoc(obj.__doc__), texts)
        return obj

    return decorate


def _fill(template: str, texts: Mapping[str, str]) -> str:
    """Replace each ``{name}`` by the text of that name, in which names are replaced too.

    All lines of a text take the indentation of the line that it is put in. Braces around anything
    else stay, so that formulas and dicts need no doubled ones, as ``str.format`` would have it.
    """

    def text_of(match: re.Match[str]) -> str:
        return _fill(texts[match[1]], texts) if match[1] in texts else match[0]

    lines = []
    for line in template.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        lines.append(re.sub(r"\n(?=.)", "\n" + indent, re.sub(r"\{(\w+)\}", text_of, line)))
    return "\n".join(lines)
