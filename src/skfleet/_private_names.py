"""Versions of other libraries whose private names are known, and what happens where one is gone."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable
from contextlib import ContextDecorator
from types import FunctionType
from typing import Any

logger = logging.getLogger("skfleet")

# The oldest and the newest version that `make test-versions` passed with, by module. Of the newest
# the first two numbers count: the next releases of the same series change no private names.
TESTED = {
    "dask": ("2026.7.1", "2026.8.0"),
    "distributed": ("2026.7.1", "2026.8.0"),
    "joblib": ("1.5.0", "1.6.0"),
    "lightgbm": ("4.7.0", "4.7.0"),
    "sklearn": ("1.9.0", "1.9.1"),
    "xgboost": ("3.2.0", "3.4.1"),
}


class PrivateNames(ContextDecorator):
    """The private names of one library, whose version is looked at once.

    A ``with``, or a function that it decorates, raises an ImportError with the versions that have
    the names where one is gone. Those that nothing depends on are looked up by `optional`.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._oldest, self._newest = TESTED[library]
        self._optional_names: dict[tuple[str, str], Any] = {}
        self._version = str(importlib.import_module(library).__version__)
        if not is_tested(self._version, self._oldest, self._newest):
            logger.warning(
                "%s %s is not among the versions that scikit-fleet is tested with, %s to %s. If "
                "anything fails or looks wrong, install one of these, or a newer scikit-fleet.",
                *(library, self._version, self._oldest, self._newest),
            )

    def __enter__(self) -> None:
        """Enter the ``with``."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._is_missing_name(error):
            raise self._error(str(error)) from error

    def decorate_functions(self, module: dict[str, Any]) -> None:
        """Make the functions of a module raise the ImportError for names that are gone."""
        for name, value in module.items():
            if isinstance(value, FunctionType) and value.__module__ == module["__name__"]:
                module[name] = self(value)

    def optional(self, module: str, name: str, loss: str) -> Any:
        """Return a name of a module; where it is gone a class without objects, in its place.

        No expression is an instance of that class, and to call it raises the ImportError. `loss`
        says what is lost, for the log.
        """
        if (module, name) not in self._optional_names:
            self._optional_names[module, name] = self._look_up(module, name, loss)
        return self._optional_names[module, name]

    def _look_up(self, module: str, name: str, loss: str) -> Any:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            if isinstance(error, ImportError) and not self._is_missing_name(error):
                raise
            logger.info(
                "%s %s has no %s.%s, without which the following is lost: %s",
                *(self._library, self._version, module, name, loss),
            )
            message = f"module {module!r} has no attribute {name!r}"
            return type(name, (MissingName,), {"error": staticmethod(lambda: self._error(message))})

    def _error(self, message: str) -> ImportError:
        return ImportError(
            f"{self._library} must be a version whose private names scikit-fleet knows, "
            f"{self._oldest} to {self._newest}. Got {self._version} instead: {message}. Install "
            "one of these, or a newer scikit-fleet."
        )

    def _is_missing_name(self, error: BaseException | None) -> bool:
        """Return whether an error says that the library lacks a module, or a private name."""
        if isinstance(error, ImportError):  # not of the library itself: that is not installed
            return str(error.name).startswith(f"{self._library}.")
        if not (isinstance(error, AttributeError) and str(error.name).startswith("_")):
            return False
        bases = getattr(error.obj, "__mro__", type(error.obj).__mro__)
        owners = [getattr(error.obj, "__name__", ""), *(base.__module__ for base in bases)]
        return any(owner.partition(".")[0] == self._library for owner in owners)


class OptionalModule:
    """The names of a module of a library, each of which is optional."""

    def __init__(self, private_names: PrivateNames, module: str, loss: str) -> None:
        self._private_names, self._module, self._loss = private_names, module, loss

    def __getattr__(self, name: str) -> Any:
        """Return the name as `PrivateNames.optional` does."""
        return self._private_names.optional(self._module, name, self._loss)


class MissingName:
    """Base of the classes that stand in the place of names that are gone."""

    error: Callable[[], ImportError]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise the ImportError that says which versions have the name."""
        raise cls.error()


def is_missing(*names: Any) -> bool:
    """Return whether any of the names that `PrivateNames.optional` returned is gone."""
    return any(isinstance(name, type) and issubclass(name, MissingName) for name in names)


def is_tested(version: str, oldest: str, newest: str) -> bool:
    """Return whether a version is not before the oldest, nor after the series of the newest."""
    return _numbers(oldest) <= _numbers(version) and _numbers(version)[:2] <= _numbers(newest)[:2]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: those of ``1.10.0rc1`` are 1, 10 and 0."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
