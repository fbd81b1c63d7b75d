"""Estimators that compute on a GPU, whoever wrote them: which these are, and their ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from sklearn.pipeline import Pipeline

from skfleet._array import device_library, off_device
from skfleet._config import get_config

__all__ = [
    "Placements",
    "answers_at_home",
    "as_host_model",
    "at_home",
    "leave_device",
    "placement",
    "takes_device_rows",
]

# Libraries whose estimators take arrays on a GPU as they are.
_TAKE_ARRAYS = {"cuml", "skfleet", "xgboost"}

# The parameters that say where an estimator computes.
_TELLING = {"device", "device_type", "tree_method"}

# The methods by which a score hears of a model.
_ANSWERS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
)


def placement(estimator: Any, parameters: Mapping[str, Any] | None = None) -> str:
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
        for rows on the host is "cpu", as for everything else.

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
    return Placements(estimator).of(parameters or {})


class Placements:
    """Where the candidates of a search are to be fitted, which differ in few parameters."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
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
        return is_estimator or name.rpartition("__")[2] in _TELLING

    def _placed(self, values: Mapping[str, Any]) -> str:
        """Tell it of an estimator whose parameters, and those of all in it, are given."""
        estimators = _estimators(self._estimator, values)
        found = (_wants_gpu(one, prefix, values) for prefix, one in estimators)
        return "cuda" if any(found) else "cpu"


def takes_device_rows(estimator: Any, parameters: Mapping[str, Any] | None = None) -> bool:
    """Tell whether an estimator, and all in it, may be given rows on the GPU of this process.

    Labels and targets stay on the host: cuML, XGBoost and ours bring numbers there themselves.
    """
    if device_library() is None:
        return False
    values = _values(estimator, parameters or {})
    return all(
        type(one) is Pipeline
        or (_libraries(one) & _TAKE_ARRAYS and _wants_gpu(one, prefix, values))
        for prefix, one in _estimators(estimator, values)
    )


@contextmanager
def answers_at_home(estimator: Any) -> Iterator[None]:
    """Make the answers of an estimator arrays of the host inside a ``with``.

    cuML's are what its own setting says, which holds for one thread; the methods of others are
    asked to bring home what they return.
    """
    with ExitStack() as stack:
        if "cuml" in sys.modules:
            stack.enter_context(sys.modules["cuml"].using_output_type("numpy"))
        for name in _ANSWERS:
            # not by hasattr alone: some have a method only once they are fitted
            if getattr(type(estimator), name, None) is not None:
                vars(estimator)[name] = _bringing_home(estimator, name)
                stack.callback(vars(estimator).pop, name, None)
        yield


def _bringing_home(estimator: Any, name: str) -> Callable[..., Any]:
    """Make a method that answers as an estimator's does, on the host."""

    @wraps(getattr(type(estimator), name))
    def answer(*args: Any, **kwargs: Any) -> Any:
        own = vars(estimator).pop(name)
        try:
            return off_device(getattr(estimator, name)(*args, **kwargs))
        finally:
            vars(estimator)[name] = own

    return answer


def at_home(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name, arrays among them on the host."""
    return {name: off_device(value) for name, value in values.items()}


def leave_device(model: Any) -> None:
    """Bring what a model of ours holds on the device to the host, from where it may go anywhere."""
    if "skfleet" in _libraries(model):
        vars(model).update(at_home(vars(model)))


def as_host_model(model: Any) -> Any:
    """Return a fitted model that can be used without a GPU: scikit-learn's for one of cuML's.

    Of ours, arrays on the device are brought home.
    """
    if type(model) is Pipeline:
        model.steps = [(name, as_host_model(step)) for name, step in model.steps]
        return model
    if "cuml" not in _libraries(model):
        leave_device(model)
        return model
    if not hasattr(model, "as_sklearn"):
        raise TypeError(
            f"{type(model).__name__} must have an equivalent in scikit-learn to leave its worker. "
            "Got a model of cuML without as_sklearn() instead. Search with refit=False, and fit "
            "the best parameters where there is a GPU."
        )
    return model.as_sklearn()


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
