"""Metrics of labels and predictions that need not be in one place."""

from skfleet.metrics._scores import accuracy_score, r2_score

__all__ = ["accuracy_score", "r2_score"]
