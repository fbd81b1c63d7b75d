"""Matrix decompositions."""

from skfleet.estimators.decomposition._incremental_pca import IncrementalPCA
from skfleet.estimators.decomposition._pca import PCA
from skfleet.estimators.decomposition._truncated_svd import TruncatedSVD

__all__ = ["PCA", "IncrementalPCA", "TruncatedSVD"]
