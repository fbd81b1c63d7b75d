"""Scorers: which metric of which answers a name stands for, and several in one prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn import metrics
from sklearn.base import is_classifier, is_regressor

from skfleet.blocks import check_rows, is_lazy
from skfleet.engine import engine_for
from skfleet.metrics._reductions import host_values, measure_rows, pair_rows
from skfleet.metrics._scores import NEED_LABELS, RANKINGS, STATISTICS, check_options


class Meaning(NamedTuple):
    """What the name of a scorer stands for."""

    metric: str
    sign: int = 1
    options: Mapping[str, Any] = {}
    responses: tuple[str, ...] = ("predict",)


_PROBA = ("predict_proba",)
_ANY_SCORE = ("decision_function", "predict_proba")

MEANINGS: dict[str, Meaning] = {
    "accuracy": Meaning("accuracy_score"),
    "balanced_accuracy": Meaning("balanced_accuracy_score"),
    "matthews_corrcoef": Meaning("matthews_corrcoef"),
    "neg_log_loss": Meaning("log_loss", -1, {}, _PROBA),
    "neg_brier_score": Meaning("brier_score_loss", -1, {}, _PROBA),
    "top_k_accuracy": Meaning("top_k_accuracy_score", 1, {}, _ANY_SCORE),
    "roc_auc": Meaning("roc_auc_score", 1, {}, _ANY_SCORE),
    "average_precision": Meaning("average_precision_score", 1, {}, _ANY_SCORE),
    "r2": Meaning("r2_score"),
    "explained_variance": Meaning("explained_variance_score"),
    "neg_max_error": Meaning("max_error", -1),
}
for _error in (
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_log_error",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
):
    MEANINGS[f"neg_{_error}"] = Meaning(_error, -1)
for _family in ("poisson", "gamma"):
    MEANINGS[f"neg_mean_{_family}_deviance"] = Meaning(f"mean_{_family}_deviance", -1)
for _name in ("precision", "recall", "f1", "jaccard"):
    MEANINGS[_name] = Meaning(f"{_name}_score", 1, {"average": "binary"})
    for _average in ("micro", "macro", "samples", "weighted"):
        MEANINGS[f"{_name}_{_average}"] = Meaning(f"{_name}_score", 1, {"average": _average})
for _kind in ("ovr", "ovo"):
    for _suffix, _average in (("", "macro"), ("_weighted", "weighted")):
        MEANINGS[f"roc_auc_{_kind}{_suffix}"] = Meaning(
            "roc_auc_score", 1, {"multi_class": _kind, "average": _average}, _PROBA
        )


def get_scorer_names() -> list[str]:
    """Return the names of all scorers that rows on workers can be scored by, in order.

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
    return sorted(MEANINGS)


@dataclass(frozen=True)
class Scorer:
    """Scores a fitted estimator on rows anywhere: ``scorer(estimator, X, y, sample_weight=None)``.

    Rows in this process are scored by scikit-learn's scorers. On Dask collections the estimator
    answers block by block; metrics of one kind of answer share one prediction, and all that need no
    sort share one pass.
    """

    names: Mapping[str, str]
    single: bool

    def __repr__(self) -> str:
        told = repr(next(iter(self.names.values()))) if self.single else repr(dict(self.names))
        return f"get_scorer({told})" if self.single else f"check_scoring(scoring={told})"

    def __call__(self, estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        check_rows(X=X, y=y, sample_weight=sample_weight)
        if is_lazy(X):
            scores = _score_lazy(self.names, estimator, X, y, sample_weight)
        else:
            weight = {} if sample_weight is None else {"sample_weight": sample_weight}
            scores = {
                key: metrics.get_scorer(name)(estimator, X, y, **weight)
                for key, name in self.names.items()
            }
        return next(iter(scores.values())) if self.single else scores


@dataclass(frozen=True)
class ResponseScorer:
    """Scores answers that were brought home: what to ask an estimator, and what to make of it."""

    name: str

    def ask(self, estimator: Any, X: Any) -> np.ndarray:
        """Return what the estimator answers for some rows: one column for two labels."""
        response = _response(estimator, MEANINGS[self.name].responses)
        answer = getattr(estimator, response)(X)
        if isinstance(answer, list):
            raise ValueError(
                f"y must have one column to be scored by {response}. Got {len(answer)} instead. "
                "Take a metric of predictions."
            )
        answer = host_values(answer)
        return answer[:, 1] if response == "predict_proba" and answer.shape[1] == 2 else answer

    def score(self, estimator: Any, y: Any, answer: Any, sample_weight: Any) -> float:
        """Return the score of the answers."""
        meaning = MEANINGS[self.name]
        response = _response(estimator, meaning.responses)
        classes = None if response == "predict" else getattr(estimator, "classes_", None)
        options = _told(meaning, classes)
        if sample_weight is not None:
            options["sample_weight"] = sample_weight
        return float(meaning.sign * getattr(metrics, meaning.metric)(y, answer, **options))


def response_scorer(estimator: Any, scoring: Any) -> ResponseScorer:
    """Return what scores answers of an estimator by one named metric, or by its kind's own."""
    scorer = check_scoring(estimator, scoring)
    if not isinstance(scorer, Scorer) or not scorer.single:
        raise TypeError(
            "scoring must be the name of one metric to stop early by. "
            f"Got {scoring!r} instead. See skfleet.metrics.get_scorer_names()."
        )
    return ResponseScorer(next(iter(scorer.names.values())))


def check_scorer(scoring: Any) -> None:
    """Raise for a metric, or one among several, in place of a scorer: it knows no estimator."""
    several = scoring.values() if isinstance(scoring, Mapping) else scoring
    for one in several if isinstance(scoring, Mapping | list | tuple | set) else [scoring]:
        place = str(getattr(one, "__module__", ""))
        is_theirs = place.startswith("sklearn.metrics.") and place != "sklearn.metrics._scorer"
        if callable(one) and (is_theirs or place == "skfleet.metrics"):
            raise ValueError(
                "scoring must be the name of a metric, or call (estimator, X, y). Got the metric "
                f"function {one.__name__} instead. Give its name, one of "
                "sklearn.metrics.get_scorer_names(), or make a scorer of it with "
                "sklearn.metrics.make_scorer."
            )


def get_scorer(scoring: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a scorer for rows anywhere.

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
    return Scorer({str(scoring): _known(scoring)}, single=True)


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
    return Scorer({key: _known(name) for key, name in named.items()}, single=False)


def _known(name: Any) -> str:
    """Return the name of a scorer, or say which there are."""
    if name not in MEANINGS:
        raise ValueError(
            f"scoring must be one of {', '.join(get_scorer_names())}. Got {name!r} instead."
        )
    return str(name)


def _score_lazy(
    names: Mapping[str, str], estimator: Any, X: Any, y: Any, sample_weight: Any
) -> dict[str, float]:
    """Score on a Dask collection, with one prediction for each kind of answer."""
    if y is None:
        raise ValueError("y must be given to score by a metric. Got None instead.")
    wanted: dict[str, list[str]] = {}
    for key, name in names.items():
        wanted.setdefault(_response(estimator, MEANINGS[name].responses), []).append(key)
    found: dict[str, float] = {}
    for response, keys in wanted.items():
        answer = getattr(estimator, response)(X)
        meanings = {key: MEANINGS[names[key]] for key in keys}
        found |= _score_answer(meanings, response, estimator, answer, y, sample_weight)
    return {key: found[key] for key in names}


def _response(estimator: Any, responses: tuple[str, ...]) -> str:
    """Return the first method that the estimator has."""
    for response in responses:
        if hasattr(estimator, response):
            return response
    raise AttributeError(
        f"{type(estimator).__name__} must have {' or '.join(responses)} for this scoring. "
        "Got neither."
    )


def _score_answer(
    meanings: Mapping[str, Meaning],
    response: str,
    estimator: Any,
    answer: Any,
    y: Any,
    sample_weight: Any,
) -> dict[str, float]:
    """Score one kind of answer by all metrics that want it."""
    classes = None if response == "predict" else getattr(estimator, "classes_", None)
    if response != "predict":
        if isinstance(answer, list):
            raise ValueError(
                f"y must have one column to be scored by {response}. Got {len(answer)} instead. "
                "Take a metric of predictions."
            )
        if classes is not None and len(classes) == 2 and len(answer.shape) == 2:
            answer = _column(answer, 1)
    rows, swapped = pair_rows(y, answer, sample_weight)
    weighted = sample_weight is not None
    sums, sorts = {}, {}
    for key, meaning in meanings.items():
        options = check_options(meaning.metric, _told(meaning, classes))
        if meaning.metric in RANKINGS:
            sorts[key] = options
        else:
            sums[key] = STATISTICS[meaning.metric](options, weighted, classes)
    found: dict[str, float] = {}
    # sums take one pass, which can do without
    with engine_for(rows).persist(rows) if sorts else nullcontext(rows) as held:
        if sums:
            values = measure_rows(list(sums.values()), held, swapped)
            found |= dict(zip(sums, values, strict=True))
        for key, options in sorts.items():
            rank = RANKINGS[meanings[key].metric]
            found[key] = rank(y, answer, sample_weight, options, held, swapped)
    return {key: float(meanings[key].sign * value) for key, value in found.items()}


def _told(meaning: Meaning, classes: Any) -> dict[str, Any]:
    """Return what a metric is told, the labels that the estimator knows included."""
    told = dict(meaning.options)
    if classes is None:
        return told
    if meaning.metric in ("average_precision_score", "brier_score_loss") and len(classes) == 2:
        return told | {"pos_label": classes[1]}
    return told | {"labels": np.asarray(classes)} if meaning.metric in NEED_LABELS else told


def _column(answer: Any, i: int) -> Any:
    """Take a column of lazy answers."""
    return answer.iloc[:, i] if hasattr(answer, "iloc") else answer[:, i]
