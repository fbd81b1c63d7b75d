"""Ridge regression and classification by the normal equations, from one pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import MultiOutputMixin
from sklearn.utils.multiclass import check_classification_targets

from skfleet._array import FLOAT64, asarray_like, astype, namespace, to_device_of
from skfleet._typing import Answer, RandomState, Rows, Values, Weights
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_option,
    check_positive_int,
    check_total_weight,
    unique_values,
)
from skfleet.blocks import Block, RowBlocks, check_rows, target_column
from skfleet.engine import Reduction, engine_for, map_reduce
from skfleet.estimators._column_statistics import combine_label_counts, label_counts, unique_inverse
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._iterative_least_squares import (
    check_gram_limit,
    exceeds_gram_limit,
    fit_iteratively,
    warn_unless_solved,
)
from skfleet.estimators.linear_model._linear_estimators import (
    LinearClassifier,
    LinearRegressor,
    check_class_weight,
    linear_predictor,
    round_model,
    weights_of_classes,
    y_ndim,
)
from skfleet.glm import (
    ProductKind,
    Products,
    accurate_products,
    compute_products,
    product_reduction,
    targets_of,
    weights_of,
)
from skfleet.inference import OutputSpec

_SOLVERS = ("auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs")


class _BaseRidge:
    """Base class of Ridge and RidgeClassifier: parameters, solution of the normal equations."""

    def _check_parameters(self, n_targets: int | None) -> np.ndarray:
        """Return the penalties as an array of at least one number; raise for invalid parameters.

        `n_targets` is None where it is not known before a pass.
        """
        check_option("solver", self.solver, _SOLVERS)
        check_bool("positive", self.positive)
        check_in_interval("tol", self.tol, 0)
        if self.max_iter is not None:
            check_positive_int("max_iter", self.max_iter)
        alpha = self.alpha
        if not isinstance(alpha, Real) or isinstance(alpha, bool):
            alpha = np.asarray(alpha, dtype=object)
            if alpha.ndim != 1 or not all(isinstance(a, Real) for a in alpha):
                raise ValueError(
                    "alpha must be a number, or a one-dimensional array. "
                    f"Got {self.alpha!r} instead."
                )
        alpha = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
        if not (alpha >= 0).all() or not np.isfinite(alpha).all():
            raise ValueError(f"alpha must be finite and at least 0. Got {self.alpha!r} instead.")
        if n_targets is not None and alpha.size not in (1, n_targets):
            raise ValueError(
                f"alpha must be one number, or one per target. Got {alpha.size} numbers for "
                f"{n_targets} targets."
            )
        return alpha

    def _iterate(self, rows: RowBlocks, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients and intercepts by target, without a Gram matrix."""
        if self.positive or alpha.size > 1:
            name = "positive" if self.positive else "alpha"
            value = "False" if self.positive else "one number"
            raise ValueError(
                f"{name} must be {value} for X of {rows.n_features} columns. Got "
                f"{getattr(self, name)!r} instead. Leave columns out first."
            )
        fitted = fit_iteratively(rows, self, l2=float(alpha[0]), in_sums=True)
        self.solver_, self.n_iter_ = fitted.solver, np.full(len(fitted.coef), fitted.n_iter)
        return fitted.coef, fitted.intercept

    def _solve(
        self, sums: Products, alpha: np.ndarray, dtype: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients and intercepts by target."""
        sums = sums if self.fit_intercept else sums.uncentered()
        if self.positive:
            coef, converged = sums.solve_positive(alpha, self.max_iter)
            self.solver_ = "nnls"
            warn_unless_solved(converged)
        else:
            coef, self.solver_, _ = sums.solve_ridge(alpha)
        self.n_iter_ = None
        return round_model(coef, sums, dtype)


@document
class Ridge(_BaseRidge, MultiOutputMixin, LinearRegressor):
    r"""Linear least squares with an L2 penalty, in one pass over the rows.

    Minimises :math:`\sum_i w_i (y_i - x_i^T \beta - b)^2 + \alpha \|\beta\|^2` (Hoerl and Kennard,
    1970, Ridge regression), as :class:`sklearn.linear_model.Ridge` does.

    Parameters
    ----------
    alpha : float or array of shape (n_targets,), default=1.0
        Strength of the penalty, at least 0; an array penalises each target by its own.
    {fit_intercept}
    {copy_X}
    max_iter : int, default=None
        The most iterations where the solution is not direct; 1,000 if None.
    tol : float, default=1e-4
        Where the solution is not direct, stop when no entry of the gradient exceeds `tol` times the
        largest one of the model that only knows the mean, with columns at unit deviation.
    {ridge_options}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    n_iter_ : None or ndarray of shape (n_targets,)
        Iterations, None where the solution is direct.
    solver_ : {"cholesky", "eigen", "svd", "nnls", "lbfgs"}
        What solved the normal equations: a Cholesky factorisation; an eigendecomposition where
        they are singular, which gives the shortest solution; non-negative least squares. A singular
        value decomposition of few rows, or of a factor of ill-conditioned ones, and L-BFGS do
        without them.
    {features_in_and_errors}

    Notes
    -----
    One pass over the rows, whatever the number of targets and penalties, for up to 20,000 columns,
    5,000 if they are sparse; with more, L-BFGS makes about one pass per iteration. Each worker
    keeps a Gram matrix of n_features x n_features float64 numbers, and one is sent to the client.
    Products are summed about the means of each block and merged exactly, so large offsets cost no
    digits. Rows in single precision are multiplied in single precision and summed in double, unless
    they are few or ill-conditioned, as for :class:`LinearRegression`.

    Examples
    --------
    {diabetes}
    >>> model = Ridge(alpha=0.1).fit(X, y)
    >>> round(model.score(X, y), 3)
    0.513
    """

    def __init__(
        self,
        alpha: Values | float = 1.0,
        *,
        fit_intercept: bool = True,
        copy_X: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-4,
        solver: str = "auto",
        positive: bool = False,
        random_state: RandomState = None,
        device: str = "auto",
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.solver = solver
        self.positive = positive
        self.random_state = random_state
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> Ridge:
        """Fit the model in one pass.

        {fit_targets}
        """
        column = y_ndim(y) == 1
        alpha = self._check_parameters(1 if column else y.shape[1] if hasattr(y, "shape") else None)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True, multi_output=True)
        if exceeds_gram_limit(rows):
            coef, intercept = self._iterate(rows, alpha)
        else:
            sums = compute_products(rows, centred=self.fit_intercept, alpha=alpha)
            coef, intercept = self._solve(sums, alpha, rows.dtype)
        self._set_coef(coef, intercept, rows, one_target=len(coef) == 1, column=column)
        return self


@document
class RidgeClassifier(_BaseRidge, LinearClassifier):
    r"""Ridge regression on labels of -1 and 1, in one pass over the rows.

    Minimises :math:`\sum_i w_i (z_{ik} - x_i^T \beta_k - b_k)^2 + \alpha \|\beta_k\|^2` for each
    class k with z = 1 for its rows and -1 for others, and predicts the class of the largest value,
    as :class:`sklearn.linear_model.RidgeClassifier` does (Rifkin, Yeo and Poggio, 2003, Regularized
    least-squares classification).

    Parameters
    ----------
    alpha : float or array of shape (n_targets,), default=1.0
        Strength of the penalty, at least 0; an array penalises each target by its own.
    {fit_intercept}
    {copy_X}
    max_iter : int, default=None
        Ignored, present for compatibility with scikit-learn: the solution is direct.
    tol : float, default=1e-4
        Ignored, present for compatibility with scikit-learn: the solution is direct.
    class_weight : dict or "balanced", default=None
        Weights of classes, by label. "balanced" gives classes of any number of rows the same
        weight. Not with several labels a row.
    {ridge_options}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in order.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients; one row for two classes.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercepts; one for two classes, and 0.0 without `fit_intercept`.
    n_iter_ : None
        There are no iterations.
    solver_ : {"cholesky", "eigen", "svd", "nnls"}
        What solved the normal equations, as in :class:`Ridge`.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or there are more than 20,000 columns (5,000 sparse ones).

    Notes
    -----
    One pass over the rows, and for ``class_weight="balanced"`` one before it that counts the
    labels. Each worker keeps a Gram matrix of n_features x n_features float64 numbers.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skfleet.estimators import RidgeClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(100, 30)), da.from_array(y, chunks=100)
    >>> model = RidgeClassifier().fit(X, y)
    >>> round(model.score(X, y), 2)
    0.96
    """

    def __init__(
        self,
        alpha: Values | float = 1.0,
        *,
        fit_intercept: bool = True,
        copy_X: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-4,
        class_weight: Mapping[Any, float] | str | None = None,
        solver: str = "auto",
        positive: bool = False,
        random_state: RandomState = None,
        device: str = "auto",
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.solver = solver
        self.positive = positive
        self.random_state = random_state
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> RidgeClassifier:
        """Fit the model in one pass.

        Parameters
        ----------
        {X_train}
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_labels)
            Labels of any type that can be ordered, or 1 for each label that a row has and else 0.
        {fit_weight}

        {returns_fitted}
        """
        # The number of targets is that of the labels, which only the pass finds.
        alpha = self._check_parameters(None)
        check_class_weight(self.class_weight)
        check_rows(X=X, y=y)
        y = target_column(y if y is None or hasattr(y, "shape") else np.asarray(y), several=True)
        rows = self._validate_rows(X, y, sample_weight, multi_output=True)
        check_gram_limit(rows, "RidgeClassifier")
        is_multilabel = y_ndim(y) == 2
        if is_multilabel and self.class_weight is not None:
            raise ValueError(
                f"class_weight must be None where rows have several labels. Got "
                f"{self.class_weight!r} instead."
            )
        engine = engine_for(rows)
        with engine.persist(rows) if self.class_weight == "balanced" else nullcontext(rows) as rows:
            weights = self.class_weight
            if weights == "balanced":
                # "balanced" needs the labels of all rows before any product: one more pass.
                counts = map_reduce(engine, Reduction(label_counts, combine_label_counts), rows)
                balanced = weights_of_classes("balanced", counts._replace(weight=counts.n_rows))
                weights = dict(zip(counts.labels.tolist(), balanced, strict=True))

            # One pass finds the labels and sums the products of each with the columns.
            def reduce_rows(kind: ProductKind, rows: RowBlocks) -> ClassProducts:
                combine = partial(combine_class_products, kind)
                reduction = product_reduction(class_products, rows, combine)
                return map_reduce(engine, reduction, rows, weights, is_multilabel, kind)

            def systems(products: ClassProducts) -> list[Products]:
                check_total_weight(products.sums.weight)
                return [products.sums if self.fit_intercept else products.sums.uncentered()]

            # Sums in single precision, and again in double where the system turns out to need that.
            products = accurate_products(rows, rows.n_rows, reduce_rows, systems, alpha=alpha)
        classes, sums = products
        check_classification_targets(np.eye(2) if is_multilabel else classes)
        check_total_weight(sums.weight)
        # Of two classes one target decides; the other is its negative.
        if len(classes) == 2 and not is_multilabel:
            sums = sums.select_targets([1])
        # From indicators of 0 and 1 to targets of -1 and 1, and of -1 for one class alone.
        is_one_class = len(classes) == 1 and not is_multilabel
        sums = sums.scale_targets(-2.0, 1.0) if is_one_class else sums.scale_targets(2.0, -1.0)
        self._check_parameters(len(sums.yy))
        coef, intercept = self._solve(sums, alpha, rows.dtype)
        self.classes_ = classes
        self._is_multilabel = is_multilabel
        self.coef_ = (coef[0] if len(coef) == 1 else coef).astype(rows.dtype, copy=False)
        self.intercept_ = intercept.astype(rows.dtype, copy=False) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Rows) -> Answer:
        """Predict class labels, or a multilabel indicator matrix.

        {X_returns}
        labels : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_labels)
            In the container of X; lazy for Dask collections.
        """
        if not getattr(self, "_is_multilabel", False):
            return super().predict(X)
        output = OutputSpec(np.dtype(np.int64), len(self.coef_))
        return self._predict_from_linear(_predicted_indicators, X, output)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class ClassProducts(NamedTuple):
    """Cross products of rows with the indicators of labels."""

    labels: np.ndarray
    sums: Products


def class_products(
    block: Block, class_weight: dict | None, is_multilabel: bool, kind: ProductKind
) -> ClassProducts:
    """Return the products of a block with indicators of its labels (columns of y if multilabel)."""
    X, weight = block.X, weights_of(block)
    if is_multilabel:
        labels, indicators = np.arange(block.y.shape[1]), targets_of(block)
    else:
        y = block.y if len(block.y.shape) == 1 else block.y[:, 0]
        labels, codes = unique_inverse(y)
        codes = to_device_of(codes, X)
        xp = namespace(codes)
        indicators = astype(codes[:, None] == to_device_of(np.arange(len(labels)), codes), FLOAT64)
        if class_weight is not None:
            by_label = np.array([float(class_weight.get(k, 1.0)) for k in labels.tolist()])
            row_weights = xp.take(to_device_of(by_label, codes), codes)
            weight = row_weights if weight is None else weight * row_weights
    return ClassProducts(labels, kind.of_rows(block, indicators, weight))


def combine_class_products(kind: ProductKind, a: ClassProducts, b: ClassProducts) -> ClassProducts:
    """Combine the products of two blocks, which may have different labels."""
    labels = unique_values(np.concatenate([a.labels, b.labels]))
    aligned = (_align_labels(part, labels) for part in (a, b))
    return ClassProducts(labels, kind.combine(*aligned))


def _align_labels(part: ClassProducts, labels: np.ndarray) -> Products:
    """Return products with zero columns for further labels."""
    if len(part.labels) == len(labels):
        return part.sums
    sums, is_label = part.sums, part.labels[:, None] == labels
    # A product, because the array API has no assignment by arrays of positions.
    place = asarray_like(is_label.astype(np.float64), sums.y_mean)
    return sums.place_targets(place)


def _predicted_indicators(model: Any, X: Any) -> Any:
    eta = linear_predictor(model, X)
    xp = namespace(eta)
    return xp.astype(eta > 0, xp.int64)
