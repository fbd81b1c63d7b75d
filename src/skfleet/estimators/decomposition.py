"""Decompositions: which there are."""

from skfleet.estimators._decomposition._incremental_pca import IncrementalPCA
from skfleet.estimators._decomposition._pca import PCA
from skfleet.estimators._decomposition._truncated_svd import TruncatedSVD

__all__ = ["PCA", "IncrementalPCA", "TruncatedSVD"]
