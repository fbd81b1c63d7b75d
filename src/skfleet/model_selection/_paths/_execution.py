"""Execution of a shared fit on a worker: one fit whose models are assigned to all candidates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from sklearn.base import clone

from skfleet._method_override import override_method, restore_method
from skfleet.engine import Pickled
from skfleet.model_selection._paths._registry import ParamSets, SharedFit


class FitOrigin(NamedTuple):
    """Origin of a fitted candidate: a shared fit, or the reason why it was fitted by itself."""

    was_saved: bool = False
    refused: str | None = None


OWN_FIT = FitOrigin()


class SharedFitRun:
    """A shared fit on the rows of one split, made when the first candidate is fitted.

    ``fit`` of each candidate is replaced by a call that copies the state fitted for all. Scoring
    stays scikit-learn's. Equal candidates count once.
    """

    def __init__(self, shared_fit: SharedFit, candidates: ParamSets) -> None:
        self._shared_fit = shared_fit
        self._candidates = {_digest(values): values for values in candidates}
        self.n_candidates = len(self._candidates)
        self._fitted: dict[bytes, tuple[Any, Any]] | None = None
        self.refused: str | None = None
        self._seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Reset the times for the next candidate."""
        self.spent = 0.0
        self.was_saved = False

    @property
    def origin(self) -> FitOrigin:
        """Origin of the latest candidate."""
        return FitOrigin(self.was_saved, self.refused)

    @property
    def correction(self) -> float:
        """Seconds of the latest candidate beyond its equal fraction of the shared fit."""
        return self.spent - self._seconds / self.n_candidates

    @property
    def saved(self) -> float:
        """Seconds by which the latest candidate was faster than the whole shared fit."""
        return self._seconds - self.spent

    def install(self, estimator: Any, values: Mapping[str, Any], method: str = "fit") -> None:
        """Replace the next call of an estimator's ``fit`` by the shared fit."""
        override_method(estimator, method, _FitFromShared(self, estimator, values, method))

    def assign(
        self,
        estimator: Any,
        values: Mapping[str, Any],
        method: str,
        X: Any,
        y: Any,
        params: dict[str, Any],
    ) -> Any:
        """Assign the fitted state to an estimator, and return the result of the method.

        Returns NotImplemented if the fits cannot be shared: the estimator must be fitted itself.
        """
        if self._fitted is None and self.refused is None:
            start = time.perf_counter()
            try:
                fit = self._shared_fit.fit_transform if method == "fit_transform" else self._fit
                fitted = fit(clone(estimator), list(self._candidates.values()), X, y, **params)
                self._fitted = dict(zip(self._candidates, fitted, strict=True))
            except NotImplementedError as error:
                self.refused = str(error)
            except Exception as error:
                # the fit of each candidate raises what is wrong with it
                self.refused = f"it must not fail. Got {type(error).__name__}: {error} instead"
            self._seconds = self.spent = time.perf_counter() - start
        else:
            self.was_saved = self._fitted is not None
        if self._fitted is None:
            return NotImplemented
        fitted, rows = self._fitted[_digest(values)]
        vars(estimator).update(vars(fitted))
        if method == "fit":
            return estimator
        return estimator.transform(X) if rows is None else rows

    def _fit(self, *args: Any, **params: Any) -> list[tuple[Any, Any]]:
        return [(fitted, None) for fitted in self._shared_fit.fit(*args, **params)]


class _FitFromShared:
    """Replacement for one call of an estimator's ``fit`` or ``fit_transform``."""

    def __init__(
        self, shared: SharedFitRun, estimator: Any, values: Mapping[str, Any], method: str
    ) -> None:
        self._shared = shared
        self._estimator = estimator
        self._values = values
        self._method = method

    def __call__(self, X: Any, y: Any = None, **params: Any) -> Any:
        estimator = self._estimator
        restore_method(estimator, self._method)
        result = self._shared.assign(estimator, self._values, self._method, X, y, params)
        if result is NotImplemented:
            return getattr(estimator, self._method)(X, y, **params)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{type(self._estimator).__name__} must not be copied before it is fitted, but by "
            "sklearn.base.clone. Search with share_fits=False."
        )


def _digest(values: Mapping[str, Any]) -> bytes:
    """Return a digest that is equal for equal values of the same types."""
    return Pickled.dumps(dict(values)).digest()
