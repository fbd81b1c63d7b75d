"""What every adaptive search does: check, hold the rows, run its schedule, and tell what came."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import process_routing

from skfleet import _typing
from skfleet._linalg import as_csr, is_sparse
from skfleet._partial_fit import learner_of
from skfleet._progress_bar import ProgressHint, open_bar
from skfleet.blocks import check_rows, fetch, is_lazy, row_blocks, split_per_sample
from skfleet.engine import ANY_WORKER, Engine, LocalEngine, ResourceRequest, device_of, fleet_engine
from skfleet.metrics import classes_for_partial_fit, response_scorer
from skfleet.model_selection._adaptive._callbacks import Report
from skfleet.model_selection._adaptive._data import Rows, hold_rows
from skfleet.model_selection._adaptive._delegation import DelegatesToBestEstimator
from skfleet.model_selection._adaptive._loop import Run
from skfleet.model_selection._adaptive._model_store import Models
from skfleet.model_selection._adaptive._params import (
    check_candidate,
    check_parameters,
    head_key,
    metric_names,
    scorer_for,
)
from skfleet.model_selection._adaptive._plot import plot_curves
from skfleet.model_selection._adaptive._results import (
    History,
    best_place,
    described,
    executed,
    search_results,
    warn_of_failures,
)
from skfleet.model_selection._adaptive._samplers import CandidateSource, candidates_of
from skfleet.model_selection._adaptive._schedules import Rung, Schedule, StopOnPlateau, calls_of
from skfleet.model_selection._adaptive._simulation import simulate
from skfleet.model_selection._adaptive._worker import Setting
from skfleet.model_selection._checkpoint import Checkpoint

__all__ = ["AdaptiveSearch"]

logger = logging.getLogger("skfleet.model_selection")

# Parameters on which no record depends.
_CHANGES_NO_RECORD = frozenset(
    [
        "checkpoint",
        "error_score",
        "refit_on_test",
        "n_jobs",
        "refit",
        "resources",
        "retries",
        "time_budget",
        "verbose",
    ]
)


class AdaptiveSearch(DelegatesToBestEstimator):
    """What adaptive searches have in common; each has a schedule of its own."""

    def __init__(
        self,
        estimator: Any,
        parameters: Any,
        *,
        scoring: Any,
        test_size: float | int | None,
        batch_size: int | None,
        sampler: Any,
        points_to_evaluate: Any,
        n_jobs: int | None,
        refit: Any,
        refit_on_test: bool,
        error_score: Any,
        retries: int,
        resources: Any,
        time_budget: float | None,
        checkpoint: Any,
        random_state: Any,
        verbose: int,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.scoring = scoring
        self.test_size = test_size
        self.batch_size = batch_size
        self.sampler = sampler
        self.points_to_evaluate = points_to_evaluate
        self.n_jobs = n_jobs
        self.refit = refit
        self.refit_on_test = refit_on_test
        self.error_score = error_score
        self.retries = retries
        self.resources = resources
        self.time_budget = time_budget
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose

    # -- what each search says itself -----------------------------------------------------------

    def _n_wanted(self) -> int | str:
        """Return how many candidates there are to be, or "grid"."""
        raise NotImplementedError

    def _rungs(self, n: int) -> list[list[Rung]]:
        """Return what is planned for n candidates: the rungs of every bracket."""
        raise NotImplementedError

    def _schedule(self, n: int) -> Schedule:
        """Return the schedule for n candidates."""
        raise NotImplementedError

    def _check_schedule(self) -> None:
        """Raise for parameters of the schedule that cannot be."""
        raise NotImplementedError

    # True where the number of candidates does not depend on the parameters
    _has_fixed_number = False

    # -- before the fit -------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """What the search will take.

        Returns
        -------
        dict
            ``n_models``, ``partial_fit_calls`` and ``brackets``: a dict each, with ``bracket``,
            ``n_models``, ``partial_fit_calls`` and ``rungs``, a list of (number of models, calls of
            ``partial_fit`` that they have had).
        """
        self._check_schedule()
        return described(self._rungs(self._n_planned()))

    def _n_planned(self) -> int:
        """Return how many candidates there will be: all points of a grid that has too few."""
        wanted = self._n_wanted()
        if self._has_fixed_number and not isinstance(wanted, str):
            return wanted
        spaces = [self.parameters] if isinstance(self.parameters, Mapping) else self.parameters
        is_grid = all(not hasattr(v, "rvs") for space in spaces for v in space.values())
        if isinstance(wanted, str):
            return len(ParameterGrid(self.parameters))
        if is_grid and self.sampler == "random":
            wanted = min(wanted, len(ParameterGrid(self.parameters)))
        return max(wanted, len(self.points_to_evaluate or ()))

    def _learner(self) -> Any:
        """Return what learns."""
        return learner_of(self.estimator)

    def _scorer(self) -> Any:
        """Return what scores a model, by one metric or by several at once."""
        return scorer_for(self.estimator, self.scoring)

    def _placement(self, params: Mapping[str, Any]) -> ResourceRequest:
        """Return which workers may train a candidate."""
        wanted = self.resources(params) if callable(self.resources) else self.resources
        if wanted is None and device_of(self.estimator, params) == "cuda":
            wanted = {"GPU": 1}
        return ResourceRequest.of(wanted) if wanted else ANY_WORKER

    # -- the fit --------------------------------------------------------------------------------

    def fit(self, X: _typing.Rows, y: _typing.Values | None = None, **params: Any) -> Self:
        """Search, on the workers of the fleet.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Training rows: array, sparse matrix, frame, list, Dask array or Dask DataFrame. Frames
            reach the estimator as frames.
        y : values of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or targets.
        **params : dict
            Handed on to ``partial_fit``: values per row, as ``sample_weight``, cut along with the
            rows, all others as they are; ``classes`` are looked up in y where they are not given.
            With metadata routing enabled, what ``partial_fit`` and the scorer request.

        Returns
        -------
        self : object
            The fitted search.
        """
        check_parameters(self)
        check_rows(X=X, y=y, sample_weight=params.get("sample_weight"))
        if "classes" in params:
            params["classes"] = fetch(params["classes"])
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None. Pass y."
            )
        scorer = self._scorer()
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        engine = self._engine(X)
        source, schedule = self._candidates(engine, int(seeds[1]))
        learn_params, score_params = self._routed(params)
        classes = learn_params.pop("classes", None)
        per_row, told = split_per_sample({**learn_params, **score_params}, X)
        weight = per_row.pop("sample_weight", None)
        named = ["sample_weight"] * (weight is not None) + list(per_row)
        rows_of = as_csr(X) if is_sparse(X) else X  # rows can be taken of that
        blocks = row_blocks(rows_of, y, weight, more=per_row, dtype=None)
        told = {name: value for name, value in told.items() if name in learn_params}
        told |= classes_for_partial_fit(self._learner(), y, classes)
        records, models = self._records(engine, X, y, params)
        stratify = is_classifier(self.estimator) and y is not None
        with engine.persist(blocks) as held:
            rows = hold_rows(
                engine,
                held,
                y,
                test_size=self.test_size,
                stratify=stratify,
                batch_size=self.batch_size,
                seed=int(seeds[0]),
            )
            setting = Setting(
                estimator=clone(self.estimator),
                scorer=scorer,
                told=told,
                learn_told=[name for name in named if name in learn_params],
                score_told=[name for name in named if name in score_params],
                seed=int(seeds[0]),
                aside=rows.aside,
                answered=self._answered() if len(rows.test) > 1 else {},
                models=models,
            )
            self._search(engine, schedule, source, setting, rows, records)
        return self

    def _engine(self, X: Any) -> Engine:
        """Return where candidates are trained: on the fleet, or in this process with n_jobs=1."""
        if self.n_jobs == 1 and not is_lazy(X):
            return LocalEngine()
        from skfleet.fleet import default_client

        return fleet_engine(default_client())

    def _candidates(self, engine: Engine, seed: int) -> tuple[CandidateSource, Schedule]:
        """Return where candidates come from, and the schedule for so many."""
        if not isinstance(self.sampler, str):
            source, n = self.sampler, self._n_wanted()
        else:
            source = candidates_of(
                self.parameters,
                self._n_wanted(),
                self.sampler,
                self.points_to_evaluate,
                seed,
                may_be_fewer=not self._has_fixed_number,
            )
            n = len(source)
            for params in source.all():
                check_candidate(self.estimator, params)
                engine.check(self._placement(params))
        schedule = self._schedule(int(n))
        patience = self._patience()
        if patience is not None:
            schedule = StopOnPlateau(schedule, *patience)
        return source, schedule

    def _patience(self) -> tuple[int, float, int] | None:
        """Return after how many calls without a gain of how much to stop, looking how often."""
        wanted = getattr(self, "patience", False)
        if wanted is False:
            return None
        patience = max(1, self._most_calls() // 3) if wanted is True else int(wanted)
        return patience, float(self.tol), self._score_every(patience)

    def _score_every(self, patience: int) -> int:
        """Return after how many calls a candidate is scored, to see whether it still gains."""
        return max(1, patience // 3)

    def _most_calls(self) -> int:
        """Return the most calls that a candidate may have."""
        return max(rung.n_calls for rungs in self._rungs(self._n_planned()) for rung in rungs)

    def _routed(self, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what of the metadata goes to partial_fit, and what to the scorer."""
        params = {name: value for name, value in params.items() if value is not None}
        if not get_config()["enable_metadata_routing"]:
            return params, {}
        if not params:
            return {}, {}
        routed = process_routing(self, "fit", **params)
        return dict(routed["estimator"]["partial_fit"]), dict(routed["scorer"]["score"])

    def _answered(self) -> dict[str, Any]:
        """Return what scores the answers for rows that no worker can hold together."""
        names = self.scoring if isinstance(self.scoring, dict) else None
        names = (
            names or {name: name for name in metric_names(self.scoring)} or {"score": self.scoring}
        )
        return {key: response_scorer(self.estimator, name) for key, name in names.items()}

    def _records(
        self, engine: Engine, X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[Checkpoint | None, Models | None]:
        """Find what an earlier search recorded, or raise if it was another one."""
        if self.checkpoint is None:
            return None, None
        own = self.get_params(deep=False)
        search = {name: value for name, value in own.items() if name not in _CHANGES_NO_RECORD}
        search |= {"search": type(self).__name__, "X": X, "y": y, **params}
        records = Checkpoint(self.checkpoint, search)
        models = Models(self.checkpoint, records.name)
        if not all(engine.run_on_all(models.is_seen)):
            raise ValueError(
                "checkpoint must be a place that all workers see, to record models there. Got "
                f"{models.location!r} instead. Take a shared folder, or s3://... and the like."
            )
        return records, models

    def _search(
        self,
        engine: Engine,
        schedule: Schedule,
        source: CandidateSource,
        setting: Setting,
        rows: Rows,
        records: Checkpoint | None,
    ) -> None:
        """Run the search and set what it has found, also when it is interrupted."""
        planned = self._rungs(schedule.n_candidates)
        n_planned = sum(map(calls_of, planned))
        history = History()
        name = type(self._learner()).__name__
        bar = open_bar(name, "calls of partial_fit", n_planned) if self.verbose == 1 else None
        report = Report(
            history,
            n_planned=n_planned,
            seconds_of=self._seconds_of,
            bar=bar,
            records=records,
            models=setting.models,
            verbose=self.verbose,
        )
        run = Run(
            engine,
            schedule,
            source,
            setting,
            rows,
            decide=self._decide,
            name=name,
            placement_of=self._placement,
            head_of=partial(head_key, self.estimator) if self._has_head() else None,
            keep_all=callable(self.refit),
            n_jobs=None if self.n_jobs in (None, -1) else self.n_jobs,
            retries=self.retries,
            time_budget=self.time_budget,
            raises=self.error_score == "raise",
            listener=report,
        )
        report.run = run
        try:
            try:
                with ProgressHint(is_wanted=not self.verbose):
                    run()
            finally:
                if bar is not None:
                    bar.close()
        except KeyboardInterrupt:
            if run.best is not None:
                self._tell(run, history)
            raise
        else:
            self._tell(run, history)
        finally:
            report.tell_checkpoint()
            logger.info("%s", report.line(is_over=True))
            run.close()

    def _has_head(self) -> bool:
        """Say whether there are steps before the one that learns."""
        return isinstance(self.estimator, Pipeline) and len(self.estimator.steps) > 1

    def _decide(self, scores: Mapping[str, float]) -> float:
        """Return the score that decides."""
        if set(scores) == {"score"}:
            return scores["score"]
        if self.refit not in scores:
            known = ", ".join(map(repr, scores))
            raise ValueError(
                f"refit must name the metric that decides, one of {known}. Got {self.refit!r} "
                "instead."
            )
        return scores[self.refit]

    def _seconds_of(self, call_seconds: float, n_slots: int) -> float:
        """Estimate how long the whole search takes on so many slots."""
        schedule = self._schedule(self._n_planned())
        rng = np.random.default_rng(0)
        fleet = simulate(
            schedule,
            max(1, n_slots),
            lambda order, before: (order.n_calls - before) * call_seconds,
            lambda order: rng.random(),
        )
        return fleet.makespan

    # -- after the fit --------------------------------------------------------------------------

    def _tell(self, run: Run, history: History) -> None:
        """Fetch the best model, and only then set what is known after the search."""
        warn_of_failures(run, self.error_score)
        scored = next((one.best[1] for one in run.candidates.values() if one.best), None)
        names = metric_names(self.scoring) or list(scored.scores if scored else ["score"])
        is_multimetric = names != ["score"]
        scorer = (
            {name: scorer_for(self.estimator, one) for name, one in self._named().items()}
            if metric_names(self.scoring)
            else self._scorer()
        )
        error_score = math.nan if self.error_score == "raise" else float(self.error_score)
        results = search_results(run.candidates, history, names, error_score)
        best = best_place(self.refit, results, run)
        candidate = run.candidates[int(results["candidate"][best])]
        if self.refit:
            self.best_estimator_ = run.model_of(candidate, refit_on_test=self.refit_on_test)
        self.multimetric_, self.scorer_, self.n_splits_ = is_multimetric, scorer, 1
        self.cv_results_, self.history_ = results, history.table(names)
        self.metadata_, self.search_time_ = executed(run, history), run.seconds
        self.n_checkpoint_calls_ = history.n_checkpoint_calls
        self.best_index_ = best
        self.best_params_ = dict(candidate.params)
        self.n_iter_ = int(results["budget"][best])
        if not callable(self.refit):
            deciding = self.refit if is_multimetric else "score"
            self.best_score_ = float(results[f"mean_test_{deciding}"][best])

    def _named(self) -> dict[str, Any]:
        """Return several metrics by name."""
        return (
            dict(self.scoring)
            if isinstance(self.scoring, dict)
            else {name: name for name in metric_names(self.scoring)}
        )

    def plot(self, scoring: str | None = None) -> np.ndarray:
        """Draw the learning curves: the score of every candidate over its calls.

        Needs matplotlib.

        Parameters
        ----------
        scoring : str, default=None
            Which of several scores; None is the one that decided.

        Returns
        -------
        axes : matplotlib.axes.Axes
            The curves, the best one in front. ``axes.figure`` is the picture.

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            When there is no such score.
        """
        return plot_curves(self, scoring)
