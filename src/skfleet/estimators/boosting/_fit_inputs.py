"""The arguments of a ``fit``: rows, values per row and evaluation sets, here or on Dask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from skfleet.blocks import (
    Block,
    RowBlocks,
    compute_together,
    is_lazy,
    row_blocks,
)
from skfleet.inference import constant_per_row


class FitInputs:
    """The rows, values per row, evaluation sets and other arguments of a ``fit``.

    The evaluation sets are inputs themselves, None for the training rows. `query_weights` are those
    of XGBoost's ranker, which weights queries in the place of rows.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        per_sample: dict[str, Any] | None = None,
        eval_parts: list[FitInputs | None] | None = None,
        options: dict[str, Any] | None = None,
        query_weights: Any = None,
    ) -> None:
        self.X, self.y, self.sample_weight = X, y, sample_weight
        self.per_sample = {k: v for k, v in (per_sample or {}).items() if v is not None}
        self.eval_parts, self.options = eval_parts, options or {}
        self.query_weights = query_weights

    @property
    def sets(self) -> list[FitInputs]:
        """The inputs themselves, and those of the evaluation sets that are no training rows."""
        return [self, *(part for part in self.eval_parts or () if part is not None)]

    def with_rows(self, rows: Sequence[Block]) -> FitInputs:
        """Return the inputs with other rows in each of `sets`, and their values per row."""
        weights = compute_together(*(part.query_weights for part in self.sets))
        train, *evals = [
            FitInputs(b.X, b.y, b.sample_weight, b.per_sample, query_weights=w)
            for b, w in zip(rows, weights, strict=True)
        ]
        train.options = self.options
        if self.eval_parts is not None:
            remaining = iter(evals)
            train.eval_parts = [p if p is None else next(remaining) for p in self.eval_parts]
        return train

    def without_rows(self) -> FitInputs:
        """Return the inputs to be sent to a worker, which has the rows."""
        return self.with_rows([Block(None)] * len(self.sets))

    def computed(self) -> FitInputs:
        """Return the inputs with all values in this process, computed in one graph."""
        columns = [(r.X, r.y, r.sample_weight, *r.per_sample.values()) for r in self.sets]
        values = iter(compute_together(*(value for column in columns for value in column)))
        rows = []
        for inputs in self.sets:
            X, y, weight = (next(values) for _ in range(3))
            per_sample = {name: next(values) for name in inputs.per_sample}
            rows.append(Block(X, y, weight, per_sample=per_sample))
        return self.with_rows(rows)

    def row_blocks(self) -> RowBlocks:
        """Return blocks in the containers of the rows, whose values the library checks."""
        weight = self.sample_weight
        if isinstance(weight, Real) and is_lazy(self.X):
            weight = constant_per_row(float(weight), self.X)
        rows = row_blocks(self.X, self.y, weight, per_sample=self.per_sample, dtype=None)
        return replace(rows, checked=True)


def with_validation_set(eval_set: Any, X_val: Any, y_val: Any) -> Any:
    """Return the evaluation sets of either way to name them, or raise for both."""
    if X_val is None and y_val is None:
        return eval_set
    if eval_set is not None or X_val is None or y_val is None:
        raise ValueError(
            "X_val and y_val must come together, and without eval_set. Got "
            f"{'both ways' if eval_set is not None else 'one of them'} instead. Name the "
            "validation rows in one way."
        )
    return [(X_val, y_val)]


def check_eval_set(eval_set: Any, X: Any, per_set: dict[str, Any]) -> None:
    """Raise for evaluation sets that do not fit the rows, or values for another number of sets."""
    if eval_set is not None:
        if not isinstance(eval_set, list | tuple) or any(len(pair) != 2 for pair in eval_set):
            raise ValueError(
                "eval_set must be a list of pairs (X, y). Got "
                f"{type(eval_set).__name__} of other things instead."
            )
        n_features = _width_of(X)
        for i, (X_eval, _) in enumerate(eval_set):
            width = _width_of(X_eval)
            if None not in (width, n_features) and width != n_features:
                raise ValueError(
                    f"eval_set[{i}] must have the columns of X, {n_features}. Got {width} instead."
                )
    for name, values in per_set.items():
        if values is not None and len(values) != len(eval_set or ()):
            raise ValueError(
                f"{name} must have an entry for each evaluation set. Got {len(values)} of "
                f"{len(eval_set or ())} instead."
            )


def check_labels(labels: np.ndarray | None) -> None:
    """Raise for labels that are numbers with decimals, as scikit-learn's classifiers do."""
    if labels is not None and labels.dtype.kind == "f" and (labels % 1 != 0).any():
        raise ValueError(
            "y must have labels such as whole numbers or text. Got numbers with decimals instead: "
            "Unknown label type: continuous. Take a regressor, or round them."
        )


def _width_of(X: Any) -> int | None:
    return X.shape[1] if len(getattr(X, "shape", ())) == 2 else None
