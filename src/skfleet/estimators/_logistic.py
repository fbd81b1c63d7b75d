"""Logistic regression, binary and multinomial, in a handful of passes over the rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skfleet._array import namespace
from skfleet._linalg import is_sparse_kind
from skfleet._validation import check_choice, check_total_weight, check_unused
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, engine_for, map_reduce, uncounted, with_starts
from skfleet.estimators._linear import (
    LinearClassifier,
    SparseCoefficients,
    check_class_weight,
    linear_predictor,
    weights_of_classes,
)
from skfleet.estimators._moments import Sample, merge_surveys, survey
from skfleet.glm import (
    L2,
    BinaryLogistic,
    Labels,
    Loss,
    Multinomial,
    Objective,
    Scaling,
    lbfgs,
    newton,
)

# What scikit-learn's names ask for; the others leave the choice.
_SOLVERS = {
    "auto": None,
    "lbfgs": lbfgs,
    "newton-cg": newton,
    "newton-cholesky": newton,
    "liblinear": None,
    "sag": None,
    "saga": None,
}
# Up to so many coefficients a Hessian costs less than the passes it saves.
NARROW = 300
# Rows of which a solution is a good start; drawn where there are ten times as many.
SAMPLE_ROWS = 2000
SAMPLE_ROWS_PER_COLUMN = 50


class LogisticRegression(SparseCoefficients, LinearClassifier):
    r"""Logistic regression with an L2 penalty, on rows of any container.

    Minimises :math:`C \sum_i w_i \ell(y_i, x_i^T \beta + b) + \tfrac12 \|\beta\|^2` with the
    negative log-likelihood of a binary or multinomial (softmax) model, as
    :class:`sklearn.linear_model.LogisticRegression` does (Hastie, Tibshirani and Friedman, The
    Elements of Statistical Learning, section 4.4). The intercept is never penalised.

    Parameters
    ----------
    C : float, default=1.0
        Inverse strength of the penalty; ``np.inf`` for none.
    l1_ratio : float, default=0.0
        Only 0, the L2 penalty, is possible.
    dual : bool, default=False
        Only False is possible.
    tol : float, default=1e-4
        Stop when no entry of the gradient of the average objective exceeds it, with columns at unit
        deviation: the scale of a column plays no part, other than in scikit-learn.
    fit_intercept : bool, default=True
        Fit the intercept b; otherwise it is 0.
    intercept_scaling : float, default=1
        Only 1 is possible.
    class_weight : dict or "balanced", default=None
        Weights of classes, by label. "balanced" gives every class the same total weight.
    random_state : int, RandomState instance or None, default=None
        Accepted as in scikit-learn; nothing is drawn, so the answer is the same.
    solver : str, default="auto"
        "auto" takes Newton's method for up to 300 coefficients and L-BFGS for more. scikit-learn's
        names are accepted as requests for the same optimum: "lbfgs", "newton-cg" and
        "newton-cholesky" choose the method, "liblinear", "sag" and "saga" mean "auto". The default
        is another than scikit-learn's.
    max_iter : int, default=100
        The most iterations.
    verbose : int, default=0
        Above 0, print which solver ran, its iterations and whether it converged.
    warm_start : bool, default=False
        Start from the solution of the last ``fit``.
    n_jobs : int, default=None
        Accepted as in scikit-learn; the whole engine is used, and the answer is the same.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; one row for two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_iter_ : ndarray of shape (1,)
        Iterations of the solver.
    solver_ : {"newton", "lbfgs"}
        The solver that ran.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter or the rows are not as above, or there is only one class.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When `max_iter` iterations did not reach `tol`.

    Notes
    -----
    One pass over the rows finds means, deviations and classes, and, of 20,000 rows or more, draws a
    sample (the same one for every cut; rows in blocks of unknown length are counted before).
    Newton's method, started from the sample's solution, then takes one pass to begin with and one
    per iteration (typically 3), in which each worker sums a Hessian of as many rows and columns as
    there are coefficients; L-BFGS takes about one pass per iteration (tens), and sums a gradient.
    Columns are brought to unit deviation piece by piece inside a pass, with the penalty adjusted so
    that the objective stays as above. Rows that fit stay in the workers' memory; others are loaded
    in each pass.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skfleet.estimators import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(100, 30)), da.from_array(y, chunks=100)
    >>> model = LogisticRegression().fit(X, y)
    >>> round(model.score(X, y), 2)
    0.96
    >>> model.predict_proba(X)
    dask.array<..., shape=(569, 2), dtype=float64, chunksize=(100, 2), chunktype=numpy.ndarray>
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        dual: bool = False,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        intercept_scaling: float = 1,
        class_weight: Any = None,
        random_state: Any = None,
        solver: str = "auto",
        max_iter: int = 100,
        verbose: int = 0,
        warm_start: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.dual = dual
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.random_state = random_state
        self.solver = solver
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LogisticRegression:
        """Fit the model.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,)
            Labels of any type that can be ordered, however they are cut.
        sample_weight : float or values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self : LogisticRegression
            Fitted.
        """
        self._check_parameters()
        rows = self._fit_rows(X, y, sample_weight)
        engine = engine_for(rows)
        with engine.hold(rows) as rows:
            rows = with_starts(engine, rows)
            n = self._sample_size(rows)
            reduction = Reduction(survey, partial(merge_surveys, n=n))
            columns, counts, drawn = map_reduce(engine, reduction, rows, n, 0)
            rows = replace(rows, checked=True)
            check_classification_targets(counts.labels)
            if len(counts.labels) < 2:
                raise ValueError(
                    "y must hold at least two classes. Got only one class instead: "
                    f"{counts.labels[0]!r}. Classifier can't train when only one class is present."
                )
            deviation = np.sqrt(columns.squares / columns.n_rows)
            # A constant column is its mean but for rounding, which must not be blown up.
            eps = np.finfo(rows.dtype).eps
            flat = deviation <= 10 * eps * np.abs(columns.mean)
            scale = np.where(flat | (deviation == 0), 1.0, deviation)
            shift = np.zeros_like(scale) if is_sparse_kind(X) else columns.mean
            if not self.fit_intercept:
                shift = np.zeros_like(scale)
            class_weight = weights_of_classes(self.class_weight, counts)
            self._solve(engine, rows, counts, Scaling(shift, scale), class_weight, drawn)
        return self

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        if not isinstance(self.C, Real) or isinstance(self.C, bool) or not self.C > 0:
            raise ValueError(f"C must be a number above 0. Got {self.C!r} instead.")
        if not isinstance(self.tol, Real) or not self.tol >= 0:
            raise ValueError(f"tol must be a number >= 0. Got {self.tol!r} instead.")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 1:
            raise ValueError(
                f"max_iter must be a positive whole number. Got {self.max_iter!r} instead."
            )
        check_choice("solver", self.solver, _SOLVERS)
        use = "Use sklearn.linear_model.LogisticRegression for that."
        check_unused("l1_ratio", self.l1_ratio, 0, use)
        check_unused("dual", self.dual, False, use)
        check_unused("intercept_scaling", self.intercept_scaling, 1, use)
        check_class_weight(self.class_weight)

    def _sample_size(self, rows: RowBlocks) -> int:
        """How many rows to draw for a start: none where that would be much of all rows."""
        wanted = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_COLUMN * rows.n_features)
        few = rows.n_rows < 10 * wanted or rows.n_features > NARROW
        return 0 if few or self.warm_start else wanted

    def _solve(
        self,
        engine: Engine,
        rows: RowBlocks,
        counts: Any,
        scaling: Scaling,
        class_weight: Any,
        drawn: Sample | None,
    ) -> None:
        """Find the coefficients for columns at unit deviation, and bring them back."""
        n_classes, n_features = len(counts.labels), rows.n_features
        loss: Loss = BinaryLogistic() if n_classes == 2 else Multinomial(n_classes)
        weight = counts.weight if class_weight is None else counts.weight * class_weight
        total = float(weight.sum())
        check_total_weight(total)
        if np.count_nonzero(weight) < 2:
            raise ValueError(
                "sample_weight must leave at least two classes with weight. Got only one class "
                "with weight above 0. Classifier can't train when only one class is present."
            )
        size = n_features + self.fit_intercept
        # The penalty of scikit-learn's coefficients, in terms of those of scaled columns.
        each = np.zeros((loss.n_outputs, size))
        each[:, :n_features] = 1 / (self.C * total) / scaling.scale**2
        penalty = L2(each.ravel())
        objective = Objective(
            engine,
            rows,
            loss,
            total_weight=total,
            scaling=scaling,
            labels=Labels(counts.labels, class_weight),
            fit_intercept=self.fit_intercept,
        )
        start = self._start(loss.n_outputs, scaling).ravel()
        solver = _SOLVERS[self.solver] or (newton if start.size <= NARROW else lbfgs)
        how: dict[str, Any] = {"tol": self.tol, "max_iter": self.max_iter}
        if drawn is not None and solver is newton:
            start = _start_on(drawn, objective, penalty, start, n_classes)
            how["value_at_zero"] = np.log(n_classes)
        found = solver(objective, penalty, start, **how)
        self.solver_ = solver.__name__
        self.n_iter_ = np.array([found.n_iter], dtype=np.int32)
        if self.verbose:
            state = "converged" if found.converged else "did not converge"
            print(f"{self.solver_} {state} in {found.n_iter} iterations.")
        if not found.converged:
            warnings.warn(
                f"{self.solver_} did not reach tol={self.tol:g} in max_iter={self.max_iter} "
                "iterations. Increase max_iter, or scale the columns.",
                ConvergenceWarning,
                stacklevel=3,
            )
        coef = found.coef.reshape(loss.n_outputs, size)
        if loss.n_outputs > 1:
            # The same added to every class changes no probability, so at the optimum the penalty
            # makes each column's coefficients add up to nothing. Solvers hardly see that direction.
            coef = coef - coef.mean(axis=0)
        self.classes_ = counts.labels
        slopes = coef[:, :n_features] / scaling.scale
        self.coef_ = slopes.astype(rows.dtype, copy=False)
        intercept = np.zeros(loss.n_outputs)
        if self.fit_intercept:
            intercept = coef[:, n_features] - slopes @ scaling.shift
        self.intercept_ = intercept.astype(rows.dtype, copy=False)

    def _start(self, n_outputs: int, scaling: Scaling) -> np.ndarray:
        """Return where to start: at zero, or from the last solution when asked to."""
        n_features = len(scaling.scale)
        start = np.zeros((n_outputs, n_features + self.fit_intercept))
        last = getattr(self, "coef_", None)
        if self.warm_start and last is not None and last.shape == (n_outputs, n_features):
            start[:, :n_features] = last * scaling.scale
            if self.fit_intercept:
                start[:, n_features] = self.intercept_ + last @ scaling.shift
        return start

    def _of_classes(self, func: Any, X: Any) -> Any:
        """Answer with a function that gives a value per class."""
        check_is_fitted(self)
        return self._linear(func, X, self._dtype, len(self.classes_), self.classes_)

    def predict_proba(self, X: Any) -> Any:
        """Predict the probabilities of the classes for every row.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        probabilities : array of shape (n_samples, n_classes)
            A column per class, a frame's by name; lazy for Dask collections.
        """
        return self._of_classes(_probabilities, X)

    def predict_log_proba(self, X: Any) -> Any:
        """Predict the logarithms of the probabilities of the classes for every row.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        logarithms : array of shape (n_samples, n_classes)
            A column per class, a frame's by name; lazy for Dask collections.
        """
        return self._of_classes(_log_probabilities, X)


def _start_on(
    drawn: Sample, objective: Objective, penalty: L2, zero: np.ndarray, n_classes: int
) -> np.ndarray:
    """Solve on a sample, here, to save passes over all rows; return zero if it lacks a class."""
    if len(np.unique(drawn.y)) < n_classes:
        return zero
    with uncounted():
        sampled = objective.on_sample(drawn.drawn.rows, drawn.y, drawn.sample_weight)
        return newton(sampled, penalty, zero, tol=1e-3, max_iter=20).coef


def _loss_of(model: Any) -> Loss:
    """Return the loss that a model was fitted with."""
    return BinaryLogistic() if model[0].shape[0] == 1 else Multinomial(model[0].shape[0])


def _probabilities(model: Any, X: Any) -> Any:
    """Return probabilities, one column a class."""
    mean = _loss_of(model).mean(linear_predictor(model, X))
    if mean.shape[1] > 1:
        return mean
    return namespace(mean).concat([1 - mean, mean], axis=1)


def _log_probabilities(model: Any, X: Any) -> Any:
    """Return logarithms of probabilities, exact where these are tiny."""
    eta = linear_predictor(model, X)
    xp = namespace(eta)
    if eta.shape[1] == 1:
        eta = xp.concat([xp.zeros_like(eta), eta], axis=1)
    eta = eta - xp.max(eta, axis=1)[:, None]
    return eta - xp.log(xp.sum(xp.exp(eta), axis=1))[:, None]
