"""The device on which an estimator of any library computes, and whether it accepts arrays there."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TypeGuard

from sklearn import get_config as sklearn_config
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skfleet._array import to_device_of
from skfleet._config import get_config
from skfleet._device import device_library
from skfleet._typing import Estimator

# Libraries whose estimators take arrays on a GPU as input.
_ACCEPT_ARRAYS = {"cuml", "skfleet", "xgboost"}

# Those with boosters, of which this package has subclasses.
_BOOSTERS = {"lightgbm", "xgboost"}

# The parameters that choose an estimator's device.
_DEVICE_PARAMETERS = {"device", "device_type", "tree_method"}


def device_of(estimator: object, parameters: Mapping[str, object] | None = None) -> str:
    """Return the kind of device on which an estimator is to be fitted.

    Parameters
    ----------
    estimator : estimator object
        An estimator, a pipeline, or anything else with estimators among its parameters.
    parameters : mapping of str to object, default=None
        Parameters to set before, as by ``set_params``: a candidate of a search.

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
    >>> from skfleet.engine import device_of
    >>> from skfleet.estimators.linear_model import LogisticRegression
    >>> device_of(make_pipeline(StandardScaler(), LogisticRegression(device="cuda")))
    'cuda'
    >>> device_of(LogisticRegression(device="cuda"), {"device": "cpu"})
    'cpu'
    """
    return CandidateDevices(estimator).of(parameters or {})


class CandidateDevices:
    """Devices of a search's candidates, which differ in few parameters of one estimator."""

    def __init__(self, estimator: object) -> None:
        self._estimator = estimator
        # Read now: scikit-learn's config is one per thread, and `of` may run in another.
        self._array_api = _array_api_enabled()
        self._params = deep_params(estimator, {})
        self._default = self._device_with(self._params)

    def of(self, parameters: Mapping[str, object]) -> str:
        """Return the device of a candidate, as `device_of` does, by the parameters that it sets."""
        if any(self._may_change_device(name, value) for name, value in parameters.items()):
            return self._device_with(deep_params(self._estimator, parameters))
        return self._default

    def _may_change_device(self, name: str, value: object) -> bool:
        replaces = is_estimator(value) or is_estimator(self._params.get(name))
        return replaces or self._array_api or name.rpartition("__")[2] in _DEVICE_PARAMETERS

    def _device_with(self, params: Mapping[str, object]) -> str:
        """Return the device, given the parameters of the estimator and of all in it."""
        parts = [(part, name, params) for name, part in nested_estimators(self._estimator, params)]
        on_gpu = any(starmap(_computes_on_gpu, parts))
        on_gpu = on_gpu or (self._array_api and all(starmap(_supports_array_api, parts)))
        return "cuda" if on_gpu else "cpu"


def accepts_device_arrays(
    estimator: object, parameters: Mapping[str, object] | None = None
) -> bool:
    """Return whether an estimator, and all in it, take X on the GPU of this process.

    Labels and targets stay on the host: cuML, XGBoost and ours copy numbers to the GPU themselves.
    """
    params, array_api = deep_params(estimator, parameters or {}), _array_api_enabled()
    accepted = all(
        type(part) is Pipeline
        or (libraries_of(part) & _ACCEPT_ARRAYS and _computes_on_gpu(part, prefix, params))
        or (array_api and _supports_array_api(part, prefix, params))
        for prefix, part in nested_estimators(estimator, params)
    )
    return accepted and device_library() is not None  # last: it may have to import CuPy


def takes_device_targets(estimator: object, params: Mapping[str, object]) -> bool:
    """Return whether an estimator, with these parameters, takes targets on the GPU as well.

    That is whether all in it are of this package, and none is a booster, whose library checks them.
    """
    parts = (part for _, part in nested_estimators(estimator, deep_params(estimator, params)))
    libraries = (libraries_of(part) for part in parts if type(part) is not Pipeline)
    return all("skfleet" in names and not names & _BOOSTERS for names in libraries)


def move_targets_to_device(
    estimator: object, X: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Move y and weights to the device of X where scikit-learn dispatches to the array API.

    Some of its estimators require them there.
    """
    if not uses_array_api(estimator):
        return list(args), dict(kwargs)
    moved = {name: to_device_of(value, X) for name, value in kwargs.items()}
    return [to_device_of(value, X) for value in args], moved


def uses_array_api(estimator: object) -> bool:
    """Return whether an estimator reaches the GPU by scikit-learn's array API dispatch alone."""
    parts = (part for _, part in nested_estimators(estimator, deep_params(estimator, {})))
    return _array_api_enabled() and not any(libraries_of(part) & _ACCEPT_ARRAYS for part in parts)


def has_cuml(estimator: object) -> bool:
    """Return whether an estimator, or any in it, is one of cuML's."""
    if "cuml" not in sys.modules:
        return False
    parts = nested_estimators(estimator, deep_params(estimator, {}))
    return any("cuml" in libraries_of(part) for _, part in parts)


def deep_params(estimator: object, parameters: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters of an estimator and of all in it, after setting `parameters`."""
    params = dict(estimator.get_params(deep=True)) if hasattr(estimator, "get_params") else {}
    for name in sorted(parameters):  # an estimator comes before parameters of its own
        value = parameters[name]
        if is_estimator(params.get(name)) or is_estimator(value):
            params = {k: v for k, v in params.items() if not k.startswith(f"{name}__")}
        params[name] = value
        if is_estimator(value):
            params |= {f"{name}__{k}": v for k, v in value.get_params(deep=True).items()}
    return params


def nested_estimators(estimator: object, params: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return an estimator and all in it, each with the prefix of its parameters' names."""
    inner = ((f"{name}__", value) for name, value in params.items() if is_estimator(value))
    return [("", estimator), *inner]


def is_estimator(value: object) -> TypeGuard[Estimator]:
    return hasattr(value, "get_params") and not isinstance(value, type)


def libraries_of(estimator: object) -> set[str]:
    """Return the top-level packages of an estimator's class and its bases."""
    return {cls.__module__.partition(".")[0] for cls in type(estimator).__mro__}


def _array_api_enabled() -> bool:
    """Return whether scikit-learn's own estimators are to compute on a GPU."""
    return get_config().device == "cuda" and bool(sklearn_config()["array_api_dispatch"])


def _supports_array_api(estimator: object, prefix: str, params: Mapping[str, object]) -> bool:
    """Return whether an estimator's tags, with its parameters, promise array API support."""
    if type(estimator) is Pipeline:  # its steps have tags; itself it has none
        return True
    if not hasattr(estimator, "__sklearn_tags__"):  # a kernel, say
        return False
    n = len(prefix)
    own = {k[n:]: v for k, v in params.items() if k.startswith(prefix) and "__" not in k[n:]}
    candidate = copy.copy(estimator)
    attributes = vars(candidate)
    attributes.update({name: value for name, value in own.items() if name in attributes})
    return bool(get_tags(candidate).array_api_support)


def _computes_on_gpu(estimator: object, prefix: str, params: Mapping[str, object]) -> bool:
    """Return whether an estimator's library and device parameters mean a GPU."""
    libraries = libraries_of(estimator)
    if "cuml" in libraries:
        return True
    device = str(params.get(f"{prefix}device") or "")
    if "skfleet" in libraries:
        return device == "cuda" or (device == "auto" and get_config().device == "cuda")
    if "xgboost" in libraries:
        tree_method = str(params.get(f"{prefix}tree_method") or "")
        return device.startswith(("cuda", "gpu")) or tree_method == "gpu_hist"
    if "lightgbm" in libraries:
        return (device or str(params.get(f"{prefix}device_type") or "")) in ("gpu", "cuda")
    return "skorch" in libraries and device.startswith("cuda")
