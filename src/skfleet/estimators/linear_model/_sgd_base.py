"""Epochs of stochastic gradient descent: which rows when, and when to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skfleet._array import FLOAT64, asarray_like, astype, is_not_numpy, namespace, to_host
from skfleet._linalg import dense_rows
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_option,
    check_positive_int,
    check_total_weight,
    check_verbose,
)
from skfleet._warnings import warn
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import (
    Engine,
    Reduction,
    TrainingBatch,
    draw_holdout,
    fold,
    limit_threadpools,
    map_reduce,
    with_row_offsets,
)
from skfleet.estimators._column_statistics import Moments, merge_moments
from skfleet.estimators._early_stopping import training_rows, validation_rows
from skfleet.estimators.linear_model._base import SparseCoefficients, linear_predictor
from skfleet.estimators.meta._epochs import history_of
from skfleet.glm import Descent, Targets, Weights, descend
from skfleet.glm._objective import encode_labels

PENALTIES = ("l2", "l1", "elasticnet", None)
LEARNING_RATES = ("constant", "optimal", "invscaling", "adaptive", "pa1", "pa2")
# What has a row or a value for each output.
OF_OUTPUTS = ("coef", "intercept", "mean_coef", "mean_intercept", "paid", "owed", "rate")
# "adaptive" gives up where the learning rate is no larger than this.
LEAST_RATE = 1e-6


@dataclass(frozen=True)
class Outputs:
    """What each output is to tell from what: numbers, or a class from all others."""

    classes: np.ndarray | None = None
    side_weights: np.ndarray | None = None  # (2, k), of an output's own class and of the others

    def targets(self, block: Block, active: np.ndarray) -> Targets:
        """Return a block's targets for the outputs that still learn."""
        y, weight = block.y, block.sample_weight
        if len(y.shape) != 1:
            raise ValueError(
                f"y should be a 1d array, got one of {len(y.shape)} dimensions instead. "
                "Take its column, y[:, 0] say."
            )
        if self.classes is None:
            return Targets(astype(y, FLOAT64), weight)
        codes = known_codes(y, self.classes)
        positive = np.flatnonzero(active) if len(self.classes) > 2 else np.array([1])
        sides = None if self.side_weights is None else self.side_weights[:, active]
        return Targets(codes, weight, positive, sides)


def known_codes(y: Any, classes: np.ndarray) -> Any:
    """Return the place of each label among the classes, where the labels are, or raise."""
    xp = namespace(y)
    codes = xp.clip(encode_labels(y, classes), 0, len(classes) - 1)
    there = asarray_like(classes, y, dtype=y.dtype) if is_not_numpy(y) else classes
    unknown = xp.take(there, codes) != y
    if bool(xp.any(unknown)):
        raise ValueError(
            f"y must hold labels in classes. Got {to_host(y)[to_host(unknown)][0]!r} instead. Name "
            "all labels in the first call of partial_fit."
        )
    return codes


class Scored(NamedTuple):
    """Sums over validation rows: the outputs' right answers, or targets and squared errors."""

    y: Moments
    sums: np.ndarray


def learn_block(
    weights: Weights,
    block: Block,
    how: Descent,
    outputs: Outputs,
    active: np.ndarray,
    seed: int | None,
) -> Weights:
    """Learn the rows of a block, in an order that the seed and the block's number draw."""
    targets = outputs.targets(block, active)
    order = None
    if seed is not None:
        order = np.random.default_rng([seed, block.number]).permutation(block.n_rows)
    with limit_threadpools(1):  # the products of a batch are small
        return descend(weights, block.X, targets, how, order)


def validate(block: Block, weights: Weights, outputs: Outputs, active: np.ndarray) -> Scored:
    """Compare a block's targets with what is predicted."""
    values, weight, positive, _ = outputs.targets(block, active)
    values = to_host(values)
    weight = np.ones(block.n_rows) if weight is None else to_host(weight)
    p = to_host(linear_predictor((weights.coef, weights.intercept), block.X)).astype(np.float64)
    total = float(weight.sum())
    if positive is not None:
        right = (p > 0) == (values[:, None] == positive)
        return Scored(Moments(total, np.zeros(1), np.zeros(1)), weight @ right)
    mean = np.array([weight @ values / total]) if total else np.zeros(1)
    about = Moments(total, mean, np.array([weight @ (values - mean) ** 2]))
    return Scored(about, weight @ (values[:, None] - p) ** 2)


def merge_scored(a: Scored, b: Scored) -> Scored:
    """Merge what was compared of two blocks."""
    y = merge_moments(a.y, b.y) if a.y.n_rows and b.y.n_rows else (a.y if a.y.n_rows else b.y)
    return Scored(y, a.sums + b.sums)


class SGDModel(SparseCoefficients):
    """What classifier and regressor share: parameters, epochs, and when to stop."""

    _losses: ClassVar[Any]
    _own_loss: ClassVar[str]  # of passive-aggressive steps

    def _check_parameters(self, *, partly: bool = False) -> None:
        """Raise for parameters that cannot be, before any work."""
        check_random_state(self.random_state)
        check_option("loss", self.loss, self._losses)
        check_verbose("verbose", self.verbose)
        if self.penalty is not None:
            check_option("penalty", self.penalty, PENALTIES)
        check_option("learning_rate", self.learning_rate, LEARNING_RATES)
        check_in_interval("alpha", self.alpha, 0, open="r")
        if self.l1_ratio is not None or self.penalty == "elasticnet":
            check_in_interval("l1_ratio", self.l1_ratio, 0, 1)
        for name in ("fit_intercept", "shuffle", "early_stopping", "warm_start"):
            check_bool(name, getattr(self, name))
        for name in ("max_iter", "n_iter_no_change"):
            check_positive_int(name, getattr(self, name))
        if self.tol is not None:
            check_in_interval("tol", self.tol, 0)
        check_in_interval("epsilon", self.epsilon, 0)
        check_in_interval("eta0", self.eta0, 0, open="lr")
        check_in_interval("power_t", self.power_t, -np.inf, open="lr")
        if self.power_t < 0:
            warn(
                "Negative values for `power_t` are deprecated in version 1.8 and will raise an "
                "error in 1.10. Use values in the range [0.0, inf) instead.",
                FutureWarning,
            )
        check_in_interval("validation_fraction", self.validation_fraction, 0, 1, open="lr")
        if not isinstance(self.average, bool | np.bool_):
            check_positive_int("average", self.average)
        if not isinstance(self.batch_size, str) or self.batch_size != "auto":
            check_positive_int("batch_size", self.batch_size)
        if self.learning_rate == "optimal" and self.alpha == 0:
            raise ValueError(
                "alpha must be above 0 where learning_rate is 'optimal', which it makes. Got 0 "
                "instead. Choose another learning_rate, or penalty=None for no penalty."
            )
        if self.learning_rate in ("pa1", "pa2") and self.loss != self._own_loss:
            raise ValueError(
                f"loss must be {self._own_loss!r} where learning_rate is {self.learning_rate!r}. "
                f"Got {self.loss!r} instead. Choose another learning_rate for it."
            )
        if partly and self.early_stopping:
            raise ValueError(
                "early_stopping must be False for partial_fit. Got True instead. Use fit, or "
                "Incremental(..., early_stopping=True)."
            )

    def _descent(self, *, adds_up: bool) -> Descent:
        """Return what to descend and how."""
        share = {"l1": 1.0, "elasticnet": self.l1_ratio}.get(self.penalty, 0.0)
        strength = 0.0 if self.penalty is None else self.alpha
        return Descent(
            self.loss,
            float(self.epsilon),
            l1=strength * share,
            l2=strength * (1 - share),
            learning_rate=self.learning_rate,
            alpha=self.alpha,
            eta0=self.eta0,
            power_t=self.power_t,
            fit_intercept=bool(self.fit_intercept),
            average=int(self.average),
            batch_size=None if self.batch_size == "auto" else int(self.batch_size),
            adds_up=adds_up,
        )

    def _start(self, shape: tuple[int, int], coef: Any, intercept: Any) -> Weights:
        """Return weights to start from: those given, of the last fit if asked for, or zero."""
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
        return self._with_sums(Weights(*starts))

    def _last(self, shape: tuple[int, int]) -> Weights:
        """Return the weights to go on from with `partial_fit`."""
        if not hasattr(self, "coef_"):
            return self._with_sums(Weights(np.zeros(shape), np.zeros(shape[0])))
        coef, intercept, *means = getattr(self, "_averaged", (self.coef_, self.intercept_))
        parts = (dense_rows(coef).reshape(shape), np.atleast_1d(intercept), *means)
        parts = [np.array(part, dtype=np.float64) for part in parts]
        return self._with_sums(Weights(*parts, t=self.t_))

    def _with_sums(self, weights: Weights) -> Weights:
        """Return weights with all that they are to learn with."""
        coef, intercept = weights.coef, weights.intercept
        if self.average and weights.mean_coef is None:
            weights = weights._replace(mean_coef=coef.copy(), mean_intercept=intercept.copy())
        paid = np.zeros_like(coef) if self.penalty in ("l1", "elasticnet") else None
        each = np.ones(len(intercept))
        return weights._replace(paid=paid, owed=0 * each, rate=each)

    def _train(self, engine: Engine, rows: RowBlocks, weights: Weights, outputs: Outputs) -> None:
        """Go through the rows until that helps no more."""
        rng, prepare, validation = check_random_state(self.random_state), None, None
        how = self._descent(adds_up=True)
        if self.early_stopping:
            rows = with_row_offsets(engine, rows)
            prepare, validation = self._set_aside(engine, rows, rng)
        patience = _Patience(len(weights.intercept), self)
        began, seen, epochs = time.monotonic(), weights.t, []
        for n_iter in range(1, self.max_iter + 1):
            active = patience.active
            part = self._epoch(engine, how, outputs, rng, rows, weights, active, prepare)
            rows = replace(rows, checked=True)
            weights = _put_back(weights, part, active)
            if not all(np.isfinite(v).all() for v in (part.coef, part.intercept)):
                raise ValueError(
                    "Coefficients must stay finite. Floating-point under-/overflow occurred at "
                    f"epoch #{n_iter} instead. Scale the columns with a StandardScaler or a "
                    "MinMaxScaler, or choose a smaller eta0."
                )
            score = -(part.value + part.penalty) / part.n_rows
            if validation is not None:
                score = _score(engine, validation, part, outputs, active)
            epochs.append(
                {
                    "epoch": n_iter,
                    "n_samples_seen": int(weights.t - seen),
                    "loss": float(np.mean(part.value)) / part.n_rows,
                    "score": np.nan if validation is None else float(np.mean(score)),
                    "seconds": time.monotonic() - began,
                }
            )
            if self.verbose:
                _print_epoch(epochs, part, score)
            if self.tol is not None:
                weights = patience.heed(weights, score)
            if not patience.active.any():
                break
        if self.tol is not None and patience.active.any():
            warn(
                f"The loss still fell by tol={self.tol:g} after max_iter={self.max_iter} epochs. "
                "Increase max_iter to improve the fit.",
                ConvergenceWarning,
            )
        self._keep_weights(weights, rows, n_iter)
        self.history_ = history_of(epochs)

    def _set_aside(self, engine: Engine, rows: RowBlocks, rng: np.random.RandomState) -> Any:
        """Return what leaves the rows to learn in a block, and the validation rows."""
        seed, fraction = int(rng.randint(2**31 - 1)), self.validation_fraction
        if ceil(fraction * rows.n_rows) >= rows.n_rows:
            raise ValueError(
                "validation_fraction must leave rows for both training and validation. Got "
                f"{fraction!r} of {rows.n_rows} rows instead. Change it, or use "
                "early_stopping=False."
            )
        labels = "rows" if is_classifier(self) else None
        holdout = draw_holdout(engine, rows, fraction, seed, labels)
        return partial(training_rows, holdout=holdout), validation_rows(engine, rows, holdout)

    def _train_once(
        self, engine: Engine, rows: RowBlocks, weights: Weights, outputs: Outputs
    ) -> None:
        """Go through the rows once."""
        rng, how = check_random_state(self.random_state), self._descent(adds_up=False)
        active = np.ones(len(weights.intercept), dtype=bool)
        self._keep_weights(self._epoch(engine, how, outputs, rng, rows, weights, active), rows, 1)

    def _epoch(
        self,
        engine: Engine,
        how: Descent,
        outputs: Outputs,
        rng: np.random.RandomState,
        rows: RowBlocks,
        weights: Weights,
        active: np.ndarray,
        prepare: Any = None,
    ) -> Weights:
        """Let the outputs that are active learn all rows."""
        lessons, seed = [TrainingBatch([block]) for block in rows.blocks], None
        if self.shuffle:
            seed = int(rng.randint(2**31 - 1))
            lessons = [lessons[i] for i in rng.permutation(len(lessons))]
        part = _taken_out(weights, active)
        part = fold(
            engine,
            learn_block,
            part,
            rows,
            how,
            outputs,
            active,
            seed,
            batches=lessons,
            prepare=prepare,
        )
        if not part.n_rows:
            raise ValueError("X must have at least one row. Got none instead.")
        check_total_weight(part.weight)
        return part

    def _keep_weights(self, weights: Weights, rows: RowBlocks, n_iter: int) -> None:
        """Set what was learned: the mean of the weights where enough rows went into it."""
        coef, intercept = weights.coef, weights.intercept
        self.__dict__.pop("_averaged", None)
        if self.average:
            self._averaged = weights[:4]
            if weights.t - 1 >= self.average:
                coef, intercept = weights.mean_coef, weights.mean_intercept
        self.coef_ = coef.astype(rows.dtype)
        self.intercept_ = intercept.astype(rows.dtype)
        self.t_, self.n_iter_ = weights.t, n_iter


class _Patience:
    """Which outputs still learn: those whose score rose not long ago."""

    def __init__(self, n_outputs: int, model: SGDModel) -> None:
        self.model = model
        self.active = np.ones(n_outputs, dtype=bool)
        self.best, self.n_without = np.full(n_outputs, -np.inf), np.zeros(n_outputs, dtype=int)

    def heed(self, weights: Weights, score: np.ndarray) -> Weights:
        """Take note of the active outputs' scores; return weights at the rates to go on with."""
        model, active = self.model, self.active
        rose = score >= self.best[active] + model.tol
        self.n_without[active] = np.where(rose, 0, self.n_without[active] + 1)
        self.best[active] = np.maximum(self.best[active], score)
        out = active & (self.n_without >= model.n_iter_no_change)
        if model.learning_rate == "adaptive":
            slower = out & (model.eta0 * weights.rate > LEAST_RATE)
            weights = weights._replace(rate=np.where(slower, weights.rate / 5, weights.rate))
            self.n_without[slower] = 0
            out &= ~slower
        self.active = active & ~out
        return weights


def _taken_out(weights: Weights, active: np.ndarray) -> Weights:
    """Return the weights of active outputs, with nothing added up."""
    arrays = {name: getattr(weights, name) for name in OF_OUTPUTS}
    part = {name: v[active] for name, v in arrays.items() if v is not None}
    return weights._replace(**part, value=0.0, penalty=0.0, n_rows=0, weight=0.0)


def _put_back(weights: Weights, part: Weights, active: np.ndarray) -> Weights:
    """Return weights with those of active outputs replaced."""
    new = {}
    for name in OF_OUTPUTS:
        if getattr(weights, name) is not None:
            new[name] = getattr(weights, name).copy()
            new[name][active] = getattr(part, name)
    return weights._replace(**new, t=part.t)


def _score(
    engine: Engine, rows: RowBlocks, weights: Weights, outputs: Outputs, active: np.ndarray
) -> np.ndarray:
    """Score the active outputs on the validation rows: accuracy of each, or R²."""
    found = map_reduce(engine, Reduction(validate, merge_scored), rows, weights, outputs, active)
    if not found.y.n_rows:
        raise ValueError(
            "sample_weight must leave validation rows a weight above 0. Got zero for all of them "
            "instead. Use another random_state or validation_fraction."
        )
    if outputs.classes is not None:
        return found.sums / found.y.n_rows
    return 1 - found.sums / np.maximum(found.y.squares, np.finfo(float).tiny)


def _print_epoch(epochs: list[dict[str, Any]], part: Weights, score: np.ndarray) -> None:
    """Print how the last epoch went, as scikit-learn does, and rows a second of all of them."""
    n_rows, epoch = part.n_rows, epochs[-1]
    seconds = epoch["seconds"]
    print(
        f"-- Epoch {epoch['epoch']}\nNorm: {np.linalg.norm(part.coef):.2f}, "
        f"NNZs: {np.count_nonzero(part.coef)}, Bias: {np.mean(part.intercept):.6f}, "
        f"T: {n_rows}, Avg. loss: {epoch['loss']:f}, "
        f"Objective: {np.mean(part.value + part.penalty) / n_rows:f}, "
        f"Score: {np.mean(score):f}\nTotal training time: {seconds:.2f} seconds, "
        f"{epoch['n_samples_seen'] / max(seconds, 1e-9):,.0f} rows/s."
    )
