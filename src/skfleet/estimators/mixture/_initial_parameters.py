"""Initial weights, means and precisions that the user passes, and their checks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import to_host_if_array
from skfleet.estimators.mixture._gaussians import (
    Gaussians,
    covariances_shape,
    factors_of,
    factors_of_precisions,
    inverse_of_precisions,
)
from skfleet.estimators.mixture._start import Components


class InitialParameters(NamedTuple):
    """Initial parameters in float64; None for those that a start finds."""

    weights: np.ndarray | None
    means: np.ndarray | None
    precisions: np.ndarray | None

    @classmethod
    def of(cls, estimator: Any, n_features: int) -> InitialParameters:
        """Return the parameters of an estimator; raise for invalid ones."""
        n_components, kind = estimator.n_components, estimator.covariance_type
        shapes = {
            "weights_init": (n_components,),
            "means_init": (n_components, n_features),
            "precisions_init": covariances_shape(kind, n_components, n_features),
        }
        parameters = cls(
            *(_checked(name, getattr(estimator, name), shape) for name, shape in shapes.items())
        )
        if parameters.weights is not None:
            _check_weights(parameters.weights)
        if parameters.precisions is not None:
            _check_precisions(parameters.precisions, is_matrix=kind in ("full", "tied"))
        return parameters

    @property
    def is_complete(self) -> bool:
        """True where nothing is left for a start to find."""
        return all(part is not None for part in self)

    def gaussians(self, kind: str, start: Components | None) -> Gaussians:
        """Return the model of these parameters, completed by those of a start."""
        weights = start.weights if self.weights is None else self.weights
        means = start.means if self.means is None else self.means
        if self.precisions is None:
            covariances, factors = start.covariances, factors_of(kind, start.covariances)
        else:
            covariances = inverse_of_precisions(kind, self.precisions)
            factors = factors_of_precisions(kind, self.precisions)
        return Gaussians(kind, weights, means, covariances, factors)


def _checked(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return values in float64, or raise where the shape is another or they are not finite."""
    if values is None:
        return None
    values = np.asarray(to_host_if_array(values), dtype=np.float64)
    if values.shape != shape:
        raise ValueError(f"{name} must be of shape {shape}. Got {values.shape} instead.")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite. Got NaN or infinity instead.")
    return values


def _check_weights(weights: np.ndarray) -> None:
    """Raise unless weights are fractions of one whole."""
    if weights.min() < 0 or abs(weights.sum() - 1) > 1e-6:
        raise ValueError(
            "weights_init must be at least 0 and add up to 1. Got a least weight of "
            f"{weights.min():g} and a sum of {weights.sum():g} instead."
        )


def _check_precisions(precisions: np.ndarray, *, is_matrix: bool) -> None:
    """Raise unless precisions are positive, or symmetric and positive definite."""
    if not is_matrix:
        is_valid = (precisions > 0).all()
    else:
        is_symmetric = np.allclose(precisions, np.swapaxes(precisions, -1, -2))
        is_valid = is_symmetric and (np.linalg.eigvalsh(precisions) > 0).all()
    if not is_valid:
        kind = "symmetric and positive definite" if is_matrix else "above 0"
        raise ValueError(f"precisions_init must be {kind}. Got others instead.")
