"""What a search of scikit-learn's needs to run on a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from skfleet._captured_output import warned_once
from skfleet._config import config_context
from skfleet._doc_link import DocumentationLink
from skfleet._typing import Rows, Values
from skfleet._validation import check_in_interval
from skfleet._warnings import warn
from skfleet.blocks import (
    as_sized,
    check_rows,
    compute_chunk_sizes,
    compute_together,
    is_lazy,
    meta_of,
    row_blocks,
)
from skfleet.engine import (
    CandidateDevices,
    check_fits_in_memory,
    device_of,
    fit_on_gpu_worker,
    fleet_engine,
    rows_cached_on_workers,
)
from skfleet.metrics import check_scorer
from skfleet.model_selection._checkpoint import Checkpoint
from skfleet.model_selection._dispatch._context import SearchRun, current_run, is_running
from skfleet.model_selection._evaluations import Evaluation, set_results
from skfleet.model_selection._plot import plot_search

__all__ = ["FleetSearchMixin"]


# Parameters of searches on which no result of a fit depends.
_CHANGES_NO_FIT = frozenset(
    ["checkpoint", "n_jobs", "pre_dispatch", "refit", "time_budget", "verbose"]
)


class FleetSearchMixin(DocumentationLink):
    """What a search of scikit-learn's needs to run on a fleet; everything else it keeps."""

    scoring: Any
    share_fits: bool | str
    checkpoint: Any
    time_budget: float | None = None
    verbose: int
    n_splits_: int
    get_params: Callable[..., dict[str, Any]]

    def fit(self, X: Rows, y: Values | None = None, **params: Any) -> Self:
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
        is_flag = isinstance(self.share_fits, (bool, np.bool_))
        if not is_flag and not _is_approximate(self.share_fits):
            raise ValueError(
                f"share_fits must be True, False or 'approximate'. Got {self.share_fits!r} "
                "instead. Leave it out for the scores of separate fits, and give 'approximate' "
                "where scores within the tolerance of a solver will do."
            )
        if self.time_budget is not None:
            check_in_interval("time_budget", self.time_budget, 0, open="l")
        self._check_rows(X, y)
        check_scorer(self.scoring)
        with _on_fleet():
            given = {"X": X, "y": y, **params}
            X, y, params = self._rows(X, y, params)
            rows = {"X": X, "y": y, **params}
            # counted rows have names of their own
            records = self._records({k: given[k] if is_lazy(v) else v for k, v in rows.items()})
            n_known = 0 if records is None else len(records)
            run = SearchRun(
                share_fits=bool(self.share_fits) if is_flag else self.share_fits,
                records=records,
                time_budget=self.time_budget,
                fits_here=is_lazy(X),
                verbose=self.verbose,
            )
            try:
                with warned_once(), run(), rows_cached_on_workers(X, run.copies):
                    super().fit(X, y, **params)  # type: ignore[misc]
            except KeyboardInterrupt:
                if set_results(self, run.evaluations):
                    self._set_uses(run)
                raise KeyboardInterrupt from None  # where it was at work says nothing
            self._set_uses(run)
        if n_known and not run.n_checkpoint_fits:
            warn(
                f"checkpoint={self.checkpoint!r} has {n_known} fits, and none of them was asked "
                "for: other candidates were drawn, or other splits. Give random_state a number, "
                "and the splitter.",
                UserWarning,
            )
        return self

    def _check_rows(self, X: Any, y: Any) -> None:
        """Raise for what cannot be rows and targets, before any work."""
        check_rows(X=X, y=y)
        if is_lazy(X) and hasattr(X, "columns"):  # splits of it go without the names
            validate_data(BaseEstimator(), meta_of(X), skip_check_array=True)
        for name, values in {"X": X, "y": y}.items():
            if not is_lazy(values) and (values is not None or name == "X"):
                as_sized(name, values)
        estimator = self.get_params(deep=False)["estimator"]
        # those that say nothing of themselves need not be scikit-learn's
        says = hasattr(estimator, "__sklearn_tags__")
        if y is None and says and get_tags(estimator).target_tags.required:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None. Pass y."
            )

    def score(self, X: Rows, y: Values | None = None, **params: Any) -> float:
        """Score the best estimator by the metric that decided.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,) or (n_samples, n_outputs), default=None
            True labels or targets.
        **params : dict
            What the scorer is told besides, with metadata routing.

        Returns
        -------
        score : float
            The higher the better.
        """
        check_rows(X=X, y=y)
        return super().score(X, y, **params)  # type: ignore[misc]

    def _set_uses(self, run: SearchRun) -> None:
        """Set what the fits had in common, and where they were made."""
        self.shared_fits_ = run.sharing.uses()
        self.timeline_ = tuple(run.timeline)
        self.n_checkpoint_fits_ = run.n_checkpoint_fits

    def plot(self, scoring: str | None = None) -> np.ndarray:
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

    def _rows(self, X: Any, y: Any, params: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Leave rows on Dask for an estimator that is fitted on them there; bring others home.

        What the splitter sees is brought home either way: labels and groups.
        """
        estimator = self.get_params(deep=False)["estimator"]
        stay = is_lazy(X) and _fits_blocks(estimator)
        if stay and not _is_planned():
            raise ValueError(
                "X must be in this process under another backend of joblib. Got a Dask collection "
                'instead. Use parallel_config("skfleet").'
            )
        if is_lazy(X) and not stay:
            check_fits_in_memory(row_blocks(X, dtype=None), type(estimator).__name__)
        if not stay:
            X, y, *values = compute_together(X, y, *params.values())
            return X, y, dict(zip(params, values, strict=True))
        per_row = {"X": X, "y": y, **params}
        lazy = [name for name, value in per_row.items() if is_lazy(value)]
        per_row |= zip(lazy, compute_chunk_sizes(*(per_row[name] for name in lazy)), strict=True)
        seen = [name for name in ("y", "groups") if name in lazy]
        if "y" in seen and not is_classifier(estimator):
            seen.remove("y")
        per_row |= zip(seen, compute_together(*(per_row[name] for name in seen)), strict=True)
        return per_row.pop("X"), per_row.pop("y"), per_row

    def _records(self, rows: dict[str, Any]) -> Checkpoint | None:
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
        # whether fits are shared or not, their scores are the same
        search["share_fits"] = "approximate" if _is_approximate(self.share_fits) else True
        if not hasattr(own.get("cv"), "__getitem__") and hasattr(own.get("cv"), "__next__"):
            del search["cv"]  # to look at a generator is to use it up
        return Checkpoint(self.checkpoint, {**search, **rows})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; of the best estimator, see to it that it is fitted where it can be.

        scikit-learn makes it and fits it in the next line. Ours go to a GPU worker by themselves.
        """
        if name == "best_estimator_" and is_running() and self._backend() is not None:
            ours = type(value).__module__.startswith("skfleet.")
            if not ours and device_of(value) == "cuda":
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
        fitted = fit_on_gpu_worker(engine, estimator, X, args, params)
        super().__setattr__("best_estimator_", fitted)
        return fitted

    def _run_search(
        self, evaluate_candidates: Callable[..., dict[str, Any]], *, callback_ctx: Any = None
    ) -> None:
        """Evaluate the candidates, and tell the run which they are."""
        estimator = self.get_params(deep=False)["estimator"]

        def evaluate(
            candidate_params: Any, cv: Any = None, more_results: Any = None, **kwargs: Any
        ) -> dict[str, Any]:
            candidates, placements = list(candidate_params), CandidateDevices(estimator)
            if any(placements.of(candidate) == "cuda" for candidate in candidates):
                backend = self._backend()
                if backend is not None:
                    backend.check_device("cuda")
            current_run().expect(Evaluation(candidates, self.n_splits_, more_results or {}))
            return evaluate_candidates(candidates, cv, more_results, **kwargs)

        super()._run_search(evaluate, callback_ctx=callback_ctx)  # type: ignore[misc]


def _is_approximate(share_fits: Any) -> bool:
    """Tell whether fits are shared where scores agree within a solver's tolerance only."""
    return isinstance(share_fits, str) and share_fits == "approximate"


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
