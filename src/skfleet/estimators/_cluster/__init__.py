"""k-means: its kernels, its starts, its estimators."""
