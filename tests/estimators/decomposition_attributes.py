"""Comparison of fitted decompositions."""

import numpy as np

OF_PCA = ("mean_", "noise_variance_")
ALL = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_")


def assert_same(ours, theirs, tol=1e-9, names=()):
    for name in (*ALL, *names):
        want = getattr(theirs, name)
        scale = max(np.max(np.abs(want), initial=0), 1e-300)
        np.testing.assert_allclose(getattr(ours, name) / scale, want / scale, atol=tol)
