"""Pipelines in two: first steps of this library, which are fitted on Dask rows, and the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.pipeline import Pipeline

from skfleet._fall_back import fall_back
from skfleet._pipeline_steps import last_step, n_blockwise_steps, n_steps_of
from skfleet._sklearn_private import has_callbacks
from skfleet.blocks import compute_together
from skfleet.engine import check_fits_in_memory, gather_rows, joined_blocks
from skfleet.estimators.pipeline._first_steps import RefitFirstSteps, digest_of

# Parameters of a pipeline itself that change what its first steps are, or what they get.
_OF_PIPELINE = {"steps", "memory", "transform_input"}


def can_divide(
    candidate: Pipeline, n_first: int, parameters: Mapping[str, Any], options: Mapping[str, Any]
) -> bool:
    """Return whether first steps give the same model when they are fitted by themselves."""
    if n_first < 1:
        return False
    first = dict(candidate.steps[:n_first])
    fit_params = options.get("fit_params") or {}
    is_routed = bool(fit_params) and get_config()["enable_metadata_routing"]
    changes_first = is_routed or any(name.partition("__")[0] in first for name in fit_params)
    listens = has_callbacks(options.get("callback_ctx"))
    own = candidate.memory is not None or candidate.transform_input
    return not (own or changes_first or listens or _OF_PIPELINE & parameters.keys())


def fit_last_step(
    estimator: Any, X: Any, y: Any, params: Mapping[str, Any], first_steps: RefitFirstSteps
) -> bool:
    """Fit a pipeline on Dask rows whose first steps the search has fitted on them; False if not."""
    n_first = n_steps_of(estimator) - 1
    if not can_divide(estimator, n_first, {}, {"fit_params": params}) or estimator.verbose:
        return False
    fitted = first_steps.finish(estimator[:n_first], X)
    if fitted is None:
        return False
    last = estimator[n_first:].fit(fitted.prepare_all(X), y, **params)
    estimator.steps = fitted.pipeline.steps + last.steps
    return True


def fit_on_gathered_rows(
    estimator: Any, X: Any, y: Any, params: Mapping[str, Any], fit: Callable[..., Any]
) -> Any:
    """Fit first steps on Dask rows, and the others by a function on the rows that they prepare.

    Return the fitted estimator, the same one but for what the function returns.
    """
    n_first = min(n_blockwise_steps(estimator), n_steps_of(estimator) - 1)
    if not can_divide(estimator, n_first, {}, {"fit_params": params}):
        n_first = 0
    first, last = estimator, estimator
    if n_first:
        first, last = Pipeline(estimator.steps[:n_first]), Pipeline(estimator.steps[n_first:])
        X = first.fit_transform(X, y)
    blocks, name = joined_blocks(X), type(last_step(last)).__name__
    check_fits_in_memory(blocks, name)
    last = fit(last, gather_rows(blocks, name)[:], *compute_together(y), **params)
    if not n_first:
        return last
    estimator.steps = first.steps + last.steps
    return estimator


class PreparedStep(TransformerMixin, BaseEstimator):
    """Stand-in for a step that has transformed the rows already; it has all parameters."""

    def set_params(self, **params: Any) -> Self:
        """Ignore the parameters, which the step itself has."""
        return self

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn nothing."""
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows."""
        return X

    def __sklearn_is_fitted__(self) -> bool:
        return True


@dataclass(frozen=True)
class DividedPipeline:
    """A candidate's pipeline in two: first steps that learn on Dask rows, and what follows them.

    `last` takes `parameters`. Where it `needs_rows`, these come to this process. Candidates with
    the same `digest` have equal first steps.
    """

    first: Pipeline | None
    digest: bytes
    last: Any
    parameters: dict[str, Any]
    needs_rows: bool

    @classmethod
    def of(cls, estimator: Any, options: Mapping[str, Any]) -> DividedPipeline | None:
        """Return the two parts; None for a candidate that is fitted as a whole on Dask rows.

        `options` are the keyword arguments of scikit-learn's function.
        """
        parameters = dict(options.get("parameters") or {})
        candidate = None
        with fall_back("a candidate with invalid parameters is not divided"):  # its fit raises it
            candidate = clone(estimator).set_params(**clone(parameters, safe=False))
        if candidate is None:
            return None
        n_first, n_steps = n_blockwise_steps(candidate), n_steps_of(candidate)
        needs_rows = n_first < n_steps
        n_first = min(n_first, n_steps - 1)
        if not can_divide(candidate, n_first, parameters, options):
            return cls.whole(estimator, options) if needs_rows else None
        first, names = candidate[:n_first], [name for name, _ in candidate.steps]
        steps = [(name, PreparedStep()) for name in names[:n_first]]
        if needs_rows and options.get("verbose", 0) < 2:
            steps = []  # stand-ins cost a copy of the rows, and only show what they stand for
        last = Pipeline(steps + clone(estimator).steps[n_first:], verbose=estimator.verbose)
        last_names = {name for name, _ in last.steps}
        own = {
            name: value
            for name, value in parameters.items()
            if name.partition("__")[0] in last_names and name not in names[:n_first]
        }
        digest = digest_of(first)
        return cls(first, digest, last, own, needs_rows)

    @classmethod
    def whole(cls, estimator: Any, options: Mapping[str, Any]) -> DividedPipeline:
        """Return a candidate that is fitted as a whole on rows that come to this process."""
        return cls(None, b"", clone(estimator), dict(options.get("parameters") or {}), True)


def joined_pipeline(first: Pipeline, last: Pipeline) -> Pipeline:
    """Return a pipeline whose first steps were fitted by themselves."""
    steps = [(name, step) for name, step in last.steps if not isinstance(step, PreparedStep)]
    return Pipeline([*first.steps, *steps], verbose=last.verbose)
