"""Scorer of fits on a GPU: scores by scikit-learn's names, without copies of predictions."""

from __future__ import annotations

from functools import partial
from typing import Any

from skfleet._sklearn_private import replace_scorer, scorers_of
from skfleet.engine import device_responses
from skfleet.metrics import DEVICE_SCORES, device_scores
from skfleet.model_selection._dispatch._scorer_names import scorer_name

_SUPPORTED = frozenset(DEVICE_SCORES)


def device_scorer(scorer: Any) -> Any:
    """Return a scorer that computes on the device, or the same scorer if it is not known there."""
    if scorer is None:
        return None
    names = {key: scorer_name(one, _SUPPORTED) for key, one in scorers_of(scorer).items()}
    if None in names.values():
        return scorer
    return replace_scorer(scorer, partial(_score, scorer, names))


def _score(
    scorer: Any, names: dict[str | None, Any], estimator: Any, X: Any, y: Any = None, **params: Any
) -> Any:
    """Return the scores, computed on the device where they can be, else by the scorer."""
    try:
        if params or y is None:
            raise NotImplementedError("scores must be without weights")
        with device_responses(estimator):
            scores = device_scores(list(names.values()), estimator, X, y)
    except NotImplementedError:
        return scorer(estimator, X, y, **params)
    return scores[0] if None in names else dict(zip(names, scores, strict=True))
