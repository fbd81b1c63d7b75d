"""Scorers by name; metrics of the same response share one prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn import metrics
from sklearn.base import is_classifier, is_regressor

from skfleet.blocks import RowBlocks, check_rows, copy_lengths, is_lazy, with_pandas_text
from skfleet.engine import engine_for
from skfleet.metrics._reductions import align_pairs, host_values, measure_rows, measure_small_rows
from skfleet.metrics._scores import METRICS, NEED_LABELS, RANKING_METRICS, check_options


class ScorerSpec(NamedTuple):
    """Metric, sign, options and responses of a named scorer."""

    metric: str
    sign: int = 1
    options: Mapping[str, Any] = {}
    responses: tuple[str, ...] = ("predict",)


_PROBA = ("predict_proba",)
_ANY_SCORE = ("decision_function", "predict_proba")

SCORERS: dict[str, ScorerSpec] = {
    "accuracy": ScorerSpec("accuracy_score"),
    "balanced_accuracy": ScorerSpec("balanced_accuracy_score"),
    "matthews_corrcoef": ScorerSpec("matthews_corrcoef"),
    "neg_log_loss": ScorerSpec("log_loss", -1, {}, _PROBA),
    "neg_brier_score": ScorerSpec("brier_score_loss", -1, {}, _PROBA),
    "top_k_accuracy": ScorerSpec("top_k_accuracy_score", 1, {}, _ANY_SCORE),
    "roc_auc": ScorerSpec("roc_auc_score", 1, {}, _ANY_SCORE),
    "average_precision": ScorerSpec("average_precision_score", 1, {}, _ANY_SCORE),
    "r2": ScorerSpec("r2_score"),
    "explained_variance": ScorerSpec("explained_variance_score"),
    "d2_absolute_error_score": ScorerSpec("d2_absolute_error_score"),
}
for _error in (
    "max_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_gamma_deviance",
    "mean_poisson_deviance",
    "mean_squared_error",
    "mean_squared_log_error",
    "median_absolute_error",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
):
    SCORERS[f"neg_{_error}"] = ScorerSpec(_error, -1)
for _name in ("precision", "recall", "f1", "jaccard"):
    SCORERS[_name] = ScorerSpec(f"{_name}_score", 1, {"average": "binary"})
    for _average in ("micro", "macro", "samples", "weighted"):
        SCORERS[f"{_name}_{_average}"] = ScorerSpec(f"{_name}_score", 1, {"average": _average})
for _kind in ("ovr", "ovo"):
    for _suffix, _average in (("", "macro"), ("_weighted", "weighted")):
        SCORERS[f"roc_auc_{_kind}{_suffix}"] = ScorerSpec(
            "roc_auc_score", 1, {"multi_class": _kind, "average": _average}, _PROBA
        )


def get_scorer_names() -> list[str]:
    """Return the sorted names of all scorers that support Dask collections.

    Returns
    -------
    list of str
        A part of :func:`sklearn.metrics.get_scorer_names`.

    Examples
    --------
    >>> from skfleet.metrics import get_scorer_names
    >>> "roc_auc" in get_scorer_names()
    True
    """
    return sorted(SCORERS)


@dataclass(frozen=True)
class Scorer:
    """Scores a fitted estimator on any data: ``scorer(estimator, X, y, sample_weight=None)``.

    Data in this process is scored by scikit-learn's scorers. On Dask collections the estimator
    predicts block by block; metrics of the same response share one prediction, and all that need
    no sort share one pass.
    """

    names: Mapping[str, str]
    single: bool

    def __repr__(self) -> str:
        scoring = repr(next(iter(self.names.values()))) if self.single else repr(dict(self.names))
        return f"get_scorer({scoring})" if self.single else f"check_scoring(scoring={scoring})"

    def __call__(self, estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        check_rows(X=X, y=y, sample_weight=sample_weight)
        if is_lazy(X):
            scores = _score_lazy(self.names, estimator, X, y, sample_weight)
        else:
            X = with_pandas_text(X)
            weight = {} if sample_weight is None else {"sample_weight": sample_weight}
            scores = {
                key: metrics.get_scorer(name)(estimator, X, y, **weight)
                for key, name in self.names.items()
            }
        return next(iter(scores.values())) if self.single else scores


@dataclass(frozen=True)
class ResponseScorer:
    """Scores gathered responses: the response of an estimator, and the metric of it."""

    name: str

    def response(self, estimator: Any, X: Any) -> np.ndarray:
        """Return the response of an estimator to rows, as one column for two labels."""
        response = _response(estimator, SCORERS[self.name].responses)
        y_pred = getattr(estimator, response)(X)
        _check_one_output(y_pred, response)
        y_pred = host_values(y_pred)
        return y_pred[:, 1] if response == "predict_proba" and y_pred.shape[1] == 2 else y_pred

    def score(self, estimator: Any, y: Any, y_pred: Any, sample_weight: Any) -> float:
        """Return the score of responses."""
        spec = SCORERS[self.name]
        response = _response(estimator, spec.responses)
        classes = None if response == "predict" else getattr(estimator, "classes_", None)
        options = _metric_kwargs(spec, classes)
        if sample_weight is not None:
            options["sample_weight"] = sample_weight
        return float(spec.sign * getattr(metrics, spec.metric)(y, y_pred, **options))


def response_scorer(estimator: Any, scoring: Any) -> ResponseScorer:
    """Return the response scorer of one named metric, or of the estimator's type."""
    scorer = check_scoring(estimator, scoring)
    if not isinstance(scorer, Scorer) or not scorer.single:
        raise TypeError(
            "scoring must be the name of one metric to stop early by. "
            f"Got {scoring!r} instead. See skfleet.metrics.get_scorer_names()."
        )
    return ResponseScorer(next(iter(scorer.names.values())))


def check_scorer(scoring: Any) -> None:
    """Raise for a metric function in place of a scorer."""
    scorers = scoring.values() if isinstance(scoring, Mapping) else scoring
    for scorer in scorers if isinstance(scoring, Mapping | list | tuple | set) else [scoring]:
        module = str(getattr(scorer, "__module__", ""))
        # Metrics and scorers are both callable; the module tells them apart.
        is_metric = module.startswith("sklearn.metrics.") and module != "sklearn.metrics._scorer"
        if callable(scorer) and (is_metric or module == "skfleet.metrics"):
            raise ValueError(
                "scoring must be the name of a metric, or call (estimator, X, y). Got the metric "
                f"function {scorer.__name__} instead. Give its name, one of "
                "sklearn.metrics.get_scorer_names(), or make a scorer of it with "
                "sklearn.metrics.make_scorer."
            )


def get_scorer(scoring: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a scorer for arrays and Dask collections.

    Parameters
    ----------
    scoring : str or callable
        One of `get_scorer_names`. A callable ``(estimator, X, y)`` is returned as it is.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None)``; the higher the better.

    Raises
    ------
    ValueError
        For another name.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import SGDClassifier
    >>> from skfleet.estimators import Incremental
    >>> from skfleet.metrics import get_scorer
    >>> X, y = (da.from_array(v, chunks=600) for v in load_digits(return_X_y=True))
    >>> model = Incremental(SGDClassifier(random_state=0), random_state=0).fit(X, y)
    >>> get_scorer("f1_macro")(model, X, y) > 0.8
    True
    """
    if callable(scoring):
        check_scorer(scoring)
        return scoring
    return Scorer({str(scoring): _check_scorer_name(scoring)}, single=True)


def check_scoring(estimator: Any = None, scoring: Any = None) -> Callable[..., Any]:
    """Return a scorer of one metric, or of several at once.

    Parameters
    ----------
    estimator : estimator, default=None
        Without `scoring`, its kind decides: accuracy for classifiers, r2 for regressors.
    scoring : str, callable, list of str or dict of str to str, default=None
        One or several of `get_scorer_names`.

    Returns
    -------
    callable
        ``scorer(estimator, X, y, sample_weight=None)``: a float, or a dict of floats for a list or
        dict.

    Raises
    ------
    ValueError
        For an unknown name.
    TypeError
        When nothing says what to score by.

    Examples
    --------
    >>> from skfleet.metrics import check_scoring
    >>> check_scoring(scoring=["accuracy", "f1"])
    check_scoring(scoring={'accuracy': 'accuracy', 'f1': 'f1'})
    """
    if scoring is None:
        if is_classifier(estimator):
            return get_scorer("accuracy")
        if is_regressor(estimator):
            return get_scorer("r2")
        raise TypeError(
            f"{type(estimator).__name__} must be a classifier or a regressor to be scored on a "
            "Dask collection. Got neither. Give scoring, or score a sample in this process."
        )
    if not isinstance(scoring, Iterable) or isinstance(scoring, str) or callable(scoring):
        return get_scorer(scoring)
    named = scoring if isinstance(scoring, Mapping) else {name: name for name in scoring}
    if not named:
        raise ValueError("scoring must name a metric. Got none instead.")
    return Scorer({key: _check_scorer_name(name) for key, name in named.items()}, single=False)


def _check_scorer_name(name: Any) -> str:
    """Return the name of a scorer; raise for an unknown one."""
    if name not in SCORERS:
        raise ValueError(
            f"scoring must be one of {', '.join(get_scorer_names())}. Got {name!r} instead."
        )
    return str(name)


def _score_lazy(
    names: Mapping[str, str], estimator: Any, X: Any, y: Any, sample_weight: Any
) -> dict[str, float]:
    """Score on a Dask collection, with one prediction for each response method."""
    if y is None:
        raise ValueError("y must be given to score by a metric. Got None instead.")
    keys_by_response: dict[str, list[str]] = {}
    for key, name in names.items():
        keys_by_response.setdefault(_response(estimator, SCORERS[name].responses), []).append(key)
    scores: dict[str, float] = {}
    for response, keys in keys_by_response.items():
        specs = {key: SCORERS[names[key]] for key in keys}
        scores |= _score_response(specs, response, estimator, X, y, sample_weight)
    return {key: scores[key] for key in names}


def _response(estimator: Any, responses: tuple[str, ...]) -> str:
    """Return the first response method that the estimator has."""
    for response in responses:
        if hasattr(estimator, response):
            return response
    raise AttributeError(
        f"{type(estimator).__name__} must have {' or '.join(responses)} for this scoring. "
        "Got neither."
    )


def _check_one_output(y_pred: Any, response: str) -> None:
    """Raise for the responses of several outputs."""
    if isinstance(y_pred, list):
        raise ValueError(
            f"y must have one column to be scored by {response}. Got {len(y_pred)} instead. "
            "Take a metric of predictions."
        )


def _second_column(y_pred: Any) -> Any:
    """Return the column of the second class of Dask responses."""
    if not hasattr(y_pred, "iloc"):
        return y_pred[:, 1]
    column = y_pred.iloc[:, 1]
    copy_lengths(y_pred, column)
    return column


def _score_response(
    specs: Mapping[str, ScorerSpec],
    response: str,
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
) -> dict[str, float]:
    """Score one response by all metrics of it."""
    classes = None if response == "predict" else getattr(estimator, "classes_", None)
    y_pred = getattr(estimator, response)(X)
    if response != "predict":
        _check_one_output(y_pred, response)
        if classes is not None and len(classes) == 2 and len(y_pred.shape) == 2:
            y_pred = _second_column(y_pred)
    rows, pred_first = align_pairs(y, y_pred, sample_weight)
    measured = {
        key: (spec.metric, check_options(spec.metric, _metric_kwargs(spec, classes)))
        for key, spec in specs.items()
    }
    measure = partial(_measure_response, measured, classes)
    scores = measure_small_rows(measure, rows, pred_first, f"score-{response}")
    if scores is None:
        scores = measure(y, y_pred, sample_weight, rows, pred_first)
    return {key: float(specs[key].sign * value) for key, value in scores.items()}


def _measure_response(
    measured: Mapping[str, tuple[str, dict[str, Any]]],
    classes: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
    rows: RowBlocks,
    pred_first: bool,
) -> dict[str, Any]:
    """Return each metric, with its options, of one response; `rows` are the aligned values."""
    sums, rankings = {}, {}
    for key, (metric, options) in measured.items():
        if metric in RANKING_METRICS:
            rankings[key] = RANKING_METRICS[metric], options
        else:
            sums[key] = METRICS[metric](options, sample_weight is not None, classes)
    scores: dict[str, Any] = {}
    # Sums take a single pass, for which persisting does not pay.
    with engine_for(rows).persist(rows) if rankings else nullcontext(rows) as persisted:
        if sums:
            values = measure_rows(list(sums.values()), persisted, pred_first)
            scores |= dict(zip(sums, values, strict=True))
        for key, (rank, options) in rankings.items():
            scores[key] = rank(y, y_pred, sample_weight, options, persisted, pred_first)
    return scores


def _metric_kwargs(spec: ScorerSpec, classes: Any) -> dict[str, Any]:
    """Return the options of a metric, with the labels of the estimator."""
    kwargs = dict(spec.options)
    if classes is None:
        return kwargs
    if spec.metric in ("average_precision_score", "brier_score_loss") and len(classes) == 2:
        return kwargs | {"pos_label": classes[1]}
    return kwargs | {"labels": np.asarray(classes)} if spec.metric in NEED_LABELS else kwargs
