"""Samples of rows of any container, and random rows that are drawn block by block."""

from skfleet.datasets._blobs import make_blobs
from skfleet.datasets._classification import make_classification
from skfleet.datasets._counts import make_counts
from skfleet.datasets._low_rank import make_low_rank_matrix
from skfleet.datasets._regression import make_regression
from skfleet.datasets._sample import sample_rows

__all__ = [
    "make_blobs",
    "make_classification",
    "make_counts",
    "make_low_rank_matrix",
    "make_regression",
    "sample_rows",
]
