"""OneHotEncoder as algebra: its columns are sums of columns of categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from skfleet._sklearn_private import fit_on_categories
from skfleet.model_selection._closed_form._column_algebra import (
    BaseSums,
    LinearColumns,
    check_imputer,
    selection,
)


def encode(
    step: OneHotEncoder,
    sums: BaseSums,
    positions: Sequence[int],
    imputer: SimpleImputer | None = None,
) -> LinearColumns:
    """Return the columns of a OneHotEncoder, after an imputer, fitted on the training set."""
    if imputer is not None:
        check_imputer(imputer, "most_frequent", "constant")
    parts = [_encode_column(step, i, sums, j, imputer) for i, j in enumerate(positions)]
    matrix = sparse.vstack(parts, format="csr")
    weight = sums.products.weight
    n_ones = np.rint(matrix @ sums.products.x_mean * weight)
    return LinearColumns(
        sums,
        matrix,
        np.zeros(len(n_ones)),
        (n_ones == weight).astype(float),
        (n_ones > 0).astype(float),
        np.full(len(n_ones), -1),
        is_sparse=step.sparse_output,
    )


def _encode_column(
    step: OneHotEncoder, number: int, sums: BaseSums, position: int, imputer: SimpleImputer | None
) -> Any:
    """Return the sparse matrix of the columns that encode a column, in columns of categories."""
    places: dict[Any, int] = {}
    mean = sums.products.x_mean
    for i, (kind, j, value) in enumerate(sums.labels):
        if (kind, j) == ("category", position):
            places[value] = i
    weight = sums.products.weight
    counts = {value: round(mean[i] * weight) for value, i in places.items() if mean[i] > 0}
    n_missing, fill = counts.pop(None, 0), None
    if None in places:
        if imputer is None:
            raise NotImplementedError("categories must not be missing")
        fill = _fill_value(imputer, counts)
        if n_missing:
            counts[fill] = counts.get(fill, 0) + n_missing
    encoder = _fitted(step, number, sorted(counts), counts)
    columns = set(encoder.categories_[0].tolist())
    is_joined = step.min_frequency is not None or step.max_categories is not None
    infrequent = encoder.infrequent_categories_[0] if is_joined else None
    rows, codes = [], []
    for label, i in places.items():
        value = fill if label is None else label
        if value not in columns:
            is_in_use = mean[i] > 0 or sums.test.products.x_mean[i] > 0
            if is_in_use and step.handle_unknown not in ("ignore", "infrequent_if_exist"):
                raise NotImplementedError("categories to test on must be in the training set")
            if step.handle_unknown == "ignore" or infrequent is None:
                continue
            value = infrequent[0]
        rows.append(value)
        codes.append(i)
    if not rows:
        raise NotImplementedError("a category must be known")
    # a row for each category that is encoded
    encoded = encoder.transform(_column_of(rows))
    return sparse.csr_matrix(encoded.T) @ selection(codes, len(mean))


def _fill_value(imputer: SimpleImputer, counts: dict[Any, int]) -> Any:
    """Return what an imputer puts in place of missing categories."""
    if not counts:
        raise NotImplementedError("columns must have a value in every training set")
    if imputer.strategy == "most_frequent":
        return min(value for value, count in counts.items() if count == max(counts.values()))
    if imputer.fill_value is not None:
        return imputer.fill_value
    return "missing_value" if isinstance(next(iter(counts)), str) else 0


def _fitted(
    step: OneHotEncoder, number: int, known: Sequence[Any], counts: dict[Any, int]
) -> OneHotEncoder:
    """Return the encoder of one of the columns, fitted on a training set."""
    is_automatic = isinstance(step.categories, str)
    drop = step.drop if step.drop is None or isinstance(step.drop, str) else [step.drop[number]]
    options = {"sparse_output": False, "handle_unknown": step.handle_unknown}
    options["categories"] = "auto" if is_automatic else [step.categories[number]]
    encoder = OneHotEncoder(**options, drop=drop).fit(_column_of(known))
    if step.min_frequency is None and step.max_categories is None:
        return encoder
    joined = {"min_frequency": step.min_frequency, "max_categories": step.max_categories}
    encoder.set_params(**joined)
    categories = encoder.categories_
    sizes = np.array([counts.get(value, 0) for value in categories[0].tolist()])
    fit_on_categories(encoder, OneHotEncoder, categories, [sizes], sum(counts.values()))
    return encoder


def _column_of(values: Sequence[Any]) -> np.ndarray:
    """Return values as a column, text as objects."""
    column = np.array(values)
    if column.dtype.kind == "U":
        column = column.astype(object)
    return column[:, None]
