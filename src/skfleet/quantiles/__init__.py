"""Exact quantiles of columns of rows that no process can hold."""

from skfleet.quantiles._column_quantiles import column_quantiles, quantiles_after
from skfleet.quantiles._order_values import ColumnsOf, ColumnSummary, summary_reduction

__all__ = [
    "ColumnSummary",
    "ColumnsOf",
    "column_quantiles",
    "quantiles_after",
    "summary_reduction",
]
