"""Metrics from exact quantiles of errors or targets, in several passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn import metrics

from skfleet.blocks import Block
from skfleet.engine import Passes, join_reductions
from skfleet.metrics._reductions import MetricReduction
from skfleet.metrics._weighted_means import (
    Mean,
    check_same_width,
    explained_fraction,
    mean_reduction,
    over_outputs,
    part_of_mean,
)
from skfleet.quantiles import column_quantiles, quantiles_after, summary_reduction


@dataclass(frozen=True)
class MedianError:
    """The median of absolute errors, of weighted rows as scikit-learn defines it."""

    weighted: bool
    multioutput: Any
    is_one_pass: ClassVar[bool] = False

    def passes(self) -> Passes:
        """Return the passes of the metric."""
        method = "averaged_inverted_cdf" if self.weighted else "median"
        _, medians = yield from column_quantiles("measure", absolute_errors, [50], method)
        return over_outputs(self.multioutput, medians[0])


@dataclass(frozen=True)
class ExplainedPinballLoss:
    """Fraction of the pinball loss of the best constant that predictions explain."""

    alpha: float
    multioutput: Any
    is_one_pass: ClassVar[bool] = False

    def passes(self) -> Passes:
        """Return the passes of the metric."""
        name, options = "measure", {"alpha": self.alpha, "multioutput": "raw_values"}
        loss = mean_reduction(metrics.mean_pinball_loss, options, np.atleast_1d)
        summary, residual = yield join_reductions(
            [summary_reduction(name, weighted_targets), loss.on_blocks()], name
        )
        if summary.n_rows < 2:
            # scikit-learn itself warns and returns NaN
            return metrics.d2_pinball_score([0.0], [0.0])
        quantile = yield from quantiles_after(
            name, weighted_targets, summary, [100 * self.alpha], "averaged_inverted_cdf"
        )
        of_constant = MetricReduction(
            partial(_loss_of_constant, quantile, options), finalize=loss.finalize
        )
        total = yield of_constant.on_blocks()
        return over_outputs(self.multioutput, explained_fraction(residual, total))


def absolute_errors(block: Block) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the errors of all outputs of a block, and the weights of its rows."""
    check_same_width(block.X, block.y)
    true, predicted, weight = _as_floats(block)
    return np.abs(predicted - true), weight


def weighted_targets(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of a block, and the weights of its rows: ones without any."""
    check_same_width(block.X, block.y)
    true, _, weight = _as_floats(block)
    return true, np.ones(len(true), dtype=true.dtype) if weight is None else weight


def _as_floats(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return targets and predictions as matrices, and weights, in the precision they share."""
    true, predicted, weight = block.X, block.y, block.sample_weight
    parts = [part for part in (true, predicted, weight) if part is not None]
    dtypes = [part.dtype for part in parts if part.dtype.kind == "f"]
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    true, predicted = (
        part.reshape(len(part), -1).astype(dtype, copy=False) for part in (true, predicted)
    )
    return true, predicted, None if weight is None else weight.astype(dtype, copy=False)


def _loss_of_constant(
    constant: np.ndarray,
    options: dict[str, Any],
    true: np.ndarray,
    predicted: np.ndarray,
    weight: np.ndarray | None,
) -> Mean:
    """Return the pinball loss of a block for the same prediction in all rows."""
    true = true.reshape(len(true), -1)
    return part_of_mean(
        metrics.mean_pinball_loss, options, true, np.broadcast_to(constant, true.shape), weight
    )
