"""Fits of several models on the same splits, all on the fleet at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby, islice
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel

from skfleet._pipeline_steps import n_blockwise_steps, takes_dask_rows
from skfleet._sklearn_private import fit_call, scorers_of
from skfleet._typing import Rows, Values
from skfleet._validation import check_option
from skfleet._warnings import warn
from skfleet.blocks import is_lazy, n_rows_of
from skfleet.metrics import check_scorer
from skfleet.model_selection._backends import fit_on_device, fleet_backend
from skfleet.model_selection._comparison._model_comparison import (
    ModelComparison,
    metrics_of,
    summarize,
)
from skfleet.model_selection._dispatch._split_views import in_order
from skfleet.model_selection._fits_on_fleet import IndexableInputs, document, fits_on_fleet
from skfleet.model_selection._input_rows import check_input_rows, may_gather, place_rows
from skfleet.model_selection._lazy_answers import answer_lazily


@document
def compare_models(
    models: Mapping[str, Any],
    X: Rows,
    y: Values | None = None,
    *,
    groups: Any = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    refit: bool | str = False,
    return_estimator: bool = False,
    error_score: Any = np.nan,
) -> ModelComparison:
    """Fit and score several models on the same splits, and test their differences.

    The scores are those of :func:`sklearn.model_selection.cross_validate` for each model.

    Parameters
    ----------
    models : dict of str -> estimator object
        The models by name: estimators, pipelines or searches. Each fit is of a clone; a search is
        fitted within each split.
    {X_and_y}
    {groups}
    scoring : str, callable, list, tuple or dict, default=None
        Metrics; by default each model's own ``score``. The first one decides, unless ``refit``
        names another.
    cv : int, cross-validation generator or iterable, default=None
        The splits, which are drawn once for all models; None means 5 folds. They are stratified if
        any model is a classifier.
    {n_jobs}
    {verbose}
    params : dict, default=None
        Parameters of the ``fit`` of each model, such as ``sample_weight``. With metadata routing
        they go to the models, the splitter and the scorers that request them.
    refit : bool or str, default=False
        Whether to fit the best model on all rows, for ``best_estimator_``. With several metrics the
        name of the one that decides.
    return_estimator : bool, default=False
        Whether to return the models of all splits, and the best parameters of searches.
    {error_score}

    Returns
    -------
    comparison : ModelComparison
        Mean scores, best first, scores of all splits, and tests of the differences.

    Raises
    ------
    TypeError
        For models that are not a dict of estimators by name.
    ValueError
        For rows, a score or splits that are not valid, for Dask rows under another backend of
        joblib, and if all fits fail.
    skfleet.exceptions.FleetError
        If a fit kills its workers again and again, or the fleet is gone.

    Warns
    -----
    FitFailedWarning
        If fits fail; the warning names their models.

    See Also
    --------
    ModelComparison : What it returns.
    cross_validate : Scores of one model.

    Notes
    -----
    {fleet} All fits of all models are scheduled together, so that no worker is idle between two
    models. Those with equal first steps of a pipeline on the same split share these steps.

    On Dask rows, models that are fitted there and models that need their rows in memory are two
    groups, which are fitted one after the other.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import RidgeCV
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skfleet.model_selection import GridSearchCV, compare_models
    >>> X, y = load_diabetes(return_X_y=True)
    >>> tree = GridSearchCV(DecisionTreeRegressor(random_state=0), {"max_depth": [2, 3, 4]})
    >>> comparison = compare_models({"ridge": RidgeCV(), "tree": tree}, X, y, cv=5, refit=True)
    >>> comparison.best_name, comparison.best_estimator_
    ('ridge', RidgeCV())
    >>> comparison.results["mean_test_score"].round(2)
    model
    ridge    0.48
    tree     0.32
    Name: mean_test_score, dtype: float64
    """
    _check_models(models)
    check_scorer(scoring)
    for model in models.values():
        check_input_rows(model, X, y, type(model).__name__)
    fits = _ModelFits(models, scoring, error_score, return_estimator)
    _check_options(refit, error_score, None if callable(scoring) else fits.metrics)
    splitter = check_cv(cv)  # a generator is read
    refit_params = fits.route(splitter, groups, params or {}).fit  # raises before any fit
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    for names in _groups_of_models(models, X, scoring):
        inputs: tuple[Any, ...] = models[names[0]], X, y, groups, params
        with fits_on_fleet(compare_models, *inputs, **calls, scoring=scoring) as rows:
            if cv is None or isinstance(cv, Integral):
                is_stratified = any(map(is_classifier, models.values()))
                splitter = check_cv(cv, rows.y, classifier=is_stratified)
            fits.make(names, splitter, rows, **calls)
    comparison = fits.comparison(refit)
    if is_lazy(X):
        for model in chain(*(comparison.estimators or {}).values()):
            answer_lazily(model)
    if refit and comparison.best_name is not None:
        best_params = refit_params[comparison.best_name]
        comparison._best_estimator = _fit_on_all_rows(comparison.best_model, X, y, best_params)
    return comparison


class _Routed(NamedTuple):
    """Parameters of the splitter, and of the fits and scores of each model."""

    split: Mapping[str, Any]
    fit: Mapping[str, Mapping[str, Any]]
    score: Mapping[str, Mapping[str, Any]]


class _ModelFits:
    """The fits of models on the same splits, which are drawn with the first of them."""

    def __init__(
        self, models: Mapping[str, Any], scoring: Any, error_score: Any, return_estimator: bool
    ) -> None:
        self._models, self._error_score = models, error_score
        self._return_estimator = return_estimator
        self._is_routed = get_config()["enable_metadata_routing"]
        raise_exc = error_score == "raise"
        self._scorers = {
            name: check_scoring(model, scoring, raise_exc=raise_exc)
            for name, model in models.items()
        }
        if scoring is not None or not self._is_routed:
            # One for all, so that their fits can share first steps: it calls the fitted model's
            # own `score`, or is of no model.
            self._scorers = dict.fromkeys(models, self._scorers[next(iter(models))])
        self._splits: list[tuple[Any, Any]] = []
        self._results: dict[str, list[dict[str, Any]]] = {}

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, as far as they are known before a fit."""
        return [name for name in scorers_of(next(iter(self._scorers.values()))) if name is not None]

    def route(self, splitter: Any, groups: Any, params: Mapping[str, Any]) -> _Routed:
        """Return the parameters of each model, or raise, as ``cross_validate`` does."""
        if not self._is_routed:
            score: dict[str, Any] = {}  # one for all: fits with the same objects can share steps
            fits, scores = dict.fromkeys(self._models, params), dict.fromkeys(self._models, score)
            return _Routed({"groups": groups}, fits, scores)
        if groups is not None:
            raise ValueError(
                "groups must be among params with metadata routing. Got them as a parameter "
                'instead. Pass params={"groups": groups}.'
            )
        numbers = {name: str(number) for number, name in enumerate(self._models)}
        fit, score = (MethodMapping().add(caller="fit", callee=c) for c in ("fit", "score"))
        router = MetadataRouter(owner="compare_models").add(
            splitter=splitter, method_mapping=MethodMapping().add(caller="fit", callee="split")
        )
        for name, number in numbers.items():
            router.add(**{f"model {number}": self._models[name]}, method_mapping=fit)
            router.add(**{f"scorer {number}": self._scorers[name]}, method_mapping=score)
        routed = process_routing(router, "fit", **params)
        return _Routed(
            routed.splitter.split,
            {name: routed[f"model {number}"].fit for name, number in numbers.items()},
            {name: routed[f"scorer {number}"].score for name, number in numbers.items()},
        )

    def make(
        self, names: Sequence[str], splitter: Any, rows: IndexableInputs, **calls: Any
    ) -> None:
        """Fit and score models on rows; the first call draws the splits."""
        X, y = indexable(rows.X, rows.y)
        routed = self.route(splitter, rows.groups, rows.params)
        if not self._splits:
            self._splits = list(splitter.split(X, y, **routed.split))
            if not self._splits:
                raise ValueError(
                    "cv must have at least one split. Got none instead. Pass a number of folds, or "
                    "pairs of training and test rows."
                )
            n_rows = n_rows_of(X)
            sizes = [[len(in_order(part, n_rows)) for part in parts] for parts in self._splits]
            n_train, n_test = np.sum(sizes, axis=0)
            self._test_ratio = n_test / n_train
        splits = self._splits
        if rows.collection is None:  # where those of Dask rows may be sets of rows
            splits = [(np.asarray(train), np.asarray(test)) for train, test in splits]
        results = Parallel(**calls, pre_dispatch="all")(
            fit_call(
                clone(self._models[name]),
                X,
                y,
                scorer=self._scorers[name],
                train=train,
                test=test,
                verbose=calls["verbose"],
                fit_params=routed.fit[name],
                score_params=routed.score[name],
                return_estimator=self._return_estimator,
                error_score=self._error_score,
            )
            for name in names
            for train, test in splits
        )
        remaining = iter(results)
        for name in names:
            self._results[name] = list(islice(remaining, len(splits)))

    def comparison(self, refit: bool | str) -> ModelComparison:
        """Return the results of all fits; raise where all failed, and warn where some did."""
        self._report_failures()
        splits = self._frame()
        metric = refit if isinstance(refit, str) else splits["metric"].iloc[0]
        check_option("refit", metric, metrics_of(splits))
        results, pairs = summarize(splits, metric, self._test_ratio)
        best = None if np.isnan(results[f"mean_test_{metric}"].iloc[0]) else results.index[0]
        estimators = None
        if self._return_estimator:
            estimators = {
                name: [fit["estimator"] for fit in self._results[name]] for name in self._models
            }
        best_model = None if best is None else self._models[best]
        return ModelComparison(results, splits, pairs, metric, best, best_model, estimators)

    def _report_failures(self) -> None:
        errors = {
            name: [fit["fit_error"] for fit in fits if fit["fit_error"] is not None]
            for name, fits in self._results.items()
        }
        n_failed = sum(map(len, errors.values()))
        if not n_failed:
            return
        lines = [
            f"{name}: {len(texts)} of {len(self._splits)} fits, {_last_line(texts[0])}"
            for name, texts in errors.items()
            if texts
        ]
        advice = 'Call with error_score="raise" for the traceback.'
        if n_failed == len(self._models) * len(self._splits):
            raise ValueError(
                "models must include one that can be fitted. Got errors in all fits instead. "
                + "\n".join([advice, *lines])
            )
        message = f"{n_failed} fits failed, with scores of {self._error_score}. {advice}"
        warn("\n".join([message, *lines]), FitFailedWarning)

    def _frame(self) -> pd.DataFrame:
        """Return a row for each model, split and metric."""
        fits = [fit for name in self._models for fit in self._results[name]]
        metrics = list(_by_metric(next(f for f in fits if f["fit_error"] is None), ["score"]))
        rows = []
        for name in self._models:
            for split, fit in enumerate(self._results[name]):
                for metric, score in _by_metric(fit, metrics).items():
                    row = {"model": name, "split": split, "metric": metric, "score": score}
                    row |= {key: fit[key] for key in ("fit_time", "score_time")}
                    error = fit["fit_error"]
                    row["error"] = None if error is None else _last_line(error)
                    if self._return_estimator:
                        row["best_params"] = getattr(fit["estimator"], "best_params_", None)
                    rows.append(row)
        return pd.DataFrame(rows)


def _by_metric(fit: Mapping[str, Any], metrics: Sequence[str]) -> Mapping[str, float]:
    """Return the scores of a fit by metric; one of a fit that failed may stand for all."""
    scores = fit["test_scores"]
    return scores if isinstance(scores, Mapping) else dict.fromkeys(metrics, scores)


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1]


def _check_models(models: Any) -> None:
    """Raise unless models are estimators by name."""
    if not isinstance(models, Mapping):
        raise TypeError(
            f"models must be a dict of estimators by name. Got {type(models).__name__} instead. "
            'Write {"name": estimator}.'
        )
    if not models:
        raise ValueError("models must have at least one model. Got none instead. Add one by name.")
    for name, model in models.items():
        if not isinstance(name, str):
            raise TypeError(
                f"Names of models must be str. Got {name!r} instead. Write {str(name)!r}."
            )
        if isinstance(model, type) or not hasattr(model, "fit"):
            raise TypeError(
                f"models[{name!r}] must be an estimator with fit. Got {model!r} instead. "
                "Pass an object of an estimator's class."
            )


def _check_options(refit: Any, error_score: Any, metrics: Sequence[str] | None) -> None:
    """Raise for options that are not valid; the metrics of a callable are not known yet."""
    is_flag = isinstance(refit, bool | np.bool_)
    if not is_flag and not isinstance(refit, str):
        raise ValueError(
            f"refit must be True, False or the name of a metric. Got {refit!r} instead. Pass True "
            "to fit the best model on all rows."
        )
    if metrics is not None and not is_flag:
        check_option("refit", refit, metrics or ["score"])
    if metrics and is_flag and refit:
        raise ValueError(
            "refit must be the name of the metric that decides, where there are several. Got True "
            f"instead. Pass one of {metrics}."
        )
    if error_score != "raise" and not isinstance(error_score, Real):
        raise ValueError(
            f"error_score must be 'raise' or a number. Got {error_score!r} instead. Leave it out "
            "for NaN."
        )


def _groups_of_models(models: Mapping[str, Any], X: Any, scoring: Any) -> list[list[str]]:
    """Return the names of models that are fitted together: on Dask rows, or in memory."""

    def key(name: str) -> tuple[bool, bool]:
        return n_blockwise_steps(models[name]) > 0, may_gather(models[name], scoring)

    if not is_lazy(X):
        return [list(models)]
    return [list(names) for _, names in groupby(sorted(models, key=key), key)]


def _fit_on_all_rows(model: Any, X: Any, y: Any, params: Mapping[str, Any]) -> Any:
    """Return a fitted clone of a model."""
    from skfleet.estimators.pipeline import fit_on_gathered_rows  # not at import

    model, is_on_dask = clone(model), is_lazy(X)
    with fleet_backend():
        if not (is_on_dask and takes_dask_rows(model)):
            X, y, params = place_rows(model, X, y, dict(params))
        if is_lazy(X) and not takes_dask_rows(model):
            model = fit_on_gathered_rows(model, X, y, params, fit_on_device)
        else:
            model = fit_on_device(model, X, *(() if y is None else (y,)), **params)
    if is_on_dask:
        answer_lazily(model)
    return model
