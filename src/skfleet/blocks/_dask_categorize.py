"""Dask's Categorize with several readers, which Dask itself (2026.8.0) gives the wrong columns.

Where a categorized frame is read by two projections at once, Dask pushes their columns below, but
leaves the categories of columns that are no longer there: a KeyError when the graph runs. This file
goes when `dask.compute(frame[["a"]], frame["b"])` of such a frame works; a test tells.
"""

from __future__ import annotations

from typing import Any

from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr._categorical import Categorize
from dask.dataframe.dask_expr._expr import Blockwise


class MultiReaderCategorize(Categorize):
    """Categorize columns, of which several readers may take some each."""

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        """Push a projection below, and leave out the categories of the columns that go."""
        result = Blockwise._simplify_up(self, parent, dependents)
        if result is None:
            return None
        pushed = result if isinstance(result, Categorize) else result.frame
        categories = {
            name: values
            for name, values in self.operand("categories").items()
            if name in pushed.frame.columns
        }
        own = MultiReaderCategorize(pushed.frame, categories, self.operand("index"))
        return own if result is pushed else result.substitute(pushed, own)


def with_multi_reader_categorize(frame: Any) -> Any:
    """Return the frame with Dask's Categorize replaced."""
    expression = frame.expr
    for node in list(expression.find_operations(Categorize)):
        if type(node) is Categorize:
            expression = expression.substitute(node, MultiReaderCategorize(*node.operands))
    return new_collection(expression)
