"""Samples of rows of any container."""

from skfleet.datasets._sample import sample_rows

__all__ = ["sample_rows"]
