"""The public metrics: scikit-learn's names and signatures, for values in any container."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn import calibration, get_config, metrics

from skfleet._array import is_not_numpy, to_host
from skfleet._validation import check_target_shape, n_dims_of
from skfleet._warnings import IgnoredWarnings
from skfleet.blocks import Block, RowBlocks, check_rows, estimated_nbytes, is_lazy
from skfleet.metrics import _ranking
from skfleet.metrics._calibration import calibration_metric
from skfleet.metrics._contingency import pairs_reduction
from skfleet.metrics._deviance import d2_reduction
from skfleet.metrics._quantile_errors import ExplainedPinballLoss, MedianError
from skfleet.metrics._reductions import (
    SMALL_SORTED_BYTES,
    Metric,
    MetricReduction,
    align_pairs,
    check_pair,
    measure_rows,
    measure_small_rows,
    open_pair,
    unique_labels,
)
from skfleet.metrics._weighted_means import (
    check_same_width,
    explained_reduction,
    mean_reduction,
    over_outputs,
    part_of_max_error,
    root_over_outputs,
)

# name -> (options, is weighted, labels) -> metric of aligned rows
METRICS: dict[str, Callable[[dict[str, Any], bool, Any], Metric]] = {}
# name -> (y_true, y_score, sample_weight, options) -> metric, by a distributed sort
RANKING_METRICS: dict[str, Callable[[Any, Any, Any, dict[str, Any]], Any]] = {
    "average_precision_score": _ranking.average_precision,
    "roc_auc_score": _ranking.roc_auc,
}
# metrics whose blocks need the labels of all rows
NEED_LABELS = {"brier_score_loss", "log_loss", "top_k_accuracy_score"}
# metrics that sort all rows
_SORTED_CURVES = {"det_curve", "precision_recall_curve", "roc_curve"}
SORTING = {
    *RANKING_METRICS,
    *_SORTED_CURVES,
    "d2_absolute_error_score",
    "d2_pinball_score",
    "median_absolute_error",
}
# metrics of one column of labels and one of scores
CURVES = {*_SORTED_CURVES, "calibration_curve"}

_NO_WARNINGS = IgnoredWarnings(Warning)

_DOC = """{what}

    Parameters
    ----------
    {true} : array-like or Dask collection of shape (n_samples,){more}
        {true_is}.
    {predicted} : array-like or Dask collection of shape (n_samples,){more_predicted}
        {predicted_is}; either one may be in this process.
    {options}

    Returns
    -------
    {returned}
        As :func:`{module}.{name}`, which is called for data in this process.

    Notes
    -----
    {passes}

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.metrics import {name}
    >>> y_true, {predicted} = {example}
    >>> value = {name}(da.from_array(y_true, chunks=2), da.from_array({predicted}, chunks=3){extra})
    """

# option -> (type, description), shared by all metrics
_OPTIONS = {
    "adjusted": ("bool", "Scale so that 0 is chance and 1 is perfect."),
    "alpha": ("float", "The quantile that is predicted."),
    "average": ("str or None", "How labels are averaged; None gives a value for each."),
    "beta": ("float", "Recall counts beta times as much as precision."),
    "digits": ("int", "Decimals in the text of the report."),
    "drop_intermediate": ("bool", "Leave out the thresholds without which the curve is the same."),
    "force_finite": ("bool", "Give 1 or 0 for a constant target where the quotient is undefined."),
    "k": ("int", "How many of the highest scores count."),
    "labels": ("array-like", "The labels there are, or those to look at, in order."),
    "max_fpr": ("float", "Look at the curve up to this false positive rate only; rescaled."),
    "multi_class": ("{'raise', 'ovr', 'ovo'}", "Each label against all others, or against each."),
    "multioutput": ("str or array-like of weights", "How outputs are averaged."),
    "n_bins": ("int", "The number of bins."),
    "normalize": ("bool or str", "Divide: by the rows' weight, or, in a matrix, along an axis."),
    "output_dict": ("bool", "Return a dict in place of the text."),
    "pos_label": ("label", "The label that is the positive one of two."),
    "power": ("float", "The power of the mean that the variance is."),
    "replace_undefined_by": ("float or dict", "What takes the place of an undefined quotient."),
    "sample_weight": ("array-like or Dask collection of shape (n_samples,)", "Sample weights."),
    "samplewise": ("bool", "A matrix for each row, not for each label."),
    "scale_by_half": ("bool or 'auto'", "Halve, so that the worst is 1 for two labels."),
    "strategy": ("{'uniform', 'quantile'}", "Bins of equal width, or of equally many rows."),
    "target_names": ("array-like of str", "Names of the labels in the report, in their order."),
    "warn_for": ("tuple of str", "Which of the values warn when they are undefined."),
    "weights": ("{'linear', 'quadratic'} or None", "How far apart two labels are."),
    "y_pred": ("str", "Deprecated in scikit-learn."),
    "zero_division": ("'warn', 0.0, 1.0 or nan", "The value of a quotient by zero."),
}

_LABELS = ("Labels", "Predicted labels", "([0, 1, 1, 0], [0, 1, 0, 0])")
_TARGETS = ("Targets", "Predictions", "([1.0, 2.0, 3.0, 5.0], [1.0, 2.5, 3.0, 4.0])")
_SCORES = ("Labels", "Scores or probabilities", "([0, 1, 1, 0], [0.1, 0.8, 0.4, 0.3])")

_PAIRS_PASS = (
    "One pass. Each block is reduced to its distinct pairs of labels and their weights: a\n"
    "    number for every cell of the confusion matrix."
)
_MEAN_PASS = "One pass over both; each block is reduced to a few numbers."
_LABELS_PASS = (
    _MEAN_PASS[:-1] + ", and one more over the\n    labels alone unless ``labels`` is given."
)
_QUANTILE_PASSES = (
    "Exact, in two passes, and one for up to 10,000 rows: the first one brings a sample of the\n"
    "    errors to this process, the second one those near the median."
)
_D2_PASSES = (
    "Exact, in three passes, and two for up to 10,000 rows: the first one brings a sample of the\n"
    "    targets to this process, the second one those near the quantile, and the last one has\n"
    "    the loss of the quantile as the prediction of all rows."
)
_CURVE_PASS = (
    "Exact, in one pass. Each block is reduced to its distinct pairs of label and score and\n"
    "    their weights, which come to this process, 24 bytes each; scikit-learn takes about 100\n"
    "    more for each. Memory grows with the distinct scores: round them where it is too much."
)
_BIN_PASSES = (
    "One pass for bins of equal width; each block is reduced to a few numbers a bin. The edges of\n"
    "    bins of equally many rows are exact quantiles: one pass more for up to 10,000 rows, else\n"
    "    two, which bring a sample of the probabilities and those near the edges to this process."
)
_RANK_PASS = (
    "Exact: the scores are sorted across the workers, which hold 24 bytes for each distinct\n"
    "    score. One pass to find the labels, and one to sort the scores of each label."
)


def _reference(name: str) -> Any:
    """Return scikit-learn's function."""
    return getattr(calibration if name == "calibration_curve" else metrics, name)


def _public(
    name: str, what: str, words: tuple[str, str, str], passes: str, returned: str | None = None
) -> Any:
    """Return a metric for lazy values that delegates to scikit-learn's for others."""
    # Arguments are named by scikit-learn's signature, which may change between its releases.
    reference = _reference(name)
    signature = inspect.signature(reference)
    true, predicted = list(signature.parameters)[:2]
    values = (true, predicted, "sample_weight")
    # Labels may be text, numbers may not.
    kinds = {"true_is_number": words is _TARGETS, "predicted_is_number": words is not _LABELS}

    def score(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        y_true, y_pred = bound.arguments[true], bound.arguments.get(predicted)
        weight = bound.arguments.get("sample_weight")
        check_rows(**{true: y_true, predicted: y_pred, "sample_weight": weight})
        # Values of this process are scikit-learn's own affair, its errors and warnings included.
        if not any(map(is_lazy, (y_true, y_pred, weight))):
            # Without its array API dispatch, scikit-learn takes arrays on the host only.
            if not get_config()["array_api_dispatch"]:
                for key in values:
                    if is_not_numpy(bound.arguments.get(key)):
                        bound.arguments[key] = to_host(bound.arguments[key])
            return reference(*bound.args, **bound.kwargs)
        options = {key: v for key, v in bound.arguments.items() if key not in values}
        y_true, y_pred, weight = check_pair(y_true, y_pred, weight, **kinds)
        return lazy_score(name, y_true, y_pred, weight, options)

    # To readers and to `inspect` the function is as if it were written out.
    wide = " or (n_samples, n_outputs)"
    score.__name__ = score.__qualname__ = name
    score.__module__ = "skfleet.metrics"
    score.__signature__ = signature  # type: ignore[attr-defined]
    score.__doc__ = _DOC.format(
        what=what,
        name=name,
        module="sklearn.calibration" if name == "calibration_curve" else "sklearn.metrics",
        true=true,
        predicted=predicted,
        more=wide if words is _TARGETS else "",
        more_predicted=wide if words is not _LABELS and name not in CURVES else "",
        true_is=words[0],
        predicted_is=words[1],
        options="\n    ".join(map(_option_doc, list(signature.parameters.values())[2:])),
        returned=returned
        or ("float, array or tuple of arrays" if words is _LABELS else "float or array"),
        example=words[2],
        extra=", beta=2" if name == "fbeta_score" else ", k=1" if name.startswith("top_k") else "",
        passes=passes,
    ).replace("\n    \n\n", "\n\n")  # there are no options
    return score


def _option_doc(parameter: inspect.Parameter) -> str:
    """Return the numpydoc entry of an option."""
    kind, meaning = _OPTIONS[parameter.name]
    has_default = parameter.default is not inspect.Parameter.empty
    default = f", default={parameter.default!r}" if has_default else ""
    return f"{parameter.name} : {kind}{default}\n        {meaning}"


def lazy_score(
    name: str, y_true: Any, y_pred: Any, sample_weight: Any, options: dict[str, Any]
) -> Any:
    """Return a metric of lazy values."""
    options = check_options(name, options)
    if not (is_lazy(y_true) or is_lazy(y_pred)):
        raise TypeError("y_true or y_pred must be lazy where sample_weight is. Compute it first.")
    if name in CURVES:
        for values in (y_true, y_pred):
            check_target_shape(values, several=n_dims_of(values) == 2 and values.shape[1] == 1)
    rows, pred_first = align_pairs(y_true, y_pred, sample_weight)
    measure, is_sorting = partial(_score, name, options), name in SORTING
    limit = SMALL_SORTED_BYTES if is_sorting else None
    is_one_pass = not is_sorting and (name not in NEED_LABELS or options["labels"] is not None)
    n_estimated = math.inf
    if not is_one_pass:
        sizes = [estimated_nbytes(values) for values in (y_true, y_pred) if is_lazy(values)]
        n_estimated = sum(math.inf if n is None else n for n in sizes)
    score = measure_small_rows(
        measure, rows, pred_first, name, limit=limit, n_estimated=n_estimated
    )
    if score is None:
        score = _score(name, options, y_true, y_pred, sample_weight, rows, pred_first)
    return score


def _score(
    name: str,
    options: dict[str, Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    rows: RowBlocks,
    pred_first: bool,
) -> Any:
    """Return a metric of values, of which `rows` are the aligned ones."""
    if name in SORTING and not rows.on_dask:
        true, predicted, weight = open_pair(Block(y_true, y_pred, sample_weight), pred_first=False)
        if name not in RANKING_METRICS:
            check_same_width(true, predicted)
        weights = {} if weight is None else {"sample_weight": weight}
        return _reference(name)(true, predicted, **weights, **options)
    if name in RANKING_METRICS:
        return RANKING_METRICS[name](y_true, y_pred, sample_weight, options, rows, pred_first)
    labels = None
    if name in NEED_LABELS:
        labels = options.get("labels")
        labels = unique_labels(y_true) if labels is None else np.asarray(labels)
    metric = METRICS[name](options, sample_weight is not None, labels)
    return measure_rows([metric], rows, pred_first)[0]


def check_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a metric with defaults; raise for invalid ones."""
    reference = _reference(name)
    parameters = list(inspect.signature(reference).parameters.values())[2:]
    try:
        # Has scikit-learn validate the options, on rows that cost nothing.
        with _NO_WARNINGS:
            reference([0, 1], [0, 1], **options)
    except Exception as error:
        if type(error).__name__ == "InvalidParameterError":  # other errors are of the values
            raise
    if options.get("samplewise"):
        raise ValueError(
            "samplewise must be False on Dask collections. Got True instead. Compute the labels."
        )
    defaults = {p.name: p.default for p in parameters if p.name not in ("sample_weight", "y_pred")}
    return defaults | options


def _pairs(name: str, what: str, returned: str | None = None) -> Any:
    """Build a metric of labels."""
    reference = getattr(metrics, name)
    METRICS[name] = lambda options, weighted, _: pairs_reduction(reference, options, weighted)
    return _public(name, what, _LABELS, _PAIRS_PASS, returned)


def _curve(name: str, what: str) -> Any:
    """Build a curve over the thresholds of scores."""
    reference = getattr(metrics, name)
    METRICS[name] = lambda options, weighted, _: pairs_reduction(
        reference, options, weighted, of_scores=True
    )
    return _public(name, what, _SCORES, _CURVE_PASS, "tuple of arrays")


def _mean(name: str, what: str) -> Any:
    """Build a metric of targets that is a mean over rows, or its root, per output."""
    reference = getattr(metrics, name.removeprefix("root_"))
    average = root_over_outputs if name.startswith("root_") else over_outputs

    def reduction(options: dict[str, Any], weighted: bool, labels: Any) -> MetricReduction:
        if "multioutput" not in options:
            return mean_reduction(reference, options)
        finalize = partial(average, options["multioutput"])
        return mean_reduction(reference, options | {"multioutput": "raw_values"}, finalize)

    METRICS[name] = reduction
    return _public(name, what, _TARGETS, _MEAN_PASS)


def _explained(name: str, what: str, *, centred: bool) -> Any:
    """Build a metric of the explained fraction of the variance of the targets."""
    METRICS[name] = lambda options, *_: explained_reduction(centred=centred, **options)
    return _public(name, what, _TARGETS, _MEAN_PASS)


def _of_labels(name: str, what: str, reference: Callable[..., Any] | None = None) -> Any:
    """Build a metric of labels and scores that is a mean, or a sum, over rows."""
    reference = reference or getattr(metrics, name)

    def reduction(options: dict[str, Any], weighted: bool, labels: Any) -> MetricReduction:
        normalize = options.get("normalize", True)
        options = options | {"labels": labels}
        if "normalize" in options:
            # Parts are means, from which the sum over all rows follows.
            options["normalize"] = True
        return mean_reduction(reference, options, normalize=normalize)

    METRICS[name] = reduction
    return _public(name, what, _SCORES, _LABELS_PASS)


def _brier(true: Any, probability: Any, *, sample_weight: Any = None, **options: Any) -> float:
    """Return the Brier score of a block, which may lack some labels."""
    labels, positive = options["labels"], options["pos_label"]
    if probability.ndim == 1:
        if len(labels) > 2:
            raise ValueError(
                f"y_proba must have one column for each label. Got 1 for {len(labels)} labels."
            )
        if positive is None:
            if labels.dtype.kind not in "biuf" or not set(labels.tolist()) <= {-1, 0, 1}:
                raise ValueError(
                    f"pos_label must be given for the labels {labels}. Got None instead."
                )
            positive = 1
        true, options = (true == positive).astype(int), options | {"pos_label": 1, "labels": None}
    return metrics.brier_score_loss(true, probability, sample_weight=sample_weight, **options)


def _pinball_fraction(name: str, what: str) -> Any:
    """Build a metric of the explained fraction of a pinball loss."""
    METRICS[name] = lambda options, *_: ExplainedPinballLoss(**{"alpha": 0.5, **options})
    return _public(name, what, _TARGETS, _D2_PASSES)


def _ranked(name: str, what: str) -> Any:
    return _public(name, what, _SCORES, _RANK_PASS)


accuracy_score = _pairs("accuracy_score", "Fraction of labels that were predicted right.")
balanced_accuracy_score = _pairs("balanced_accuracy_score", "Recall averaged over the labels.")
classification_report = _pairs(
    "classification_report",
    "Precision, recall, F and support of each label, as a text.",
    "str or dict",
)
cohen_kappa_score = _pairs("cohen_kappa_score", "Agreement beyond that of chance (Cohen, 1960).")
confusion_matrix = _pairs("confusion_matrix", "How often each label was predicted as each label.")
f1_score = _pairs("f1_score", "Harmonic mean of precision and recall.")
fbeta_score = _pairs("fbeta_score", "Weighted harmonic mean of precision and recall.")
hamming_loss = _pairs("hamming_loss", "Fraction of labels that were predicted wrong.")
jaccard_score = _pairs("jaccard_score", "Size of the intersection of label sets over their union.")
matthews_corrcoef = _pairs("matthews_corrcoef", "Matthews' correlation of labels and predictions.")
multilabel_confusion_matrix = _pairs(
    "multilabel_confusion_matrix", "A two by two confusion matrix for each label."
)
precision_recall_fscore_support = _pairs(
    "precision_recall_fscore_support", "Precision, recall, F and support of each label."
)
precision_score = _pairs("precision_score", "Fraction of the predicted labels that are right.")
recall_score = _pairs("recall_score", "Fraction of the true labels that were found.")
zero_one_loss = _pairs("zero_one_loss", "Fraction of rows that were predicted wrong.")

brier_score_loss = _of_labels("brier_score_loss", "Mean squared error of probabilities.", _brier)
log_loss = _of_labels("log_loss", "Mean negative log-likelihood of probabilities.")
top_k_accuracy_score = _of_labels(
    "top_k_accuracy_score", "Fraction of rows whose label is among the k highest scores."
)

explained_variance_score = _explained(
    "explained_variance_score", "Fraction of the targets' variance that is explained.", centred=True
)
r2_score = _explained("r2_score", "Coefficient of determination.", centred=False)
d2_absolute_error_score = _pinball_fraction(
    "d2_absolute_error_score", "Fraction of the absolute error of the median that is explained."
)
d2_pinball_score = _pinball_fraction(
    "d2_pinball_score", "Fraction of the pinball loss of the targets' quantile that is explained."
)
d2_tweedie_score = _public(
    "d2_tweedie_score", "Fraction of a Tweedie deviance that is explained.", _TARGETS, _MEAN_PASS
)
METRICS["d2_tweedie_score"] = lambda options, weighted, labels: d2_reduction(**options)
max_error = _public("max_error", "Largest absolute error.", _TARGETS, _MEAN_PASS)
METRICS["max_error"] = lambda *_: MetricReduction(part_of_max_error, max, float)
mean_absolute_error = _mean("mean_absolute_error", "Mean absolute error.")
mean_absolute_percentage_error = _mean(
    "mean_absolute_percentage_error", "Mean absolute error over the size of the target."
)
mean_gamma_deviance = _mean("mean_gamma_deviance", "Mean deviance of the Gamma distribution.")
mean_pinball_loss = _mean("mean_pinball_loss", "Mean pinball loss of a quantile's prediction.")
mean_poisson_deviance = _mean("mean_poisson_deviance", "Mean deviance of the Poisson distribution.")
mean_squared_error = _mean("mean_squared_error", "Mean squared error.")
mean_squared_log_error = _mean("mean_squared_log_error", "Mean squared error of logarithms.")
mean_tweedie_deviance = _mean("mean_tweedie_deviance", "Mean deviance of a Tweedie distribution.")
median_absolute_error = _public(
    "median_absolute_error", "Median of the absolute errors.", _TARGETS, _QUANTILE_PASSES
)
METRICS["median_absolute_error"] = lambda options, weighted, _: MedianError(weighted, **options)
root_mean_squared_error = _mean("root_mean_squared_error", "Root of the mean squared error.")
root_mean_squared_log_error = _mean(
    "root_mean_squared_log_error", "Root of the mean squared error of logarithms."
)

average_precision_score = _ranked(
    "average_precision_score", "Mean precision over the thresholds, weighted by gains in recall."
)
roc_auc_score = _ranked("roc_auc_score", "Area under the receiver operating characteristic curve.")

det_curve = _curve("det_curve", "False positive and false negative rates over the thresholds.")
precision_recall_curve = _curve(
    "precision_recall_curve", "Precision and recall over the thresholds."
)
roc_curve = _curve("roc_curve", "False positive and true positive rates over the thresholds.")
calibration_curve = _public(
    "calibration_curve",
    "Fraction of positives and mean probability, in bins of the probability.",
    _SCORES,
    _BIN_PASSES,
    "tuple of arrays",
)
METRICS["calibration_curve"] = lambda options, *_: calibration_metric(**options)
