"""Clustering estimators."""

from skfleet.estimators.cluster._kmeans import KMeans
from skfleet.estimators.cluster._mini_batch_kmeans import MiniBatchKMeans
from skfleet.estimators.cluster._spectral import SpectralClustering

__all__ = ["KMeans", "MiniBatchKMeans", "SpectralClustering"]
