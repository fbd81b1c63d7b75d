"""Parameter validation of adaptive searches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics import check_scoring
from sklearn.pipeline import Pipeline

from skfleet._pipeline_steps import last_step
from skfleet._validation import (
    check_bool,
    check_has_partial_fit,
    check_in_interval,
    check_positive_int,
    check_verbose,
)
from skfleet.metrics import check_scorer
from skfleet.model_selection._records._tokenize import content_key, unfitted
from skfleet.model_selection._samplers._choice import check_sampler, choose_sampler
from skfleet.model_selection._samplers._draws import DRAWS

_ALTERNATIVE = "search with HalvingRandomSearchCV"


def preprocessing_key(pipeline: Pipeline, params: Mapping[str, Any]) -> str:
    """Return a key that is equal for candidates whose steps before the last are the same."""
    last = pipeline.steps[-1][0]
    return content_key(unfitted({k: v for k, v in params.items() if k.partition("__")[0] != last}))


def metric_names(scoring: Any) -> list[str]:
    """Return the names of several metrics; an empty list for a single one."""
    return list(scoring) if isinstance(scoring, list | tuple | set | dict) else []


def scorer_for(estimator: Any, scoring: Any) -> Any:
    """Return the scorer of one metric, or of several."""
    check_scorer(scoring)
    if hasattr(estimator, "fit"):
        return check_scoring(estimator, scoring=scoring)
    # scikit-learn's check_scoring requires `fit`, which a search by partial_fit never calls
    if scoring is None:
        if not hasattr(estimator, "score"):
            raise TypeError(
                "scoring must be given for an estimator without score. Got "
                f"{type(estimator).__name__} and no scoring instead."
            )
        return _estimator_score
    return check_scoring(None, scoring=scoring)


def _estimator_score(estimator: Any, X: Any, y: Any = None, **params: Any) -> float:
    return estimator.score(X, y, **params)


def check_candidate(estimator: Any, params: Mapping[str, Any]) -> None:
    """Raise unless the estimator takes these parameters, and has ``partial_fit`` with them."""
    values = {name: clone(value, safe=False) for name, value in params.items()}
    learner = last_step(clone(estimator).set_params(**values))
    check_has_partial_fit(f"the candidate {params!r}", learner, _ALTERNATIVE)


def check_parameters(search: Any) -> None:
    """Raise for invalid parameters of a search, before any work."""
    learner = last_step(search.estimator)
    check_has_partial_fit("estimator", learner, _ALTERNATIVE)
    search._check_schedule()
    _check_refit(search)
    _check_rows(search)
    if search.n_jobs is not None and search.n_jobs != -1:
        check_positive_int("n_jobs", search.n_jobs)
    check_positive_int("retries", search.retries, 0)
    if search.time_budget is not None:
        check_in_interval("time_budget", search.time_budget, 0, open="l")
    check_verbose("verbose", search.verbose)
    if search.checkpoint is not None:
        check_seed(search.random_state)


def check_seed(random_state: Any) -> None:
    """Raise for a random_state that would draw something else when a search goes on."""
    if not _is_integer(random_state):
        raise ValueError(
            "random_state must be a number with a checkpoint, to draw the same candidates and "
            f"rows again. Got {random_state!r} instead."
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def invalid_refit(refit: Any, names: Iterable[str]) -> ValueError:
    """Return the error of a `refit` that is none of several metrics."""
    metrics = ", ".join(map(repr, names))
    return ValueError(
        f"refit must name the metric that decides, one of {metrics}. Got {refit!r} instead."
    )


def _check_refit(search: Any) -> None:
    """Check `refit` and `error_score`."""
    names = metric_names(search.scoring)
    if names and search.refit not in names:
        raise invalid_refit(search.refit, names)
    error_score = search.error_score
    is_number = isinstance(error_score, float | int | np.number)
    if error_score != "raise" and (not is_number or isinstance(error_score, bool)):
        raise ValueError(f"error_score must be 'raise' or a number. Got {error_score!r} instead.")


def _check_rows(search: Any) -> None:
    """Check the parameters of the rows and of the sampler."""
    if _is_integer(search.test_size):
        check_positive_int("test_size", search.test_size)
    elif search.test_size is not None:
        check_in_interval("test_size", search.test_size, 0, 1, open="lr")
    if search.batch_size is not None:
        check_positive_int("batch_size", search.batch_size)
    check_bool("refit_on_test", search.refit_on_test)
    check_sampler(search, search.parameters)
    draws = isinstance(search.sampler, str) and choose_sampler(search.sampler) in DRAWS
    if search._n_candidates() == "grid" and not draws:
        raise ValueError(
            f"n_initial_parameters must be a number with sampler={search.sampler!r}. Got 'grid' "
            "instead."
        )
