"""Models fitted on a GPU, brought to the host: arrays, responses, and equivalents for the CPU."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skfleet._array import is_not_numpy, namespace, to_host, to_host_if_array
from skfleet._device import device_library
from skfleet._method_override import override_method, restore_method
from skfleet.engine._gpu._estimator_device import (
    deep_params,
    is_estimator,
    libraries_of,
    move_targets_to_device,
    nested_estimators,
    uses_array_api,
)

# Values with nothing in them that might lie on a GPU.
_ATOMIC_TYPES = {bool, bytes, float, int, np.ndarray, str, type(None)}

# The response methods that scorers call.
_RESPONSE_METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples",
)  # fmt: skip

# The methods that take targets.
_SUPERVISED_METHODS = ("fit", "score")
_METHODS = (*_RESPONSE_METHODS, *_SUPERVISED_METHODS)


@contextmanager
def numpy_responses(estimator: object) -> Iterator[None]:
    """Make an estimator's methods return arrays of the host inside a ``with``.

    cuML has a setting for that, which holds for one thread. The methods of other libraries are
    wrapped. Targets of the host are moved to X's device where the estimator requires them there.
    """
    with ExitStack() as stack:
        if "cuml" in sys.modules:
            stack.enter_context(sys.modules["cuml"].using_output_type("numpy"))
        for name in _METHODS:
            # On the class: of a meta-estimator, hasattr is false for some until it is fitted.
            if getattr(type(estimator), name, None) is not None:
                override_method(estimator, name, _numpy_response(estimator, name))
                stack.callback(restore_method, estimator, name)
        yield


def _numpy_response(estimator: object, name: str) -> Callable[..., object]:
    """Return a method that calls an estimator's own and returns its response on the host."""

    @wraps(getattr(type(estimator), name))
    def method(*args: Any, **kwargs: object) -> object:
        attributes, unwrapped = vars(estimator), [name]
        if name in _RESPONSE_METHODS or uses_array_api(estimator):
            # A method that calls another of these gets the estimator's own, and its device arrays.
            unwrapped = [wrapped for wrapped in _METHODS if wrapped in attributes]
        wrappers = {wrapped: attributes.pop(wrapped) for wrapped in unwrapped}
        try:
            if name in _SUPERVISED_METHODS and args:
                targets, kwargs = move_targets_to_device(estimator, args[0], args[1:], kwargs)
                args = (args[0], *targets)
            return to_host_if_array(getattr(estimator, name)(*args, **kwargs))
        finally:
            attributes.update(wrappers)

    return method


@contextmanager
def device_responses(estimator: object) -> Iterator[None]:
    """Make the methods return arrays of the device again, within `numpy_responses`."""
    attributes = vars(estimator)
    wrappers = {name: attributes.pop(name) for name in _METHODS if name in attributes}
    cuml = sys.modules.get("cuml")
    try:
        with cuml.using_output_type("cupy") if cuml else nullcontext():
            yield
    finally:
        attributes.update(wrappers)


def arrays_to_host(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by name, with the arrays among them on the host."""
    return {name: to_host_if_array(value) for name, value in values.items()}


def attributes_to_host(model: object) -> None:
    """Move the arrays of one of our models to the host, so that any process can unpickle it."""
    if "skfleet" in libraries_of(model):
        vars(model).update(arrays_to_host(vars(model)))


def to_cpu_estimator(model: Any) -> Any:
    """Return a fitted model that can be used without a GPU: scikit-learn's for one of cuML's.

    It is the model itself where nothing in it needs a GPU; the model is never changed.
    """
    if type(model) in _ATOMIC_TYPES:
        return model
    if "cuml" in libraries_of(model):
        check_has_cpu_equivalent(model)
        try:
            return _with_l1_ratio(model.as_sklearn(), model)
        except (ImportError, ValueError) as error:  # cuML's own is a ValueError
            raise _no_cpu_equivalent(model, str(error)) from error
    if type(model) in (list, tuple):
        parts = type(model)(map(to_cpu_estimator, model))
        return model if all(a is b for a, b in zip(model, parts, strict=True)) else parts
    if type(model) is dict or (is_estimator(model) and "skorch" not in libraries_of(model)):
        before = model if type(model) is dict else vars(model)
        after = {name: to_cpu_estimator(value) for name, value in before.items()}
        if all(value is before[name] for name, value in after.items()):
            return model
        if type(model) is dict:
            return after
        model = copy.copy(model)
        vars(model).update(after)
        return model
    if not is_not_numpy(model):
        return model
    library = device_library()
    # Only this package's device arrays: a model of torch's, say, keeps its own.
    return to_host(model) if library is not None and namespace(model) is library.xp else model


def _with_l1_ratio(equivalent: BaseEstimator, model: object) -> BaseEstimator:
    """Return scikit-learn's equivalent of a model of cuML with the same penalty in its parameters.

    cuML's logistic regression (26.10) passes on `penalty`, which scikit-learn has deprecated, with
    an `l1_ratio` that is not that of the penalty: a refit would have another one, or warn.
    """
    params = equivalent.get_params(deep=False) if hasattr(equivalent, "get_params") else {}
    if {"penalty", "l1_ratio", "C"} <= params.keys() and params["penalty"] != "deprecated":
        ratio = {"l1": 1.0, "elasticnet": params["l1_ratio"]}.get(params["penalty"], 0.0)
        strength = {"C": np.inf} if params["penalty"] in (None, "none") else {}
        equivalent.set_params(penalty="deprecated", l1_ratio=ratio, **strength)
    return equivalent


def check_has_cpu_equivalent(estimator: object) -> None:
    """Raise unless every estimator in one can be used without a GPU once it is fitted."""
    for _, part in nested_estimators(estimator, deep_params(estimator, {})):
        if "cuml" in libraries_of(part) and not hasattr(part, "as_sklearn"):
            raise _no_cpu_equivalent(part, "a model of cuML without as_sklearn()")


def _no_cpu_equivalent(model: object, why: str) -> TypeError:
    """Return the error for a model of cuML's that cannot be used without a GPU."""
    return TypeError(
        f"{type(model).__name__} must have an equivalent in scikit-learn to be used without a GPU. "
        f"Got {why} instead. Fit it in a process with a GPU, search with refit=False, and ask for "
        'GPU workers by client.compute(answer, resources={"GPU": 1}).'
    )
