"""Methods and fitted attributes that a meta-estimator has if its inner estimator has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

# `requires_fit` and `array_api_support` are the meta-estimator's own.
_INNER_TAGS = (
    "estimator_type", "target_tags", "transformer_tags", "classifier_tags", "regressor_tags",
    "input_tags", "non_deterministic", "no_validation",
)  # fmt: skip


class AvailableMethod:
    """A method that an object has if a check does not raise an AttributeError.

    Unlike scikit-learn's ``available_if`` it shows the error of the check.
    """

    def __init__(self, method: Callable[..., Any], check: Callable[[Any], None]) -> None:
        self.method, self.check = method, check
        update_wrapper(self, method)

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is None:
            return self.method
        self.check(obj)
        return MethodType(self.method, obj)


def available_where(check: Callable[[Any], None]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for methods that exist only if `check(self)` does not raise."""
    return lambda method: AvailableMethod(method, check)


def require_method(estimator: Any, name: str) -> None:
    """Raise an AttributeError with the estimator that lacks a method, and its own error."""
    try:
        getattr(estimator, name)
    except AttributeError as error:
        raise AttributeError(
            f"estimator must have {name}. Got {type(estimator).__name__} instead: {error}"
        ) from error


def available_if_inner_has(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for methods that exist where the inner estimator has them."""
    return available_where(lambda self: require_method(self._inner, name))


class DelegatesToInner(BaseEstimator):
    """Mixin with the tags of an inner estimator; ``_fitted_name`` is where the fitted one is."""

    estimator: Any
    _fitted_name = "estimator_"

    @property
    def _inner(self) -> Any:
        """The fitted inner estimator, or the given one before ``fit``."""
        return getattr(self, self._fitted_name, self.estimator)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not hasattr(self.estimator, "__sklearn_tags__"):
            return tags
        inner = get_tags(self.estimator)
        for name in _INNER_TAGS:
            setattr(tags, name, getattr(inner, name))
        return tags


class LearnedAttributes:
    """Mixin that reads fitted attributes from an inner estimator."""

    def _fitted_estimator(self) -> Any:
        """Return the fitted inner estimator, or raise an AttributeError."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        member = next((vars(cls)[name] for cls in type(self).__mro__ if name in vars(cls)), None)
        if hasattr(member, "__get__"):
            member.__get__(self, type(self))  # raises again the error that led to this call
        if name.endswith("_") and not name.startswith("_") and name != "estimator_":
            return getattr(self._fitted_estimator(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
