"""Ridge regression with built-in cross-validation, from one pass or two."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from sklearn import get_config, metrics
from sklearn.base import MultiOutputMixin
from sklearn.exceptions import FitFailedWarning, UndefinedMetricWarning
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from skfleet._array import FLOAT64, asarray_like, dtype_of, to_host
from skfleet._linalg import dot, is_sparse
from skfleet._sklearn_private import accepts_sample_weight
from skfleet._typing import Rows, Scoring, Splitter, Values, Weights
from skfleet._validation import check_bool, check_option
from skfleet._warnings import warn
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._metadata_routing import (
    SplitterRouting,
    check_splits,
    route_splitter_params,
)
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._iterative_least_squares import check_gram_limit
from skfleet.estimators.linear_model._linear_estimators import (
    LinearRegressor,
    check_alphas,
    round_model,
    y_ndim,
)
from skfleet.estimators.linear_model._ridge_cv_scores import fold_scores, loo_scores, scorer_for
from skfleet.glm import (
    MAX_CONDITIONS,
    Products,
    SplitProducts,
    compute_products,
    score_from_errors,
    split_products,
    weights_of,
)
from skfleet.metrics import check_scorer

# The warning of scikit-learn 1.9; an error in its 1.11.
SVD_OF_SPARSE_ROWS = (
    "The 'svd' mode is not supported for sparse X, we fallback to `gcv_mode='eigen'`. Passing "
    "`gcv_mode='svd'` on sparse X will raise an error in 1.11, use the default or pass "
    "`gcv_mode='eigen'` to suppress this warning."
)
# Scores that follow from sums over rows; the last one needs the errors of rows left out.
_SCORINGS = (
    "r2",
    "neg_mean_squared_error",
    "neg_root_mean_squared_error",
    "neg_mean_absolute_error",
)


@document
class RidgeCV(SplitterRouting, MultiOutputMixin, LinearRegressor):
    r"""Ridge regression with its penalty chosen by cross-validation, in one or two passes.

    Fits :class:`Ridge` for every `alpha`, leaving out each row in turn or each of a few folds, and
    keeps the `alpha` with the best score, as :class:`sklearn.linear_model.RidgeCV` does. The errors
    of rows left out follow from one fit (Rifkin and Lippert, 2007, Notes on regularized least
    squares, section 4).

    Parameters
    ----------
    alphas : float or array of shape (n_alphas,), default=(0.1, 1.0, 10.0)
        Penalties to try; above 0, with folds at least 0.
    {fit_intercept}
    scoring : str or callable, default=None
        A scorer of scikit-learn's by name, or a callable ``scorer(estimator, X, y)``; for rows on
        Dask, one of `skfleet.metrics.get_scorer_names`. None means the negative mean squared error
        where each row is left out, else "r2". "r2", "neg_mean_squared_error",
        "neg_root_mean_squared_error" and, where each row is left out, "neg_mean_absolute_error"
        follow from sums; for others predictions are made.
    cv : int, splitter or iterable, default=None
        None leaves out each row in turn. Otherwise folds; the first ones hold the first rows. A
        splitter of scikit-learn's, or pairs of row numbers. For rows on Dask a splitter sees
        neither X nor y.
    gcv_mode : {"auto", "svd", "eigen"}, default=None
        Ignored, present for compatibility with scikit-learn, with its warning of "svd" for sparse
        rows.
    store_cv_results : bool, default=False
        Keep what was found for each row in `cv_results_`; only with ``cv=None``.
    alpha_per_target : bool, default=False
        Choose an alpha for each target; only with ``cv=None``.
    {device}

    Attributes
    ----------
    cv_results_ : ndarray of shape (n_samples, n_alphas) or (n_samples, n_targets, n_alphas)
        With `store_cv_results`: the weighted squared error of each row left out, or with `scoring`
        its prediction.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients, fitted to all rows.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    alpha_ : float or ndarray of shape (n_targets,)
        The penalty chosen.
    best_score_ : float or ndarray of shape (n_targets,)
        Its score.
    {features_in_and_gram_errors}

    Notes
    -----
    With folds one pass over the rows for all alphas, as for :class:`ElasticNetCV`. Without, a
    second one finds the leverage of each row for all alphas at once. For a `scoring` that does not
    follow from sums, the predictions for each row left out come to the client, ``n_samples *
    n_targets * n_alphas`` numbers; with folds, the rows to test on are predicted for each alpha.
    Rows in blocks of unknown length are counted before, where that matters.

    Examples
    --------
    {diabetes}
    >>> RidgeCV([0.001, 0.01, 0.1, 1.0]).fit(X, y).alpha_
    0.01
    """

    def __init__(
        self,
        alphas: Values | float = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Scoring = None,
        cv: Splitter | None = None,
        gcv_mode: str | None = None,
        store_cv_results: bool = False,
        alpha_per_target: bool = False,
        device: str = "auto",
    ) -> None:
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.cv = cv
        self.gcv_mode = gcv_mode
        self.store_cv_results = store_cv_results
        self.alpha_per_target = alpha_per_target
        self.device = device

    @run_on_device
    def fit(
        self, X: Rows, y: Values, sample_weight: Weights | None = None, **params: Any
    ) -> RidgeCV:
        """Select the penalty by cross-validation and fit the model.

        Parameters
        ----------
        {X_train}
        {y_targets}
        sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
            Sample weights, in training and in the scores. Where metadata routing is enabled, in the
            scores if `scoring` is None or requests them.
        **params : dict
            For the scorer and the splitter, where metadata routing is enabled.

        {returns_fitted}
        """
        alphas = self._check_parameters()
        scorer = scorer_for(self, X)
        score_params, split_params = self._route(params, sample_weight, scorer)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True, multi_output=True)
        check_gram_limit(rows, "RidgeCV")
        column = y_ndim(y) == 1
        if self.gcv_mode == "svd" and rows.is_sparse and self.cv is None:
            warn(SVD_OF_SPARSE_ROWS, FutureWarning)
        scorer = None if self._is_score_of_sums(score_params, sample_weight) else scorer
        if self.cv is None:
            sums, scores = self._loo_scores(rows, alphas, column, scorer, score_params)
        elif scorer is None:
            sums, scores = self._fold_scores(rows, X, y, alphas, split_params)
        else:
            sums, scores = fold_scores(self, scorer, rows, X, y, score_params, split_params, alphas)
        # Where all scores are undefined, the first alpha is chosen, as in scikit-learn.
        best = np.argmax(np.where(np.isnan(scores), -np.inf, scores), axis=0)
        self.best_score_ = np.take_along_axis(scores, best[None], axis=0)[0]
        # The types are scikit-learn's: with folds the alpha is one of those given.
        if self.cv is not None:
            self.alpha_ = np.atleast_1d(self.alphas)[best]
        elif scores.ndim > 1:
            self.alpha_ = alphas[best]
        else:
            self.alpha_ = float(alphas[best])
            if self.alpha_per_target and not column:
                self.best_score_ = np.atleast_1d(self.best_score_)
            elif self.scoring is not None:
                self.best_score_ = float(self.best_score_)
        coef, _, _ = sums.solve_ridge(np.asarray(self.alpha_, dtype=np.float64))
        coef, intercept = round_model(coef, sums, rows.dtype)
        self._set_coef(coef, intercept, rows, one_target=len(coef) == 1, column=column)
        return self

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of the scorer and the splitter.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            What `fit` takes itself, and what it hands on.
        """
        if self.scoring is None:
            scorer = metrics.get_scorer("r2")
            if get_config()["enable_metadata_routing"]:
                # It gets the weights in any case, as in scikit-learn.
                scorer.set_score_request(sample_weight=True)
        else:
            scorer = metrics.check_scoring(self, scoring=self.scoring)
        mapping = MethodMapping().add(caller="fit", callee="score")
        return super().get_metadata_routing().add(scorer=scorer, method_mapping=mapping)

    def _route(
        self, params: dict[str, Any], sample_weight: Any, scorer: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of the scorer and of the splitter."""
        weight = {} if sample_weight is None else {"sample_weight": sample_weight}
        if not get_config()["enable_metadata_routing"]:
            params = route_splitter_params(self, params)
            if weight and self.cv is not None and not accepts_sample_weight(scorer):
                warn(
                    f"The scoring {scorer} does not support sample_weight, which may lead to "
                    f"statistically incorrect results when fitting {self} with sample_weight."
                )
                weight = {}
            return weight, params
        routed = process_routing(self, "fit", **params, **weight)
        return dict(routed["scorer"]["score"]), dict(routed["splitter"]["split"])

    def _is_score_of_sums(self, score_params: dict[str, Any], sample_weight: Any) -> bool:
        """Return whether scores follow from sums over rows, with the weights that these have."""
        if self.scoring is None and self.cv is None:
            return True
        scorings = _SCORINGS if self.cv is None else _SCORINGS[:-1]
        weights = set() if sample_weight is None else {"sample_weight"}
        return (self.scoring or "r2") in scorings and score_params.keys() == weights

    def _check_parameters(self) -> np.ndarray:
        """Return the penalties to try; raise for invalid parameters."""
        alphas = check_alphas(self.alphas, allow_zero=self.cv is not None)
        check_option("gcv_mode", self.gcv_mode or "auto", ("auto", "svd", "eigen"))
        for name in ("store_cv_results", "alpha_per_target"):
            check_bool(name, getattr(self, name))
        check_scorer(self.scoring)
        if self.cv is not None:
            check_splits(self.cv)
            for name in ("store_cv_results", "alpha_per_target"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} must be False with folds: cv!=None and {name}=True are "
                        "incompatible. Leave cv=None for each row to be left out in turn."
                    )
        return alphas

    def _fold_scores(
        self, rows: RowBlocks, X: Any, y: Any, alphas: np.ndarray, params: dict[str, Any]
    ) -> tuple[Products, np.ndarray]:
        """Return the cross products of all rows, and the mean scores of alphas over splits."""
        options = {"centred": self.fit_intercept, "alpha": alphas, "allows_no_weight": True}
        products = split_products(rows, X, y, self.cv, params, **options)
        scoring = self.scoring or "r2"
        undefined = warn_of_undefined_scores(products, scoring, len(alphas))
        scores = np.full((len(alphas), len(products.splits)), np.nan)
        for j, (train, test) in enumerate(products.splits):
            if undefined[j]:
                continue
            train = train if self.fit_intercept else train.uncentered()
            for i, alpha in enumerate(alphas):
                coef, _, _ = train.solve_ridge(alpha)
                errors = test.squared_errors(coef, train)
                variance = test.yy / test.weight
                scores[i, j] = score_from_errors(scoring, errors, errors, variance).mean()
        total = products.total if self.fit_intercept else products.total.uncentered()
        means = scores.mean(axis=1)
        if any(undefined):
            warn(f"One or more of the test scores are non-finite: {means}", UserWarning)
        return total, means

    def _loo_scores(
        self,
        rows: RowBlocks,
        alphas: np.ndarray,
        column: bool,
        scorer: Any,
        score_params: dict[str, Any],
    ) -> tuple[Products, np.ndarray]:
        """Return the cross products of all rows, and the leave-one-out scores of alphas.

        A scorer, if any, scores predictions; without, scores follow from sums.
        """
        engine, dtype = engine_for(rows), rows.dtype
        store = self.store_cv_results and ("error" if self.scoring is None else "prediction")
        store = store if scorer is None else "prediction"
        with engine.persist(rows) as rows:
            rows = with_row_offsets(engine, rows) if store else rows
            centred = compute_products(rows, centred=self.fit_intercept, alpha=alphas)
            sums = centred if self.fit_intercept else centred.uncentered()
            values, vectors, Vt_Xy = sums.spectrum(float(alphas.min()))
            if values.max(initial=0.0) > MAX_CONDITIONS["float32"] * (values.min() + alphas.min()):
                rows = replace(rows, dtype=FLOAT64)
            inverse = 1 / (values[:, None] + alphas)
            leverage = 1 / sums.weight if self.fit_intercept else 0.0  # of the intercept
            known = (sums.x_mean, sums.y_mean, vectors, inverse, Vt_Xy, leverage)
            loo = map_reduce(engine, Reduction(loo_errors, combine_loo_errors), rows, known, store)
        # Blocks are combined in any order.
        stored = sorted(loo.stored, key=itemgetter(0))
        if self.store_cv_results:
            results = np.concatenate([part.values for part in stored])
            self.cv_results_ = (results[:, 0] if column else results).astype(dtype, copy=False)
        if scorer is not None:
            per_target = self.alpha_per_target and not column
            options = {"column": column, "per_target": per_target}
            return sums, loo_scores(scorer, stored, score_params, **options)
        squared, absolute = loo.squared, loo.absolute  # n_targets x n_alphas
        if self.scoring is None:
            # As in scikit-learn: by the number of rows here, by their weight for a named score.
            scores = -squared / loo.n_rows
        else:
            variance = (centred.yy / sums.weight)[:, None]
            means = squared / sums.weight, absolute / sums.weight
            scores = score_from_errors(self.scoring, *means, variance)
        per_target = self.alpha_per_target and len(scores) > 1
        return sums, scores.T if per_target else scores.mean(axis=0)


def warn_of_undefined_scores(products: SplitProducts, scoring: str, n_alphas: int) -> list[bool]:
    """Return which splits have no score; warn of them as a search of scikit-learn's does."""
    cannot_fit = [train is None for train, _ in products.splits]
    cannot_score = [test is None for _, test in products.splits]
    has_one_row = [scoring == "r2" and n == 1 for n in products.n_tested]
    if all(cannot_fit):
        raise ValueError("cv must train on rows with a weight. Got none in any split.")
    if any(cannot_fit):
        n_failed, n_fits = n_alphas * sum(cannot_fit), n_alphas * len(cannot_fit)
        warn(
            f"\n{n_failed} fits failed out of a total of {n_fits}.\nThe score on these train-test "
            "partitions for these parameters will be set to nan: they have no rows to train on "
            "with a weight.",
            FitFailedWarning,
        )
    if any(test and not train for train, test in zip(cannot_fit, cannot_score, strict=True)):
        warn(
            "Scoring failed. The score on this train-test partition for these parameters will be "
            "set to nan: it has no rows to test on with a weight.",
            UserWarning,
        )
    if any(has_one_row):
        warn("R^2 score is not well-defined with less than two samples.", UndefinedMetricWarning)
    return np.any([cannot_fit, cannot_score, has_one_row], axis=0).tolist()


class LooRows(NamedTuple):
    """Errors or predictions of the rows of a block, of shape (n_rows, n_targets, n_alphas)."""

    first_row: int
    values: np.ndarray
    y: np.ndarray


class LooErrors(NamedTuple):
    """Weighted sums of the errors of rows left out, by target and alpha."""

    n_rows: int
    squared: np.ndarray
    absolute: np.ndarray
    stored: list[LooRows]


def loo_errors(block: Block, known: tuple[Any, ...], store: Any) -> LooErrors:
    """Return the leave-one-out errors of the rows of a block."""
    x_mean, y_mean, vectors, inverse, Vt_Xy, intercept_leverage = known
    X = block.X
    # Sparse rows are centred after the rotation, which is dense in any case.
    shift = np.zeros_like(x_mean) if is_sparse(X) else x_mean.astype(dtype_of(X)).astype(FLOAT64)
    X_rotated = dot(X if is_sparse(X) else X - asarray_like(shift, X), vectors)
    X_rotated = to_host(X_rotated).astype(np.float64, copy=False)
    # What the precision of the rows leaves of the means, of a column of 1e6 a part of 1.
    X_rotated = X_rotated - (x_mean - shift) @ vectors
    y = to_host(block.y).astype(np.float64).reshape(block.n_rows, -1)
    weight = weights_of(block)
    w = np.ones(block.n_rows) if weight is None else to_host(weight)
    # The leverage of each row for each alpha, of shape (n_rows, 1, n_alphas).
    leverage = (w[:, None] * ((X_rotated**2) @ inverse + intercept_leverage))[:, None, :]
    fitted = np.stack([(X_rotated * column) @ inverse for column in Vt_Xy.T], axis=1)
    # A row pulls its own prediction by its leverage (Rifkin and Lippert, 2007, section 4).
    error = ((y - y_mean)[:, :, None] - fitted) / (1 - leverage)
    weighted = w[:, None, None] * error**2
    stored = []
    if store:
        part = weighted if store == "error" else y[:, :, None] - error
        stored = [LooRows(block.row_offset or 0, part, y)]
    return LooErrors(
        block.n_rows, weighted.sum(axis=0), (w[:, None, None] * np.abs(error)).sum(axis=0), stored
    )


def combine_loo_errors(a: LooErrors, b: LooErrors) -> LooErrors:
    return LooErrors(*(x + y for x, y in zip(a, b, strict=True)))
