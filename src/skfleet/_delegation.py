"""Methods and fitted attributes that a meta-estimator has if its inner estimator has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

__all__ = ["LearnedAttributes", "available_where", "require_method"]


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
