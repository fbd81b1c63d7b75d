"""Truncated singular value decomposition of uncentred data."""

from __future__ import annotations

import numpy as np

from skfleet._typing import RandomState, Rows, Values
from skfleet._validation import check_option, check_positive_int
from skfleet.blocks import RowBlocks
from skfleet.engine import engine_for
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.decomposition._projector import Projector, svd_flip
from skfleet.estimators.decomposition._svd_solvers import (
    SVDResult,
    check_covariance_size,
    check_randomized_parameters,
    max_covariance_columns,
    svd_from_covariance,
    svd_from_factor,
    svd_randomized,
)

ALGORITHMS = ("auto", "randomized", "arpack", "tsqr")


@document
class TruncatedSVD(Projector):
    r"""The leading singular values and vectors of rows, which are not centred first.

    Finds :math:`X \approx U \Sigma V^T` of rank `n_components`, with the rows of :math:`V^T` in
    `components_`, as :class:`sklearn.decomposition.TruncatedSVD` does. Of term counts or tf-idf it
    is latent semantic analysis.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, at most the number of columns.
    algorithm : {"auto", "randomized", "arpack", "tsqr"}, default="auto"
        How to find them. ``"randomized"`` makes `n_iter` power iterations (Halko, Martinsson and
        Tropp, 2011, Finding structure with randomness). ``"arpack"`` stands for the same with as
        many passes as it takes to be exact; a ConvergenceWarning says if 100 were not enough.
        ``"tsqr"`` takes the singular vectors of a triangular factor of all rows (Demmel, Grigori,
        Hoemmen and Langou, 2012), exact to the last digits. ``"auto"`` takes the eigenvectors of
        the products of all columns with all, from one pass, for up to 2,000 columns (1,000 of
        sparse rows), and is ``"randomized"`` for more. scikit-learn's default is ``"randomized"``.
    n_iter : int, default=5
        For ``"randomized"``: the most power iterations, each a pass.
    {randomized_svd}
    tol : float, default=0.0
        For ``"arpack"`` and ``"randomized"``: stop once no component's residual is more than this
        fraction of its eigenvalue. For 0, 1e-10.
    {device}

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Right singular vectors; the entry of each that is largest in magnitude is above 0.
    explained_variance_ : ndarray of shape (n_components,)
        Variance of the rows' places along each.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        The same as a fraction of the variance of all columns.
    singular_values_ : ndarray of shape (n_components,)
        Singular values, in decreasing order.
    n_iter_ : int
        Power iterations made, 0 where none were.
    {features_in_and_errors}
    TypeError
        For sparse rows with ``algorithm="tsqr"``.

    Notes
    -----
    Passes over the rows: one for ``"auto"`` on few columns and ``"tsqr"``; one, and one for each
    power iteration, for the others: see :class:`PCA`, which shares the method. Rows may be cut
    along both axes, hold small integers, and be larger than all memory: each pass loads a run of
    rows, converts it in slices, and releases it.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import TruncatedSVD
    >>> X = da.random.default_rng(0).integers(0, 3, size=(1000, 50), chunks=(250, 25), dtype="u1")
    >>> svd = TruncatedSVD(n_components=3, random_state=0).fit(X)
    >>> svd.components_.shape
    (3, 50)
    >>> svd.transform(X)
    dask.array<..., shape=(1000, 3), dtype=float64, chunksize=(250, 3), chunktype=numpy.ndarray>
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        algorithm: str = "auto",
        n_iter: int = 5,
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: RandomState = None,
        tol: float = 0.0,
        device: str = "auto",
    ) -> None:
        self.n_components = n_components
        self.algorithm = algorithm
        self.n_iter = n_iter
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.tol = tol
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values | None = None) -> TruncatedSVD:
        """Fit the model.

        {fit_rows}
        """
        self._check_parameters()
        rows = self._validate_rows(X)
        if self.n_components > rows.n_features:
            raise ValueError(
                f"n_components({self.n_components}) must be <= n_features({rows.n_features})."
            )
        svd = self._decompose(rows)
        n = min(self.n_components, len(svd.values))
        values, vectors = svd.values[:n], svd_flip(svd.vectors[:n])
        # The mean of the projections is the projected mean, so their variance takes no pass.
        variance = np.maximum(values**2 / svd.n_rows - (vectors @ svd.mean) ** 2, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = variance / (svd.squares / svd.n_rows)
        self.components_ = vectors.astype(rows.dtype)
        self.explained_variance_ = variance.astype(rows.dtype)
        self.explained_variance_ratio_ = ratios.astype(rows.dtype)
        self.singular_values_ = values.astype(rows.dtype)
        self.n_iter_ = svd.n_iter
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.algorithm != "tsqr"
        return tags

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        check_positive_int("n_components", self.n_components)
        check_option("algorithm", self.algorithm, ALGORITHMS)
        check_positive_int("n_iter", self.n_iter, 0)
        check_randomized_parameters(self)

    def _decompose(self, rows: RowBlocks) -> SVDResult:
        """Return the SVD by the solver that `algorithm` names."""
        engine, n = engine_for(rows), self.n_components
        if self.algorithm == "tsqr":
            check_covariance_size(rows, "algorithm", "tsqr", dense=True)
            return svd_from_factor(engine, rows, centred=False)
        if self.algorithm == "auto" and rows.n_features <= max_covariance_columns(rows):
            return svd_from_covariance(engine, rows, n, centred=False)
        n_iter = None if self.algorithm == "arpack" else self.n_iter
        with engine.persist(rows) as persisted:
            return svd_randomized(engine, persisted, n, self, centred=False, n_iter=n_iter)
