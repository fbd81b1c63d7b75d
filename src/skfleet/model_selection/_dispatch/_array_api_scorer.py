"""Scorer of fits on a GPU: scikit-learn's own on arrays there, without copies of predictions."""

from __future__ import annotations

from functools import partial
from typing import Any

import sklearn

from skfleet._array import to_host_if_array, tree_to_host
from skfleet._fall_back import fall_back
from skfleet._sklearn_private import replace_scorer, scorers_of
from skfleet.engine import arrays_to_host, device_responses
from skfleet.model_selection._scorer_names import scorer_name

# Scores that scikit-learn computes in the library of the predictions, and an estimator's own.
DEVICE_SCORES = frozenset(
    (
        "accuracy",
        "neg_log_loss",
        "neg_mean_absolute_error",
        "neg_mean_squared_error",
        "neg_root_mean_squared_error",
        "r2",
        "score",
    )
)


def device_scorer(scorer: Any) -> Any:
    """Return a scorer that computes on the device, or the same scorer if it is not known there."""
    if scorer is None:
        return None
    if not all(scorer_name(one, DEVICE_SCORES) for one in scorers_of(scorer).values()):
        return scorer
    return replace_scorer(scorer, partial(_score, scorer))


def _score(scorer: Any, estimator: Any, X: Any, y: Any = None, **params: Any) -> Any:
    """Return scikit-learn's scores where the predictions are: it takes targets and weights there.

    What does not work there (without ``SCIPY_ARRAY_API=1`` nothing does) is computed on the host,
    where scikit-learn raises what is wrong with the values.
    """
    with (
        fall_back("predictions are copied to the host to be scored"),
        sklearn.config_context(array_api_dispatch=True),
        device_responses(estimator),
    ):
        return tree_to_host(scorer(estimator, X, y, **params))
    return scorer(estimator, X, to_host_if_array(y), **arrays_to_host(params))
