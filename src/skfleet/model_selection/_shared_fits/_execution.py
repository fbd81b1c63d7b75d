"""How fits that one fit contains come out of it, on a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sklearn.base import clone

from skfleet.engine import Pickled
from skfleet.model_selection._shared_fits._registry import SharedFit

__all__ = ["ALONE", "FitOrigin", "SharedFitRun"]


class FitOrigin(NamedTuple):
    """How a member of a family was fitted: by another's fit, or why it could not be."""

    was_saved: bool = False
    refused: str | None = None


# By a fit of its own.
ALONE = FitOrigin()


class SharedFitRun:
    """The fits of a family on the same rows: all made when the first of them is asked for.

    scikit-learn calls ``fit`` of each candidate as it is used to, and finds it fitted after. So
    what it scores, and how, is none of a family's business.

    Parameters
    ----------
    family : Family
    candidates : sequence of mapping
        The values of each candidate; those that are equal count once.
    """

    def __init__(self, family: SharedFit, candidates: Sequence[Mapping[str, Any]]) -> None:
        self._family = family
        self._candidates = {_name(values): values for values in candidates}
        self._fitted: dict[bytes, tuple[Any, Any]] | None = None
        self.refused: str | None = None
        self._seconds = 0.0
        self.begin()

    @property
    def n_candidates(self) -> int:
        """How many different candidates there are."""
        return len(self._candidates)

    def begin(self) -> None:
        """Expect the next candidate."""
        self.spent = 0.0
        self.was_saved = False

    @property
    def came(self) -> FitOrigin:
        """How the latest candidate was fitted."""
        return FitOrigin(self.was_saved, self.refused)

    @property
    def correction(self) -> float:
        """Seconds by which the latest fit took longer than its equal part of the one fit."""
        return self.spent - self._seconds / len(self._candidates)

    @property
    def saved(self) -> float:
        """Seconds that the latest fit would have taken longer, had it been the only one."""
        return self._seconds - self.spent

    def offer(self, estimator: Any, values: Mapping[str, Any], method: str = "fit") -> None:
        """Let the next call of an estimator's ``fit`` take what was fitted for all."""
        vars(estimator)[method] = _Taking(self, estimator, values, method)

    def take(
        self,
        estimator: Any,
        values: Mapping[str, Any],
        method: str,
        X: Any,
        y: Any,
        params: dict[str, Any],
    ) -> Any:
        """Make an estimator fitted, and give what the method would.

        NotImplemented if the family could not, and the estimator must do so itself.
        """
        if self._fitted is None and self.refused is None:
            start = time.perf_counter()
            try:
                fit = self._family.fit_transform if method == "fit_transform" else self._fit
                fitted = fit(clone(estimator), list(self._candidates.values()), X, y, **params)
                self._fitted = dict(zip(self._candidates, fitted, strict=True))
            except NotImplementedError as error:
                self.refused = str(error)
            except Exception as error:
                # What is wrong, the fit of each candidate will tell.
                self.refused = f"it must not fail. Got {type(error).__name__}: {error} instead"
            self._seconds = self.spent = time.perf_counter() - start
        else:
            self.was_saved = self._fitted is not None
        if self._fitted is None:
            return NotImplemented
        fitted, rows = self._fitted[_name(values)]
        vars(estimator).update(vars(fitted))
        if method == "fit":
            return estimator
        return estimator.transform(X) if rows is None else rows

    def _fit(self, *args: Any, **params: Any) -> list[tuple[Any, Any]]:
        """Fit without a thought of what becomes of the rows."""
        return [(fitted, None) for fitted in self._family.fit(*args, **params)]


class _Taking:
    """Stands in for the ``fit`` of an estimator, or the ``fit_transform``, once."""

    def __init__(
        self, shared: SharedFitRun, estimator: Any, values: Mapping[str, Any], method: str
    ) -> None:
        self._shared = shared
        self._estimator = estimator
        self._values = values
        self._method = method

    def __call__(self, X: Any, y: Any = None, **params: Any) -> Any:
        estimator = self._estimator
        del vars(estimator)[self._method]
        taken = self._shared.take(estimator, self._values, self._method, X, y, params)
        if taken is NotImplemented:
            return getattr(estimator, self._method)(X, y, **params)
        return taken

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{type(self._estimator).__name__} must not be copied before it is fitted, but by "
            "sklearn.base.clone. Search with share_fits=False."
        )


def _name(values: Mapping[str, Any]) -> bytes:
    """Name values, so that equal ones of the same types have the same name."""
    return Pickled.dumps(dict(values)).digest()
