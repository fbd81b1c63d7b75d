"""Syntax trees of source files, each parsed once for all rules of the house."""

import ast
from functools import cache


@cache
def tree_of(path):
    """Return the syntax tree of a file, which nobody changes."""
    return ast.parse(path.read_text())
