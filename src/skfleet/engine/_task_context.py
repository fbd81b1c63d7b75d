"""Functions for code inside a task of any engine: scattered arguments, picklable results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from skfleet._exception_pickle import text_of

if TYPE_CHECKING:
    from skfleet.engine._dask._serialize import Pickled


def open_scattered(value: object) -> Any:
    """Return the object that an engine has scattered, inside a task that it is an argument of."""
    if "distributed" not in sys.modules:
        return value
    from skfleet.engine._dask._scatter import loads_cached

    return loads_cached(value)


def check_picklable(model: object) -> None:
    """Raise, in a task, unless a fitted model can be sent to other processes.

    Dask (2026.8.0) requests a result that cannot be sent again and again, for ever. Workers that
    are threads of one process send nothing.
    """
    if "distributed" not in sys.modules:
        return
    from skfleet._cluster import current_worker_address
    from skfleet.engine._dask._serialize import Pickled

    address = current_worker_address()
    if not address or address.startswith("inproc://"):
        return
    try:
        Pickled.dumps(model)
    except Exception as error:
        raise _unpicklable_model(model, error) from error


def _unpicklable_model(model: object, error: Exception) -> TypeError:
    return TypeError(
        "a model that has learned must be one that pickle takes, to go from worker to worker. "
        f"Got {type(model).__name__} instead: {text_of(error)}. Define its classes in a module "
        "that workers can import, not in __main__."
    )


def set_learned(estimator: Any, attributes: Mapping[str, Any]) -> None:
    """Set on an estimator the attributes that a fit of a copy of it has, elsewhere.

    Parameters stay its own objects.
    """
    params = estimator.get_params(deep=False)
    for deleted in set(vars(estimator)) - set(attributes):
        delattr(estimator, deleted)
    vars(estimator).update({k: v for k, v in attributes.items() if k not in params})


class PicklableModel:
    """A model in a value that is pickled, which another process loads as the model.

    One that cannot be pickled is loaded as an `UnpicklableModel`: a task that waits for a value
    that cannot be sent would wait for ever.
    """

    def __init__(self, model: object) -> None:
        self.model = model

    def __reduce__(self) -> tuple[object, ...]:
        from skfleet.engine._dask._serialize import Pickled

        try:
            return _load_model, (Pickled.dumps(self.model),)
        except Exception as error:
            return UnpicklableModel, (str(_unpicklable_model(self.model, error)),)


class UnpicklableModel(NamedTuple):
    """The text of the error that arrives in place of a model that cannot be pickled."""

    text: str


def _load_model(pickled: Pickled) -> object:
    try:
        return pickled.loads()
    except Exception as error:
        return UnpicklableModel(f"a model must be one that can be unpickled: {text_of(error)}")


def check_sent(model: object) -> None:
    """Raise if what arrived from another process is not a model but the error of its pickling."""
    if isinstance(model, UnpicklableModel):
        raise TypeError(model.text)
