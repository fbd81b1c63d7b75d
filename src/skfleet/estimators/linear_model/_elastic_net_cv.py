"""Lasso and elastic net with built-in cross-validation, in one pass."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils import check_scalar

from skfleet._typing import RandomState, Rows, Splitter, Values, Weights
from skfleet._validation import check_in_interval, check_positive_int
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._metadata_routing import (
    SplitterRouting,
    check_splits,
    route_splitter_params,
)
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._elastic_net import (
    ElasticNet,
    check_coordinate_descent,
    warn_unless_converged,
)
from skfleet.estimators.linear_model._iterative_least_squares import check_gram_limit
from skfleet.estimators.linear_model._linear_estimators import (
    LinearRegressor,
    check_alphas,
    check_array_like,
)
from skfleet.glm import Products, elastic_net_path, split_products


@document
class ElasticNetCV(SplitterRouting, LinearRegressor):
    r"""Elastic net with its penalties chosen by cross-validation, in one pass over the rows.

    Fits :class:`ElasticNet` for a path of `alpha` and any number of `l1_ratio` on every split, and
    keeps the pair with the smallest mean squared error on average over the splits, as
    :class:`sklearn.linear_model.ElasticNetCV` does (Friedman, Hastie and Tibshirani, 2010,
    Regularization paths for generalized linear models via coordinate descent).

    Parameters
    ----------
    l1_ratio : float or list of float, default=0.5
        Fractions of the L1 penalty to try, from 0 to 1.
    {elastic_net_cv_path}
    cv : int, splitter or iterable, default=None
        Folds, 5 if None; the first ones hold the first rows. A splitter of scikit-learn's, or pairs
        of row numbers. For rows on Dask a splitter sees neither X nor y.
    {copy_X}
    verbose : bool or int, default=0
        Above 0, print what was chosen.
    {elastic_net_cv_ignored}

    Attributes
    ----------
    alpha_ : float
        The strength chosen.
    l1_ratio_ : float
        The ratio chosen.
    coef_ : ndarray of shape (n_features,)
        Coefficients, fitted to all rows.
    intercept_ : float
        Intercept.
    mse_path_ : ndarray of shape (n_l1_ratio, n_alphas, n_folds) or (n_alphas, n_folds)
        Mean squared errors on the rows tested on.
    alphas_ : ndarray of shape (n_alphas,) or (n_l1_ratio, n_alphas)
        The alphas tried, largest first.
    dual_gap_ : float
        How far the objective may be above its minimum.
    n_iter_ : int
        Sweeps over the coefficients for the pair chosen.
    {elastic_net_cv_errors}

    Notes
    -----
    One pass over the rows for all folds, alphas and ratios (rows in blocks of unknown length are
    counted before): products are summed by fold, a fold's model comes from those of the others, and
    its error from its own. A worker keeps a Gram matrix of n_features x n_features float64 numbers
    for each fold that its rows touch; n of them are sent to the client for n folds.

    Examples
    --------
    {diabetes}
    >>> model = ElasticNetCV(l1_ratio=[0.5, 0.9, 1.0]).fit(X, y)
    >>> float(model.l1_ratio_), model.mse_path_.shape
    (1.0, (3, 100, 5))
    """

    def __init__(
        self,
        *,
        l1_ratio: Values | float = 0.5,
        eps: float = 1e-3,
        alphas: Values | float = 100,
        fit_intercept: bool = True,
        precompute: bool | str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        cv: Splitter | None = None,
        copy_X: bool = True,
        verbose: bool | int = 0,
        n_jobs: int | None = None,
        positive: bool = False,
        random_state: RandomState = None,
        selection: str = "cyclic",
        device: str = "auto",
    ) -> None:
        self.l1_ratio = l1_ratio
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.max_iter = max_iter
        self.tol = tol
        self.cv = cv
        self.copy_X = copy_X
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.device = device

    @run_on_device
    def fit(
        self, X: Rows, y: Values, sample_weight: Weights | None = None, **params: Any
    ) -> ElasticNetCV:
        """Select the penalties by cross-validation and fit the model, in one pass.

        {elastic_net_cv_fit}
        """
        ratios = self._check_parameters()
        params = route_splitter_params(self, params)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True)
        check_gram_limit(rows, type(self).__name__)
        options = {"centred": self.fit_intercept, "has_l1": True}
        products = split_products(rows, X, y, self.cv, params, **options)
        if not self.fit_intercept:
            # Products of test rows stay centred: `squared_errors` adds the error of the means.
            splits = [(train.uncentered(), test) for train, test in products.splits]
            products = products._replace(total=products.total.uncentered(), splits=splits)
        alphas = np.stack([self._alphas(products.total, ratio) for ratio in ratios])
        errors = np.empty((len(ratios), alphas.shape[1], len(products.splits)))
        points = []
        options = {name: getattr(self, name) for name in ("tol", "max_iter", "positive")}
        for i, (ratio, alpha_path) in enumerate(zip(ratios, alphas, strict=True)):
            for j, (train, test) in enumerate(products.splits):
                # Errors to compare are scikit-learn's; only the final fit is refined beyond `tol`.
                problem = train.quadratic()
                path = elastic_net_path(problem, alpha_path, ratio, excess=np.inf, **options)
                errors[i, :, j] = [test.squared_errors(p.coef[None, :], train)[0] for p in path]
                points += path
        self.mse_path_ = np.squeeze(errors)
        i, at = np.unravel_index(np.argmin(errors.mean(axis=2)), alphas.shape)
        # of NumPy's type where scikit-learn's are
        self.l1_ratio_, self.alpha_ = ratios[i], alphas[i, at]
        self.alphas_ = alphas if len(ratios) > 1 and self._is_n_alphas else alphas[0]
        if self.verbose:
            print(f"alpha={self.alpha_:g} and l1_ratio={self.l1_ratio_:g} have the least error.")
        options |= {"l1_ratio": self.l1_ratio_, "fit_intercept": self.fit_intercept}
        model = ElasticNet(self.alpha_, **options)
        points += model._solve(products.total, rows, column=True)
        warn_unless_converged(points, self)
        for name in ("coef_", "intercept_", "dual_gap_", "n_iter_"):
            setattr(self, name, getattr(model, name))
        return self

    def _check_parameters(self) -> list[float]:
        """Return the values of `l1_ratio` to try; raise for invalid parameters."""
        check_coordinate_descent(self)
        check_in_interval("eps", self.eps, 0, open="l")
        if self._is_n_alphas:
            check_positive_int("alphas", self.alphas)
        else:
            check_alphas(self.alphas, allow_zero=True)
        values = np.atleast_1d(check_array_like("l1_ratio", self.l1_ratio))
        for ratio in values:
            check_scalar(ratio, "l1_ratio", Real)
            check_in_interval("l1_ratio", ratio, 0, 1)
        ratios = list(values.astype(np.float64))
        if self._is_n_alphas and 0.0 in ratios:
            raise ValueError(
                "l1_ratio must be above 0 for a path of alphas. Got 0 instead. Give the alphas."
            )
        check_splits(self.cv)
        return ratios

    @property
    def _is_n_alphas(self) -> bool:
        return isinstance(self.alphas, Real)

    def _alphas(self, sums: Products, ratio: float) -> np.ndarray:
        """Return the alphas of a path, from the smallest one for which all coefficients are 0."""
        if not self._is_n_alphas:
            return np.sort(check_alphas(self.alphas, allow_zero=True))[::-1]
        slopes = sums.xy[:, 0] if self.positive else np.abs(sums.xy[:, 0])
        largest = max(0.0, slopes.max()) / (sums.weight * ratio)
        # scikit-learn's path where no column correlates with y.
        smallest = np.finfo(np.float64).resolution
        if largest <= smallest:
            return np.full(self.alphas, smallest)
        return np.geomspace(largest, largest * self.eps, num=self.alphas)


@document
class LassoCV(ElasticNetCV):
    r"""Lasso with its penalty chosen by cross-validation, in one pass over the rows.

    Fits :class:`Lasso` for a path of `alpha` on every split, and keeps the one with the smallest
    mean squared error on average over the splits, as :class:`sklearn.linear_model.LassoCV` does.

    Parameters
    ----------
    {elastic_net_cv_path}
    {copy_X}
    cv : int, splitter or iterable, default=None
        Splits, as for :class:`ElasticNetCV`.
    verbose : bool or int, default=False
        Above 0, print what was chosen.
    {elastic_net_cv_ignored}

    Attributes
    ----------
    alpha_ : float
        The strength chosen.
    coef_ : ndarray of shape (n_features,)
        Coefficients, fitted to all rows.
    intercept_ : float
        Intercept.
    mse_path_ : ndarray of shape (n_alphas, n_folds)
        Mean squared errors on the rows tested on.
    alphas_ : ndarray of shape (n_alphas,)
        The alphas tried, largest first.
    dual_gap_ : float
        How far the objective may be above its minimum.
    n_iter_ : int
        Sweeps over the coefficients for the alpha chosen.
    {elastic_net_cv_errors}

    Notes
    -----
    One pass over the rows, as for :class:`ElasticNetCV`.

    Examples
    --------
    {diabetes}
    >>> model = LassoCV(alphas=20).fit(X, y)
    >>> round(float(model.alpha_), 4), model.mse_path_.shape
    (0.0031, (20, 5))
    """

    def __init__(
        self,
        *,
        eps: float = 1e-3,
        alphas: Values | float = 100,
        fit_intercept: bool = True,
        precompute: bool | str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        copy_X: bool = True,
        cv: Splitter | None = None,
        verbose: bool | int = False,
        n_jobs: int | None = None,
        positive: bool = False,
        random_state: RandomState = None,
        selection: str = "cyclic",
        device: str = "auto",
    ) -> None:
        super().__init__(
            l1_ratio=1.0,
            eps=eps,
            alphas=alphas,
            fit_intercept=fit_intercept,
            precompute=precompute,
            max_iter=max_iter,
            tol=tol,
            cv=cv,
            copy_X=copy_X,
            verbose=verbose,
            n_jobs=n_jobs,
            positive=positive,
            random_state=random_state,
            selection=selection,
            device=device,
        )

    @run_on_device
    def fit(
        self, X: Rows, y: Values, sample_weight: Weights | None = None, **params: Any
    ) -> LassoCV:
        """Select the penalty by cross-validation and fit the model, in one pass.

        {elastic_net_cv_fit}
        """
        super().fit(X, y, sample_weight, **params)
        # scikit-learn's LassoCV has no such attribute.
        del self.l1_ratio_
        return self
