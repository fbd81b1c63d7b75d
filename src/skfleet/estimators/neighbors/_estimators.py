"""Nearest neighbours: the search, and the classifier and the regressor that vote by it."""

from __future__ import annotations

from sklearn import neighbors

from skfleet._typing import Answer, Rows
from skfleet.estimators._blockwise import with_scikit_learns_docstring
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators.neighbors._neighbors_estimator import NeighborsEstimator, NeighborsPredictor


@with_scikit_learns_docstring
@document
class NearestNeighbors(NeighborsEstimator, neighbors.NearestNeighbors):
    r"""Search for the k rows :math:`x_i` of least distance :math:`d(q, x_i)` to each query q.

    That is the rule of Cover and Hart (1967), Nearest neighbor pattern classification, section II.

    {neighbor_rows}

    ``radius_neighbors`` is for training rows and queries in this process.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import NearestNeighbors
    >>> X = da.from_array(np.array([[0.0, 0], [0, 2], [2, 0], [2, 2]]), chunks=(2, 2))
    >>> distances, numbers = NearestNeighbors(n_neighbors=2).fit(X).kneighbors([[0.0, 1.5]])
    >>> distances
    array([[0.5, 1.5]])
    >>> numbers
    array([[1, 0]])
    """

    def radius_neighbors(
        self,
        X: Rows | None = None,
        radius: float | None = None,
        return_distance: bool = True,
        sort_results: bool = False,
    ) -> Answer:
        """Find the training rows within a radius of each row, all in this process.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            Queries; by default the training rows, none of which is its own neighbour.
        radius : float, default=None
            Largest distance, by default that of the constructor.
        return_distance : bool, default=True
            Whether to return the distances.
        sort_results : bool, default=False
            Whether to sort the neighbours by distance.

        Returns
        -------
        neigh_dist : ndarray of shape (n_queries,) of arrays
            Distances.
        neigh_ind : ndarray of shape (n_queries,) of arrays
            Numbers of the training rows.
        """
        self._check_in_memory(X, "radius_neighbors")
        return super().radius_neighbors(X, radius, return_distance, sort_results)


@with_scikit_learns_docstring
@document
class KNeighborsClassifier(NeighborsPredictor, neighbors.KNeighborsClassifier):
    r"""The label of most weight :math:`\sum_i w_i [y_i = c]` among the k nearest rows.

    See Cover and Hart (1967), Nearest neighbor pattern classification; with ``weights="distance"``
    Dudani (1976), The distance-weighted k-nearest-neighbor rule.

    {neighbor_rows}

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import KNeighborsClassifier
    >>> X = da.from_array(np.array([[0.0], [1], [2], [3]]), chunks=(2, 1))
    >>> y = da.from_array(np.array(["a", "a", "b", "b"]), chunks=2)
    >>> model = KNeighborsClassifier(n_neighbors=3).fit(X, y)
    >>> model.predict([[1.1]])
    array(['a'], dtype='<U1')
    >>> model.predict_proba([[0.9]])
    array([[0.66666667, 0.33333333]])
    """

    def predict_proba(self, X: Rows | None) -> Answer:
        """Return the fraction of each label in the votes of the neighbours.

        Parameters
        ----------
        X : {X_type}
            Queries. None stands for the training rows, none of which is its own neighbour.

        Returns
        -------
        p : ndarray or Dask collection of shape (n_queries, n_classes), or a list of these
            In the container of X, and in the order of `classes_`; a list for several outputs.
        """
        return self._answer("predict_proba", X, self._vote("predict_proba"))


@with_scikit_learns_docstring
@document
class KNeighborsRegressor(NeighborsPredictor, neighbors.KNeighborsRegressor):
    r"""The mean :math:`\sum_i w_i y_i / \sum_i w_i` over the k nearest rows.

    See Stone (1977), Consistent nonparametric regression, section 1.

    {neighbor_rows}

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import KNeighborsRegressor
    >>> X = da.from_array(np.array([[0.0], [1], [2], [3]]), chunks=(2, 1))
    >>> y = da.from_array(np.array([0.0, 1, 2, 3]), chunks=2)
    >>> KNeighborsRegressor(n_neighbors=2).fit(X, y).predict([[1.4]])
    array([1.5])
    """
