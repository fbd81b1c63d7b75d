"""Fits of transformers of other libraries, which must come to the same on all rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import cloudpickle
import joblib
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from skfleet._fall_back import fall_back
from skfleet._warnings import without_warnings
from skfleet.blocks import Block, artificial_rows, slice_rows
from skfleet.engine import NamedCall, Passes, Reduction
from skfleet.estimators._fleet_estimator import check_columns
from skfleet.estimators._passes import HEAD_ROWS


class FittedAlike(NamedTuple):
    """A transformer that was fitted on the block of a number, and a digest of its state."""

    number: int
    transformer: Any
    state: Any


def fit_alike(transformer: Any, meta: Any) -> Passes:
    """Fit a transformer on each block, and take over the state, which must be one for all.

    Such a transformer learns nothing of rows, though it may check them, and note their columns.
    Most that learn are refused before the pass.
    """
    if get_tags(transformer).target_tags.required or _learns(transformer, artificial_rows(meta)):
        raise _refusal(transformer)
    name = f"fit-{type(transformer).__name__}"
    fitted = yield Reduction(NamedCall(name, _fit_on_block, transformer), _check_alike)
    vars(transformer).update(vars(fitted.transformer))
    try:
        check_is_fitted(transformer)
    except NotFittedError:  # without attributes, which are what scikit-learn looks for
        transformer.n_features_in_ = 1
        if meta.ndim > 1:
            check_columns(transformer, meta, reset=True)


def _learns(transformer: Any, rows: Any) -> bool:
    """Return whether fits on two rows and on one differ; False where they fail."""
    consequence = "whether a transformer learns is known by a pass, not by artificial rows"
    with without_warnings(), fall_back(consequence):
        one, two = (_fit(transformer, Block(rows), n_rows) for n_rows in (1, 2))
        return one.state != two.state
    return False


def _refusal(transformer: Any) -> TypeError:
    return TypeError(
        "transformers must be of skfleet.estimators, or scikit-learn's of the same name, or learn "
        f"nothing of rows, for Dask rows. Got {type(transformer).__name__} instead. Fit it on rows "
        "of skfleet.datasets.sample_rows and put it in a sklearn.frozen.FrozenEstimator."
    )


def _fit_on_block(transformer: Any, block: Block) -> FittedAlike:
    """Fit a clone on a few rows, which is cheap, and on the block; raise if they differ.

    By the few rows, a number of rows is no constant where all blocks have as many.
    """
    few = max(min(block.n_rows, HEAD_ROWS) // 2, 1)
    fitted = _fit(transformer, block, few)
    if block.n_rows == few:
        return fitted
    return _check_alike(_fit(transformer, block, block.n_rows), fitted)


def _fit(transformer: Any, block: Block, n_rows: int) -> FittedAlike:
    fitted = clone(transformer)
    X, y, weight = (slice_rows(v, 0, n_rows) for v in (block.X, block.y, block.sample_weight))
    target = () if y is None else (y,)
    fitted.fit(X, *target, **({} if weight is None else {"sample_weight": weight}))
    return FittedAlike(block.number, fitted, _digest(fitted.__getstate__()))


def _check_alike(a: FittedAlike, b: FittedAlike) -> FittedAlike:
    """Return the fit on the first of two blocks, which must be alike."""
    if a.state != b.state:
        raise _refusal(a.transformer)
    return min(a, b, key=lambda fitted: fitted.number)


def _digest(state: Any) -> Any:
    """Return what is equal for equal states."""
    with fall_back("a state is compared by its pickle"):  # for functions of no module
        return joblib.hash(state)
    return cloudpickle.dumps(state)
