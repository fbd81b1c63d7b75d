"""First steps of pipelines that are of this library, and so are fitted on Dask rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from sklearn import get_config
from sklearn.pipeline import Pipeline

from skfleet._doc_link import is_own
from skfleet._sklearn_private import has_callbacks
from skfleet.blocks import compute_together
from skfleet.engine import check_fits_in_memory, gather_rows, joined_blocks

if TYPE_CHECKING:
    from skfleet.model_selection._shared_fits._refit import RefitFirstSteps

# Parameters of a pipeline itself that change what its first steps are, or what they get.
_OF_PIPELINE = {"steps", "memory", "transform_input"}


def is_blockwise(step: Any) -> bool:
    """Return whether a step of a pipeline is of this library, and so is fitted on Dask rows."""
    if step is None or step == "passthrough":
        return True
    # a wrapper of another library's estimator may fit it in one process
    is_local = getattr(step, "_fits_on_local_rows", False)
    return is_own(step) and not is_local


def n_blockwise_steps(estimator: Any) -> int:
    """Return how many first steps of a pipeline are blockwise; another estimator is one step."""
    steps = [step for _, step in estimator.steps] if type(estimator) is Pipeline else [estimator]
    blockwise = list(takewhile(is_blockwise, steps))
    return len(blockwise) if any(hasattr(step, "fit") for step in blockwise) else 0


def n_steps_of(estimator: Any) -> int:
    """Return the number of steps of a pipeline; another estimator is one step."""
    return len(estimator.steps) if type(estimator) is Pipeline else 1


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
    blocks, name = joined_blocks(X), name_of_last_step(last)
    check_fits_in_memory(blocks, name)
    last = fit(last, gather_rows(blocks, name)[:], *compute_together(y), **params)
    if not n_first:
        return last
    estimator.steps = first.steps + last.steps
    return estimator


def name_of_last_step(estimator: Any) -> str:
    """Return the name of the class of the last step of a pipeline, or of another estimator."""
    return type(estimator.steps[-1][1] if type(estimator) is Pipeline else estimator).__name__
