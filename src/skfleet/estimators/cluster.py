"""Clustering: what there is."""

from skfleet.estimators._cluster._kmeans import KMeans

__all__ = ["KMeans"]
