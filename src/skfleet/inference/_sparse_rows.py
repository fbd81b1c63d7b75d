"""Lazy sparse rows, which tell an estimator of scikit-learn that it cannot read them."""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
from sklearn.base import BaseEstimator

from skfleet.inference._frame_rows import frame_rows, set_frame_rows


class SparseRows(da.Array):
    """Dask array with sparse chunks, of which NumPy would make one object.

    scikit-learn would show that object, with all its coordinates, and refuse it.
    """

    @classmethod
    def of(cls, X: Any) -> SparseRows:
        """Return a Dask array with sparse chunks as one that refuses to become a NumPy array."""
        rows = cls(X.dask, X.name, X.chunks, dtype=X.dtype, meta=X._meta)
        if (source := frame_rows(X)) is not None:
            set_frame_rows(rows, source)
        return rows

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        caller = _calling_estimator()
        name = "NumPy" if caller is None else f"scikit-learn's {caller}"
        ours = hasattr(sys.modules.get("skfleet.estimators"), caller or "")
        advice = f"Import {caller} from skfleet.estimators" if ours else "Compute them"
        raise TypeError(
            f"X must be dense, or in this process, for {name}. Got sparse rows on Dask instead. "
            f"{advice}, make them dense with sparse_output=False or sparse_threshold=0 of the step "
            "before, or search with skfleet.model_selection, which brings prepared rows here."
        )


def _calling_estimator() -> str | None:
    """Return the name of the class of scikit-learn whose method reads the rows."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        module = type(owner).__module__
        if isinstance(owner, BaseEstimator) and module.startswith("sklearn."):
            return type(owner).__name__
        frame = frame.f_back
    return None
