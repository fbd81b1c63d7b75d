"""Estimators that compute on a GPU, whoever wrote them: which these are, and their ways."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import numpy as np
from sklearn import get_config as sklearn_config
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skfleet._array import is_not_numpy, namespace, to_device_of, to_host, to_host_if_array
from skfleet._config import get_config
from skfleet._device import device_library

__all__ = [
    "CandidateDevices",
    "accepts_device_arrays",
    "at_home",
    "attributes_to_host",
    "check_has_cpu_equivalent",
    "device_of",
    "has_cuml",
    "move_targets_to_device",
    "numpy_responses",
    "to_cpu_estimator",
    "uses_array_api",
]

# Libraries whose estimators take arrays on a GPU as they are.
_ACCEPT_ARRAYS = {"cuml", "skfleet", "xgboost"}

# The parameters that say where an estimator computes.
_DEVICE_PARAMETERS = {"device", "device_type", "tree_method"}

# What needs no second look.
_ATOMIC_TYPES = {bool, bytes, float, int, np.ndarray, str, type(None)}

# The methods by which a score hears of a model.
_RESPONSE_METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
)

# Those that are given targets.
_SUPERVISED_METHODS = ("fit", "score")


def device_of(estimator: Any, parameters: Mapping[str, Any] | None = None) -> str:
    """Tell on which kind of worker an estimator is to be fitted.

    Parameters
    ----------
    estimator : estimator object
        An estimator, a pipeline, or anything that holds others among its parameters.
    parameters : mapping of str to object, default=None
        What is to be set before, as by ``set_params``: a candidate of a search.

    Returns
    -------
    device : {"cpu", "cuda"}
        "cuda" where it, or any estimator in it, computes on a GPU: those of cuML; those of
        scikit-fleet, XGBoost and skorch by their parameter ``device``; those of LightGBM by
        ``device`` or ``device_type``. ``device="auto"`` of scikit-fleet's is what
        :func:`skfleet.config_context` says, and where that is "auto" too it follows the rows, which
        for rows on the host is "cpu", as for everything else. "cuda" also where that says "cuda",
        ``sklearn.config_context`` says ``array_api_dispatch=True``, and all in it, with these
        parameters, are tagged for the array API (``array_api_support``).

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skfleet.engine import placement
    >>> from skfleet.estimators.linear_model import LogisticRegression
    >>> placement(make_pipeline(StandardScaler(), LogisticRegression(device="cuda")))
    'cuda'
    >>> placement(LogisticRegression(device="cuda"), {"device": "cpu"})
    'cpu'
    """
    return CandidateDevices(estimator).of(parameters or {})


class CandidateDevices:
    """Where the candidates of a search are to be fitted, which differ in few parameters."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self._dispatches = (
            _array_api_enabled()
        )  # later candidates may be asked about in another thread
        self._values = _values(estimator, {})
        self._usual = self._placed(self._values)

    def of(self, parameters: Mapping[str, Any]) -> str:
        """Tell on which kind of worker the estimator with some parameters is to be fitted."""
        if any(self._may_matter(name, value) for name, value in parameters.items()):
            return self._placed(_values(self._estimator, parameters))
        return self._usual

    def _may_matter(self, name: str, value: Any) -> bool:
        """Tell whether a parameter may make a difference."""
        is_estimator = _is_estimator(value) or _is_estimator(self._values.get(name))
        return is_estimator or self._dispatches or name.rpartition("__")[2] in _DEVICE_PARAMETERS

    def _placed(self, values: Mapping[str, Any]) -> str:
        """Tell it of an estimator whose parameters, and those of all in it, are given."""
        estimators = _estimators(self._estimator, values)
        if any(_wants_gpu(one, prefix, values) for prefix, one in estimators):
            return "cuda"
        dispatches = self._dispatches and all(_supports(*one, values) for one in estimators)
        return "cuda" if dispatches else "cpu"


def accepts_device_arrays(estimator: Any, parameters: Mapping[str, Any] | None = None) -> bool:
    """Tell whether an estimator, and all in it, may be given rows on the GPU of this process.

    Labels and targets stay on the host: cuML, XGBoost and ours bring numbers there themselves.
    """
    values, dispatches = _values(estimator, parameters or {}), _array_api_enabled()
    take_them = all(
        type(one) is Pipeline
        or (_libraries(one) & _ACCEPT_ARRAYS and _wants_gpu(one, prefix, values))
        or (dispatches and _supports(prefix, one, values))
        for prefix, one in _estimators(estimator, values)
    )
    return take_them and device_library() is not None  # last: it may have to import CuPy


def move_targets_to_device(
    estimator: Any, X: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Bring targets and weights to where rows are, if the estimator wants them there.

    scikit-learn's estimators do, of which some take nothing else.
    """
    if not uses_array_api(estimator):
        return list(args), dict(kwargs)
    named = {name: to_device_of(value, X) for name, value in kwargs.items()}
    return [to_device_of(value, X) for value in args], named


def uses_array_api(estimator: Any) -> bool:
    """Tell whether an estimator is to compute on a GPU by scikit-learn's dispatch alone."""
    every = _estimators(estimator, _values(estimator, {}))
    return _array_api_enabled() and not any(_libraries(one) & _ACCEPT_ARRAYS for _, one in every)


@contextmanager
def numpy_responses(estimator: Any) -> Iterator[None]:
    """Make the answers of an estimator arrays of the host inside a ``with``.

    cuML's are what its own setting says, which holds for one thread; the methods of others are
    asked to bring home what they return. Targets of the host are brought to rows on a GPU where an
    estimator takes them nowhere else.
    """
    with ExitStack() as stack:
        if "cuml" in sys.modules:
            stack.enter_context(sys.modules["cuml"].using_output_type("numpy"))
        for name in (*_RESPONSE_METHODS, *_SUPERVISED_METHODS):
            # not by hasattr alone: some have a method only once they are fitted
            if getattr(type(estimator), name, None) is not None:
                vars(estimator)[name] = _numpy_response(estimator, name)
                stack.callback(vars(estimator).pop, name, None)
        yield


def _numpy_response(estimator: Any, name: str) -> Callable[..., Any]:
    """Make a method that answers as an estimator's does, on the host."""

    @wraps(getattr(type(estimator), name))
    def answer(*args: Any, **kwargs: Any) -> Any:
        own, aside = vars(estimator), [name]
        if name in _RESPONSE_METHODS or uses_array_api(estimator):
            aside = [
                one for one in (*_RESPONSE_METHODS, *_SUPERVISED_METHODS) if one in own
            ]  # what it calls itself
        before = {one: own.pop(one) for one in aside}
        try:
            if name in _SUPERVISED_METHODS and args:
                more, kwargs = move_targets_to_device(estimator, args[0], args[1:], kwargs)
                args = (args[0], *more)
            return to_host_if_array(getattr(estimator, name)(*args, **kwargs))
        finally:
            own.update(before)

    return answer


def at_home(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name, arrays among them on the host."""
    return {name: to_host_if_array(value) for name, value in values.items()}


def attributes_to_host(model: Any) -> None:
    """Bring what a model of ours holds on the device to the host, from where it may go anywhere."""
    if "skfleet" in _libraries(model):
        vars(model).update(at_home(vars(model)))


def to_cpu_estimator(model: Any) -> Any:
    """Return a fitted model that can be used without a GPU: scikit-learn's for one of cuML's.

    It is the model itself where nothing in it needs a GPU, and never a model that was changed.
    """
    if type(model) in _ATOMIC_TYPES:
        return model
    if "cuml" in _libraries(model):
        check_has_cpu_equivalent(model)
        try:
            return model.as_sklearn()
        except (ImportError, ValueError) as error:  # cuML's own is a ValueError
            raise _no_cpu_equivalent(model, str(error)) from error
    if type(model) in (list, tuple):
        found = type(model)(map(to_cpu_estimator, model))
        return model if all(a is b for a, b in zip(model, found, strict=True)) else found
    if type(model) is dict or (_is_estimator(model) and "skorch" not in _libraries(model)):
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
    library = device_library()  # not an array of torch's, say, which its owner wants as it is
    return to_host(model) if library is not None and namespace(model) is library.xp else model


def check_has_cpu_equivalent(estimator: Any) -> None:
    """Raise unless what is in an estimator can be used without a GPU once it is fitted."""
    for _, one in _estimators(estimator, _values(estimator, {})):
        if "cuml" in _libraries(one) and not hasattr(one, "as_sklearn"):
            raise _no_cpu_equivalent(one, "a model of cuML without as_sklearn()")


def has_cuml(estimator: Any) -> bool:
    """Tell whether an estimator, or any in it, is one of cuML's."""
    if "cuml" not in sys.modules:
        return False
    every = _estimators(estimator, _values(estimator, {}))
    return any("cuml" in _libraries(one) for _, one in every)


def _no_cpu_equivalent(model: Any, why: str) -> TypeError:
    """Make the error for a model of cuML that is wanted where there may be no GPU."""
    return TypeError(
        f"{type(model).__name__} must have an equivalent in scikit-learn to be used without a GPU. "
        f"Got {why} instead. Fit it in a process with a GPU, search with refit=False, and ask for "
        'GPU workers by client.compute(answer, resources={"GPU": 1}).'
    )


def _values(estimator: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an estimator and of all in it, some of them set anew."""
    values = dict(estimator.get_params(deep=True)) if hasattr(estimator, "get_params") else {}
    for name in sorted(parameters):  # an estimator comes before what is set of it
        value = parameters[name]
        if _is_estimator(values.get(name)) or _is_estimator(value):
            values = {k: v for k, v in values.items() if not k.startswith(f"{name}__")}
        values[name] = value
        if _is_estimator(value):
            values |= {f"{name}__{k}": v for k, v in value.get_params(deep=True).items()}
    return values


def _estimators(estimator: Any, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return an estimator and all in it, each with what its parameters' names begin with."""
    inner = ((f"{name}__", value) for name, value in values.items() if _is_estimator(value))
    return [("", estimator), *inner]


def _is_estimator(value: Any) -> bool:
    """Tell whether a value has parameters of its own."""
    return hasattr(value, "get_params") and not isinstance(value, type)


def _libraries(estimator: Any) -> set[str]:
    """Return the names of the libraries that an estimator's class and its bases are of."""
    return {cls.__module__.partition(".")[0] for cls in type(estimator).__mro__}


def _array_api_enabled() -> bool:
    """Tell whether scikit-learn's own estimators are asked to compute on a GPU."""
    return get_config().device == "cuda" and bool(sklearn_config()["array_api_dispatch"])


def _supports(prefix: str, estimator: Any, values: Mapping[str, Any]) -> bool:
    """Tell whether an estimator of scikit-learn's can compute on a GPU, with its parameters."""
    if type(estimator) is Pipeline:  # its steps tell; itself it has no tag
        return True
    if not hasattr(estimator, "__sklearn_tags__"):  # a kernel, say
        return False
    cut = len(prefix)
    own = {k[cut:]: v for k, v in values.items() if k.startswith(prefix) and "__" not in k[cut:]}
    found = copy.copy(estimator)
    vars(found).update({name: value for name, value in own.items() if name in vars(found)})
    return bool(get_tags(found).array_api_support)


def _wants_gpu(estimator: Any, prefix: str, values: Mapping[str, Any]) -> bool:
    """Tell whether an estimator computes on a GPU, given the parameters of all by their names."""
    libraries = _libraries(estimator)
    if "cuml" in libraries:
        return True
    device = str(values.get(f"{prefix}device") or "")
    if "skfleet" in libraries:
        return device == "cuda" or (device == "auto" and get_config().device == "cuda")
    if "xgboost" in libraries:
        old = str(values.get(f"{prefix}tree_method") or "")
        return device.startswith(("cuda", "gpu")) or old == "gpu_hist"
    if "lightgbm" in libraries:
        return (device or str(values.get(f"{prefix}device_type") or "")) in ("gpu", "cuda")
    return "skorch" in libraries and device.startswith("cuda")
