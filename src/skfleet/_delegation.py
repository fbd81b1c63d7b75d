"""What an estimator around another one has of it: methods, learned attributes, and why not."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

__all__ = ["LearnedAttributes", "available_where", "require_method"]


class AvailableMethod:
    """A method that an object has where a check does not raise an AttributeError.

    scikit-learn's ``available_if`` hides the reason behind the name of the method.
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
    """Return a decorator of methods that are there only where `check(self)` does not raise."""
    return lambda method: AvailableMethod(method, check)


def require_method(estimator: Any, name: str) -> None:
    """Raise an AttributeError that says which estimator lacks a method, and why if it says so."""
    try:
        getattr(estimator, name)
    except AttributeError as error:
        raise AttributeError(
            f"estimator must have {name}. Got {type(estimator).__name__} instead: {error}"
        ) from error


class LearnedAttributes:
    """Learned attributes of an inner estimator, read as though they were this one's."""

    def _fitted_estimator(self) -> Any:
        """Return the fitted estimator inside; an AttributeError where there is none."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        known = next((vars(cls)[name] for cls in type(self).__mro__ if name in vars(cls)), None)
        if hasattr(known, "__get__"):
            known.__get__(self, type(self))  # what is not available says so once more
        if name.endswith("_") and not name.startswith("_") and name != "estimator_":
            return getattr(self._fitted_estimator(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
