"""Clustering: what there is."""

from skfleet.estimators._cluster._kmeans import KMeans
from skfleet.estimators._cluster._mini_batch import MiniBatchKMeans

__all__ = ["KMeans", "MiniBatchKMeans"]
