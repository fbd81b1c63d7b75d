"""Replacement of a method of one object, under code of scikit-learn that calls it.

scikit-learn fits, transforms and scores inside functions of its own, with no hook between the
steps. To serve a call from elsewhere (a fit that was made for several candidates, a transform in
a cache, a GPU worker) without a copy of such a function, an instance attribute shadows the method
of the class for this one object:

- Undo: `restore_method` removes the attribute, and the method of the class is back. A replacement
  that serves one call does so itself, before it goes on to the original.
- ``sklearn.base.clone`` makes a new object of the parameters, and so drops the attribute.
- Pickling and ``copy.copy`` take the attribute along. A replacement that must not be copied says in
  its ``__reduce__`` what a copy gets instead: the original method, or an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def override_method(obj: Any, name: str, func: Callable[..., Any]) -> None:
    """Replace a method of this object alone; ``func`` does not get the object as an argument."""
    vars(obj)[name] = func  # not by setattr, which some estimators check


def restore_method(obj: Any, name: str) -> None:
    """Make the method of the class the object's again; nothing where it was not replaced."""
    vars(obj).pop(name, None)
