"""Principal component analysis, from one pass over the rows or a few."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln
from sklearn.utils.validation import check_is_fitted

from skfleet._array import asarray_like, namespace
from skfleet._linalg import row_norms
from skfleet._typing import Answer, RandomState, Rows, Values
from skfleet._validation import check_bool, check_option, check_positive_int
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.decomposition._projector import BasePCA, project, svd_flip
from skfleet.estimators.decomposition._svd_solvers import (
    SVDResult,
    check_covariance_size,
    check_randomized_parameters,
    max_covariance_columns,
    svd_from_covariance,
    svd_from_factor,
    svd_randomized,
)
from skfleet.glm import max_gram_columns
from skfleet.inference import OutputSpec

SOLVERS = ("auto", "full", "tsqr", "covariance_eigh", "arpack", "randomized")


@document
class PCA(BasePCA):
    r"""Principal component analysis.

    Finds the orthonormal rows of `components_` along which the rows of X vary most: the leading
    right singular vectors of :math:`X - 1\mu^T`, as :class:`sklearn.decomposition.PCA` does.

    Parameters
    ----------
    n_components : int, float, "mle" or None, default=None
        Number of components to keep: a number; the fewest that explain more than this fraction of
        the variance, for a float between 0 and 1; by Minka's estimate (2000, Automatic choice of
        dimensionality for PCA), for "mle"; or all, for None.
    copy : bool, default=True
        Ignored, present for compatibility with scikit-learn: X is never modified.
    whiten : bool, default=False
        Scale transformed data to unit variance along each component.
    svd_solver : {"auto", "full", "tsqr", "covariance_eigh", "arpack", "randomized"}, default="auto"
        How to find them. ``"covariance_eigh"`` takes the eigenvectors of the covariance, from one
        pass; singular values below 1e-7 times the largest are lost in rounding, unless their number
        is asked for, rows are in single precision (a second pass), or no more than the columns.
        ``"full"`` takes
        the singular vectors of a triangular factor of all rows (Demmel, Grigori, Hoemmen and
        Langou, 2012, Communication-optimal parallel and sequential QR and LU factorizations), from
        one pass of more work, and exact to the last digits; ``"tsqr"`` is the name of dask-ml for
        it. ``"randomized"`` is for few components of many columns: see `iterated_power`.
        ``"arpack"`` stands for the same with as many passes as it takes to be exact; a
        ConvergenceWarning says if 100 were not enough. ``"auto"`` is
        ``"covariance_eigh"`` for up to 2,000 columns, and where all components are needed to know
        how many to keep; else ``"randomized"``, or ``"arpack"`` for sparse rows.
    tol : float, default=0.0
        For ``"arpack"`` and ``"randomized"``: stop once no component's residual is more than this
        fraction of its eigenvalue. For 0, 1e-10.
    iterated_power : int or "auto", default="auto"
        For ``"randomized"``: the most power iterations, each a pass. "auto" is 7 for fewer
        components than a tenth of the lesser of rows and columns, else 4.
    {randomized_svd}
    {device}

    Attributes
    ----------
    components_ : ndarray of shape (`n_components_`, n_features)
        Orthonormal components, by decreasing variance; the entry of each that is largest in
        magnitude is above 0.
    explained_variance_ : ndarray of shape (`n_components_`,)
        Variance along each, with one degree of freedom taken off.
    explained_variance_ratio_ : ndarray of shape (`n_components_`,)
        The same as a fraction of the variance of all columns.
    singular_values_ : ndarray of shape (`n_components_`,)
        Singular values of the rows about their mean.
    mean_ : ndarray of shape (n_features,)
        Means of the columns.
    n_components_ : int
        Number of components.
    n_samples_ : int
        Number of rows.
    noise_variance_ : float
        Mean variance along the directions that are left out (Tipping and Bishop, 1999, Mixtures of
        probabilistic principal component analyzers).
    svd_solver_ : str
        The solver that ran.
    n_iter_ : int
        Power iterations made, 0 for solvers that make none.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or there are fewer rows or columns than
        components.
    TypeError
        For sparse rows with ``svd_solver="full"``.

    Notes
    -----
    Passes over the rows: one for ``"covariance_eigh"`` (two where small singular values would be
    lost) and ``"full"``; one and one for each power iteration for the others, where the usual way
    takes two and two. Each pass multiplies a block of
    vectors by the rows and by their transpose at once, so that nothing of the rows' length is kept;
    and components are sought among all vectors that any pass made (Musco and Musco, 2015,
    Randomized block Krylov methods), which makes them better than those of as many plain power
    iterations. Rows about their mean are never made, and sparse rows stay sparse. On a cluster
    each task of a pass returns ``n_features * (n_components + n_oversamples)`` numbers, or the
    square of ``n_features`` where all products are taken, for which there may be at most 20,000
    columns (5,000 of sparse rows). Rows that fit stay in the workers' memory; others are loaded in
    each pass.

    Unlike scikit-learn's, `get_covariance`, `get_precision` and the scores do not depend on
    `whiten`, which changes answers and not the model.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import PCA
    >>> X = da.from_array([[-1.0, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]], chunks=(2, 2))
    >>> pca = PCA(n_components=2).fit(X)
    >>> print(pca.explained_variance_ratio_.round(4))
    [0.9924 0.0076]
    >>> print(pca.singular_values_.round(4))
    [6.3006 0.5498]
    """

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        copy: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        iterated_power: str | int = "auto",
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: RandomState = None,
        device: str = "auto",
    ) -> None:
        self.n_components = n_components
        self.copy = copy
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values | None = None) -> PCA:
        """Fit the model.

        {fit_rows}
        """
        self._check_parameters()
        rows = self._validate_rows(X)
        solver = self._solver(rows)
        # Checked before a pass as far as the number of rows is known, and again after it.
        self._check_n_components(rows.n_rows, rows.n_features, solver)
        engine = engine_for(rows)
        if solver == "full":
            svd = svd_from_factor(engine, rows, centred=True)
        elif solver == "covariance_eigh":
            n = self.n_components if self._is_count() else None
            svd = svd_from_covariance(engine, rows, n, centred=True)
        else:
            with engine.persist(rows) as persisted:
                persisted = with_row_offsets(engine, persisted)
                self._check_n_components(persisted.n_rows, persisted.n_features, solver)
                least = min(persisted.n_rows, persisted.n_features)
                n = self.n_components if self._is_count() else least
                # scikit-learn's rule for "auto".
                n_iter = 7 if n < 0.1 * least else 4
                n_iter = n_iter if self.iterated_power == "auto" else self.iterated_power
                n_iter = None if solver == "arpack" else n_iter
                svd = svd_randomized(engine, persisted, n, self, centred=True, n_iter=n_iter)
        self._check_n_components(svd.n_rows, rows.n_features, solver)
        self._set_components(svd, rows.dtype)
        self.svd_solver_, self.n_iter_ = solver, svd.n_iter
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.svd_solver not in ("full", "tsqr")
        return tags

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        check_option("svd_solver", self.svd_solver, SOLVERS)
        check_bool("whiten", self.whiten)
        check_randomized_parameters(self)
        if self.iterated_power != "auto":
            check_positive_int("iterated_power", self.iterated_power, 0)
        n = self.n_components
        if n is None or n == "mle" or (isinstance(n, Real) and 0 < n < 1):
            return
        if not isinstance(n, Integral) or isinstance(n, bool) or n < 0:
            raise ValueError(
                "n_components must be a whole number, a number between 0 and 1, 'mle' or None. "
                f"Got {n!r} instead."
            )

    def _is_count(self) -> bool:
        return isinstance(self.n_components, Integral)

    def _solver(self, rows: RowBlocks) -> str:
        """Return the solver to run; raise where it does not support the data."""
        solver = "full" if self.svd_solver == "tsqr" else self.svd_solver
        if solver == "auto":
            solver = self._best_solver(rows)
        if solver in ("full", "covariance_eigh"):
            check_covariance_size(rows, "svd_solver", solver, dense=solver == "full")
        elif not (self._is_count() or self.n_components is None):
            raise ValueError(
                f"n_components must be a whole number for svd_solver={solver!r}. Got "
                f"{self.n_components!r} instead. Take 'covariance_eigh' or 'full'."
            )
        return solver

    def _best_solver(self, rows: RowBlocks) -> str:
        """Return the cheapest solver for `n_components`."""
        n_columns = rows.n_features
        max_columns = max_covariance_columns(rows)
        if not self._is_count() or self.n_components > n_columns / 10:
            max_columns = max_gram_columns(rows)
        if n_columns <= max_columns or not self._is_count():
            return "covariance_eigh"
        return "arpack" if rows.is_sparse else "randomized"

    def _check_n_components(self, n_rows: int | None, n_columns: int, solver: str) -> None:
        """Raise where there are too few rows or columns; None stands for a number not known yet."""
        least = n_columns if n_rows is None else min(n_rows, n_columns)
        if self.n_components == "mle" and least < n_columns:
            raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
        low = 1 if solver in ("arpack", "randomized") else 0
        if self._is_count() and not low <= self.n_components <= least:
            raise ValueError(
                f"n_components={self.n_components} must be between {low} and "
                f"min(n_samples, n_features)={least} with svd_solver={solver!r}. Ask for fewer."
            )

    def _set_components(self, svd: SVDResult, dtype: Any) -> None:
        """Select the number of components, and set the fitted attributes."""
        n_rows, n_columns = svd.n_rows, len(svd.mean)
        least = min(n_rows, n_columns)
        variance = svd.values**2 / max(n_rows - 1, 1)
        total = svd.squares / max(n_rows - 1, 1)
        n = self.n_components
        if n is None:
            n = least
        elif n == "mle":
            n = minka_rank(variance, n_rows)
        elif not self._is_count():
            # As in scikit-learn: the fewest components that explain more than this fraction.
            ratios = np.cumsum(variance / total if total else variance)
            n = min(int(np.searchsorted(ratios, n, side="right")) + 1, least)
        if n == least:
            noise = 0.0
        # All eigenvalues: the noise is the mean of the others. Some: what they leave of the trace.
        elif len(variance) == least:
            noise = float(np.mean(variance[n:]))
        else:
            noise = max(total - float(variance[:n].sum()), 0.0) / (least - n)
        self.components_ = svd_flip(svd.vectors[:n]).astype(dtype)
        self.explained_variance_ = variance[:n].astype(dtype)
        with np.errstate(invalid="ignore"):
            self.explained_variance_ratio_ = (variance[:n] / total).astype(dtype)
        self.singular_values_ = svd.values[:n].astype(dtype)
        self.mean_ = svd.mean.astype(dtype)
        # 0.0 of Python's where no direction is left, as in scikit-learn
        self.noise_variance_ = noise if n == least else dtype.type(noise)
        self.n_components_, self.n_samples_ = int(n), int(n_rows)

    def score_samples(self, X: Rows) -> Answer:
        """Return the log-likelihood of every row under the model.

        {X_returns}
        log_likelihood : ndarray or Dask collection of shape (n_samples,)
            Natural logarithm of the density of each row (Tipping and Bishop, 1999), in the
            container X came in.
        """
        check_is_fitted(self)
        output = OutputSpec(self.components_.dtype)
        return self._predict_blockwise(log_density, X, output, model=self._density())

    @run_on_device
    def score(self, X: Rows, y: Values | None = None) -> float:
        """Return the average log-likelihood of rows, in one pass.

        Parameters
        ----------
        {X_test}
        {y_ignored}

        Returns
        -------
        log_likelihood : float
            Mean of the natural logarithms of the densities of the rows.
        """
        check_is_fitted(self)
        rows = self._validate_rows(X, reset=False)
        total = map_reduce(engine_for(rows), Reduction(_sum_of_logs), rows, self._density())
        return total[0] / total[1]

    def _density(self) -> Density:
        """Return the Gaussian density of the model."""
        noise, n_left = self.noise_variance_, len(self.mean_) - self.n_components_
        if n_left and not noise:
            raise ValueError(
                "noise_variance_ must be above 0 for densities of fewer components than columns. "
                "Got 0 instead. Fit more rows, or ask for fewer components."
            )
        variance = np.maximum(self.explained_variance_.astype(np.float64), noise)
        constant = len(self.mean_) * np.log(2 * np.pi) + np.sum(np.log(variance))
        if n_left:
            constant += n_left * np.log(noise)
        # Python's, which arrays of any device take
        noise = float(noise) if n_left else None
        return Density(self.components_, self.mean_, variance, noise, float(constant))


class Density(NamedTuple):
    """A Gaussian density with variances along components, and isotropic noise elsewhere."""

    components: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    noise: float | None  # None where components span the space
    constant: float


def log_density(model: Density, X: Any) -> Any:
    """Return the log-densities of rows, on the device of X."""
    projected = project((model.components, model.mean, None), X)
    xp = namespace(projected)
    # The norm added below has the noise along components too, which is taken off here.
    weights = 1 / model.variance - (0.0 if model.noise is None else 1 / model.noise)
    distance = xp.sum(projected * projected * asarray_like(weights, projected), axis=1)
    if model.noise is not None:
        distance = distance + row_norms(X, about=model.mean) / model.noise
    return -0.5 * (distance + model.constant)


def _sum_of_logs(block: Block, model: Density) -> tuple[float, int]:
    """Return the sum of the log-likelihoods of a block, and the number of its rows."""
    logs = log_density(model, block.X)
    xp = namespace(logs)
    return float(xp.sum(logs, dtype=xp.float64)), block.n_rows


def minka_rank(variance: np.ndarray, n_rows: int) -> int:
    """Return the number of components with the largest evidence (Minka, 2000, eq. 30).

    `variance` holds the eigenvalues of the covariance, all of them, in decreasing order.
    """
    p = len(variance)
    best, most = 0, -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        # log(1/b - 1/a) and log(a - b) of all pairs of eigenvalues a > b, which ranks add up
        for rank in range(1, p):
            # scikit-learn's bound: smaller eigenvalues are rounding.
            if variance[rank - 1] < 1e-15:
                break
            signal, noise = variance[:rank], max(1e-15, float(variance[rank:].sum()) / (p - rank))
            sizes = p - np.arange(rank)
            volume = -rank * np.log(2) + np.sum(gammaln(sizes / 2) - sizes / 2 * np.log(np.pi))
            fit = -n_rows / 2 * (np.sum(np.log(signal)) + (p - rank) * np.log(noise))
            m = p * rank - rank * (rank + 1) / 2
            flattened = np.concatenate([signal, np.full(p - rank, noise)])
            apart = np.subtract.outer(signal, variance)
            inverse = np.subtract.outer(-1 / signal, -1 / flattened)
            above = np.arange(p) > np.arange(rank)[:, None]
            curvature = np.sum(np.log((apart * inverse)[above])) + m * np.log(n_rows)
            evidence = volume + fit + (m + rank) / 2 * np.log(2 * np.pi)
            evidence = evidence - curvature / 2 - rank / 2 * np.log(n_rows)
            if evidence > most:
                best, most = rank, evidence
    return best
