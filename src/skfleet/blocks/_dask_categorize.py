"""A Categorize expression for several readers; that of Dask (2026.8.0) has the wrong columns then.

Where a categorized frame is read by two projections at once, Dask pushes their columns below, but
keeps the categories of columns that were dropped: a KeyError when the graph runs. This file can be
removed when `dask.compute(frame[["a"]], frame["b"])` of such a frame works, which a test checks.
"""

from __future__ import annotations

from typing import Any

from dask.dataframe.dask_expr import new_collection

from skfleet._dask_private import Blockwise, Categorize


class MultiReaderCategorize(Categorize):
    """Categorize for several readers with different columns."""

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        """Push a projection below, and drop the categories of dropped columns."""
        result = Blockwise._simplify_up(self, parent, dependents)
        if result is None:
            return None
        pushed = result if isinstance(result, Categorize) else result.frame
        columns = pushed.frame.columns
        categories = {k: v for k, v in self.operand("categories").items() if k in columns}
        fixed = MultiReaderCategorize(pushed.frame, categories, self.operand("index"))
        return fixed if result is pushed else result.substitute(pushed, fixed)


def with_multi_reader_categorize(frame: Any) -> Any:
    """Return the frame with Categorize of Dask replaced."""
    expression = frame.expr
    for node in list(expression.walk()):
        if type(node) is Categorize:
            expression = expression.substitute(node, MultiReaderCategorize(*node.operands))
    return new_collection(expression)
