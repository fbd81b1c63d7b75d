"""A mixture of Gaussians, by the EM algorithm on rows of any container."""

from __future__ import annotations

import numpy as np
from sklearn import mixture
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skfleet._typing import Answer, RandomState, Rows, Values
from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.mixture._em import EMResult, EMSolver, IterationLog
from skfleet.estimators.mixture._expectation import (
    labels_of,
    log_likelihood,
    log_likelihoods_of,
    responsibilities_of,
)
from skfleet.estimators.mixture._gaussians import (
    COVARIANCE_TYPES,
    Gaussians,
    covariances_shape,
)
from skfleet.estimators.mixture._initial_parameters import InitialParameters
from skfleet.estimators.mixture._start import INIT_PARAMS, ComponentInit, in_double
from skfleet.inference import OutputSpec, class_names


@document
class GaussianMixture(DensityMixin, FleetEstimator):
    r"""Mixture of Gaussian distributions, fitted by expectation-maximization.

    Maximises the mean log-likelihood
    :math:`\frac1n \sum_i \log \sum_k \pi_k \mathcal N(x_i \mid \mu_k, \Sigma_k)` over weights,
    means and covariances (Dempster, Laird and Rubin, 1977, Maximum likelihood from incomplete data
    via the EM algorithm; Bishop, 2006, Pattern recognition and machine learning, section 9.2.2),
    as :class:`sklearn.mixture.GaussianMixture` does.

    Parameters
    ----------
    n_components : int, default=1
        Number of components.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        A covariance matrix for each component, one for all of them, a diagonal one for each, or a
        single variance for each.
    tol : float, default=1e-3
        Stop when an iteration changes the mean log-likelihood by less.
    reg_covar : float, default=1e-6
        Added to the diagonals of the covariances, at least 0.
    max_iter : int, default=100
        The most iterations from one start; 0 for the start itself.
    n_init : int, default=1
        Number of initialisations to try; the largest mean log-likelihood wins. A start that is
        passed is tried once.
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}, default="kmeans"
        Where to start, unless all of `weights_init`, `means_init` and `precisions_init` are there:
        from the clusters of a :class:`KMeans`, from rows by greedy k-means++ among up to 10,000
        (or 100 per component) that are drawn, from random responsibilities, or from drawn rows.
    weights_init : array of shape (n_components,), default=None
        Initial weights, which add up to 1.
    means_init : array of shape (n_components, n_features), default=None
        Initial means.
    precisions_init : array, default=None
        Initial precisions (inverse covariances), in the shape of `precisions_`.
    random_state : int, RandomState instance or None, default=None
        Draws the start, and the rows of `sample`. A start is drawn by the rows' global numbers: an
        int gives the same model for every cut of the rows and any number of workers, though
        another than scikit-learn's.
    warm_start : bool, default=False
        Let ``fit`` start from the solution of the last one.
    verbose : int, default=0
        1 prints initialisations and iterations; 2 also the time and the change of the lower bound.
    verbose_interval : int, default=10
        Iterations between two lines.
    {device}

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Weights of the components.
    means_ : ndarray of shape (n_components, n_features)
        Means of the components.
    covariances_ : ndarray
        Covariances, of shape (n_components, n_features, n_features) for "full", (n_features,
        n_features) for "tied", (n_components, n_features) for "diag", (n_components,) for
        "spherical".
    precisions_ : ndarray
        Inverses of the covariances, of the same shape.
    precisions_cholesky_ : ndarray
        Upper triangular factors U of precisions :math:`U U^T`; square roots of diagonal ones.
    converged_ : bool
        Whether the start that won has converged.
    n_iter_ : int
        Its iterations.
    lower_bound_ : float
        Mean log-likelihood in its last iteration, under the parameters before it.
    lower_bounds_ : list of float
        The same of all its iterations.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, there are fewer rows than components, or a covariance is
        ill-defined.
    TypeError
        For sparse rows.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When the start that won has not converged in `max_iter` iterations.

    Notes
    -----
    Passes over the rows: one per iteration, in which each block finds its responsibilities, and
    sums by them what the next parameters and the lower bound are made of. Before, none where the
    start is passed or a warm one; those of :class:`KMeans` and one more for ``"kmeans"``; two for
    ``"random"``; one for the others, and one more for "tied". `fit_predict` makes none of its own
    where X is lazy, and labels are too. On a cluster each task returns ``n_components *
    n_features**2`` numbers for "full", which are added up in a tree. Rows that fit stay in the
    workers' memory; others are loaded in each pass.

    Densities and sums are computed in float64, also of float32 rows. Products of rows are summed
    about a point near to them: the last mean of the component for "full", the mean of the mixture
    otherwise. So a mean of 10,000 standard deviations costs no digits, as it does in scikit-learn
    for "tied", "diag" and "spherical".

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import GaussianMixture
    >>> X = da.from_array(np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]]), chunks=2)
    >>> model = GaussianMixture(n_components=2, random_state=0).fit(X)
    >>> np.sort(model.means_, axis=0)
    array([[ 1.,  2.],
           [10.,  2.]])
    >>> model.predict_proba(X).compute().max(axis=1)
    array([1., 1., 1., 1., 1., 1.])
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: str = "kmeans",
        weights_init: Values | None = None,
        means_init: Values | None = None,
        precisions_init: Values | None = None,
        random_state: RandomState = None,
        warm_start: bool = False,
        verbose: int = 0,
        verbose_interval: int = 10,
        device: str = "auto",
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values | None = None) -> GaussianMixture:
        """Fit the mixture.

        {fit_rows}
        """
        self._check_parameters()
        rows = self._validate_rows(X, ensure_min_samples=2)
        if rows.is_sparse:
            raise TypeError(
                "Sparse data was passed for X, but dense data is required. Use '.toarray()' to "
                "convert to a dense numpy array."
            )
        self._check_n_rows(rows.n_rows)
        parameters = InitialParameters.of(self, rows.n_features)
        warm_model = self._warm_model(rows.n_features)
        engine = engine_for(rows)
        with engine.persist(rows) as persisted:
            rows = with_row_offsets(engine, persisted)
            self._check_n_rows(rows.n_rows)
            best = self._best_of_starts(engine, rows, parameters, warm_model)
        if self.max_iter and not best.converged:
            warn(
                "Best performing initialization did not converge. Try different init parameters, "
                "or increase max_iter, tol, or check for degenerate data.",
                ConvergenceWarning,
            )
        self._set_model(best.model, rows.dtype)
        self.converged_, self.n_iter_ = best.converged, len(best.lower_bounds)
        number = rows.dtype.type
        self.lower_bound_ = number(best.lower_bound)
        self.lower_bounds_ = [number(bound) for bound in best.lower_bounds]
        return self

    def _best_of_starts(
        self,
        engine: Engine,
        rows: RowBlocks,
        parameters: InitialParameters,
        warm_model: Gaussians | None,
    ) -> EMResult:
        """Return the result of the start with the largest lower bound."""
        log = IterationLog(int(self.verbose), self.verbose_interval)
        solver = EMSolver(engine, in_double(rows), self.reg_covar, self.tol, self.max_iter, log)
        if warm_model is not None:
            log.begin(0)
            return solver.run(warm_model, self.lower_bound_)
        rng, kind = check_random_state(self.random_state), self.covariance_type
        init = ComponentInit(self.init_params, kind, self.n_components, self.reg_covar, rng)
        best = None
        # without a start to draw, every initialisation would be the same one
        for number in range(1 if parameters.is_complete else self.n_init):
            log.begin(number)
            start = None if parameters.is_complete else init.components(engine, rows)
            result = solver.run(parameters.gaussians(kind, start))
            if best is None or result.lower_bound > best.lower_bound:
                best = result
        return best

    def fit_predict(self, X: Rows, y: Values | None = None) -> Answer:
        """Fit the mixture and return the likeliest component of every row.

        Parameters
        ----------
        {X_train}
        {y_ignored}

        Returns
        -------
        labels : ndarray or Dask collection of shape (n_samples,)
            int64, in the container of X.
        """
        return self.fit(X).predict(X)

    def predict(self, X: Rows) -> Answer:
        """Return the number of the likeliest component of every row.

        {X_returns}
        labels : ndarray or Dask collection of shape (n_samples,)
            int64, in the container of X.
        """
        check_is_fitted(self)
        output = OutputSpec(np.dtype(np.int64))
        return self._predict_blockwise(labels_of, X, output, model=self._model())

    def predict_proba(self, X: Rows) -> Answer:
        """Return the probability of each component for every row.

        {X_returns}
        responsibilities : ndarray or Dask collection of shape (n_samples, n_components)
            In the container of X.
        """
        check_is_fitted(self)
        names = class_names(range(len(self.means_)), X)
        output = OutputSpec(self.means_.dtype, len(self.means_), names)
        return self._predict_blockwise(responsibilities_of, X, output, model=self._model())

    def score_samples(self, X: Rows) -> Answer:
        """Return the log-likelihood of every row.

        {X_returns}
        log_likelihood : ndarray or Dask collection of shape (n_samples,)
            Natural logarithm of the density of each row, in the container of X.
        """
        check_is_fitted(self)
        output = OutputSpec(self.means_.dtype)
        return self._predict_blockwise(log_likelihoods_of, X, output, model=self._model())

    @run_on_device
    def score(self, X: Rows, y: Values | None = None) -> float:
        """Return the mean log-likelihood of rows, in one pass.

        Parameters
        ----------
        {X_test}
        {y_ignored}

        Returns
        -------
        log_likelihood : float
            Mean of the natural logarithms of the densities of the rows.
        """
        n_rows, total = self._log_likelihood(X)
        return total / n_rows

    @run_on_device
    def aic(self, X: Rows) -> float:
        """Return Akaike's information criterion of the model for rows, in one pass.

        {X_returns}
        aic : float
            Minus twice the log-likelihood, plus twice the number of parameters.
        """
        _, total = self._log_likelihood(X)
        return -2 * total + 2 * self._model().n_parameters

    @run_on_device
    def bic(self, X: Rows) -> float:
        """Return the Bayesian information criterion of the model for rows, in one pass.

        {X_returns}
        bic : float
            Minus twice the log-likelihood, plus the number of parameters times the logarithm of
            the number of rows.
        """
        n_rows, total = self._log_likelihood(X)
        return -2 * total + self._model().n_parameters * float(np.log(n_rows))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the mixture, by scikit-learn's own method.

        Parameters
        ----------
        n_samples : int, default=1
            Number of rows to draw.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Rows, component after component.
        y : ndarray of shape (n_samples,)
            Number of each row's component.
        """
        check_is_fitted(self)
        params = self.get_params(deep=False)
        del params["device"]
        model = mixture.GaussianMixture(**params)
        model.weights_, model.means_ = self.weights_, self.means_
        model.covariances_ = self.covariances_
        return model.sample(n_samples)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _log_likelihood(self, X: Rows) -> tuple[int, float]:
        """Return the number of rows, and the sum of their log-likelihoods, in one pass."""
        check_is_fitted(self)
        rows = in_double(self._validate_rows(X, reset=False))
        return map_reduce(engine_for(rows), Reduction(log_likelihood), rows, self._model())

    def _model(self) -> Gaussians:
        """Return the fitted model, in the precision of the attributes."""
        parts = (self.weights_, self.means_, self.covariances_, self.precisions_cholesky_)
        return Gaussians(self.covariance_type, *parts)

    def _set_model(self, model: Gaussians, dtype: np.dtype) -> None:
        """Set the attributes of the model in the precision of the rows."""
        self.weights_ = model.weights.astype(dtype)
        self.means_ = model.means.astype(dtype)
        self.covariances_ = model.covariances.astype(dtype)
        self.precisions_cholesky_ = model.factors.astype(dtype)
        self.precisions_ = model.precisions.astype(dtype)

    def _warm_model(self, n_features: int) -> Gaussians | None:
        """Return the model of the last fit in float64, None where this one starts anew."""
        if not self.warm_start or not hasattr(self, "converged_"):
            return None
        shape = covariances_shape(self.covariance_type, self.n_components, n_features)
        if self.means_.shape != (self.n_components, n_features) or self.covariances_.shape != shape:
            raise ValueError(
                f"warm_start must go on with {len(self.means_)} components of "
                f"{self.means_.shape[1]} columns and covariances of the same type. Got others "
                "instead. Fit a new estimator."
            )
        return self._model().in_double()

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        for name in ("n_components", "n_init", "verbose_interval"):
            check_positive_int(name, getattr(self, name))
        check_positive_int("max_iter", self.max_iter, 0)
        check_option("covariance_type", self.covariance_type, COVARIANCE_TYPES)
        check_option("init_params", self.init_params, INIT_PARAMS)
        check_in_interval("tol", self.tol, 0)
        check_in_interval("reg_covar", self.reg_covar, 0)

    def _check_n_rows(self, n_rows: int | None) -> None:
        """Raise where there are too few rows; None stands for a number not known yet."""
        if n_rows is None:
            return
        if n_rows < 2:
            raise ValueError(
                f"Found array with {n_rows} sample(s) while a minimum of 2 is required by "
                "GaussianMixture."
            )
        if n_rows < self.n_components:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components}, "
                f"n_samples = {n_rows}"
            )
