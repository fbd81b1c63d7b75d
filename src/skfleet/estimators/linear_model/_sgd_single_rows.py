"""Steps of single rows, by scikit-learn's compiled loop, on rows of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn import config_context, linear_model
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning

from skfleet._array import FLOAT64, astype, is_not_numpy
from skfleet._linalg import with_int32_indices
from skfleet._validation import check_total_weight
from skfleet._warnings import IgnoredWarnings
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import begin_pass, count_library_passes
from skfleet.estimators.linear_model._sgd_outputs import OutputCoding
from skfleet.glm import SGDTargets, SGDWeights

# Both are raised by us, at the user's line.
_NOT_CONVERGED = IgnoredWarnings(ConvergenceWarning, "Maximum number of iteration reached before ")
_DEPRECATED = IgnoredWarnings(FutureWarning, "Negative values for `power_t` are deprecated")
# The bound of the seeds that scikit-learn draws for several classes, and of its sparse indices.
_INT32_MAX = np.iinfo(np.int32).max

# Who steps: scikit-learn's ``fit``, its ``partial_fit`` in each epoch, or ours, batch by batch.
Steps = Literal["fit", "epochs", "batches"]


def choose_steps(estimator: Any, rows: RowBlocks, *, t: float, in_fit: bool) -> Steps:
    """Return which steps an estimator takes from row number t on; single ones are scikit-learn's.

    Its early stopping is not: it scores the held-out rows by weights that lack the decay of their
    L2 penalty. So epochs that a score stops are made one by one. What goes from one to the next
    starts anew in each call of ``partial_fit``, and takes batches: means of the weights, and the L1
    penalty that is due in a fit.
    """
    if estimator.batch_size != "auto" or not _fits_loop(rows):
        return "batches"
    if in_fit and not estimator.early_stopping:
        return "fit"
    assert rows.n_rows is not None
    averages = estimator.average and (in_fit or t - 1 + rows.n_rows > estimator.average)
    has_due_penalty = in_fit and estimator.penalty in ("l1", "elasticnet")
    return "batches" if averages or has_due_penalty else "epochs"


def _fits_loop(rows: RowBlocks) -> bool:
    """Return whether rows are a matrix of this process that scikit-learn's loop can read."""
    if rows.on_dask or len(rows.blocks) != 1:
        return False
    (block,) = rows.blocks
    if block.to_device or is_not_numpy(block.X):
        return False
    return not rows.is_sparse or block.X.nnz <= _INT32_MAX


class LibraryFit(NamedTuple):
    """Weights that scikit-learn's ``fit`` has learned, and its epochs."""

    weights: SGDWeights
    n_iter: int


def fit_single_rows(
    estimator: Any, rows: RowBlocks, start: SGDWeights, targets: SGDTargets
) -> LibraryFit:
    """Return what scikit-learn's ``fit`` learns of the rows from initial weights."""
    X, (y, weight, positive, sides) = with_int32_indices(rows.blocks[0].X), targets
    check_total_weight(float(len(y) if weight is None else weight.sum()))
    settings = {} if positive is None else {"class_weight": _class_weights(sides, len(positive))}
    model = _scikit_learn_model(estimator, **settings)
    begin_pass(1, rows)
    with _NOT_CONVERGED, _DEPRECATED, _quiet_library(names_epoch=True):
        model.fit(X, y, start.coef, start.intercept, sample_weight=weight)
    count_library_passes(type(estimator).__name__, model.n_iter_, rows.n_rows)
    coef, intercept = np.atleast_2d(model.coef_), model.intercept_
    weights = SGDWeights(coef, intercept, t=model.t_)
    if estimator.average:
        # The last weights behind the means are no attribute: what is learned later starts from
        # these, as a warm start does.
        weights = weights._replace(mean_coef=coef, mean_intercept=intercept)
    return LibraryFit(weights, int(model.n_iter_))


def descend_single_rows(
    weights: SGDWeights,
    block: Block,
    estimator: Any,
    outputs: OutputCoding,
    active: np.ndarray,
    random_state: np.random.RandomState,
) -> SGDWeights:
    """Return the weights after an epoch of scikit-learn's ``partial_fit`` on a block.

    It does not tell the loss, which is NaN.
    """
    y, weight, positive, sides = outputs.targets(block, active)
    X, k = with_int32_indices(block.X), len(weights.intercept)
    # Drawn as scikit-learn does, which has one seed for each of several classes.
    is_multiclass = outputs.classes is not None and len(outputs.classes) > 2
    seeds = random_state.randint(_INT32_MAX, size=k) if is_multiclass else [random_state]
    coef, intercept = weights.coef.astype(X.dtype), weights.intercept.copy()
    for i, (seed, rate) in enumerate(zip(seeds, weights.rate, strict=True)):
        settings: dict[str, Any] = {"random_state": seed, "eta0": estimator.eta0 * rate}
        settings |= {"early_stopping": False, "average": False, "verbose": 0}
        target = astype(y, FLOAT64)
        if positive is not None:
            target = (y == positive[i]).astype(np.int64)
            settings["class_weight"] = None if sides is None else dict(enumerate(sides[::-1, i]))
        model = _scikit_learn_model(estimator, **settings)
        # The loop changes the coefficients in place: they are a copy.
        model.n_features_in_, model.t_ = X.shape[1], weights.t
        model.coef_, model.intercept_ = coef[i], intercept[i : i + 1]
        if positive is not None:
            model.classes_ = np.arange(2)
        with _quiet_library(names_epoch=False):
            model.partial_fit(X, target, sample_weight=weight)
        coef[i], intercept[i] = model.coef_, model.intercept_[0]
    n_rows, unknown, coef = block.n_rows, np.full(k, np.nan), coef.astype(np.float64)
    if weights.mean_coef is not None:  # the means are the weights until they have begun
        weights = weights._replace(mean_coef=coef.copy(), mean_intercept=intercept.copy())
    return weights._replace(
        coef=coef,
        intercept=intercept,
        value=unknown,
        penalty=unknown,
        t=weights.t + n_rows,
        n_rows=weights.n_rows + n_rows,
        weight=weights.weight + float(n_rows if weight is None else weight.sum()),
    )


def _scikit_learn_model(estimator: Any, **settings: Any) -> Any:
    """Return scikit-learn's estimator with the parameters of ours, but for some."""
    classifies = is_classifier(estimator)
    model = (linear_model.SGDClassifier if classifies else linear_model.SGDRegressor)()
    params = {name: getattr(estimator, name) for name in model.get_params(deep=False)}
    return model.set_params(**params | settings)


def _class_weights(sides: np.ndarray | None, n_outputs: int) -> dict[int, float] | None:
    """Return the weights of classes by their codes, from those of the sides of the outputs."""
    if sides is None:
        return None
    return dict(enumerate(sides[::-1, 0] if n_outputs == 1 else sides[0]))


@contextmanager
def _quiet_library(*, names_epoch: bool) -> Iterator[None]:
    """Leave out scikit-learn's checks, which are made, and raise its errors in our words."""
    with config_context(assume_finite=True, skip_parameter_validation=True):
        try:
            yield
        except ValueError as error:
            what = str(error).partition(". ")[0]
            if not what.startswith("Floating-point under-/overflow"):
                raise
            raise overflow_error(what if names_epoch else what.partition(" at ")[0]) from error


def overflow_error(what: str) -> ValueError:
    """Return the error of a descent that runs away."""
    return ValueError(
        f"Coefficients must stay finite. {what} instead. Scale the columns with a StandardScaler "
        "or a MinMaxScaler, or choose a smaller eta0."
    )
