"""PolynomialFeatures as algebra: polynomials of columns are linear in products of base columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import PolynomialFeatures

from skfleet.model_selection._closed_form._base_columns import MAX_COLUMNS, Label
from skfleet.model_selection._closed_form._column_algebra import LinearColumns, check_spread

# Positions of the columns that are multiplied, in order.
Factors = tuple[int, ...]


def products_of_path(
    kinds: Sequence[type], steps: Sequence[Any], positions: Sequence[int]
) -> list[Factors]:
    """Return the products of columns that the steps of a path need, of two columns or more.

    `kinds` are scikit-learn's classes of the steps.
    """
    degree, is_square_free, has_combined = 1, True, False
    for kind, step in zip(kinds, steps, strict=True):
        has_combined |= kind is PCA
        if kind is PolynomialFeatures:
            # products of a column with itself arise in combinations of columns
            is_square_free &= step.interaction_only and degree == 1 and not has_combined
            degree *= int(np.max(step.degree))
    choose = combinations if is_square_free else combinations_with_replacement
    n = len(positions)
    n_products = math.comb(n, degree) if is_square_free else math.comb(n + degree, degree)
    if degree > 1 and n_products > MAX_COLUMNS:
        raise NotImplementedError(f"columns and their products must be at most {MAX_COLUMNS}")
    sizes = range(2, degree + 1)
    return [factors for size in sizes for factors in choose(sorted(positions), size)]


def expand(step: PolynomialFeatures, columns: LinearColumns) -> LinearColumns:
    """Apply PolynomialFeatures."""
    columns.check_complete()
    if columns.is_sparse:
        raise NotImplementedError("rows must be dense to be multiplied")
    n = len(columns.offset)
    options = {name: getattr(step, name) for name in ("degree", "interaction_only", "include_bias")}
    powers = PolynomialFeatures(**options).fit(np.zeros((1, n))).powers_
    factors = np.column_stack([columns.offset, columns.dense_matrix])
    used = np.flatnonzero((factors != 0).any(axis=0) | (np.arange(factors.shape[1]) == 0))
    table = _table(columns.sums.labels, used.tolist())
    one = np.zeros(factors.shape[1])
    one[0] = 1.0
    known: dict[Factors, np.ndarray] = {(): one}
    for size in range(1, int(powers.sum(axis=1).max(initial=0)) + 1):
        for row in powers[powers.sum(axis=1) == size]:
            names = tuple(np.repeat(np.arange(n), row).tolist())
            # its factors are not in the result where this has only those of larger degrees
            for end in range(1, size + 1):
                if names[:end] not in known:
                    left, right = known[names[: end - 1]], factors[names[end - 1], used]
                    known[names[:end]] = _product(left, right, table)
    rows = [known[tuple(np.repeat(np.arange(n), row).tolist())] for row in powers]
    expanded = np.stack(rows)
    unknown = np.full(len(expanded), np.nan)
    result = replace(
        columns,
        matrix=expanded[:, 1:],
        offset=expanded[:, 0],
        low=unknown,
        high=unknown,
        missing=np.full(len(expanded), -1),
    )
    check_spread(abs(result.mean), np.sqrt(np.maximum(result.variance, 0.0)))
    return result


def _table(labels: Sequence[Label], used: Sequence[int]) -> np.ndarray:
    """Return the places of products of base columns and those in use; 0 is that of a constant.

    It is -1 for products that are no base columns.
    """
    incomplete = {j for kind, j, _ in labels if kind == "gap"}
    members: list[Any] = [()]
    for kind, j, value in labels:
        member = (j,) if kind == "number" and j not in incomplete else None
        members.append(value if kind == "product" else member)
    if any(members[i] is None for i in used):
        raise NotImplementedError("columns to be multiplied must be numbers without gaps")
    places = {member: i for i, member in enumerate(members) if member is not None}
    table = np.full((len(members), len(used)), -1)
    for i, member in enumerate(members):
        if member is not None:
            products = [tuple(sorted(member + members[j])) for j in used]
            table[i] = [places.get(product, -1) for product in products]
    return table


def _product(left: np.ndarray, right: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the product of two polynomials, the second of the base columns in use."""
    terms = np.flatnonzero(left)
    factors = np.flatnonzero(right)
    places = table[np.ix_(terms, factors)].ravel()
    values = np.outer(left[terms], right[factors]).ravel()
    return np.bincount(places, values, minlength=len(left))
