"""Fits of pipelines of transformers on the training rows of splits, in shared passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn import preprocessing
from sklearn.pipeline import Pipeline

from skfleet.blocks import (
    Block,
    RowSet,
    is_lazy,
    meta_of,
    partition_lengths,
    take_block_rows,
    take_row_set,
    take_rows,
    with_pandas_text,
)
from skfleet.engine import engine_for, run_passes, share_passes
from skfleet.estimators._blockwise import BlockwiseTransformer, blocks_as_they_are
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._passes import EstimatorFit, on_prepared_rows
from skfleet.estimators.pipeline._fit import FittedSteps, begin_fit
from skfleet.estimators.pipeline._task_models import is_estimator


class TrainingRows(NamedTuple):
    """Preparation of rows by the choice of the training rows of a split."""

    rows: RowSet

    def __call__(self, block: Block) -> Block | None:
        """Return the training rows of a block; None where it has none."""
        start = block.row_offset or 0
        cut = self.rows.cut(start, start + block.n_rows)
        if not cut.n_taken:
            return None
        chosen = block if cut.is_whole else take_block_rows(block, cut.numbers())
        return chosen._replace(row_offset=self.rows.count_before(start))

    def prepare_all(self, X: Any) -> Any:
        """Return the training rows of a Dask collection, or of values per row in this process."""
        if X is None or not is_lazy(X):
            return X if X is None else take_rows(X, np.asarray(self.rows))
        lengths = partition_lengths(X)
        assert lengths is not None
        return take_row_set(X, self.rows, lengths, "training-rows")


def shares_passes(steps: Pipeline) -> bool:
    """Return whether the fits of transformers on several splits can share their passes."""
    parts = [step for _, step in steps.steps if is_estimator(step)]
    if not all(isinstance(part, BlockwiseTransformer | FleetEstimator) for part in parts):
        return False
    nested = steps.get_params().values()  # an encoder's folds are those of its own rows
    return not any(isinstance(part, preprocessing.TargetEncoder) for part in nested)


def fit_on_splits(fits: Sequence[tuple[Pipeline, RowSet]], X: Any, y: Any) -> list[FittedSteps]:
    """Fit clones of pipelines of transformers, each on a set of rows of Dask collections.

    They take as many passes as one of them. Partition lengths must be known.
    """
    meta = with_pandas_text(meta_of(X))
    computations = [
        on_prepared_rows(begin_fit(steps, meta, cross_fit=False), TrainingRows(rows))
        for steps, rows in fits
    ]
    rows = blocks_as_they_are(X, y)

    def answer(request: EstimatorFit) -> Any:
        training_rows, *preparations = request.preparations
        chosen = training_rows.prepare_all(X), training_rows.prepare_all(y)
        return request._replace(preparations=tuple(preparations)).run(*chosen)

    passes = share_passes(computations, "fit-first-steps")
    results, _ = run_passes(passes, engine_for(rows), rows, answer=answer)
    return [FittedSteps(part.model) for part in results]
