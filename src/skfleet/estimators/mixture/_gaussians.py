"""Parameters of a mixture of Gaussians: covariances of four types, factors, and the M step."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
# What scikit-learn adds to the weight of a component, which may have no rows.
MIN_WEIGHT = 10 * np.finfo(np.float64).eps

_ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical "
    "covariance (for instance caused by singleton or collapsed samples). Try to decrease the "
    "number of components, increase reg_covar, or scale the input data."
)


class Gaussians(NamedTuple):
    """Components of a mixture in float64; `factors` are scikit-learn's `precisions_cholesky_`."""

    kind: str  # the covariance type
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    factors: np.ndarray

    def in_double(self) -> Gaussians:
        """Return the same model in float64."""
        return Gaussians(self.kind, *(part.astype(np.float64, copy=False) for part in self[1:]))

    @property
    def origins(self) -> np.ndarray:
        """The points about which rows are summed, one for each component."""
        return origins_of(self.kind, self.means, self.weights)

    @property
    def precisions(self) -> np.ndarray:
        """The inverses of the covariances."""
        if self.kind in ("full", "tied"):
            return self.factors @ np.swapaxes(self.factors, -1, -2)
        return self.factors**2

    @property
    def log_scales(self) -> np.ndarray:
        """The logarithms of the weights times the normalising constants of the densities."""
        n_features = self.means.shape[1]
        if self.kind in ("full", "tied"):
            log_det = np.sum(np.log(np.diagonal(self.factors, axis1=-2, axis2=-1)), axis=-1)
        elif self.kind == "diag":
            log_det = np.sum(np.log(self.factors), axis=1)
        else:
            log_det = n_features * np.log(self.factors)
        with np.errstate(divide="ignore"):  # a component may have no weight
            return np.log(self.weights) + log_det - n_features / 2 * np.log(2 * np.pi)

    @property
    def n_parameters(self) -> int:
        """The number of free parameters."""
        n_components, n_features = self.means.shape
        n_entries = {
            "full": n_components * n_features * (n_features + 1) // 2,
            "tied": n_features * (n_features + 1) // 2,
            "diag": n_components * n_features,
            "spherical": n_components,
        }[self.kind]
        return n_entries + self.means.size + n_components - 1


def origins_of(kind: str, means: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return points near to the rows, about which sums of products lose no digits.

    They are the means where each component has products of its own, else the mean of all.
    """
    if kind == "full":
        return means
    return np.broadcast_to(np.average(means, axis=0, weights=weights), means.shape)


def covariances_shape(kind: str, n_components: int, n_features: int) -> tuple[int, ...]:
    """Return the shape of covariances and precisions of a type."""
    return {
        "full": (n_components, n_features, n_features),
        "tied": (n_features, n_features),
        "diag": (n_components, n_features),
        "spherical": (n_components,),
    }[kind]


class ComponentSums(NamedTuple):
    """Sums over rows about the origin of each component, weighted by responsibilities.

    `products` are sums of outer products for "full", one sum without responsibilities for "tied",
    sums of squares for "diag", and their means over the columns for "spherical".
    """

    weights: Any
    rows: Any
    products: Any


def maximize(
    kind: str, sums: ComponentSums, origins: np.ndarray, reg_covar: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the weights in rows, the means and the covariances of components: the M step."""
    weights = sums.weights + MIN_WEIGHT
    shift = (sums.rows - MIN_WEIGHT * origins) / weights[:, None]
    if kind in ("full", "tied"):
        cross = sums.rows[:, :, None] * shift[:, None, :]
        between = sums.weights[:, None, None] * (shift[:, :, None] * shift[:, None, :])
        about_means = between - cross - np.swapaxes(cross, 1, 2)
        if kind == "tied":
            covariances = (sums.products + about_means.sum(axis=0)) / weights.sum()
        else:
            covariances = (sums.products + about_means) / weights[:, None, None]
        covariances += reg_covar * np.eye(origins.shape[1])
    else:
        about_means = shift * (sums.weights[:, None] * shift - 2 * sums.rows)
        if kind == "spherical":
            covariances = (sums.products + about_means.mean(axis=1)) / weights + reg_covar
        else:
            covariances = (sums.products + about_means) / weights[:, None] + reg_covar
    return weights, origins + shift, covariances


def factors_of(kind: str, covariances: np.ndarray) -> np.ndarray:
    """Return upper triangular U with precisions U @ U.T, or square roots of diagonal precisions."""
    if kind in ("full", "tied"):
        try:
            lower = np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError as error:
            raise ValueError(_ILL_DEFINED) from error
        # LAPACK's solver, which takes one matrix at a time
        eye = np.eye(lower.shape[-1])
        stacked = lower.reshape(-1, *eye.shape)
        solve = partial(linalg.solve_triangular, lower=True, check_finite=False)
        inverses = [solve(part, eye).T for part in stacked]
        return np.stack(inverses).reshape(lower.shape)
    if not (covariances > 0).all():
        raise ValueError(_ILL_DEFINED)
    return 1 / np.sqrt(covariances)


def factors_of_precisions(kind: str, precisions: np.ndarray) -> np.ndarray:
    """Return the same from precisions: Cholesky's factors with rows and columns reversed."""
    if kind in ("full", "tied"):
        return np.linalg.cholesky(precisions[..., ::-1, ::-1])[..., ::-1, ::-1]
    return np.sqrt(precisions)


def inverse_of_precisions(kind: str, precisions: np.ndarray) -> np.ndarray:
    """Return the covariances of precisions."""
    return np.linalg.inv(precisions) if kind in ("full", "tied") else 1 / precisions
