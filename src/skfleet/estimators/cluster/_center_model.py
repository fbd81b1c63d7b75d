"""Base class of centroid-based clustering: prediction, initial centres, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skfleet._array import namespace
from skfleet._typing import Answer, Rows, Values, Weights
from skfleet._validation import check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks, is_lazy
from skfleet.engine import engine_for, map_reduce
from skfleet.estimators._column_statistics import Moments
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators._set_output import lazy_output
from skfleet.estimators.cluster._distances import Centers, as_dense, distances, labels_of
from skfleet.estimators.cluster._reductions import LLOYD, LloydStep
from skfleet.inference import OutputSpec

# A squared mean up to this multiple of the variance costs no significant digits.
MAX_MEAN_TO_VARIANCE = {"float64": 100.0, "float32": 1.0}


class LazyLabels:
    """Mixin for estimators whose `labels_` may be lazy."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # Lazy labels keep the rows alive, and the cluster that holds them.
        return {k: v for k, v in state.items() if not (k == "labels_" and is_lazy(v))}


@document
@lazy_output
class CenterModel(
    LazyLabels, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, FleetEstimator
):
    """Base class for estimators with `cluster_centers_`, centred on `_mean` unless that is None."""

    def predict(self, X: Rows) -> Answer:
        """Return the number of the nearest centre for every row.

        {X_returns}
        labels : ndarray or Dask collection of shape (n_samples,)
            int32, in the container of X.
        """
        output = OutputSpec(np.dtype(np.int32))
        return self._predict_blockwise(labels_of, X, output, model=self._model)

    def transform(self, X: Rows) -> Answer:
        """Return the distances of every row to all centres.

        {X_returns}
        distances : ndarray or Dask collection of shape (n_samples, n_clusters)
            In the container of X.
        """
        columns = self.get_feature_names_out() if hasattr(self, "cluster_centers_") else None
        dtype = getattr(getattr(self, "cluster_centers_", None), "dtype", np.dtype(np.float64))
        output = OutputSpec(dtype, self.n_clusters, columns, is_rows=True)
        return self._predict_blockwise(distances, X, output, model=self._model)

    def _set_row_attributes(self, X: Rows) -> None:
        if hasattr(self, "labels_"):
            self.labels_ = self.predict(X)

    @run_on_device
    def score(
        self, X: Rows, y: Values | None = None, sample_weight: Weights | None = None
    ) -> float:
        """Return the negative inertia of rows, in one pass.

        Parameters
        ----------
        {X_test}
        {y_ignored}
        {weight_returns_score}
            Minus the weighted sum of squared distances to the nearest centre.
        """
        check_is_fitted(self)
        rows = self._validate_rows(X, sample_weight=sample_weight, reset=False)
        centers, mean = self._model
        step = LloydStep(Centers(centers, mean, rows.dtype), final=True)
        return -map_reduce(engine_for(rows), LLOYD, rows, step).inertia

    @property
    def _model(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """The model of a prediction: centres about the mean, and the mean or None."""
        if not hasattr(self, "cluster_centers_"):
            return None
        centers = self.cluster_centers_.astype(np.float64)
        return centers if self._mean is None else centers - self._mean, self._mean

    def _set_centers(self, centers: np.ndarray, mean: np.ndarray | None, dtype: Any) -> None:
        """Set `cluster_centers_` from centres about a mean."""
        self._mean = mean
        centers = centers if mean is None else centers + mean
        self.cluster_centers_ = centers.astype(dtype, copy=False)
        self._n_features_out = len(centers)

    def _n_inits(self, auto: int) -> int:
        """Return the number of initialisations to try; `auto` for those drawn at random."""
        if not isinstance(self.init, str) and not callable(self.init):
            if self.n_init not in ("auto", 1):
                warn(
                    "Explicit initial center position passed: performing only one init in "
                    f"{type(self).__name__} instead of n_init={self.n_init}.",
                    RuntimeWarning,
                )
            return 1  # every start would be the same one
        if self.n_init != "auto":
            return self.n_init
        return auto if self.init == "random" or callable(self.init) else 1

    def _check_init(self, names: tuple[str, ...]) -> None:
        """Raise for an invalid `n_clusters`, `init` or `n_init`."""
        check_positive_int("n_clusters", self.n_clusters)
        if self.n_init != "auto":
            check_positive_int("n_init", self.n_init)
        if isinstance(self.init, str) and self.init not in names:
            valid = ", ".join(map(repr, names))
            raise ValueError(
                f"init must be one of {valid}, a callable or an array. Got {self.init!r} instead."
            )

    def _check_n_rows(self, n_rows: int) -> None:
        if n_rows < self.n_clusters:
            raise ValueError(f"n_samples={n_rows} should be >= n_clusters={self.n_clusters}.")

    def _call_init(self, X: Any, rows: RowBlocks, rng: np.random.RandomState) -> np.ndarray:
        return self._check_centers(self.init(X, self.n_clusters, random_state=rng), rows)

    def _init_centers(self, rows: RowBlocks) -> np.ndarray | None:
        """Return the centres of an array `init`, None for other kinds of `init`."""
        if isinstance(self.init, str):
            return None
        if callable(self.init):
            if rows.on_dask:
                raise ValueError(
                    "init must not be a callable for a Dask collection. Got one, which needs all "
                    "rows at once. Give init an array, or 'k-means||'."
                )
            return None
        return self._check_centers(self.init, rows)

    def _check_centers(self, centers: Any, rows: RowBlocks) -> np.ndarray:
        """Return centres as a float64 matrix; raise for an invalid shape or values."""
        centers = as_dense(centers if hasattr(centers, "shape") else np.asarray(centers))
        expected = {
            "number of clusters": self.n_clusters,
            "number of features of the data": rows.n_features,
        }
        for size, (name, n) in zip(centers.shape, expected.items(), strict=True):
            if size != n:
                raise ValueError(
                    f"The shape of the initial centers {centers.shape} does not match the {name} "
                    f"{n}."
                )
        if not np.isfinite(centers).all():
            raise ValueError("init must be finite. Got centres with NaN or infinity instead.")
        return centers


def centering_mean(columns: Moments, dtype: np.dtype) -> np.ndarray | None:
    """Return the mean to centre rows on, exact in their precision; None where it is small."""
    variance = float(np.sum(columns.squares)) / columns.n_rows
    if float(columns.mean @ columns.mean) <= MAX_MEAN_TO_VARIANCE[dtype.name] * variance:
        return None
    # Rounded to the type of the rows, so that rows and centres are taken about the very same mean.
    return columns.mean.astype(dtype).astype(np.float64)


def labels_from_cache(rows: RowBlocks) -> Any:
    """Return the labels that the last pass has cached for rows in this process."""
    labels_by_offset: dict[int, Any] = {}
    for block in rows.blocks:
        labels_by_offset |= {
            key[1]: labels for key, labels in block.cache.items() if isinstance(key, tuple)
        }
    parts = [labels_by_offset[start] for start in sorted(labels_by_offset)]
    xp = namespace(*parts)
    return xp.astype(xp.concat(parts), xp.int32)
