"""Answers of fitted estimators of other libraries for Dask rows: lazy, with the columns' names."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial, wraps
from inspect import cleandoc, getattr_static
from typing import Any

from sklearn import model_selection
from sklearn.base import ClassifierMixin, RegressorMixin

from skfleet._delegation import available_where
from skfleet._method_override import override_method
from skfleet._pipeline_steps import last_step, takes_dask_rows
from skfleet.blocks import compute_together, is_lazy, row_blocks, with_pandas_text
from skfleet.engine import check_fits_in_memory
from skfleet.inference import call_method
from skfleet.metrics import check_scoring, get_scorer_names

# Methods with an answer for each row.
ROW_METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples",
    "transform", "inverse_transform",
)  # fmt: skip

# What the docstrings of these methods, which are scikit-learn's, say of Dask rows.
_ON_DASK_ROWS = "For Dask rows the answer is a lazy Dask collection."
_PROBABILITY_COLUMNS = """
The columns for a Dask DataFrame are named by the classes as text, and can be selected by position
too, as in ``[:, 1]``."""


class LazyBestEstimator:
    """Mixin of searches that were fitted on Dask rows, which their best estimators answer then."""

    best_estimator_: Any
    _answers_lazily = False

    def _answer_as(self, X: Any) -> None:
        """Let the best estimator answer rows like those of the fit."""
        self._answers_lazily = is_lazy(X)
        if self._answers_lazily and hasattr(self, "best_estimator_"):
            answer_lazily(self.best_estimator_)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if self._answers_lazily and hasattr(self, "best_estimator_"):
            answer_lazily(self.best_estimator_)


class LazyRowMethods(LazyBestEstimator):
    """Mixin with the methods of a search by the name of a row's answer, lazy for Dask rows."""


def _row_method(name: str) -> Any:
    """Return a method of a search that exists where scikit-learn's does."""

    def check(search: Any) -> None:
        getattr(super(LazyRowMethods, search), name)

    @wraps(getattr(model_selection.GridSearchCV, name))
    def method(self: Any, X: Any) -> Any:
        own = getattr(super(LazyRowMethods, self), name)
        if not is_lazy(X) or not hasattr(self, "best_estimator_"):
            return own(with_pandas_text(X))
        if takes_dask_rows(self.best_estimator_):
            return own(X)
        return call_method(self, self.best_estimator_, name, X)

    method.__doc__ = _with_dask_rows(name, method.__doc__)
    return available_where(check)(method)


def _with_dask_rows(name: str, text: str | None) -> str | None:
    """Return scikit-learn's docstring of a method, with what it returns for Dask rows."""
    if text is None:  # under ``python -OO``
        return None
    added = _ON_DASK_ROWS + (_PROBABILITY_COLUMNS if name.endswith("_proba") else "")
    return cleandoc(text).replace("\n\nParameters\n", f"\n\n{added}\n\nParameters\n", 1)


for _name in ROW_METHODS:
    setattr(LazyRowMethods, _name, _row_method(_name))


def score_lazily(
    owner: Any, estimator: Any, scoring: Any, X: Any, y: Any, params: Mapping[str, Any]
) -> float | None:
    """Return the score on Dask rows by the lazy answers of the owner; None where it takes them all.

    That is so for scorers without a name here, and for an estimator's own ``score``.
    """
    own = getattr(type(last_step(estimator)), "score", None)
    is_known = own in (ClassifierMixin.score, RegressorMixin.score)
    is_known = is_known if scoring is None else scoring in get_scorer_names()
    if not is_known or params or y is None or len(y.shape) > 1:
        return None
    score: float = check_scoring(estimator, scoring)(owner, X, y)
    return score


def gathered(estimator: Any, *values: Any) -> list[Any]:
    """Return Dask rows, the first of the values, and what belongs to them in this process."""
    check_fits_in_memory(row_blocks(values[0], dtype=None), type(estimator).__name__)
    return compute_together(*values)


class _RowMethod:
    """A method of one fitted estimator, which answers Dask rows lazily."""

    def __init__(self, estimator: Any, name: str) -> None:
        self._estimator = weakref.ref(estimator)  # in a cycle it would wait for the collector
        self.__name__, self.__doc__ = name, getattr(estimator, name).__doc__

    def __call__(self, X: Any, *args: Any, **params: Any) -> Any:
        estimator = self._estimator()
        assert estimator is not None
        own = getattr_static(type(estimator), self.__name__).__get__(estimator, type(estimator))
        if not is_lazy(X):
            return own(X, *args, **params)
        if self.__name__ != "score":
            return call_method(estimator, estimator, self.__name__, X, *args, **params)
        y = args[0] if args else params.pop("y", None)
        score = score_lazily(estimator, estimator, None, X, y, params)
        if score is not None:
            return score
        X, y, *values = gathered(estimator, X, y, *params.values())
        return own(X, y, **dict(zip(params, values, strict=True)))


def answer_lazily(estimator: Any) -> None:
    """Let a fitted estimator of another library answer Dask rows as this library's do.

    Its pickles and copies have the methods of its class alone.
    """
    state = getattr(estimator, "__getstate__", dict)  # of which there is one from Python 3.11 on
    if takes_dask_rows(estimator) or not isinstance(state(), dict):
        return
    has = [name for name in (*ROW_METHODS, "score") if hasattr(type(estimator), name)]
    names = [name for name in has if hasattr(estimator, name)]
    for name in names:
        override_method(estimator, name, _RowMethod(estimator, name))
    override_method(estimator, "__getstate__", partial(_state, weakref.ref(estimator), names))


def _state(reference: weakref.ref, names: Sequence[str]) -> dict[str, Any]:
    """Return the state of an estimator to pickle or to copy, without methods of its own."""
    estimator = reference()
    own = getattr_static(type(estimator), "__getstate__")
    state: dict[str, Any] = own.__get__(estimator, type(estimator))()
    return {name: v for name, v in state.items() if name not in names and name != "__getstate__"}
