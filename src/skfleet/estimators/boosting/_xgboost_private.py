"""Names of XGBoost that are not public: users' objectives, settings of a fit, and its matrix.

Without the settings there is no fit, without the first objectives have names only, without the last
each fit of a search makes a matrix of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from skfleet._private_names import PrivateNames

private_names = PrivateNames("xgboost")
wrap_objective: Any = private_names.optional(
    "xgboost.sklearn", "_objective_decorator", "objectives that are functions"
)

__all__ = ["fit_settings", "replace_matrix", "wrap_objective"]


def fit_settings(
    model: Any, earlier: Any, params: dict[str, Any], feature_weights: Any
) -> tuple[Any, Any, dict[str, Any], Any]:
    """Return the model to go on with, the metric, parameters and weights of columns of a fit."""
    settings: tuple[Any, Any, dict[str, Any], Any] = model._configure_fit(
        earlier, params, feature_weights
    )
    return settings


@contextmanager
def replace_matrix(model: Any, replacement: Callable[..., Any]) -> Iterator[None]:
    """Let an estimator get its matrices of a function inside a ``with``.

    The function gets that of the estimator before its arguments. Subclasses may override it, as
    XGBoost's own for Dask do.
    """
    create = getattr(model, "_create_dmatrix", None)
    if create is None:
        yield
        return
    model._create_dmatrix = lambda *args, **rows: replacement(create, *args, **rows)
    try:
        yield
    finally:
        del model._create_dmatrix


private_names.decorate_functions(globals())
