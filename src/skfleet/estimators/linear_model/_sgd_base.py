"""Epochs of stochastic gradient descent: order of the rows, early stopping, holdout."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skfleet._array import to_host
from skfleet._linalg import dense_rows
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_option,
    check_positive_int,
    check_total_weight,
)
from skfleet._warnings import warn
from skfleet.blocks import Block, RowBlocks, open_block
from skfleet.engine import (
    Engine,
    FoldPace,
    Reduction,
    TrainingBatch,
    draw_holdout,
    engine_for,
    expect_passes,
    fold,
    limit_threadpools,
    map_reduce,
    with_row_offsets,
)
from skfleet.estimators._column_statistics import Moments, combine_moments
from skfleet.estimators._early_stopping import (
    EarlyStopping,
    check_best_epoch,
    training_rows,
    validation_rows,
)
from skfleet.estimators.linear_model._linear_estimators import SparseCoefficients, linear_predictor
from skfleet.estimators.linear_model._sgd_outputs import OutputCoding
from skfleet.estimators.linear_model._sgd_single_rows import (
    Steps,
    choose_steps,
    descend_single_rows,
    fit_single_rows,
    overflow_error,
)
from skfleet.estimators.meta._epochs import epoch_record, history_of
from skfleet.glm import SGDConfig, SGDWeights, descend

PENALTIES = ("l2", "l1", "elasticnet", None)
LEARNING_RATES = ("constant", "optimal", "invscaling", "adaptive", "pa1", "pa2")
# Fields of SGDWeights with a row or a value for each output.
PER_OUTPUT_FIELDS = SGDWeights._fields[: SGDWeights._fields.index("rate") + 1]
# The "adaptive" learning rate stops decaying here.
MIN_RATE = 1e-6


class ValidationSums(NamedTuple):
    """Sums over validation rows: correct predictions, or target moments and squared errors."""

    y: Moments
    sums: np.ndarray


def descend_block(
    weights: SGDWeights,
    block: Block,
    config: SGDConfig,
    outputs: OutputCoding,
    active: np.ndarray,
    seed: int | None,
) -> SGDWeights:
    """Descend on the rows of a block, in a random order of seed and block number."""
    targets = outputs.targets(block, active)
    order = None
    if seed is not None:
        # By the block's number, so that the order is the same on every worker and when a task is
        # rerun.
        order = np.random.default_rng([seed, block.number]).permutation(block.n_rows)
    with limit_threadpools(1):  # the products of a batch are small
        return descend(weights, block.X, targets, config, order)


def validate(
    block: Block, weights: SGDWeights, outputs: OutputCoding, active: np.ndarray
) -> ValidationSums:
    """Compare the targets of a block with predictions."""
    values, weight, positive, _ = outputs.targets(block, active)
    values = to_host(values)
    weight = np.ones(block.n_rows) if weight is None else to_host(weight)
    p = to_host(linear_predictor((weights.coef, weights.intercept), block.X)).astype(np.float64)
    total = float(weight.sum())
    if positive is not None:
        right = (p > 0) == (values[:, None] == positive)
        return ValidationSums(Moments(total, np.zeros(1), np.zeros(1)), weight @ right)
    mean = np.array([weight @ values / total]) if total else np.zeros(1)
    about = Moments(total, mean, np.array([weight @ (values - mean) ** 2]))
    return ValidationSums(about, weight @ (values[:, None] - p) ** 2)


def combine_scored(a: ValidationSums, b: ValidationSums) -> ValidationSums:
    y = combine_moments(a.y, b.y) if a.y.n_rows and b.y.n_rows else (a.y if a.y.n_rows else b.y)
    return ValidationSums(y, a.sums + b.sums)


class _ValidationRows(NamedTuple):
    """Validation rows, and the engine that scores them."""

    engine: Engine
    rows: RowBlocks


class _BestEpoch:
    """Weights after the epoch with the best mean score; after the last one if all are NaN."""

    def __init__(self, dtype: Any, n_outputs: int) -> None:
        self.dtype, self.scores, self.score = dtype, np.full(n_outputs, np.nan), np.nan

    def update(self, n_iter: int, weights: SGDWeights, score: Any, active: np.ndarray) -> None:
        """Record the scores of active outputs after an epoch."""
        self.scores[active] = score
        mean = float(np.mean(self.scores))
        if np.isnan(self.score) or mean > self.score:
            self.n_iter, self.weights, self.score = n_iter, weights, mean


class BaseSGD(SparseCoefficients):
    """Base class of SGDClassifier and SGDRegressor: parameters, epochs, early stopping."""

    _losses: ClassVar[Any]
    _passive_aggressive_loss: ClassVar[str]  # of passive-aggressive steps

    def _check_parameters(self, *, for_partial_fit: bool = False) -> None:
        """Raise for invalid parameters."""
        check_option("loss", self.loss, self._losses)
        # Options and ranges of single parameters.
        if self.penalty is not None:
            check_option("penalty", self.penalty, PENALTIES)
        check_option("learning_rate", self.learning_rate, LEARNING_RATES)
        check_in_interval("alpha", self.alpha, 0, open="r")
        if self.l1_ratio is not None or self.penalty == "elasticnet":
            check_in_interval("l1_ratio", self.l1_ratio, 0, 1)
        for name in ("shuffle", "early_stopping"):
            check_bool(name, getattr(self, name))
        for name in ("max_iter", "n_iter_no_change"):
            check_positive_int(name, getattr(self, name))
        if self.tol is not None:
            check_in_interval("tol", self.tol, 0)
        check_in_interval("epsilon", self.epsilon, 0)
        check_in_interval("eta0", self.eta0, 0, open="lr")
        check_in_interval("power_t", self.power_t, -np.inf, open="lr")
        # In scikit-learn's words, by which users may filter it.
        if self.power_t < 0:
            warn(
                "Negative values for `power_t` are deprecated in version 1.8 and will raise an "
                "error in 1.10. Use values in the range [0.0, inf) instead.",
                FutureWarning,
            )
        check_in_interval("validation_fraction", self.validation_fraction, 0, 1, open="lr")
        # An int is the number of rows after which averaging begins; True is one by type.
        if not isinstance(self.average, bool | np.bool_):
            check_positive_int("average", self.average)
        if not isinstance(self.batch_size, str) or self.batch_size != "auto":
            check_positive_int("batch_size", self.batch_size)
        # Combinations that no step size could be computed for.
        if self.learning_rate == "optimal" and self.alpha == 0:
            raise ValueError(
                "alpha must be above 0 where learning_rate is 'optimal', which it makes. Got 0 "
                "instead. Choose another learning_rate, or penalty=None for no penalty."
            )
        if self.learning_rate in ("pa1", "pa2") and self.loss != self._passive_aggressive_loss:
            raise ValueError(
                f"loss must be {self._passive_aggressive_loss!r} where learning_rate is "
                f"{self.learning_rate!r}. "
                f"Got {self.loss!r} instead. Choose another learning_rate for it."
            )
        # A call of `partial_fit` has no epochs to stop between.
        if for_partial_fit and self.early_stopping:
            raise ValueError(
                "early_stopping must be False for partial_fit. Got True instead. Use fit, or "
                "Incremental(..., early_stopping=True)."
            )

    def _descent(self, *, track_objective: bool) -> SGDConfig:
        """Return the configuration of the descent."""
        l1_ratio = {"l1": 1.0, "elasticnet": self.l1_ratio}.get(self.penalty, 0.0)
        strength = 0.0 if self.penalty is None else self.alpha
        names = ("loss", "learning_rate", "alpha", "eta0", "power_t")
        return SGDConfig(
            **{name: getattr(self, name) for name in names},
            epsilon=float(self.epsilon),
            l1=strength * l1_ratio,
            l2=strength * (1 - l1_ratio),
            fit_intercept=bool(self.fit_intercept),
            average=int(self.average),
            batch_size=None if self.batch_size == "auto" else int(self.batch_size),
            track_objective=track_objective,
        )

    def _start(self, shape: tuple[int, int], coef: Any, intercept: Any) -> SGDWeights:
        """Return initial weights: `coef_init`, those of a warm start, or zero."""
        if self.warm_start and hasattr(self, "coef_"):
            coef = self.coef_ if coef is None else coef
            intercept = self.intercept_ if intercept is None else intercept
        starts = []
        for name, value, size in (("coef", coef, shape), ("intercept", intercept, shape[:1])):
            start = np.zeros(size) if value is None else np.array(dense_rows(value), dtype=float)
            if start.size != np.prod(size) or (start.ndim > 1 and start.shape != size):
                raise ValueError(
                    f"{name}_init, or {name}_ with warm_start, must have shape {size}. Got "
                    f"{start.shape} instead. Start anew with warm_start=False."
                )
            starts.append(start.reshape(size))
        return self._with_state(SGDWeights(*starts))

    def _fitted_weights(self, shape: tuple[int, int]) -> SGDWeights:
        """Return the weights from which `partial_fit` continues."""
        if not hasattr(self, "coef_"):
            return self._with_state(SGDWeights(np.zeros(shape), np.zeros(shape[0])))
        coef, intercept, *means = getattr(self, "_averaged", (self.coef_, self.intercept_))
        parts = (dense_rows(coef).reshape(shape), np.atleast_1d(intercept), *means)
        parts = [np.array(part, dtype=np.float64) for part in parts]
        return self._with_state(SGDWeights(*parts, t=self.t_))

    def _with_state(self, weights: SGDWeights) -> SGDWeights:
        """Return weights with initial averages, L1 state and rates."""
        coef, intercept = weights.coef, weights.intercept
        if self.average and weights.mean_coef is None:
            weights = weights._replace(mean_coef=coef.copy(), mean_intercept=intercept.copy())
        l1_applied = np.zeros_like(coef) if self.penalty in ("l1", "elasticnet") else None
        each = np.ones(len(intercept))
        return weights._replace(l1_applied=l1_applied, l1_due=0 * each, rate=each)

    def _validate_validation_rows(
        self, X_val: Any, y_val: Any, sample_weight_val: Any, **check: Any
    ) -> _ValidationRows | None:
        """Validate and load the validation rows of ``fit``, by the columns of X; None without."""
        if X_val is None:
            return None
        rows = self._validate_rows(X_val, y_val, sample_weight_val, reset=False, **check)
        engine = engine_for(rows)
        return _ValidationRows(engine, validation_rows(engine, rows))

    def _train(
        self,
        engine: Engine,
        rows: RowBlocks,
        weights: SGDWeights,
        outputs: OutputCoding,
        validation: _ValidationRows | None = None,
    ) -> None:
        """Run epochs until early stopping or `max_iter`.

        Without validation rows, early stopping holds some of the rows out. With them the weights of
        the best epoch are stored too.
        """
        steps = choose_steps(self, rows, t=weights.t, in_fit=True)
        if steps == "fit":
            self._fit_single_rows(rows, weights, outputs)
            return
        # Rows to validate on: given ones, or a part of the rows with early stopping.
        rng, select, best = check_random_state(self.random_state), None, None
        config = self._descent(track_objective=True)
        if validation is not None:
            best = _BestEpoch(rows.dtype, len(weights.intercept))
        elif self.early_stopping:
            rows = with_row_offsets(engine, rows)
            select, validation = self._split_holdout(engine, rows, rng)
            if steps == "epochs":  # an epoch is too short to copy its rows in each
                block = select(open_block(rows.blocks[0]))
                rows, select = replace(rows, blocks=(block,), lengths=(block.n_rows,)), None
        # Without a tolerance the number of passes is known, for the progress bar.
        stopping = EarlyStopping(self.n_iter_no_change, self.tol, len(weights.intercept))
        if self.tol is None:
            expect_passes(self.max_iter * (1 if validation is None else 2))
        start_time, first_t, epochs, pace = time.monotonic(), weights.t, [], FoldPace()
        for n_iter in range(1, self.max_iter + 1):
            # Outputs that have stopped cost nothing: an epoch trains the active ones only.
            active = stopping.active
            args = (engine, config, outputs, rng, rows, weights, active, steps)
            part = self._epoch(*args, select=select, pace=pace)
            rows = replace(rows, checked=True)
            # Infinity or NaN never leaves the weights again: further epochs would be wasted.
            weights = _merge_outputs(weights, part, active)
            if not all(np.isfinite(v).all() for v in (part.coef, part.intercept)):
                raise overflow_error(f"Floating-point under-/overflow occurred at epoch #{n_iter}")
            # Without validation rows the objective decides, negated: more is better for early
            # stopping.
            score = -(part.value + part.penalty) / part.n_rows
            if validation is not None:
                score = _score(*validation, part, outputs, active)
            if best is not None:
                best.update(n_iter, weights, score, active)
            # The record of the epoch. `t` goes on through warm starts, which saw other rows.
            n_seen, loss = int(weights.t - first_t), float(np.mean(part.value)) / part.n_rows
            mean_score = np.nan if validation is None else float(np.mean(score))
            seconds = time.monotonic() - start_time
            epochs.append(epoch_record(n_iter, n_seen, loss, mean_score, seconds))
            if self.verbose:
                _print_epoch(epochs, part, score)
            if self.tol is not None:
                stops = stopping.update(score)
                if self.learning_rate == "adaptive":
                    # A lower rate comes before the stop, as in scikit-learn.
                    decays = stops & (self.eta0 * weights.rate > MIN_RATE)
                    rate = np.where(decays, weights.rate / 5, weights.rate)
                    weights = weights._replace(rate=rate)
                    stopping.restart(decays)
            if not stopping.active.any():
                break
        if self.tol is not None and stopping.active.any():
            self._warn_of_max_iter()
        # Before the best epoch is set, since this drops that of an earlier fit.
        self._set_weights(weights, rows.dtype, n_iter)
        self.history_ = history_of(epochs)
        if best is not None:
            self._best_epoch = best

    def _fit_single_rows(self, rows: RowBlocks, start: SGDWeights, outputs: OutputCoding) -> None:
        """Fit by scikit-learn's loop, which keeps no record of its epochs."""
        active = np.ones(len(start.intercept), dtype=bool)
        learned = fit_single_rows(self, rows, start, outputs.targets(rows.blocks[0], active))
        self._set_weights(learned.weights, rows.dtype, learned.n_iter)
        self.__dict__.pop("history_", None)
        if self.tol is not None and learned.n_iter == self.max_iter:
            self._warn_of_max_iter()

    def _warn_of_max_iter(self) -> None:
        warn(
            f"The loss still fell by tol={self.tol:g} after max_iter={self.max_iter} epochs. "
            "Increase max_iter to improve the fit.",
            ConvergenceWarning,
        )

    def restore_best_epoch(self) -> BaseSGD:
        """Return to the weights after the epoch with the best score of the validation rows.

        That is the mean score of the classes. `n_iter_` is then the number of that epoch; a class
        that stopped before keeps the weights with which it did.

        Returns
        -------
        self : estimator
            Fitted estimator.
        """
        best = getattr(self, "_best_epoch", None)
        check_best_epoch(best)
        self._set_weights(best.weights, best.dtype, best.n_iter)
        self._best_epoch = best
        return self

    def _split_holdout(
        self, engine: Engine, rows: RowBlocks, rng: np.random.RandomState
    ) -> tuple[Any, _ValidationRows]:
        """Return a function that selects training rows of a block, and the validation rows."""
        seed, fraction = int(rng.randint(2**31 - 1)), self.validation_fraction
        if ceil(fraction * rows.n_rows) >= rows.n_rows:
            raise ValueError(
                "validation_fraction must leave rows for both training and validation. Got "
                f"{fraction!r} of {rows.n_rows} rows instead. Change it, or use "
                "early_stopping=False."
            )
        labels = "rows" if is_classifier(self) else None
        holdout = draw_holdout(engine, rows, fraction, seed, labels)
        validation = _ValidationRows(engine, validation_rows(engine, rows, holdout))
        return partial(training_rows, holdout=holdout), validation

    def _train_once(
        self, engine: Engine, rows: RowBlocks, weights: SGDWeights, outputs: OutputCoding
    ) -> None:
        rng, config = check_random_state(self.random_state), self._descent(track_objective=False)
        active = np.ones(len(weights.intercept), dtype=bool)
        steps = choose_steps(self, rows, t=weights.t, in_fit=False)
        weights = self._epoch(engine, config, outputs, rng, rows, weights, active, steps)
        self._set_weights(weights, rows.dtype, 1)

    def _epoch(
        self,
        engine: Engine,
        config: SGDConfig,
        outputs: OutputCoding,
        rng: np.random.RandomState,
        rows: RowBlocks,
        weights: SGDWeights,
        active: np.ndarray,
        steps: Steps,
        select: Any = None,
        pace: FoldPace | None = None,
    ) -> SGDWeights:
        """Return the weights of active outputs after one epoch over the rows."""
        batches, seed = [TrainingBatch([block]) for block in rows.blocks], None
        part, by_row = _select_outputs(weights, active), steps == "epochs"
        if self.shuffle and not by_row:
            seed = int(rng.randint(2**31 - 1))
            batches = [batches[i] for i in rng.permutation(len(batches))]
        args = (self, outputs, active, rng) if by_row else (config, outputs, active, seed)
        update = descend_single_rows if by_row else descend_block
        part = fold(engine, update, part, rows, *args, batches=batches, select=select, pace=pace)
        if not part.n_rows:
            raise ValueError("X must have at least one row. Got none instead.")
        check_total_weight(part.weight)
        return part

    def _set_weights(self, weights: SGDWeights, dtype: Any, n_iter: int) -> None:
        """Set the fitted attributes, from averaged weights if averaging has begun."""
        coef, intercept = weights.coef, weights.intercept
        for name in ("_averaged", "_best_epoch"):
            self.__dict__.pop(name, None)
        if self.average:
            self._averaged = weights[:4]
            if weights.t - 1 >= self.average:
                coef, intercept = weights.mean_coef, weights.mean_intercept
        self.coef_ = coef.astype(dtype)
        # The one of a single output is in double precision in any case, as in scikit-learn.
        self.intercept_ = intercept.astype(np.float64 if len(intercept) == 1 else dtype)
        self.t_, self.n_iter_ = weights.t, n_iter


def _select_outputs(weights: SGDWeights, active: np.ndarray) -> SGDWeights:
    """Return the weights of active outputs, with sums reset."""
    fields = zip(PER_OUTPUT_FIELDS, weights, strict=False)
    part = {name: values[active] for name, values in fields if values is not None}
    return weights._replace(**part, value=0.0, penalty=0.0, n_rows=0, weight=0.0)


def _merge_outputs(weights: SGDWeights, part: SGDWeights, active: np.ndarray) -> SGDWeights:
    """Return weights with those of active outputs replaced."""
    fields = zip(PER_OUTPUT_FIELDS, weights, strict=False)
    merged = {name: values.copy() for name, values in fields if values is not None}
    for name, values in merged.items():
        values[active] = getattr(part, name)
    return weights._replace(**merged, t=part.t)


def _score(
    engine: Engine, rows: RowBlocks, weights: SGDWeights, outputs: OutputCoding, active: np.ndarray
) -> np.ndarray:
    """Score the active outputs on the validation rows: accuracy of each, or R²."""
    sums = map_reduce(engine, Reduction(validate, combine_scored), rows, weights, outputs, active)
    if not sums.y.n_rows:
        raise ValueError(
            "sample_weight must leave validation rows a weight above 0, and so must "
            "sample_weight_val. Got zero for all of them instead. Use another random_state or "
            "validation_fraction, or other weights."
        )
    if outputs.classes is not None:
        return sums.sums / sums.y.n_rows
    return 1 - sums.sums / np.maximum(sums.y.squares, np.finfo(float).tiny)


def _print_epoch(epochs: list[dict[str, Any]], part: SGDWeights, score: np.ndarray) -> None:
    """Print the statistics of the last epoch as scikit-learn does, and rows per second."""
    n_rows, epoch = part.n_rows, epochs[-1]
    seconds, losses = epoch["seconds"], ""
    if np.isfinite(epoch["loss"]):  # NaN where scikit-learn's loop does not tell it
        objective = np.mean(part.value + part.penalty) / n_rows
        losses = f"Avg. loss: {epoch['loss']:f}, Objective: {objective:f}, "
    print(
        f"-- Epoch {epoch['epoch']}\nNorm: {np.linalg.norm(part.coef):.2f}, "
        f"NNZs: {np.count_nonzero(part.coef)}, Bias: {np.mean(part.intercept):.6f}, "
        f"T: {n_rows}, {losses}"
        f"Score: {np.mean(score):f}\nTotal training time: {seconds:.2f} seconds, "
        f"{epoch['n_samples_seen'] / max(seconds, 1e-9):,.0f} rows/s."
    )
