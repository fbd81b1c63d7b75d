"""Base classes of decompositions: projection, sign convention, probabilistic PCA."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skfleet._array import asarray_like, is_array
from skfleet._linalg import affine, dot
from skfleet._typing import Answer, Rows
from skfleet._validation import check_block
from skfleet.blocks import as_sized, check_rows, is_lazy, meta_of
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator, check_lazy_rows
from skfleet.estimators._set_output import lazy_output
from skfleet.inference import OutputSpec, map_model


def svd_flip(vectors: np.ndarray) -> np.ndarray:
    """Return the rows of a matrix with the largest entry of each positive, as in scikit-learn."""
    largest = np.argmax(np.abs(vectors), axis=1)
    signs = np.sign(vectors[np.arange(len(vectors)), largest])
    # Vectors of zeros have no sign.
    return vectors * np.where(signs == 0, 1.0, signs)[:, None]


@document
@lazy_output
class Projector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FleetEstimator):
    """A transformer that projects onto `components_`."""

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def transform(self, X: Rows) -> Answer:
        """Project data onto the components.

        {X_returns}
        X_new : ndarray or Dask collection of shape (n_samples, n_components)
            In the container of X.
        """
        check_is_fitted(self)
        names = self.get_feature_names_out()
        output = OutputSpec(self.components_.dtype, self._n_features_out, names, is_rows=True)
        return self._predict_blockwise(project, X, output, model=self._projection())

    def inverse_transform(self, X: Rows) -> Answer:
        """Transform projections back to the original space.

        Parameters
        ----------
        X : {array-like, sparse matrix, Dask array or DataFrame} of shape (n_samples, n_components)
            Projected data.

        Returns
        -------
        X_original : ndarray or Dask collection of shape (n_samples, n_features)
            In the container of X.
        """
        check_is_fitted(self)
        check_rows(X=X)
        rows = meta_of(X) if is_lazy(X) else as_sized("X", X)
        if is_lazy(X):
            check_lazy_rows(rows)
        shape = rows.shape if hasattr(rows, "shape") else np.shape(rows)
        width = shape[-1] if len(shape) == 2 else None
        if width != self._n_features_out:
            raise ValueError(
                f"X must have as many columns as there are components, {self._n_features_out}. Got "
                f"{width} instead."
            )
        names = getattr(self, "feature_names_in_", None)
        output = OutputSpec(self.components_.dtype, self.components_.shape[1], names, is_rows=True)
        X = X if hasattr(X, "shape") or is_array(X) else np.asarray(X)
        projection, check = self._projection(), check_block
        return map_model(self, restore, projection, X, output, method="restore", check=check)

    def _projection(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return components, mean and scale of a projection; None for no mean or scale."""
        return self.components_, None, None


class BasePCA(Projector):
    """A projection of centred data, and the Gaussian density of probabilistic PCA."""

    def _projection(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return components, mean and scale of a projection."""
        scale = None
        if self.whiten:
            # avoids a division by zero along directions without variance
            least = np.finfo(self.explained_variance_.dtype).eps
            scale = np.maximum(np.sqrt(self.explained_variance_), least)
        return self.components_, self.mean_, scale

    def get_covariance(self) -> np.ndarray:
        """Compute the covariance of the data under the model.

        Returns
        -------
        covariance : ndarray of shape (n_features, n_features)
            That along the components, and `noise_variance_` in all other directions.
        """
        check_is_fitted(self)
        above = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        covariance = (self.components_.T * above) @ self.components_
        covariance[np.diag_indices_from(covariance)] += self.noise_variance_
        return covariance

    def get_precision(self) -> np.ndarray:
        """Compute the precision matrix of the data under the model.

        Returns
        -------
        precision : ndarray of shape (n_features, n_features)
            Inverse of what `get_covariance` returns.
        """
        check_is_fitted(self)
        if self.noise_variance_ == 0:
            return linalg.inv(self.get_covariance())
        # Components are orthonormal, so the inverse has the same form (matrix inversion lemma).
        projected = 1 / np.maximum(self.explained_variance_, self.noise_variance_)
        precision = (self.components_.T * (projected - 1 / self.noise_variance_)) @ self.components_
        precision[np.diag_indices_from(precision)] += 1 / self.noise_variance_
        return precision


def project(model: Any, X: Any) -> Any:
    """Return the projection of rows, on the device of X."""
    components, mean, scale = model
    # The projections are centred, not the rows: these stay sparse, and are not copied.
    offset = 0.0 if mean is None else -(mean.astype(np.float64) @ components.T)
    projected = affine(X, components.T, offset)
    return projected if scale is None else projected / asarray_like(scale, projected)


def restore(model: Any, X: Any) -> Any:
    """Return the rows of projections X, on the device of X."""
    components, mean, scale = model
    rows = dot(X, components if scale is None else components * scale[:, None])
    return rows if mean is None else rows + asarray_like(mean, rows)
