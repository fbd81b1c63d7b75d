"""Nearest neighbours: the search, and the classifier and the regressor that vote by it."""

from __future__ import annotations

from typing import Any

from sklearn import neighbors

from skfleet._typing import Answer, Rows
from skfleet.blocks import is_lazy
from skfleet.estimators._blockwise import with_scikit_learns_docstring
from skfleet.estimators._docstrings import document
from skfleet.estimators.neighbors._base import NeighborsEstimator, NeighborsPredictor


@with_scikit_learns_docstring
@document
class NearestNeighbors(NeighborsEstimator, neighbors.NearestNeighbors):
    """The k nearest rows.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import NearestNeighbors
    >>> X = da.from_array(np.array([[0.0, 0], [0, 2], [2, 0], [2, 2]]), chunks=(2, 2))
    >>> distances, numbers = NearestNeighbors(n_neighbors=2).fit(X).kneighbors([[0.0, 1.5]])
    >>> numbers
    array([[1, 0]])
    """


@with_scikit_learns_docstring
@document
class KNeighborsClassifier(NeighborsPredictor, neighbors.KNeighborsClassifier):
    """Vote.

    Examples
    --------
    >>> from skfleet.estimators import KNeighborsClassifier
    """

    def predict_proba(self, X: Rows | None) -> Answer:
        """Return the share of each label in the votes of the neighbours.
        """
        return self._answer("predict_proba", X, self._vote("predict_proba"))


@with_scikit_learns_docstring
@document
class KNeighborsRegressor(NeighborsPredictor, neighbors.KNeighborsRegressor):
    """Mean.

    Examples
    --------
    >>> from skfleet.estimators import KNeighborsRegressor
    """
