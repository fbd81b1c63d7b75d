"""Transformers of the same columns, side by side, fitted in shared passes."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import wraps
from typing import Any

from sklearn import pipeline
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_union as make_in_scikit_learn

from skfleet._validation import without_name_warnings
from skfleet.blocks import artificial_rows
from skfleet.engine import Passes
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators._passes import head_of_rows
from skfleet.estimators.compose._shared_fit import (
    Part,
    copy_configuration,
    fit_parts,
    is_estimator,
    valid_rows,
    weighted_parts,
)


@blockwise
class FeatureUnion(BlockwiseTransformer, pipeline.FeatureUnion):
    """On Dask rows all transformers are fitted in the same passes: one, two if any of them needs
    quantiles, and for a Pipeline one per step. They are those that
    :class:`skfleet.estimators.compose.ColumnTransformer` takes.
    """

    _takes_matrix, _takes_numbers = False, False

    def _fit_on_blocks(self, X: Any, y: Any = None, **params: Any) -> Any:
        weighted = weighted_parts(self, params, routed_only=False)
        return super()._fit_on_blocks(X, y, params.get("sample_weight"), weighted=weighted)

    def _fit_passes(self, meta: Any, weighted: Collection[str] = ()) -> Passes:
        parts = {
            name: Part(part, meta, with_weight=name in weighted)
            for name, part in self.transformer_list
            if is_estimator(part)
        }
        fitted, head = yield from fit_parts(self, parts)
        if head is not None:
            self._set_parts(fitted, head)
            return
        try:
            self._set_parts(fitted, _valid_rows(fitted.values(), artificial_rows(meta)))
        except Exception:  # functions may refuse artificial values
            self._set_parts(fitted, (yield head_of_rows()))

    def _set_parts(self, fitted: dict[str, Any], rows: Any) -> None:
        """Set the attributes of scikit-learn's fit, by one on a few rows that fits no part anew."""
        params = self.get_params(deep=False) | {"verbose": False, "n_jobs": None}
        params["transformer_list"] = [
            (name, FrozenEstimator(fitted[name]) if name in fitted else part)
            for name, part in self.transformer_list
        ]
        own = pipeline.FeatureUnion(**params)
        copy_configuration(self, own)
        with warnings.catch_warnings(), without_name_warnings():
            warnings.simplefilter("ignore")  # of the rows, which tasks transform again
            own.fit_transform(rows)
        parts = [(name, fitted.get(name, part)) for name, part in own.transformer_list]
        vars(self).update(vars(own) | self.get_params(deep=False), transformer_list=parts)

    def _example_rows(self, rows: Any) -> Any:
        return _valid_rows([part for _, part in self.transformer_list], rows)


def _valid_rows(parts: Collection[Any], rows: Any) -> Any:
    """Return artificial rows that fitted parts take: those of the first that knows of any."""
    examples = (valid_rows(part, rows) for part in parts if is_estimator(part))
    return next((example for example in examples if example is not rows), rows)


@wraps(make_in_scikit_learn)
def make_union(*transformers: Any, **params: Any) -> FeatureUnion:
    return FeatureUnion(**make_in_scikit_learn(*transformers, **params).get_params(deep=False))
