"""Transformers of chosen columns, side by side, fitted in shared passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

import numpy as np
from sklearn import compose, config_context
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer as make_in_scikit_learn
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_array, get_tags

from skfleet._linalg import HStackedParts, hstack, is_sparse
from skfleet._warnings import without_warnings
from skfleet.engine import Passes, identity
from skfleet.estimators._blockwise import blockwise
from skfleet.estimators._fleet_estimator import check_columns
from skfleet.estimators._passes import head_of_rows
from skfleet.estimators.compose._composition import Composition, Part, finish_fit, fit_parts
from skfleet.estimators.pipeline._fit import copy_configuration
from skfleet.estimators.pipeline._task_models import is_estimator


class ColumnRecorder(TransformerMixin, BaseEstimator):
    """Stand-in for a transformer that records the columns chosen for it; its output has none."""

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> ColumnRecorder:
        """Record the columns."""
        self.columns_ = X
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return no columns."""
        return np.empty((X.shape[0], 0))

    def __sklearn_tags__(self) -> Any:
        is_part = is_estimator(self.transformer)
        return get_tags(self.transformer) if is_part else super().__sklearn_tags__()


@blockwise
class ColumnTransformer(Composition, compose.ColumnTransformer):
    """On Dask rows all transformers are fitted in the same passes: one, two if any of them needs
    quantiles, and for a Pipeline one per step. They are of :mod:`skfleet.estimators`, or of
    scikit-learn's of the same name, which these replace in `transformers_`; Pipelines of them;
    ones that learn nothing; or fitted ones in a :class:`sklearn.frozen.FrozenEstimator`. The
    density of the first rows decides whether the output of all blocks is sparse.
    """

    _routed_only = True
    # True in tasks whose results are only multiplied.
    _leaves_parts = False

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        if reset:  # of rows to transform, only the columns in use count
            check_columns(self, meta, reset=True)

    def _replace_parts(self, replace: Callable[[Any], Any]) -> Any:
        model = copy.copy(self)
        model.transformers_ = [
            (name, replace(part) if is_estimator(part) else part, columns)
            for name, part, columns in self.transformers_
        ]
        return model

    def _fit_passes(
        self, meta: Any, weighted: Collection[str] = (), cross_fit: bool = False
    ) -> Passes:
        with config_context(transform_output="default"):
            recorded = self._with_transformers(lambda name, part: ColumnRecorder(part)).fit(meta)
        used = {
            name: (stand_in, columns)
            for name, stand_in, columns in recorded.transformers_
            if hasattr(stand_in, "columns_")
        }
        parts = {
            name: Part(stand_in.transformer, stand_in.columns_, columns, name in weighted)
            for name, (stand_in, columns) in used.items()
            if is_estimator(stand_in.transformer)
        }
        fitted, head = yield from fit_parts(self, parts, [*used], cross_fit)
        if head is None and is_sparse(meta):  # of which artificial rows have another density
            head = yield head_of_rows()
        return (yield from finish_fit(self, fitted, head, meta))

    def _hstack(self, Xs: Any, *, n_samples: int) -> Any:
        """Return the outputs side by side; sparse ones without the coordinates of all values."""
        if not self.sparse_output_:
            return super()._hstack(Xs, n_samples=n_samples)
        join = HStackedParts if self._leaves_parts and len(Xs) > 1 else hstack
        return join([_as_numbers(X) for X in Xs])

    def _set_parts(
        self, fitted: dict[str, Any], rows: Any, replace: Callable[[Any], Any] = identity
    ) -> Any:
        """Set the attributes of scikit-learn's fit, by one on a few rows that fits no part anew.

        Return these rows transformed, by replacements of the fitted parts.
        """
        own = self._with_transformers(
            lambda name, part: (
                FrozenEstimator(replace(fitted[name]) if name in fitted else part)
                if is_estimator(part)
                else part
            )
        )
        copy_configuration(self, own)
        with without_warnings():  # of the rows, which tasks transform again
            output = own.fit_transform(rows)
        own.transformers_ = [
            (
                name,
                fitted.get(name, part.estimator) if isinstance(part, FrozenEstimator) else part,
                columns,
            )
            for name, part, columns in own.transformers_
        ]
        own._remainder = ("remainder", self.remainder, own._remainder[2])
        vars(self).update(vars(own) | self.get_params(deep=False))
        return output

    def _with_transformers(self, replace: Callable[[str, Any], Any]) -> compose.ColumnTransformer:
        """Return scikit-learn's own ColumnTransformer with a replacement for each transformer."""
        params = self.get_params(deep=False) | {"verbose": False, "n_jobs": 1}
        params["transformers"] = [
            (name, part if _is_dropped(part) else replace(name, part), columns)
            for name, part, columns in self.transformers
        ]
        if not _is_dropped(self.remainder):
            params["remainder"] = replace("remainder", self.remainder)
        return compose.ColumnTransformer(**params)


def _as_numbers(X: Any) -> Any:
    """Return the output of a transformer as numbers for a sparse matrix, or raise."""
    try:
        return check_array(X, accept_sparse=True, ensure_all_finite=False)
    except ValueError as error:
        raise ValueError(
            "For a sparse output, all columns should be a numeric or convertible to a numeric."
        ) from error


def _is_dropped(part: Any) -> bool:
    return isinstance(part, str) and part == "drop"


@wraps(make_in_scikit_learn)
def make_column_transformer(*transformers: Any, **params: Any) -> ColumnTransformer:
    transformer = make_in_scikit_learn(*transformers, **params)
    return ColumnTransformer(**transformer.get_params(deep=False))
