"""Exact quantiles of columns of rows that no process can hold."""

from skfleet.quantiles._column_quantiles import column_quantiles, quantiles_after
from skfleet.quantiles._knot_counts import ColumnsOf
from skfleet.quantiles._order_values import ColumnSummary, summary_reduction

__all__ = [
    "ColumnSummary",
    "ColumnsOf",
    "column_quantiles",
    "quantiles_after",
    "summary_reduction",
]
