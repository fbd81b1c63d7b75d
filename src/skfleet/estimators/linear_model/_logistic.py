"""Logistic regression, binary and multinomial, in a handful of passes over the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.callback import CallbackSupportMixin, FitCallback, with_callbacks
from sklearn.utils.multiclass import check_classification_targets

from skfleet._array import namespace
from skfleet._typing import Answer, RandomState, Rows, Values, Weights
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_option,
    check_positive_int,
    check_several_classes,
    check_total_weight,
)
from skfleet._warnings import warn
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._fit_callbacks import fit_callbacks
from skfleet.estimators.linear_model._glm_fit import (
    SOLVERS,
    GLMSpec,
    SummarizedData,
    first_pass,
    fit_glm,
    null_model_from_classes,
)
from skfleet.estimators.linear_model._linear_estimators import (
    LinearClassifier,
    SparseCoefficients,
    check_class_weight,
    linear_predictor,
    weights_of_classes,
)
from skfleet.glm import BinaryLogistic, ClassEncoding, Loss, Multinomial

# Deprecation warnings of scikit-learn 1.9; remove them with the parameters in 1.10.
PENALTY_IS_OLD = (
    "'penalty' was deprecated in version 1.8 and will be removed in 1.10. To avoid this warning, "
    "leave 'penalty' set to its default value and use 'l1_ratio' or 'C' instead. Use l1_ratio=0 "
    "instead of penalty='l2', l1_ratio=1 instead of penalty='l1', l1_ratio set to a float between "
    "0 and 1 instead of penalty='elasticnet', and C=np.inf instead of penalty=None."
)
NO_RATIO_IS_OLD = (
    "'l1_ratio=None' was deprecated in version 1.8 and will trigger an error in 1.10. Use "
    "0<=l1_ratio<=1 instead."
)
N_JOBS_IS_OLD = (
    "'n_jobs' has no effect since 1.8 and will be removed in 1.10. You provided 'n_jobs={}', "
    "please leave it unspecified."
)


@document
class LogisticRegression(CallbackSupportMixin, SparseCoefficients, LinearClassifier):
    r"""Logistic regression with L1, L2 or both penalties, or none, on rows of any container.

    Minimises :math:`C \sum_i w_i \ell(y_i, x_i^T \beta + b) + \rho \|\beta\|_1 + \frac{1 -
    \rho}{2} \|\beta\|^2` with the negative log-likelihood of a binary or multinomial (softmax)
    model and :math:`\rho` = `l1_ratio`, as :class:`sklearn.linear_model.LogisticRegression` does
    (Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 4.4). The
    intercept is never penalised.

    Parameters
    ----------
    penalty : {"l1", "l2", "elasticnet", None}, default="deprecated"
        As in scikit-learn, which warns that it will be removed in 1.10: use `l1_ratio` and `C`.
    C : float, default=1.0
        Inverse strength of the penalty; ``np.inf`` for none.
    l1_ratio : float, default=0.0
        Fraction of the L1 penalty, from 0 (L2) to 1 (L1). None is deprecated in scikit-learn.
    dual : bool, default=False
        True is a request for the same optimum, only with ``solver="liblinear"`` and an L2 penalty.
    tol : float, default=1e-4
        Stop when no condition of an optimum is violated by more than `tol` times the largest
        violation of the model that only knows the fractions of the classes, with columns at unit
        deviation: the scale of a column plays no part, other than in scikit-learn.
    fit_intercept : bool, default=True
        Fit the intercept b; otherwise it is 0.
    intercept_scaling : float, default=1
        Ignored, present for compatibility with scikit-learn: the intercept is not penalised.
    class_weight : dict or "balanced", default=None
        Weights of classes, by label. "balanced" gives every class the same total weight.
    {random_state_ignored}
    solver : str, default="auto"
        "auto" takes Newton's method for up to 600 coefficients (100 if sparse, 1,200 where rows are
        loaded in each pass) and L-BFGS for more; with an L1 penalty, proximal Newton steps.
        scikit-learn's names are accepted as requests for the same optimum: without an L1 penalty
        "lbfgs", "newton-cg" and "newton-cholesky" choose the method; "liblinear", "sag" and "saga"
        mean "auto". The default is another than scikit-learn's.
    max_iter : int, default=100
        The most iterations. With 0, the model only knows the fractions of the classes, where
        solvers start.
    verbose : int, default=0
        Above 0, show the passes over the rows on a bar (:func:`skfleet.config_context`), and print
        which solver ran, its iterations and whether it converged.
    warm_start : bool, default=False
        Start from the solution of the last ``fit``.
    n_jobs : int, default=None
        Ignored, and deprecated in scikit-learn: all workers are used.
    {device}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; one row for two classes. A sparse matrix after ``sparsify``.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_iter_ : ndarray of shape (1,)
        Iterations of the solver.
    solver_ : {"newton", "lbfgs", "proximal_newton", "proximal_gradient"}
        The solver that ran.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or there is only one class.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When `max_iter` iterations did not reach `tol`.

    Notes
    -----
    One pass over the rows finds means, deviations and classes and, of many rows, draws a sample
    (the same one for every cut; rows in blocks of unknown length are counted before). Newton's
    method, started from the sample's solution, then takes one pass to begin with and one per
    iteration (typically 1 to 3), in which each worker sums a Hessian of as many rows and columns as
    there are coefficients; of rows in memory some do without it. L-BFGS takes about one pass per
    iteration (tens), and sums a gradient. With an L1 penalty an iteration is a pass too: it sums
    the Hessian of up to 1,500 coefficients that are in use or must come into use; where more are in
    use, proximal gradient steps take tens to hundreds of passes. Columns are brought to unit
    deviation inside a pass without a copy, with the penalty adjusted so that the objective stays as
    above; sparse rows stay sparse. Rows that fit stay in the workers' memory; others are loaded in
    each pass.

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

    _verbose_shows_bar = True

    def __init__(
        self,
        penalty: str | None = "deprecated",
        *,
        C: float = 1.0,
        l1_ratio: float | None = 0.0,
        dual: bool = False,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        intercept_scaling: float = 1,
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: RandomState = None,
        solver: str = "auto",
        max_iter: int = 100,
        verbose: int = 0,
        warm_start: bool = False,
        n_jobs: int | None = None,
        device: str = "auto",
    ) -> None:
        self.penalty = penalty
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
        self.device = device

    def set_callbacks(self, *callbacks: FitCallback) -> LogisticRegression:
        """Set callbacks, which are called before and after each iteration of L-BFGS.

        Parameters
        ----------
        *callbacks : instances of the protocol :class:`sklearn.callback.FitCallback`
            None removes those set before.

        Returns
        -------
        self : LogisticRegression
            The estimator; it warns where `solver` is another than "lbfgs".
        """
        if self.solver != "lbfgs":
            warn(
                f"Callbacks are only supported in {type(self).__name__} for solver='lbfgs'. This "
                f"estimator has solver='{self.solver}', callbacks will be ignored during the "
                "solving of the regression."
            )
        super().set_callbacks(*callbacks)
        return self

    @run_on_device
    @with_callbacks
    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> LogisticRegression:
        """Fit the model.

        Parameters
        ----------
        {X_train}
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Class labels, of any type that can be ordered.
        {fit_weight}

        {returns_fitted}
        """
        self._check_parameters()
        penalty = self._penalty()
        rows = self._validate_rows(X, y, sample_weight)
        use_sample = not self.warm_start and self.max_iter > 0
        options = {"fit_intercept": self.fit_intercept, "use_sample": use_sample}
        metadata = {} if sample_weight is None else {"metadata": {"sample_weight": sample_weight}}
        with first_pass(rows, check=None, **options) as data:
            counts = data.summary.targets
            check_classification_targets(counts.labels)
            check_several_classes(counts.labels)
            with fit_callbacks(self, X, y, **metadata) as on_iteration:
                self._fit_classes(data, *penalty, on_iteration)
        return self

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        check_in_interval("C", self.C, 0, open="l")
        if self.l1_ratio is not None:
            check_in_interval("l1_ratio", self.l1_ratio, 0, 1)
        if self.penalty is not None:
            check_option("penalty", self.penalty, ("l1", "l2", "elasticnet", "deprecated"))
        if self.penalty == "elasticnet" and self.l1_ratio is None:
            raise ValueError("l1_ratio must be specified when penalty is elasticnet. Got None.")
        check_in_interval("tol", self.tol, 0)
        check_positive_int("max_iter", self.max_iter, 0)
        check_option("solver", self.solver, SOLVERS)
        check_bool("dual", self.dual)
        if self.dual and self.solver != "liblinear":
            raise ValueError(
                f"Solver {self.solver} supports only dual=False, got dual={self.dual}. Take "
                "solver='liblinear' to ask for the same optimum."
            )
        check_in_interval("intercept_scaling", self.intercept_scaling, 0, open="l")
        check_class_weight(self.class_weight)

    def _penalty(self) -> tuple[float, float]:
        """Return C and the L1 ratio, with scikit-learn's deprecation warnings."""
        penalty, l1_ratio = self.penalty, 0.0 if self.l1_ratio is None else self.l1_ratio
        if penalty != "deprecated":
            warn(PENALTY_IS_OLD, FutureWarning)
        elif self.l1_ratio is None:
            warn(NO_RATIO_IS_OLD, FutureWarning)
        if penalty in ("l1", "l2"):
            if 0 < l1_ratio < 1:
                message = "l1_ratio parameter is only used when penalty is 'elasticnet'. Got "
                warn(f"{message}(penalty={penalty})")
            if self.l1_ratio != (penalty == "l1"):
                message = f"Inconsistent values: penalty={penalty} with l1_ratio={self.l1_ratio}. "
                warn(f"{message}penalty is deprecated. Please use l1_ratio only.")
            l1_ratio = float(penalty == "l1")
        if self.dual and l1_ratio:
            raise ValueError(
                f"dual must be False with an L1 penalty. Got True and l1_ratio={l1_ratio} instead."
            )
        if penalty is None and self.C != 1.0:
            warn("Setting penalty=None will ignore the C and l1_ratio parameters")
        if self.n_jobs is not None:
            warn(N_JOBS_IS_OLD.format(self.n_jobs), FutureWarning)
        return (np.inf if penalty is None else self.C), l1_ratio

    def _fit_classes(
        self, data: SummarizedData, C: float, l1_ratio: float, on_iteration: Any
    ) -> None:
        """Fit the model to summarized data; `on_iteration` gets the attributes after iterations."""
        counts = data.summary.targets
        class_weight = weights_of_classes(self.class_weight, counts)
        weight = counts.weight if class_weight is None else counts.weight * class_weight
        check_total_weight(float(weight.sum()))
        if np.count_nonzero(weight) < 2:
            raise ValueError(
                "sample_weight must leave at least two classes with weight. Got only one class "
                "with weight above 0. Classifier can't train when only one class is present."
            )
        n_classes = len(counts.labels)
        loss: Loss = BinaryLogistic() if n_classes == 2 else Multinomial(n_classes)
        null, total = null_model_from_classes(
            loss, counts, class_weight, data.scaling, fit_intercept=self.fit_intercept
        )
        strength, shape = 1 / (C * total), (loss.n_outputs, data.rows.n_features)
        l1, l2, dtype = l1_ratio * strength, (1 - l1_ratio) * strength, data.rows.dtype

        def attributes(coef: np.ndarray, intercept: np.ndarray) -> dict[str, np.ndarray]:
            if loss.n_outputs > 1:
                # Softmax is invariant to a shift of all classes, so at the optimum an L2 penalty
                # makes the coefficients of a column sum to 0. Solvers converge slowly along that
                # direction.
                coef = coef if l1 else coef - coef.mean(axis=0)
                intercept = intercept - intercept.mean()
            coef, intercept = (a.astype(dtype, copy=False) for a in (coef, intercept))
            return {"coef_": coef, "intercept_": intercept}

        self.classes_ = counts.labels
        callback = on_iteration and (lambda *weights: on_iteration(attributes(*weights)))
        model = GLMSpec.of(self, loss, l1, l2, shape, callback)
        fitted = fit_glm(data, model, null, total, ClassEncoding(counts.labels, class_weight))
        vars(self).update(attributes(fitted.coef, fitted.intercept))
        self.n_iter_ = np.array([fitted.n_iter], dtype=np.int32)
        self.solver_ = fitted.solver

    def predict_proba(self, X: Rows) -> Answer:
        """Predict the probabilities of the classes for every row.

        {X_returns}
        probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            A column per class, a frame's by name; lazy for Dask collections.
        """
        return self._predict_per_class(_probabilities, X)

    def predict_log_proba(self, X: Rows) -> Answer:
        """Predict the logarithms of the probabilities of the classes for every row.

        {X_returns}
        logarithms : ndarray or Dask collection of shape (n_samples, n_classes)
            A column per class, a frame's by name; lazy for Dask collections.
        """
        return self._predict_per_class(_log_probabilities, X)


def _loss_of(model: Any) -> Loss:
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
