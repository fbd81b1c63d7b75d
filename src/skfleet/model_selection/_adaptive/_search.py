"""Base class of the adaptive searches: check parameters, place data, run the loop, set results."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import process_routing

from skfleet import _config, _typing
from skfleet._linalg import is_sparse
from skfleet._partial_fit import classes_for_partial_fit
from skfleet._pipeline_steps import last_step
from skfleet._progress_bar import ProgressHint, open_bar
from skfleet._validation import check_in_interval, check_positive_int
from skfleet.blocks import check_rows, fetch, is_lazy, row_blocks, separate_per_sample
from skfleet.engine import (
    ANY_WORKER,
    Engine,
    LocalEngine,
    ResourceRequest,
    device_of,
    fleet_engine,
    no_fit_progress,
)
from skfleet.metrics import response_scorer
from skfleet.model_selection._adaptive._budgets import Budget, budget_of
from skfleet.model_selection._adaptive._callbacks import Report
from skfleet.model_selection._adaptive._data import PlacedData, place_data
from skfleet.model_selection._adaptive._data_memory import report_data_memory
from skfleet.model_selection._adaptive._delegation import DelegatesToBestEstimator
from skfleet.model_selection._adaptive._loop import AdaptiveLoop
from skfleet.model_selection._adaptive._model_store import ModelStore
from skfleet.model_selection._adaptive._params import (
    check_candidate,
    check_parameters,
    invalid_refit,
    metric_names,
    preprocessing_key,
    scorer_for,
)
from skfleet.model_selection._adaptive._plot import plot_adaptive
from skfleet.model_selection._adaptive._results import (
    History,
    metrics_by_name,
    planned_metadata,
    set_attributes,
)
from skfleet.model_selection._adaptive._schedules import Rung, Schedule, StopOnPlateau, calls_of
from skfleet.model_selection._adaptive._training_tasks import TrainingContext
from skfleet.model_selection._adaptive._whole_rows import draw_splits, n_folds_of, place_whole_rows
from skfleet.model_selection._records._checkpoint import RUN_PARAMETERS, Checkpoint
from skfleet.model_selection._samplers._candidate_source import CandidateSource
from skfleet.model_selection._samplers._choice import choose_sampler, has_model, past_scores
from skfleet.model_selection._samplers._draws import DRAWS, candidates_of, is_grid
from skfleet.model_selection._samplers._optuna_source import OptunaSource

logger = logging.getLogger("skfleet.model_selection")

# Parameters that may change between a search and its resumption.
_RUN_PARAMETERS = RUN_PARAMETERS.union(
    ["error_score", "max_iter", "n_initial_parameters", "refit_on_test", "resources", "retries"]
)


class AdaptiveSearch(DelegatesToBestEstimator):
    """Base class of adaptive searches; subclasses define the schedule."""

    parameters: Any
    n_initial_parameters: int | str
    n_initial_iter: int
    max_iter: Any
    aggressiveness: float
    fits_per_score: int
    decay_rate: float
    patience: int | bool
    tol: float
    resource: str
    cv: Any
    test_size: float | int | None
    batch_size: int | None
    sampler: Any
    points_to_evaluate: Any
    past_results: Any
    n_jobs: int | None
    refit_on_test: bool
    error_score: Any
    retries: int
    resources: Any
    time_budget: float | None
    checkpoint: Any
    random_state: Any
    verbose: int

    def __init__(self, **params: Any) -> None:
        for name, value in params.items():
            setattr(self, name, value)

    # -- defined by subclasses ------------------------------------------------------------------

    def _n_candidates(self) -> int | str:
        """Return the number of candidates, or "grid"."""
        return self.n_initial_parameters

    def _rungs(self, n: int) -> list[list[Rung]]:
        """Return the planned rungs of every bracket for n candidates."""
        raise NotImplementedError

    def _schedule(self, n: int) -> Schedule:
        """Return the schedule for n candidates."""
        raise NotImplementedError

    def _check_schedule(self) -> None:
        """Raise for invalid parameters of the schedule."""
        if not self._has_fixed_number and self.n_initial_parameters != "grid":
            check_positive_int("n_initial_parameters", self.n_initial_parameters)
        if not isinstance(self.patience, bool | np.bool_):
            check_positive_int("patience", self.patience)
        check_in_interval("tol", self.tol, 0, open="r")

    _has_fixed_number = False  # of candidates, whatever the parameters

    # -- before the fit -------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """Planned models, calls and rungs.

        Returns
        -------
        dict
            ``n_models``, ``partial_fit_calls`` and ``brackets``: a dict each, with ``bracket``,
            ``n_models``, ``partial_fit_calls`` and ``rungs``, a list of (number of models, calls of
            ``partial_fit`` that they have had). For another `resource`, ``n_resources`` is in the
            place of ``partial_fit_calls``.
        """
        self._check_schedule()
        n = self._n_planned()
        return planned_metadata(self._rungs(n), self._budget(n).column)

    @property
    def _max_iter(self) -> Any:
        """The highest level: `max_iter`, or all folds where that is the default."""
        if self.resource != "folds":
            return self.max_iter
        default = inspect.signature(type(self)).parameters["max_iter"].default
        return n_folds_of(self.cv) if self.max_iter == default else self.max_iter

    def _budget(self, n: int) -> Budget:
        """Return what the candidates get more of, for n candidates."""
        highest = [rung.n_calls for bracket in self._rungs(n) for rung in bracket]
        return budget_of(self.resource, self._max_iter or max(highest))

    def _n_planned(self) -> int:
        """Return the number of candidates of `fit`: no more than a grid has points."""
        n_requested = self._n_candidates()
        if self._has_fixed_number and not isinstance(n_requested, str):
            return n_requested
        if isinstance(n_requested, str):
            return len(ParameterGrid(self.parameters))
        # without any where a sampler of the user's proposes candidates
        sampler = choose_sampler(self.sampler)
        may_end = sampler == "random" or has_model(sampler)
        if may_end and is_grid(self.parameters or ()):
            n_requested = min(n_requested, len(ParameterGrid(self.parameters)))
        return max(n_requested, len(self.points_to_evaluate or ()))

    def _scorer(self) -> Any:
        return scorer_for(self.estimator, self.scoring)

    def _resources_of(self, params: Mapping[str, Any]) -> ResourceRequest:
        """Return the resource request for training a candidate."""
        request = self.resources(params) if callable(self.resources) else self.resources
        if request is None and device_of(self.estimator, params) == "cuda":
            request = {"GPU": 1}
        return ResourceRequest.of(request) if request else ANY_WORKER

    # -- the fit --------------------------------------------------------------------------------

    def fit(self, X: _typing.Rows, y: _typing.Values | None = None, **params: Any) -> Self:
        """Search, on the workers of the fleet.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Training data. DataFrames reach the estimator as DataFrames.
        y : array-like, Dask array or Dask Series of shape (n_samples,) or \
                (n_samples, n_outputs), default=None
            Class labels or targets.
        **params : dict
            Parameters of ``partial_fit``, or of ``fit`` where `resource` is not "calls". Those that
            are aligned with the samples, such as ``sample_weight``, are sliced with the rows.
            ``classes`` are looked up in y by default. ``groups`` are for `cv`. With metadata
            routing enabled, the metadata that this method, the scorer and `cv` request.

        Returns
        -------
        self : object
            Fitted search.
        """
        check_parameters(self)
        check_rows(X=X, y=y, sample_weight=params.get("sample_weight"))
        # Few, and each task needs them.
        if "classes" in params:
            params["classes"] = fetch(params["classes"])
        # Before any row moves: every call of `partial_fit` would fail.
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None. Pass y."
            )
        scorer = self._scorer()
        uses_splits = self.cv is not None or self.resource == "folds"
        if uses_splits and is_lazy(X):
            raise ValueError(
                f"X must be rows of this process with cv={self.cv!r} and "
                f"resource={self.resource!r}. Got {type(X).__name__} instead. Compute it, or leave "
                "cv out, and score on one holdout."
            )
        # Two seeds, so that neither data nor candidates depend on what the other draws.
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        engine = self._engine(X)
        # Candidates, which are checked against estimator and workers before data are placed.
        source, schedule = self._candidates(engine, int(seeds[1]))
        # Parameters per row are cut with the rows; the others go to every call as they are.
        budget = self._budget(schedule.n_candidates)
        learn_params, score_params, split_params = self._route_params(params)
        by_calls = budget.method == "partial_fit"
        classes = learn_params.pop("classes", None) if by_calls else None
        per_sample, constant = separate_per_sample({**learn_params, **score_params}, X)
        weight = per_sample.pop("sample_weight", None)
        names = ["sample_weight"] * (weight is not None) + list(per_sample)
        # Batches are rows, and other sparse formats have none that could be sliced.
        sliceable = X.tocsr() if is_sparse(X) else X
        blocks = row_blocks(sliceable, y, weight, per_sample=per_sample, dtype=None)
        fit_params = {name: value for name, value in constant.items() if name in learn_params}
        if by_calls:
            fit_params |= classes_for_partial_fit(last_step(self.estimator), y, classes)
        stratify = is_classifier(self.estimator) and y is not None
        seed = int(seeds[0])
        splits = draw_splits(self, X, y, seed, **split_params) if uses_splits else []
        # Before the data are placed too: a checkpoint of another search ends this one.
        changes: dict[str, Any] = {"cv": [tuple(split) for split in splits]} if splits else {}
        if budget.is_fraction:  # which is of the highest level
            changes["max_iter"] = budget.max_level
        checkpoint, models = self._open_checkpoint(engine, X, y, {**params, **changes})
        is_whole = uses_splits or not by_calls
        report_data_memory(
            engine,
            blocks,
            self.estimator,
            name=type(self).__name__,
            batch_size=self.batch_size,
            n_jobs=None if self.n_jobs in (None, -1) else self.n_jobs,
            resource=self.resource if is_whole else None,
        )
        # Blocks that fit stay loaded for the search, and are released with it.
        with engine.persist(blocks) as persisted:
            args: dict[str, Any] = {"test_size": self.test_size, "stratify": stratify, "seed": seed}
            if is_whole:
                args |= {"is_nested": budget.is_fraction, "n_splits": len(splits)}
                data = place_whole_rows(engine, persisted, y, **args)
            else:
                data = place_data(engine, persisted, y, batch_size=self.batch_size, **args)
            context = TrainingContext(
                estimator=clone(self.estimator),
                scorer=scorer,
                fit_params=fit_params,
                per_sample_fit_params=[name for name in names if name in learn_params],
                per_sample_score_params=[name for name in names if name in score_params],
                seed=seed,
                holdout=data.holdout,
                response_scorers=self._response_scorers() if len(data.test) > 1 else {},
                models=models,
                budget=budget,
                splits=splits,
                batch_size=self.batch_size,
            )
            self._search(engine, schedule, source, context, data, checkpoint)
        self._answer_as(X)
        return self

    def _engine(self, X: Any) -> Engine:
        """Return the engine of the fleet, or that of this process with n_jobs=1."""
        if self.n_jobs == 1 and not is_lazy(X):
            return LocalEngine()
        from skfleet.fleet import default_client

        return fleet_engine(default_client())

    def _candidates(self, engine: Engine, seed: int) -> tuple[CandidateSource, Schedule]:
        """Return the sampler of candidates, and the schedule for their number."""
        sampler, n = choose_sampler(self.sampler), self._n_candidates()
        source: CandidateSource
        points, may_be_fewer = self.points_to_evaluate, not self._has_fixed_number
        if isinstance(sampler, str) and sampler in DRAWS:
            drawn = candidates_of(
                self.parameters, n, sampler, points, seed, may_be_fewer=may_be_fewer
            )
            source, n = drawn, len(drawn.candidates)
            examples = drawn.candidates
        elif has_model(sampler):
            source = self._model_source(sampler, seed)
            n = self._n_planned()
            examples = source.examples()
        else:
            source, examples = sampler, ()
        for params in examples:
            check_candidate(self.estimator, params, self.resource)
            engine.check(self._resources_of(params))
        schedule = self._schedule(int(n))
        if (plateau_params := self._plateau_params()) is not None:
            schedule = StopOnPlateau(schedule, *plateau_params)
        return source, schedule

    def _model_source(self, sampler: Any, seed: int) -> OptunaSource:
        """Return the source of candidates of a sampler of Optuna."""
        rungs = [rung for bracket in self._rungs(self._n_planned()) for rung in bracket]
        metric = self.refit if metric_names(self.scoring) else "score"
        return OptunaSource(
            self.parameters,
            sampler,
            seed,
            points=self.points_to_evaluate or (),
            past=past_scores(self.past_results, metric, max(rung.n_calls for rung in rungs)),
            has_rungs=True,
        )

    def _plateau_params(self) -> tuple[int, float, int] | None:
        """Return patience and interval of scores, in calls, with the tolerance between them."""
        patience = self.patience
        if patience is False:
            return None
        if patience is True:
            rungs = [rung for bracket in self._rungs(self._n_planned()) for rung in bracket]
            patience = max(1, max(rung.n_calls for rung in rungs) // 3)
        return int(patience), float(self.tol), self._scoring_interval(int(patience))

    def _scoring_interval(self, patience: int) -> int:
        """Return the number of calls between two scores of a candidate."""
        return max(1, patience // 3)

    def _route_params(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the metadata for the estimator, the scorer and the splitter."""
        params = {name: value for name, value in params.items() if value is not None}
        if not get_config()["enable_metadata_routing"]:
            has_groups = "groups" in params and (self.cv is not None or self.resource == "folds")
            return [params, {}, {"groups": params.pop("groups")} if has_groups else {}]
        if not params:
            return [{}, {}, {}]
        routed = process_routing(self, "fit", **params)
        method = "partial_fit" if self.resource == "calls" else "fit"
        splitting = routed["splitter"]["split"] if "splitter" in routed else {}
        return [dict(routed["estimator"][method]), dict(routed["scorer"]["score"]), dict(splitting)]

    def _response_scorers(self) -> dict[str, Any]:
        """Return the scorers of responses, for test rows that no worker can hold together."""
        metrics = metrics_by_name(self.scoring) or {"score": self.scoring}
        return {name: response_scorer(self.estimator, metric) for name, metric in metrics.items()}

    def _open_checkpoint(
        self, engine: Engine, X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[Checkpoint | None, ModelStore | None]:
        """Open the checkpoint and its model store, or raise if they are of another search."""
        if self.checkpoint is None:
            return None, None
        all_params = self.get_params(deep=False).items()
        search = {name: value for name, value in all_params if name not in _RUN_PARAMETERS}
        search |= {"search": type(self).__name__, "X": X, "y": y, **params}
        checkpoint = Checkpoint(self.checkpoint, search)
        models = ModelStore(self.checkpoint, checkpoint.name)
        if not all(engine.run_on_all(models.is_seen)):
            raise ValueError(
                "checkpoint must be a place that all workers see, to record models there. Got "
                f"{models.location!r} instead. Take a shared folder, or s3://... and the like."
            )
        return checkpoint, models

    def _search(
        self,
        engine: Engine,
        schedule: Schedule,
        source: CandidateSource,
        context: TrainingContext,
        data: PlacedData,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Run the search and set the fitted attributes, also when it is interrupted."""
        # Listeners: history, progress bar and checkpoint.
        n_planned = sum(map(calls_of, self._rungs(schedule.n_candidates)))
        budget = context.budget
        history = History(budget.column)
        name = type(last_step(self.estimator)).__name__
        is_shown = _config.asks_for_progress(self.verbose)
        bar = open_bar(name, budget.unit, n_planned) if is_shown else None
        report = Report(
            history,
            n_planned=n_planned,
            bar=bar,
            checkpoint=checkpoint,
            models=context.models,
            unit=budget.unit,
            last_level=budget.max_level if budget.goes_on else None,
            verbose=self.verbose,
        )
        # The loop sees functions and values, and nothing of the search itself.
        loop = AdaptiveLoop(
            engine,
            schedule,
            source,
            context,
            data,
            decide=self._decide,
            name=name,
            resources_of=self._resources_of,
            preprocessing_key=self._preprocessing_key(),
            keeps_all_models=callable(self.refit),
            n_jobs=None if self.n_jobs in (None, -1) else self.n_jobs,
            retries=self.retries,
            time_budget=self.time_budget,
            raises_errors=self.error_score == "raise",
            listener=report,
        )
        # Each needs the other: the loop reports, and the report reads the loop's state.
        report.loop = loop
        # One bar shows the search; those of the passes inside would overwrite it.
        may_hint = not self.verbose and _config.get_config().progress == "auto"
        bar_context = nullcontext() if bar is None else closing(bar)
        try:
            with bar_context, ProgressHint(is_enabled=may_hint), no_fit_progress():
                loop()
        except KeyboardInterrupt:
            # An interrupted search has the results of the calls that were made.
            if loop.best is not None:
                set_attributes(self, loop, history)
            raise
        else:
            set_attributes(self, loop, history)
        finally:
            report.report_checkpoint()
            logger.info("%s", report.line(is_over=True))
            # Last: attributes are set from models that workers hold until then.
            loop.close()

    def _preprocessing_key(self) -> Callable[[Mapping[str, Any]], str] | None:
        """Return the key function of the steps before the last, or None without such steps."""
        if isinstance(self.estimator, Pipeline) and len(self.estimator.steps) > 1:
            return partial(preprocessing_key, self.estimator)
        return None

    def _decide(self, scores: Mapping[str, float]) -> float:
        """Return the score of the metric that `refit` names."""
        if set(scores) == {"score"}:
            return scores["score"]
        if self.refit not in scores:
            raise invalid_refit(self.refit, scores)
        return scores[self.refit]

    # -- after the fit --------------------------------------------------------------------------

    def plot(self, scoring: str | None = None, kind: str = "curves") -> np.ndarray:
        """Draw the learning curves, the scores over time, or the importance of the parameters.

        Needs matplotlib.

        Parameters
        ----------
        scoring : str, default=None
            Name of the metric; by default the one that `refit` names.
        kind : {"curves", "history", "importances"}, default="curves"
            "curves" has the scores of each candidate over its calls, the best one in front;
            "history" all scores over the seconds since the search began, and the best so far;
            "importances" the shares of the parameters in the variance of the scores in
            `cv_results_`, by Optuna's fANOVA as in :meth:`BayesSearchCV.plot`.

        Returns
        -------
        axes : matplotlib.axes.Axes
            The axes. ``axes.figure`` is the picture.

        Raises
        ------
        ImportError
            Without matplotlib, or without Optuna for importances.
        ValueError
            When there is no such score or kind.
        """
        return plot_adaptive(self, scoring, kind)
