"""Pickles of exceptions and warnings, whatever their constructors need and their attributes are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle


def text_of(error: BaseException) -> str:
    """Return the text of an exception, also of one that has none."""
    try:
        return str(error)
    except Exception as problem:
        return f"(its text raises {type(problem).__name__})"


class PicklableException:
    """An exception in a value that is pickled, which another process loads as the exception.

    Python rebuilds an exception by a call of its class with its ``args``. Where that fails, or an
    attribute cannot be pickled, it is rebuilt without its constructor, from what can be pickled. An
    exception that cannot be had in this way becomes one of its nearest base class with its text.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce(self.error)


def as_picklable(error: BaseException) -> BaseException:
    """Return an exception that Dask can pickle, with those that it was raised from, or was after.

    It is the same one where that can be pickled.
    """
    is_picklable = _dumps(error, text_of(error)) is not None
    picklable = error if is_picklable else pickle.loads(pickle.dumps(PicklableException(error)))
    is_suppressed, cause, context = error.__suppress_context__, error.__cause__, error.__context__
    picklable.__cause__ = None if cause is None else as_picklable(cause)
    picklable.__context__ = None if context is None or is_suppressed else as_picklable(context)
    picklable.__suppress_context__ = is_suppressed
    return picklable.with_traceback(error.__traceback__)  # type: ignore[no-any-return]


def _reduce(error: BaseException) -> tuple[Any, ...]:
    """Return the call that loads an exception in another process."""
    text = text_of(error)
    pickled = _dumps(error, text) or _dumps(_Parts(error), text)
    kind = next(base for base in type(error).__mro__[1:] if _has_text(base, text))
    name = "" if isinstance(error, Warning) else f"{type(error).__name__}: "
    return _load, (pickled, kind, f"{name}{text}")


def _load(pickled: bytes | None, kind: type[BaseException], text: str) -> BaseException:
    """Return the exception, or one of a base class with its text."""
    if pickled is not None:
        try:
            return pickle.loads(pickled)  # type: ignore[no-any-return]
        except Exception:
            pass  # its module may be another here
    return _of_text(kind, text)


def _dumps(value: Any, text: str) -> bytes | None:
    """Return the pickle of an exception, or of its parts; None where it loads as another one."""
    try:
        pickled: bytes = cloudpickle.dumps(value)
        return pickled if text_of(pickle.loads(pickled)) == text else None
    except Exception:
        return None


class _Parts:
    """The class of an exception, and those of its arguments and attributes that can be pickled."""

    def __init__(self, error: BaseException) -> None:
        self._class = type(error)
        self._args = [arg if _is_picklable(arg) else repr(arg) for arg in error.args]
        self._values = {k: v for k, v in vars(error).items() if _is_picklable(v)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._class, self._args, self._values)


def _rebuild(cls: type[BaseException], args: list[Any], values: dict[str, Any]) -> BaseException:
    """Return an exception without a call of its constructor."""
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    vars(error).update(values)
    return error


def _is_picklable(value: Any) -> bool:
    try:
        pickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


def _has_text(kind: Any, text: str) -> bool:
    """Return whether a class of Python's own gives an exception of this text."""
    try:
        return kind.__module__ == "builtins" and str(_of_text(kind, text)) == text
    except Exception:
        return False


def _of_text(kind: type[BaseException], text: str) -> BaseException:
    """Return an exception of a text. A KeyError shows the `repr` of what it is made of."""
    return kind(_Verbatim(text) if issubclass(kind, KeyError) else text)


class _Verbatim(str):
    """A text that is its own `repr`."""

    __slots__ = ()
    __repr__ = str.__str__


def with_text(message: Warning, text: str) -> Warning:
    """Return a warning of the same class with another text; itself where there is none.

    A warning that is made of more than a text is returned too: its arguments are for its readers.
    """
    if len(message.args) > 1:
        return message
    makers: tuple[Callable[[], Any], ...] = (
        lambda: type(message)(text),
        lambda: _rebuild(type(message), [text], vars(message)),
    )
    for make in makers:
        try:
            changed: Warning = make()
            if str(changed) == text:
                return changed
        except Exception:
            continue  # its class has a constructor of its own
    return message
