"""What ``set_output`` means for answers that are lazy: frames that are lazy too."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from skfleet._sklearn_private import output_container
from skfleet._typing import Class
from skfleet.blocks import is_lazy
from skfleet.inference import name_columns

__all__ = ["lazy_output"]


def lazy_output(cls: Class) -> Class:
    """Keep scikit-learn from computing what a transformer answers for Dask rows.

    Its wrapper around ``transform`` and ``fit_transform`` makes a pandas frame of any answer.
    """
    for name in ("transform", "fit_transform"):
        setattr(cls, name, _lazily(getattr(cls, name)))
    return cls


def _lazily(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that hands rows in this process alone to scikit-learn's wrapper."""

    @wraps(method)
    def answer(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_lazy(X):
            return method(self, X, *args, **kwargs)
        container = output_container(self)
        if container not in ("default", "pandas"):
            raise ValueError(
                f"set_output must be 'default' or 'pandas' for Dask rows. Got {container!r} "
                "instead. Choose 'pandas' for a Dask DataFrame, or compute X."
            )
        found = method.__wrapped__(self, X, *args, **kwargs)  # type: ignore[attr-defined]
        if container == "default" or hasattr(found, "columns"):
            return found
        return name_columns(found, self.get_feature_names_out())

    return answer
