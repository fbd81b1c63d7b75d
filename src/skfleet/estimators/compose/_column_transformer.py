"""Transformers of chosen columns, side by side, fitted in shared passes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any

import numpy as np
from sklearn import compose, config_context
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer as make_in_scikit_learn
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags

from skfleet._linalg import is_sparse
from skfleet._sklearn_private import take_columns
from skfleet._validation import without_name_warnings
from skfleet.blocks import artificial_rows, is_frame
from skfleet.engine import Passes
from skfleet.estimators._base import check_columns
from skfleet.estimators._blockwise import blockwise
from skfleet.estimators._passes import head_of_rows
from skfleet.estimators.compose._cross_fit import Composition
from skfleet.estimators.compose._metadata import is_estimator
from skfleet.estimators.compose._shared_fit import (
    Part,
    copy_configuration,
    finish_fit,
    fit_parts,
    valid_rows,
)


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
        columns = {name: part.columns for name, part in parts.items()}

        def valid(models: dict[str, Any]) -> Any:
            chosen = [(model, columns[name]) for name, model in models.items()]
            return _valid_columns(chosen, artificial_rows(meta))

        return (yield from finish_fit(self, fitted, head, valid))

    def _set_parts(self, fitted: dict[str, Any], rows: Any) -> None:
        """Set the attributes of scikit-learn's fit, by one on a few rows that fits no part anew."""
        own = self._with_transformers(
            lambda name, part: (
                FrozenEstimator(fitted.get(name, part)) if is_estimator(part) else part
            )
        )
        copy_configuration(self, own)
        with warnings.catch_warnings(), without_name_warnings():
            warnings.simplefilter("ignore")  # of the rows, which tasks transform again
            own.fit(rows)
        own.transformers_ = [
            (name, part.estimator if isinstance(part, FrozenEstimator) else part, columns)
            for name, part, columns in own.transformers_
        ]
        own._remainder = ("remainder", self.remainder, own._remainder[2])
        vars(self).update(vars(own) | self.get_params(deep=False))

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

    def _example_rows(self, rows: Any) -> Any:
        parts = [(part, columns) for _, part, columns in self.transformers_ if is_estimator(part)]
        return _valid_columns(parts, rows)


def _is_dropped(part: Any) -> bool:
    return isinstance(part, str) and part == "drop"


def _valid_columns(parts: Iterable[tuple[Any, Any]], rows: Any) -> Any:
    """Return artificial rows whose columns have values that fitted parts take."""
    rows = rows.copy()
    for part, columns in parts:
        try:
            chosen = take_columns(rows, columns)
        except (
            IndexError,
            KeyError,
            ValueError,
        ):  # which scikit-learn reports
            continue
        valid = valid_rows(part, chosen)
        if valid is chosen:
            continue
        if is_frame(rows):
            for name, values in valid.items() if valid.ndim == 2 else [(valid.name, valid)]:
                rows[name] = values.array
        else:
            rows[:, columns] = valid
    return rows


@wraps(make_in_scikit_learn)
def make_column_transformer(*transformers: Any, **params: Any) -> ColumnTransformer:
    transformer = make_in_scikit_learn(*transformers, **params)
    return ColumnTransformer(**transformer.get_params(deep=False))
