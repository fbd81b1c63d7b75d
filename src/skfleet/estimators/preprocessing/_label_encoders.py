"""Encoders of labels, which are values per row, or sets of them."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from sklearn import preprocessing
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import type_of_target

from skfleet._linalg import is_sparse
from skfleet._validation import unique_values
from skfleet.blocks import Block, is_frame
from skfleet.engine import Passes
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators.preprocessing._categories import (
    Parts,
    SortedValues,
    add_counts,
    add_parts,
    join_parts,
)
from skfleet.estimators.preprocessing._category_index import (
    CategoryIndex,
    sorted_text,
    text_codes,
)

# Types of targets that are labels, by scikit-learn's names.
LABEL_TYPES = ("binary", "multiclass", "multilabel-indicator")


class LabelTransformer(BlockwiseTransformer):
    """Base of transformers of labels."""

    _takes_matrix = _takes_numbers = False
    classes_: Any

    def _fit_transform_on_blocks(self, y: Any) -> Any:
        return self.fit(y).transform(y)


@blockwise
class LabelEncoder(LabelTransformer, preprocessing.LabelEncoder):
    """On Dask labels ``fit`` is one pass, of which the classes come; results are Dask arrays."""

    def _fit_passes(self, meta: Any) -> Passes:
        column_or_1d(meta, warn=True)
        self._set_statistics((yield self._reduction()))

    def _reduce_block(self, block: Block) -> Parts:
        text = text_codes(block.X) if is_frame(block.X) else None
        if text is not None:
            return [sorted_text(*text, with_counts=False)]
        labels = np.asarray(block.X).reshape(block.n_rows)
        return [SortedValues(preprocessing.LabelEncoder().fit(labels).classes_)]

    def _combine(self, a: Parts, b: Parts) -> Parts:
        return add_parts(a, b, add_counts)

    def _set_statistics(self, statistics: Parts) -> None:
        self.classes_ = join_parts(statistics, add_counts).values

    def _transform_on_blocks(self, X: Any) -> Any:
        return self._map(X, "_encode")

    def _task_model(self) -> Any:
        model = copy.copy(self)
        model.index = CategoryIndex.for_tasks([self.classes_])
        return model

    def _encode(self, y: Any) -> np.ndarray:
        """Return the codes of a block of labels by the index of a model for tasks."""
        text = text_codes(y) if is_frame(y) else None
        if text is not None:
            labels, rows = text
        else:
            labels = column_or_1d(y, dtype=self.classes_.dtype, warn=True)
            rows = np.arange(len(labels))
        codes = self.index.codes(0, labels)
        is_known = codes >= 0
        if not is_known[rows].all():  # scikit-learn's error
            encoder = preprocessing.LabelEncoder().fit(self.classes_[:1])
            encoder.transform(labels[~is_known])
        return codes[rows]

    def _example_result(self, method: str, rows: Any) -> Any:
        if method == "_encode":
            return self.transform(self.classes_[:1])
        return self.inverse_transform(np.zeros(1, dtype=np.intp))


class LabelValues(NamedTuple):
    """Values of labels: sorted ones of a column, or those in a matrix of indicators."""

    parts: Parts
    is_matrix: bool


@blockwise
class LabelBinarizer(LabelTransformer, preprocessing.LabelBinarizer):
    """On Dask labels ``fit`` is one pass, of which the classes come; results are Dask arrays.

    A transform to a single column raises for a block of three labels or more, for which
    scikit-learn would make two columns of all rows.
    """

    def _fit_passes(self, meta: Any) -> Passes:
        preprocessing.LabelBinarizer(**self.get_params()).fit([0, 1])
        parts, is_matrix = yield self._reduction()
        values = join_parts(parts, add_counts).values
        if not is_matrix:
            rows = values
        else:  # as many indicators as have these values
            n_rows = max(2, -(-len(values) // meta.shape[1]))
            rows = np.resize(values, (n_rows, meta.shape[1]))
            rows = type(meta)(rows) if is_sparse(meta) else rows
        preprocessing.LabelBinarizer.fit(self, rows if is_matrix else np.concatenate([rows, rows]))

    def _check_takes_sparse(self, meta: Any) -> None:
        pass

    def _reduce_block(self, block: Block) -> LabelValues:
        y = block.X
        if is_sparse(y):
            preprocessing.LabelBinarizer().fit(y)
            data = np.unique(y.data)
            return LabelValues([SortedValues(data if len(data) else np.zeros(1, y.dtype))], True)
        y = np.asarray(y)
        if y.size == len(y):
            y = unique_values(y.ravel()).reshape(-1, *y.shape[1:])  # of which it is all the same
        # twice, so that there are not too few rows for the labels
        twice = np.concatenate([y, y])
        is_valid = type_of_target(twice, input_name="y") in LABEL_TYPES
        classes = preprocessing.LabelBinarizer().fit(twice if is_valid else y).classes_
        if y.ndim == 2 and y.shape[1] > 1:
            return LabelValues([SortedValues(np.unique(y))], True)
        return LabelValues([SortedValues(classes)], False)

    def _combine(self, a: LabelValues, b: LabelValues) -> LabelValues:
        return LabelValues(add_parts(a.parts, b.parts, add_counts), a.is_matrix)

    def _transform_on_blocks(self, X: Any) -> Any:
        return self._map(X, "_binarize")

    def _inverse_transform_on_blocks(self, X: Any, threshold: Any = None) -> Any:
        return self._map(X, "_labels_of", threshold=threshold)

    def _binarize(self, y: Any) -> Any:
        """Return the indicators of a block of labels."""
        result = preprocessing.LabelBinarizer.transform(self, y)
        if len(self.classes_) == 2 and result.shape[1] == 2 and len(np.shape(y)) == 1:
            raise ValueError(
                f"y must have labels of {self.classes_} and at most two in a block. Got a block "
                "with more instead. Drop the rows of other labels first."
            )
        return result

    def _labels_of(self, Y: Any, threshold: Any) -> Any:
        """Return the labels of a block of indicators, which scikit-learn may overwrite."""
        Y = Y.copy() if is_sparse(Y) else Y
        return preprocessing.LabelBinarizer.inverse_transform(self, Y, threshold)

    def _example_result(self, method: str, rows: Any) -> Any:
        if method == "_labels_of":
            return self._labels_of(rows, None)
        if len(rows.shape) == 2 and rows.shape[1] > 1:
            return self._binarize(rows)
        labels = np.full(len(rows), self.classes_[0], dtype=self.classes_.dtype)
        if not is_frame(rows) and rows.dtype.kind in "iu":
            labels = labels.astype(rows.dtype)
        return self._binarize(labels)


@blockwise
class MultiLabelBinarizer(LabelTransformer, preprocessing.MultiLabelBinarizer):
    """On a Dask Series, array or bag of label sets ``fit`` is one pass, none for given classes.

    The classes come to the driver; results are Dask arrays, in ``inverse_transform`` of tuples.
    """

    classes: Any

    def _fit_passes(self, meta: Any) -> Passes:
        sets = [] if self.classes is not None else [(yield self._reduction())]
        preprocessing.MultiLabelBinarizer.fit(self, sets)

    def _reduce_block(self, block: Block) -> set[Any]:
        return set(chain.from_iterable(block.X))

    def _combine(self, a: set[Any], b: set[Any]) -> set[Any]:
        return a | b

    def _inverse_transform_on_blocks(self, X: Any) -> Any:
        return self._map(X, "_label_sets")

    def _label_sets(self, yt: Any) -> np.ndarray:
        """Return the tuples of labels of a block of indicators."""
        sets = preprocessing.MultiLabelBinarizer.inverse_transform(self, yt)
        values = np.empty(len(sets), dtype=object)
        values[:] = sets
        return values

    def _example_result(self, method: str, rows: Any) -> Any:
        if method == "transform":
            return self.transform([(), ()])
        return self._label_sets(rows)
