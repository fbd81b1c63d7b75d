"""What a search of scikit-learn's needs to run on a fleet."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from skfleet._config import config_context
from skfleet._validation import check_real
from skfleet.blocks import bring_home, counted_rows, is_lazy, lazy_name, row_blocks
from skfleet.engine import (
    Placements,
    check_fits_home,
    fit_there,
    fleet_engine,
    placement,
    rows_stay,
)
from skfleet.model_selection._checkpoint import Records
from skfleet.model_selection._plot import plot_search
from skfleet.model_selection._run import SearchRun, current_run, is_running

__all__ = ["FitsOnFleet"]


# Parameters of searches on which no result of a fit depends.
_CHANGES_NO_FIT = frozenset(
    ["checkpoint", "n_jobs", "pre_dispatch", "refit", "share_fits", "time_budget", "verbose"]
)


class FitsOnFleet:
    """What a search of scikit-learn's needs to run on a fleet; everything else it keeps."""

    share_fits: bool
    checkpoint: Any
    time_budget: float | None = None
    get_params: Callable[..., dict[str, Any]]

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit and score every candidate on every split, on the workers of the fleet.

        Parameters
        ----------
        X : array-like, sparse matrix or Dask collection of shape (n_samples, n_features)
            Training rows. On Dask they stay where they are for estimators of this library; for
            others they are brought to the calling process, and from there once to each worker.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs), \
                default=None
            Targets; None for unsupervised learning. Labels are brought to the calling process.
        **params : dict of str -> object
            What the estimator, the scorer and the splitter are to be given: ``groups``,
            ``sample_weight``, or what metadata routing asks for.

        Returns
        -------
        self : object
            The fitted search.
        """
        if not isinstance(self.share_fits, (bool, np.bool_)):
            raise TypeError(
                f"share_fits must be True or False. Got {self.share_fits!r} instead. "
                "Leave it out to share."
            )
        if self.time_budget is not None:
            check_real("time_budget", self.time_budget, 0, open="l")
        with _on_fleet():
            X, y = self._rows(X, y)
            records = self._records(X, y, params)
            n_known = 0 if records is None else len(records)
            run = SearchRun(
                share_fits=bool(self.share_fits),
                records=records,
                time_budget=self.time_budget,
                fits_here=is_lazy(X),
            )
            with run(), rows_stay(X, run.copies):
                super().fit(X, y, **params)  # type: ignore[misc]
            self.families_ = run.sharing.uses()
            self.timeline_ = tuple(run.timeline)
        if records is not None and n_known and not records.n_used:
            warnings.warn(
                f"checkpoint={self.checkpoint!r} has {n_known} fits, and none of them was asked "
                "for: other candidates were drawn, or other splits. Give random_state a number, "
                "and the splitter.",
                UserWarning,
                stacklevel=2,
            )
        return self

    def plot(self, scoring: str | None = None) -> Any:
        """Draw the scores over the parameters, and the fits of each worker over time.

        Needs matplotlib.

        Parameters
        ----------
        scoring : str, default=None
            Which of several scores; None is the one that ``refit`` names, or the first.

        Returns
        -------
        axes : ndarray of matplotlib.axes.Axes of shape (2,)
            The scores; the fits. ``axes[0].figure`` is the picture.

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            When there is no such score.
        """
        return plot_search(self, scoring)

    def _rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Leave rows on Dask for an estimator that is fitted on them there; bring others home."""
        estimator = self.get_params(deep=False)["estimator"]
        stay = is_lazy(X) and _fits_blocks(estimator)
        if stay and not _is_planned():
            raise ValueError(
                "X must be in this process under another backend of joblib. Got a Dask collection "
                'instead. Use parallel_config("skfleet").'
            )
        if is_lazy(X) and not stay:
            check_fits_home(row_blocks(X, dtype=None), type(estimator).__name__)
        # Splitters are to see the labels.
        may_stay = stay and not is_classifier(estimator)
        return (
            counted_rows(X) if stay else bring_home(X),
            counted_rows(y) if may_stay and is_lazy(y) else bring_home(y),
        )

    def _records(self, X: Any, y: Any, params: dict[str, Any]) -> Records | None:
        """Find the records of this search, or raise."""
        wanted = [name for name in ("checkpoint", "time_budget") if getattr(self, name) is not None]
        if not wanted:
            return None
        if self._backend() is None:
            raise ValueError(
                f"{wanted[0]} must be used with fits that a fleet makes. Got n_jobs=1 or another "
                'backend of joblib instead. Leave n_jobs out, or use parallel_config("skfleet").'
            )
        if self.checkpoint is None:
            return None
        own = self.get_params(deep=False)
        search = {name: value for name, value in own.items() if name not in _CHANGES_NO_FIT}
        if not hasattr(own.get("cv"), "__getitem__") and hasattr(own.get("cv"), "__next__"):
            del search["cv"]  # to look at a generator is to use it up
        return Records(self.checkpoint, {**search, "X": lazy_name(X), "y": lazy_name(y), **params})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; of the best estimator, see to it that it is fitted where it can be.

        scikit-learn makes it and fits it in the next line. Ours go to a GPU worker by themselves.
        """
        if name == "best_estimator_" and is_running() and self._backend() is not None:
            ours = type(value).__module__.startswith("skfleet.")
            if not ours and placement(value) == "cuda":
                vars(value)["fit"] = partial(self._refit, value)
        super().__setattr__(name, value)

    def _backend(self) -> Any:
        """Give the backend that plans the fits; None where it is another, or there is no plan."""
        with joblib.parallel_config() as config:
            backend = config["backend"]
        is_planned = getattr(backend, "plans_fits", False)
        n_jobs = self.get_params(deep=False)["n_jobs"]
        return backend if is_planned and joblib.effective_n_jobs(n_jobs) != 1 else None

    def _refit(self, estimator: Any, X: Any, *args: Any, **params: Any) -> Any:
        """Fit the best estimator on a GPU worker, and take what comes home for it."""
        del vars(estimator)["fit"]
        if is_lazy(X):  # each step of it is ours
            return estimator.fit(X, *args, **params)
        with joblib.parallel_config() as config, config_context(device="cuda"):
            engine = fleet_engine(config["backend"].client)
        fitted = fit_there(engine, estimator, X, args, params)
        super().__setattr__("best_estimator_", fitted)
        return fitted

    def _run_search(
        self, evaluate_candidates: Callable[..., dict[str, Any]], *, callback_ctx: Any = None
    ) -> None:
        """Evaluate the candidates; when that is interrupted, keep what was found."""
        estimator = self.get_params(deep=False)["estimator"]

        def evaluate(candidate_params: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
            candidates, placements = list(candidate_params), Placements(estimator)
            if any(placements.of(candidate) == "cuda" for candidate in candidates):
                backend = self._backend()
                if backend is not None:
                    backend.check_device("cuda")
            results = evaluate_candidates(candidates, *args, **kwargs)
            if current_run().is_interrupted:
                self.cv_results_ = results
                raise KeyboardInterrupt
            return results

        try:
            super()._run_search(evaluate, callback_ctx=callback_ctx)  # type: ignore[misc]
        except Exception as error:
            if current_run().is_interrupted:
                raise KeyboardInterrupt from error  # before a single fit was made
            raise


def _is_planned() -> bool:
    """Tell whether the backend in use plans the fits of searches."""
    with joblib.parallel_config() as config:
        return bool(getattr(config["backend"], "plans_fits", False))


def _fits_blocks(estimator: Any) -> bool:
    """Tell whether an estimator is fitted on rows where they are: each step is one of ours."""
    steps = [step for _, step in estimator.steps] if type(estimator) is Pipeline else [estimator]
    return all(
        step is None or step == "passthrough" or type(step).__module__.startswith("skfleet.")
        for step in steps
    )


@contextmanager
def _on_fleet() -> Iterator[None]:
    """Make the fleet joblib's backend, unless an enclosing context chose a backend itself."""
    with joblib.parallel_config() as config:
        chosen = isinstance(config["backend"], ParallelBackendBase)
    if chosen:
        yield
    else:
        with joblib.parallel_config("skfleet"):
            yield
