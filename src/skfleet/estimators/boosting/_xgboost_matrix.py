"""The binned rows of a split, which the fits of a search share (`shared_matrix`)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from skfleet.engine import Pickled, current_fit_scope
from skfleet.estimators.boosting._xgboost_private import replace_matrix

# Parameters on which the binned rows depend, beside the rows.
_PARAMETERS = ("booster", "device", "feature_types", "max_bin", "n_jobs", "tree_method")


@contextmanager
def shared_matrix(plain: Any) -> Iterator[None]:
    """Let an estimator of XGBoost use the matrix of an earlier fit of a search on equal rows."""
    scope = current_fit_scope()
    if scope is None:
        yield
        return
    used: list[tuple[Any, Any]] = []

    def create_or_share(create: Any, ref: Any, **rows: Any) -> Any:
        if ref is not None:
            return create(ref=ref, **rows)
        parameters = [getattr(plain, name) for name in _PARAMETERS]
        key = tuple(map(_digest, (parameters, *rows.items())))
        matrix = scope.take(key)
        matrix = create(ref=None, **rows) if matrix is None else matrix
        used.append((key, matrix))
        return matrix

    try:
        with replace_matrix(plain, create_or_share):
            yield
    finally:
        for key, matrix in used:
            scope.put(key, matrix)


def _digest(value: Any) -> Hashable:
    """Return what tells a value from others: of arrays their content, whoever owns the memory."""
    if isinstance(value, tuple):
        return tuple(map(_digest, value))
    if type(value) is np.ndarray and value.dtype != object:
        content = hashlib.blake2b(np.ascontiguousarray(value).view(np.uint8).data, digest_size=16)
        return value.dtype.str, value.shape, content.digest()
    return Pickled.dumps(value).digest()
