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
from skfleet.model_selection._adaptive._whole_rows import n_folds_of
from skfleet.model_selection._records._tokenize import content_key, unfitted
from skfleet.model_selection._samplers._choice import check_sampler, choose_sampler
from skfleet.model_selection._samplers._draws import DRAWS

_ALTERNATIVE = (
    'give candidates another resource: resource="n_samples", or a parameter such as '
    'resource="n_estimators"'
)
RESOURCES = ("calls", "n_samples", "folds")


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


def check_candidate(estimator: Any, params: Mapping[str, Any], resource: str) -> None:
    """Raise unless the estimator takes these parameters, and can be trained with the resource."""
    values = {name: clone(value, safe=False) for name, value in params.items()}
    candidate = clone(estimator).set_params(**values)
    _check_learner(f"the candidate {params!r}", candidate, resource)
    if resource not in RESOURCES and resource not in candidate.get_params():
        names = ", ".join(map(repr, RESOURCES))
        raise ValueError(
            f"resource must be one of {names}, or a parameter of every candidate. Got {resource!r} "
            f"for {candidate!r} instead. Look at get_params()."
        )


def _check_learner(subject: str, estimator: Any, resource: str) -> None:
    """Raise unless an estimator has the method that a search calls."""
    learner = last_step(estimator)
    if resource == "calls":
        check_has_partial_fit(subject, learner, _ALTERNATIVE)
    elif not hasattr(learner, "fit"):
        raise TypeError(
            f"{subject} must have fit with resource={resource!r}. Got {type(learner).__name__} "
            'instead. Take resource="calls".'
        )


def check_parameters(search: Any) -> None:
    """Raise for invalid parameters of a search, before any work."""
    _check_resource(search)
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


def _check_resource(search: Any) -> None:
    """Check `resource` and `cv`, and the parameters that have no effect with some of them."""
    resource = search.resource
    if not isinstance(resource, str):
        raise ValueError(
            f"resource must be a name. Got {resource!r} instead. Take one of {RESOURCES}, or the "
            "name of a parameter."
        )
    # a step that is searched over has other parameters than the estimator's
    if resource.partition("__")[0] in _searched_names(search):
        if resource in _searched_names(search):
            raise ValueError(
                f"parameters must not have the resource among them. Got {resource!r} instead. "
                "Leave it out: candidates get more of it from rung to rung."
            )
        _check_learner("estimator", search.estimator, "folds")
    else:
        _check_learner("estimator", search.estimator, resource)
        check_candidate(search.estimator, {}, resource)
    uses_splits = search.cv is not None or resource == "folds"
    idle: dict[str, Any] = {"batch_size": None} if resource != "calls" else {}
    idle |= {"test_size": None, "refit_on_test": False} if uses_splits else {}
    for name, default in idle.items():
        if (value := getattr(search, name)) is not default:
            raise ValueError(
                f"{name} must be {default} with resource={resource!r} and cv={search.cv!r}, where "
                f"it has no effect. Got {value!r} instead. Leave it out."
            )
    max_iter = search.max_iter if resource == "folds" else None
    if isinstance(max_iter, int) and max_iter == search._max_iter:
        n_folds = n_folds_of(search.cv)
        if max_iter > n_folds:
            raise ValueError(
                f'max_iter must be at most the number of folds with resource="folds". Got '
                f"{max_iter} for {n_folds} folds instead. Leave it out, or set cv."
            )


def _searched_names(search: Any) -> set[str]:
    """Return the names of the parameters that candidates differ in."""
    spaces = [search.parameters] if isinstance(search.parameters, Mapping) else search.parameters
    return {
        name for space in (*(spaces or ()), *(search.points_to_evaluate or ())) for name in space
    }


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
