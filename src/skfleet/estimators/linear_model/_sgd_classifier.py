"""Linear classification by stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from skfleet._array import namespace
from skfleet._typing import Answer, RandomState, Rows, Values, Weights
from skfleet._validation import check_several_classes, check_total_weight, unique_values
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, engine_for, map_reduce
from skfleet.estimators._column_statistics import LabelCounts, combine_label_counts, label_counts
from skfleet.estimators._early_stopping import check_validation_arguments, check_validation_labels
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._linear_estimators import (
    LinearClassifier,
    check_class_weight,
    linear_predictor,
    weights_of_classes,
)
from skfleet.estimators.linear_model._sgd_base import BaseSGD
from skfleet.estimators.linear_model._sgd_outputs import OutputCoding
from skfleet.glm import SGD_LOSSES


def _has_probabilities(self: SGDClassifier) -> bool:
    """Return True; raise AttributeError for a loss without probabilities."""
    if self.loss not in ("log_loss", "modified_huber"):
        raise AttributeError(
            f"probability estimates are not available for loss={self.loss!r}. Choose 'log_loss' or "
            "'modified_huber'."
        )
    return True


@document
class SGDClassifier(BaseSGD, LinearClassifier):
    r"""Linear classifier learned by stochastic gradient descent, on rows of any container.

    Minimises :math:`\frac{1}{n} \sum_i w_i \ell(y_i, x_i^T \beta + b) + \alpha R(\beta)` for each
    class against all others, with :math:`y_i = \pm 1` and :math:`R = \rho \|\beta\|_1 + \frac{1 -
    \rho}{2} \|\beta\|^2`, as :class:`sklearn.linear_model.SGDClassifier` does (Bottou, 2012,
    Stochastic gradient descent tricks). Rows of this process take its steps of single rows, and
    blocks on Dask or a GPU a batch of rows in a step, and all classes at once. Scale columns
    before. `partial_fit` makes it one for :class:`Incremental` and for adaptive searches, on any
    device.

    Parameters
    ----------
    loss : str, default="hinge"
        "hinge" (a linear SVM), "log_loss" (logistic regression), "modified_huber" (smooth, of
        bounded slope), "squared_hinge", "perceptron", or one of a regression on +1 and -1:
        "squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive".
    {sgd_penalty}
    n_jobs : int, default=None
        Classes that scikit-learn's ``fit`` of rows of this process learns at once, in threads;
        batches are of all classes.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of blocks and rows and of the validation split.
    learning_rate : str, default="optimal"
        The length :math:`\eta` of the step for row number t: "constant" ``eta0``; "optimal"
        ``1 / (alpha * (t + t0))``, with Bottou's t0; "invscaling" ``eta0 / t**power_t``;
        "adaptive" ``eta0``, divided by 5 whenever it is time to stop, until it is below 1e-6; "pa1"
        and "pa2", with ``loss="hinge"``, the row's loss over its squared length, at most
        `eta0`, or with ``1 / (2 * eta0)`` added to that length (Crammer et al., 2006).
    eta0 : float, default=0.01
        The first learning rate, which "optimal" does not need.
    power_t : float, default=0.5
        Exponent of "invscaling", at least 0.
    early_stopping : bool, default=False
        Set rows aside, or take the `X_val` of ``fit``, and stop by the score on these: each class
        by its accuracy against all others.
    validation_fraction : float, default=0.1
        The fraction of rows set aside, if `early_stopping` without `X_val`, the same of each class.
        They are drawn by their numbers: other ones than scikit-learn's.
    n_iter_no_change : int, default=5
        Number of epochs without improvement to stop after.
    class_weight : dict or "balanced", default=None
        Weights of classes, by label. A class of more than two weighs 1 where it is one of the
        others. "balanced", for ``fit`` only, gives every class the same total.
    {sgd_options}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; one row for two classes. A sparse matrix after ``sparsify``.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_iter_ : int
        Epochs of the class that took most of them.
    {sgd_attributes}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, there is only one class (with weight), or
        coefficients grow beyond all bounds.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When the loss still fell by `tol` after `max_iter` epochs.

    See Also
    --------
    LogisticRegression : Finds the optimum of its loss, in a handful of passes.
    Incremental : Trains it on blocks, and goes on after a failure.

    Notes
    -----
    {sgd_rows}

    {sgd_steps}

    With ``batch_size=1`` and ``shuffle=False`` the answer is scikit-learn's to rounding, but for
    these: averages with an L1 penalty (there, what the penalty takes off counts as though it had
    never been there) or in later calls of `partial_fit` (there, the intercept starts anew), rows of
    zeros with "pa1" (there, they are not counted), and the last digits of the objective that `tol`
    is compared with. Other differences: a shuffle draws other orders, and labels that are not among
    the classes raise.

    One pass over the rows an epoch, and one before them that finds the classes. `X_val` is loaded
    once, and stays in memory. After a fit with it ``restore_best_epoch`` returns to the weights
    with the best score; other fits keep the last ones only. One model goes from
    {sgd_blocks}

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_digits
    >>> from skfleet.estimators import SGDClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> X, y = da.from_array(X / 16, chunks=(600, 64)), da.from_array(y, chunks=600)
    >>> model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.95
    True
    >>> model.coef_.shape
    (10, 64)
    """

    _losses = SGD_LOSSES
    _passive_aggressive_loss = "hinge"

    def __init__(
        self,
        loss: str = "hinge",
        *,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float | None = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        epsilon: float = 0.1,
        n_jobs: int | None = None,
        random_state: RandomState = None,
        learning_rate: str = "optimal",
        eta0: float = 0.01,
        power_t: float = 0.5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        class_weight: Mapping[Any, float] | str | None = None,
        warm_start: bool = False,
        average: bool | int = False,
        batch_size: int | str = "auto",
        device: str = "auto",
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.average = average
        self.batch_size = batch_size
        self.device = device

    @run_on_device
    def fit(
        self,
        X: Rows,
        y: Values,
        coef_init: Values | None = None,
        intercept_init: Values | None = None,
        sample_weight: Weights | None = None,
        *,
        X_val: Rows | None = None,
        y_val: Values | None = None,
        sample_weight_val: Weights | None = None,
    ) -> SGDClassifier:
        """Fit the model.

        Parameters
        ----------
        {X_train}
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Class labels, of any type that can be ordered.
        coef_init : array-like of shape (n_classes, n_features), default=None
            Coefficients to start from; one row for two classes.
        intercept_init : array-like of shape (n_classes,), default=None
            Intercepts to start from; one for two classes.
        {step_weight}
        {validation_rows}

        {returns_fitted}
        """
        self._check_parameters()
        check_class_weight(self.class_weight)
        check_validation_arguments(self.early_stopping, X, X_val, y_val, sample_weight_val)
        rows = self._validate_rows(X, y, sample_weight)
        validation = self._validate_validation_rows(X_val, y_val, sample_weight_val)
        engine = engine_for(rows)
        with engine.persist(rows) as rows:
            counts = _count_labels(engine, rows)
            check_classification_targets(counts.labels)
            check_several_classes(counts.labels)
            check_total_weight(float(counts.weight.sum()))
            if np.count_nonzero(counts.weight) < 2:
                raise ValueError(
                    "sample_weight must leave at least two classes with weight. Got only one class "
                    "with weight above 0. Classifier can't train when only one class is present."
                )
            if validation is not None:
                check_validation_labels(_count_labels(*validation).labels, counts.labels)
            shape = (_n_outputs(counts.labels), rows.n_features)
            weights = self._start(shape, coef_init, intercept_init)
            # As in scikit-learn, "balanced" counts rows and not their weights.
            outputs = self._outputs(counts._replace(weight=counts.n_rows))
            self._train(engine, replace(rows, checked=True), weights, outputs, validation)
        self.classes_ = counts.labels
        return self

    @run_on_device
    def partial_fit(
        self,
        X: Rows,
        y: Values,
        classes: Values | None = None,
        sample_weight: Weights | None = None,
    ) -> SGDClassifier:
        """Perform one epoch of stochastic gradient descent.

        Parameters
        ----------
        {X_train}
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Class labels, not necessarily of all classes.
        classes : array-like of shape (n_classes,), default=None
            All labels there will ever be: needed in the first call.
        {step_weight}

        {returns_learned}
        """
        self._check_parameters(for_partial_fit=True)
        check_class_weight(self.class_weight)
        if isinstance(self.class_weight, str):
            raise ValueError(
                "class_weight must be None or a dict for partial_fit, which does not know how many "
                f"rows each class will have. Got {self.class_weight!r} instead. Give the weights, "
                "of sklearn.utils.class_weight.compute_class_weight say."
            )
        labels = self._labels(classes)
        rows = self._validate_rows(X, y, sample_weight, reset=not hasattr(self, "coef_"))
        outputs = self._outputs(LabelCounts(labels, np.ones(len(labels)), np.ones(len(labels))))
        weights = self._fitted_weights((_n_outputs(labels), rows.n_features))
        self._train_once(engine_for(rows), rows, weights, outputs)
        self.classes_ = labels
        return self

    def _labels(self, classes: Any) -> np.ndarray:
        """Return all labels, from `classes` or the first call."""
        previous = getattr(self, "classes_", None)
        if classes is None:
            if previous is None:
                raise ValueError(
                    "classes must be passed on the first call to partial_fit. Got None instead. "
                    "Pass all labels there will be, np.unique(y) say."
                )
            return previous
        labels = unique_values(np.asarray(classes))
        check_classification_targets(labels)
        if previous is not None and not np.array_equal(previous, labels):
            raise ValueError(
                f"classes must be the same as on last call to partial_fit, {previous!r}. Got "
                f"{labels!r} instead. Leave them out, or train a new clone."
            )
        if len(labels) < 2:
            raise ValueError(
                f"classes must hold at least two labels. Got {labels!r} instead. Pass all there "
                "will be."
            )
        return labels

    def _outputs(self, counts: LabelCounts) -> OutputCoding:
        """Return the coding of the outputs, with class weights."""
        class_weights = weights_of_classes(self.class_weight, counts)
        if class_weights is None:
            return OutputCoding(counts.labels)
        is_binary = len(class_weights) == 2
        ones = np.ones(len(class_weights))
        sides = [class_weights[1:], class_weights[:1]] if is_binary else [class_weights, ones]
        return OutputCoding(counts.labels, np.array(sides, dtype=np.float64))

    @available_if(_has_probabilities)
    def predict_proba(self, X: Rows) -> Answer:
        """Predict the probabilities of the classes for every row.

        Those of each class against all others, divided by their sum (Zadrozny and Elkan, 2002,
        Transforming classifier scores into accurate multiclass probability estimates); of
        "modified_huber" ``(clip(decision, -1, 1) + 1) / 2`` (Zhang, 2004).

        {X_returns}
        probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            A column per class, a frame's by name; lazy for Dask collections.
        """
        logistic = self.loss == "log_loss"
        func = _logistic_probabilities if logistic else _modified_huber_probabilities
        return self._predict_per_class(func, X)

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Rows) -> Answer:
        """Predict the logarithms of the probabilities of the classes for every row.

        {X_returns}
        logarithms : ndarray or Dask collection of shape (n_samples, n_classes)
            A column per class, a frame's by name; lazy for Dask collections. Minus infinity where a
            probability is 0, as "modified_huber" has it.
        """
        logistic = self.loss == "log_loss"
        func = _log_logistic_probabilities if logistic else _log_modified_huber_probabilities
        return self._predict_per_class(func, X)


def _count_labels(engine: Engine, rows: RowBlocks) -> LabelCounts:
    return map_reduce(engine, Reduction(label_counts, combine_label_counts), rows)


def _n_outputs(labels: np.ndarray) -> int:
    """Return the number of outputs: 1 for two classes, else one per class."""
    return 1 if len(labels) == 2 else len(labels)


def _normalized(positive: Any) -> Any:
    """Return probabilities of all classes from one-vs-rest probabilities."""
    xp = namespace(positive)
    if positive.shape[1] == 1:
        return xp.concat([1 - positive, positive], axis=1)
    total = xp.sum(positive, axis=1)[:, None]
    # As in scikit-learn: where no class has a probability, all are equally likely.
    is_zero = total == 0
    return xp.where(is_zero, 1.0 / positive.shape[1], positive / xp.where(is_zero, 1.0, total))


def _logistic_probabilities(model: Any, X: Any) -> Any:
    eta = linear_predictor(model, X)
    xp = namespace(eta)
    small = xp.exp(-xp.abs(eta))
    return _normalized(xp.where(eta >= 0, 1.0, small) / (1 + small))


def _modified_huber_probabilities(model: Any, X: Any) -> Any:
    eta = linear_predictor(model, X)
    xp = namespace(eta)
    return _normalized((xp.minimum(xp.maximum(eta, -1.0), 1.0) + 1) / 2)


def _log_logistic_probabilities(model: Any, X: Any) -> Any:
    return _log(_logistic_probabilities(model, X))


def _log_modified_huber_probabilities(model: Any, X: Any) -> Any:
    return _log(_modified_huber_probabilities(model, X))


def _log(probabilities: Any) -> Any:
    """Return logarithms, minus infinity for 0."""
    with np.errstate(divide="ignore"):
        return namespace(probabilities).log(probabilities)
