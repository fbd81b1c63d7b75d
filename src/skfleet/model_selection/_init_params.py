"""The parameters of an ``__init__`` that a search hands on to its base class."""

from __future__ import annotations

from typing import Any


def init_params(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an ``__init__``, which passes its ``locals()``.

    scikit-learn reads the parameters of a class from the signature of its own ``__init__``, so
    each search spells them all out there, and only there.
    """
    # ``super()`` adds ``__class__`` to the variables of a method
    return {name: v for name, v in variables.items() if name not in ("self", "__class__")}
