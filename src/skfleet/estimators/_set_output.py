"""``set_output`` for lazy data: Dask DataFrames instead of computed pandas DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from skfleet._sklearn_private import output_container
from skfleet._typing import Class
from skfleet.blocks import is_lazy
from skfleet.inference import name_columns


def lazy_output(cls: Class) -> Class:
    """Decorate a transformer so that scikit-learn does not compute its output for Dask rows.

    scikit-learn wraps ``transform`` and ``fit_transform`` to return a pandas DataFrame.
    """
    for name in ("transform", "fit_transform"):
        setattr(cls, name, _without_wrapper(getattr(cls, name)))
    return cls


def _without_wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls scikit-learn's wrapper for rows in this process only."""

    @wraps(method)
    def lazy_method(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_lazy(X):
            return method(self, X, *args, **kwargs)
        container = output_container(self)
        if container not in ("default", "pandas"):
            raise ValueError(
                f"set_output must be 'default' or 'pandas' for Dask rows. Got {container!r} "
                "instead. Choose 'pandas' for a Dask DataFrame, or compute X."
            )
        output = method.__wrapped__(self, X, *args, **kwargs)  # type: ignore[attr-defined]
        if container == "default" or hasattr(output, "columns"):
            return output
        return name_columns(output, self.get_feature_names_out())

    return lazy_method
