"""``partial_fit`` of an estimator, or of the last step of a pipeline with fitted transformers."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skfleet._pipeline_steps import last_step
from skfleet.blocks import fetch
from skfleet.metrics import unique_labels


def copy_learner(model: Any) -> Any:
    """Return a model with a copy of its learner; the other steps of a pipeline are shared."""
    return _with_last(model, copy.deepcopy(last_step(model)))


def clone_learner(estimator: Any) -> Any:
    """Return an estimator with an unfitted learner, and copies of the other steps of a pipeline."""
    if not isinstance(estimator, Pipeline):
        return clone(estimator)
    return _with_last(copy.deepcopy(estimator), clone(last_step(estimator)))


def partial_fit(model: Any, X: Any, y: Any, **params: Any) -> None:
    """Call ``partial_fit`` of the learner on rows that the other steps have transformed."""
    if isinstance(model, Pipeline) and len(model.steps) > 1:
        X = model[:-1].transform(X)
    last_step(model).partial_fit(X, y, **params)


def check_steps(estimator: Any) -> None:
    """Raise unless the steps of a pipeline before the last are fitted or need no fit."""
    for name, step in estimator.steps[:-1] if isinstance(estimator, Pipeline) else ():
        # None, "passthrough" and steps without tags need no fit
        if not hasattr(step, "__sklearn_tags__") or not get_tags(step).requires_fit:
            continue
        try:
            check_is_fitted(step)
        except NotFittedError as error:
            raise NotFittedError(
                "estimator must have steps that are fitted, or learn nothing, before its last one. "
                f"Got the step {name!r}, {type(step).__name__}, that is not fitted instead. Fit it "
                "on a sample of the rows."
            ) from error


def classes_for_partial_fit(model: Any, y: Any, classes: Any = None) -> dict[str, Any]:
    """Return the `classes` argument of the first ``partial_fit`` of a classifier, in a dict.

    It is `classes`, which may be a Dask collection or a Future, or the unique labels of y. The
    dict is empty for a fitted model, and for one that does not accept `classes`.
    """
    parameters = inspect.signature(model.partial_fit).parameters.values()
    accepts_classes = any(p.name == "classes" or p.kind is p.VAR_KEYWORD for p in parameters)
    if not accepts_classes or not is_classifier(model):
        return {}
    if classes is not None:
        labels = np.asarray(fetch(classes))
        if not labels.ndim:
            raise ValueError(
                f"classes must be an array or a list of all labels. Got {type(classes).__name__} "
                "instead. Make a list of them."
            )
        return {"classes": labels}
    # A fitted model has learned its labels: no pass over y is needed.
    if hasattr(model, "classes_"):
        return {}
    labels = unique_labels(y)
    check_classification_targets(labels)
    return {"classes": labels}


def _with_last(model: Any, learner: Any) -> Any:
    """Return a learner, or a copy of the pipeline model with the learner as its last step."""
    if not isinstance(model, Pipeline):
        return learner
    pipeline = copy.copy(model)
    pipeline.steps = [*model.steps[:-1], (model.steps[-1][0], learner)]
    return pipeline
