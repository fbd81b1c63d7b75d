"""The names of scikit-learn's scorers, known by their content."""

from __future__ import annotations

from functools import cache
from typing import Any

from sklearn import get_config
from sklearn.metrics import get_scorer

from skfleet._sklearn_private import score_function


def scorer_name(scorer: Any, supported: frozenset[str]) -> str | None:
    """Return the name of a scorer if it is one of these of scikit-learn."""
    if isinstance(scorer, str):
        return scorer if scorer in supported else None
    is_routed = get_config()["enable_metadata_routing"]
    return _names_by_digest(supported, is_routed).get(_digest(scorer))


def takes_rows(scorer: Any) -> bool:
    """Return whether a scorer is a function of the user's that is given the rows themselves."""
    return not isinstance(scorer, str) and type(scorer).__module__ != "sklearn.metrics._scorer"


def may_write(scorer: Any) -> bool:
    """Return whether a scorer calls a function of the user's, which may write into its rows."""
    module = getattr(score_function(scorer), "__module__", None) or "sklearn."
    return takes_rows(scorer) or not module.startswith(("sklearn.", "skfleet."))


@cache
def _names_by_digest(supported: frozenset[str], is_routed: bool) -> dict[bytes, str]:
    names = {}
    for name in supported - {"score"}:
        names[_digest(get_scorer(name))] = name
        if is_routed:  # scorers must say that they need no weights
            names[_digest(get_scorer(name).set_score_request(sample_weight=False))] = name
    return names


def _digest(scorer: Any) -> bytes:
    from skfleet.engine import Pickled  # which imports distributed

    return Pickled.dumps(scorer).digest()
