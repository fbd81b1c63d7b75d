"""Matrices of dicts: a column for each name, or for each hash of names."""

from __future__ import annotations

from typing import Any

from sklearn import feature_extraction
from sklearn.base import clone

from skfleet.blocks import Block
from skfleet.estimators._blockwise import blockwise
from skfleet.estimators.feature_extraction._items import ItemTransformer
from skfleet.estimators.feature_extraction._terms import Terms, TermTable, combine_terms


@blockwise
class DictVectorizer(ItemTransformer, feature_extraction.DictVectorizer):
    """On a Dask bag, Series or array of dicts ``fit`` is one pass.

    The names of the features come to the driver, and go to each worker once for ``transform``,
    whose lazy array has the sparse or dense chunks that scikit-learn returns.
    ``inverse_transform`` returns a lazy array of dicts.
    """

    def _reduce_block(self, block: Block) -> Terms:
        part = clone(self).set_params(sort=False).fit(block.X)
        return Terms(block.n_rows, (TermTable.of_block(block.number, part.feature_names_),))

    def _combine(self, a: Terms, b: Terms) -> Terms:
        return combine_terms(a, b)

    def _set_statistics(self, statistics: Terms) -> None:
        row = dict.fromkeys(statistics.in_one_table().terms, 0)
        fitted = feature_extraction.DictVectorizer(**self.get_params()).fit([row])
        self.feature_names_, self.vocabulary_ = fitted.feature_names_, fitted.vocabulary_

    def _example_item(self) -> Any:
        return {}

    def _inverse_transform_on_blocks(self, X: Any, dict_type: type = dict) -> Any:
        return self._map(X, "inverse_transform", dict_type=dict_type)


@blockwise
class FeatureHasher(ItemTransformer, feature_extraction.FeatureHasher):
    """On a Dask bag, Series or array ``fit`` takes no pass; ``transform`` is lazy."""

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        super()._check_meta(meta, reset=reset)
        if not reset and str(meta.dtype) != "object" and len(meta.shape) == 1:
            # no item of a text or a number has names of features: scikit-learn's error
            item = "text" if meta.dtype.kind in "OUST" else 1
            feature_extraction.FeatureHasher(**self.get_params()).transform([item])

    def _example_item(self) -> Any:
        return {} if self.input_type == "dict" else ()
