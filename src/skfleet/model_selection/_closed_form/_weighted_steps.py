"""Steps of a pipeline that ``fit`` passes sample weights to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metadata_routing import get_routing_for_object

from skfleet.model_selection._closed_form._preparation import class_of


class WeightedSteps(NamedTuple):
    """The first steps of a pipeline that get weights, and whether the last one does."""

    first: tuple[Any, ...] = ()
    has_last: bool = False


NO_STEPS = WeightedSteps()


def weights_in(fit_params: Mapping[str, Any]) -> Any:
    """Return the sample weights among the parameters of ``fit``, None without any, or raise."""
    values = list({id(v): v for v in fit_params.values() if v is not None}.values())
    is_unknown = any(name.split("__")[-1] != "sample_weight" for name in fit_params)
    if len(values) > 1 or is_unknown or not all(hasattr(value, "__len__") for value in values):
        raise NotImplementedError("fit must have no other parameters than one sample_weight")
    return values[0] if values else None


def weighted_steps(pipeline: Pipeline, fit_params: Mapping[str, Any]) -> WeightedSteps:
    """Return the steps that get weights, or raise.

    With metadata routing these are the steps that request them, else those that the names of the
    parameters of ``fit`` begin with.
    """
    weights_in(fit_params)
    names = [name for name, value in fit_params.items() if value is not None]
    last = pipeline.steps[-1][1]
    if sklearn.get_config()["enable_metadata_routing"]:
        steps = [step for step in _leaves(pipeline) if names and _requests_weights(step)]
    else:
        if any(name.count("__") != 1 for name in names):
            raise NotImplementedError("sample_weight must be that of a step")
        by_name = pipeline.named_steps
        steps = [by_name[name.partition("__")[0]] for name in names]
    first = [step for step in steps if step is not last]
    for step in first:
        if class_of(step) is not StandardScaler:
            raise NotImplementedError(f"{type(step).__name__} must have no sample_weight")
    return WeightedSteps(tuple(first), any(step is last for step in steps))


def _leaves(estimator: Any) -> Iterator[Any]:
    """Yield the steps within pipelines and ColumnTransformers."""
    if type(estimator) is Pipeline:
        parts = [step for _, step in estimator.steps]
    elif class_of(estimator) is ColumnTransformer:
        parts = [part for _, part, _ in estimator.transformers] + [estimator.remainder]
    else:
        if estimator is not None and not isinstance(estimator, str):
            yield estimator
        return
    for part in parts:
        yield from _leaves(part)


def _requests_weights(step: Any) -> bool:
    """Return whether a step requests weights for its ``fit``."""
    request = get_routing_for_object(step).fit.requests.get("sample_weight", False)
    if not isinstance(request, bool):
        raise NotImplementedError("steps must request sample_weight, or must not")
    return request
