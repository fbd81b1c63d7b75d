"""Exact ranking metrics on Dask collections, by a distributed sample sort of the scores.

A sort by samples (Shi and Schaeffer, 1992, Parallel sorting by regular sampling): quantiles of the
scores cut their range into buckets, each bucket is sorted by one task, and what a bucket adds to
the metric follows from its own order and the totals of the buckets above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.multiclass import type_of_target

from skfleet._warnings import warn
from skfleet.blocks import Block, BlockRef, RowBlocks, open_block
from skfleet.engine import Engine, engine_for, log_pass
from skfleet.metrics._reductions import open_pair, unique_labels

# Distinct scores that one task sorts; each takes 100 bytes.
BUCKET_ROWS = 2**20
# Every bucket has a task for each run of rows, so their number is limited and buckets grow.
MAX_BUCKETS = 128
N_QUANTILES = 64


class Curve(NamedTuple):
    """Distinct scores in descending order, and the weights of positives and negatives at each."""

    score: np.ndarray
    positive: np.ndarray
    negative: np.ndarray


class ScoreSample(NamedTuple):
    """Evenly spaced scores of a curve, and the number of its scores."""

    scores: np.ndarray
    n_rows: int


# Turns true values and scores of some rows into (is positive, score, which rows).
Problem = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, Any]]
# What a bucket adds: (its curve, positives and negatives above it, those in all) -> number.
Area = Callable[[Curve, float, float, float, float], float]


@dataclass(frozen=True)
class Versus:
    """One label against the rest, or against one other; its score is a column, or the only one."""

    label: Any
    column: int | None = None
    other: Any = None

    def __call__(self, true: np.ndarray, scores: np.ndarray) -> tuple[Any, Any, Any]:
        score = scores if self.column is None else scores[:, self.column]
        rows: Any = slice(None)
        if self.other is not None:
            rows = (true == self.label) | (true == self.other)
        return true[rows] == self.label, score[rows], rows


@dataclass(frozen=True)
class Indicator:
    """A column of indicators; with the labels, that of one label among them."""

    column: int

    def __call__(self, true: np.ndarray, scores: np.ndarray) -> tuple[Any, Any, Any]:
        return true[:, self.column] == 1, scores[:, self.column], slice(None)


@dataclass(frozen=True)
class Micro:
    """Every label of every row."""

    labels: np.ndarray | None

    def __call__(self, true: np.ndarray, scores: np.ndarray) -> tuple[Any, Any, Any]:
        is_true = true == 1 if self.labels is None else true[:, None] == self.labels
        rows = np.repeat(np.arange(len(true)), scores.shape[1])
        return is_true.ravel(), scores.ravel(), rows


class Ranked(NamedTuple):
    """A metric of one problem, and the weights of its positives and of all its rows."""

    value: float
    positive: float
    total: float


def rank(problem: Problem, area: Area, rows: RowBlocks, pred_first: bool) -> Ranked:
    """Sort the rows by score in one pass, and sum the areas of the buckets."""
    engine = engine_for(rows)
    groups, name = _groups(engine, rows), "sort-scores"
    curves = engine.map(partial(_curve_of_group, problem, pred_first), groups, name=name)
    log_pass(name, len(rows.blocks), len(groups))
    samples = engine.gather(engine.map(_quantiles, curves, name="sample-scores"))
    buckets = _buckets(engine, curves, samples)
    # The buckets are made of them: workers may release them as soon as that is done.
    del curves
    totals = np.array(engine.gather(engine.map(_totals, buckets, name="count-scores")))
    positive, negative = (float(v) for v in totals.sum(axis=0))
    above = np.cumsum(totals[::-1], axis=0)[::-1] - totals  # cut scores ascend
    areas = [
        engine.submit(area, bucket, *map(float, before), positive, negative, name="add-area")
        for bucket, before in zip(buckets, above, strict=True)
    ]
    return Ranked(float(sum(engine.gather(areas))), positive, positive + negative)


def _groups(engine: Engine, rows: RowBlocks) -> list[list[BlockRef]]:
    """Group blocks by worker, in groups of the size of a sort task."""
    n_blocks = len(rows.blocks)
    n = 1 if rows.n_rows is None else max(1, BUCKET_ROWS * n_blocks // max(rows.n_rows, 1))
    groups = engine.group_by_worker(rows.blocks)
    return [group[i : i + n] for group in groups for i in range(0, len(group), n)]


def _buckets(engine: Engine, curves: Sequence[Any], samples: Sequence[ScoreSample]) -> list[Any]:
    """Cut the futures of sorted curves by score into buckets of about equal size."""
    n_rows = sum(sample.n_rows for sample in samples)
    size = max(BUCKET_ROWS, n_rows // MAX_BUCKETS)
    if n_rows <= size:
        return [engine.submit(_merge_curves, list(curves), name="merge-scores")]
    cut_scores = _cut_scores(samples, size)
    number = np.cumsum([sample.n_rows for sample in samples]) // size
    # Runs of curves are cut together: tasks are runs times buckets, not blocks times buckets.
    runs = [[curves[i] for i in np.flatnonzero(number == n)] for n in np.unique(number)]
    parts = [engine.submit(_cut_curves, run, cut_scores, name="cut-scores") for run in runs]
    return [
        engine.submit(
            _merge_curves,
            [engine.submit(_select_bucket, part, i, name="pick-scores") for part in parts],
            name="merge-scores",
        )
        for i in range(len(cut_scores) + 1)
    ]


def _cut_scores(samples: Sequence[ScoreSample], size: int) -> np.ndarray:
    """Return the scores at which all scores are cut into buckets of about `size` rows."""
    scores = np.concatenate([sample.scores for sample in samples])
    # A sampled score stands for an equal fraction of its curve's scores.
    weights = np.repeat(
        [sample.n_rows / max(len(sample.scores), 1) for sample in samples],
        [len(sample.scores) for sample in samples],
    )
    order = np.argsort(scores, kind="stable")
    total = np.cumsum(weights[order])
    n_buckets = math.ceil(total[-1] / size)
    cuts = np.searchsorted(total, total[-1] * np.arange(1, n_buckets) / n_buckets)
    return np.unique(scores[order][cuts])


def _quantiles(curve: Curve) -> ScoreSample:
    n = len(curve.score)
    chosen = np.linspace(0, n - 1, min(N_QUANTILES, n)).astype(int)
    return ScoreSample(curve.score[chosen], n)


def _cut_curves(curves: Sequence[Curve], cut_scores: np.ndarray) -> list[Curve]:
    """Merge curves and cut them at the scores."""
    whole = _merge_curves(curves)
    cuts = len(whole.score) - np.searchsorted(whole.score[::-1], cut_scores, side="right")
    edges = [len(whole.score), *cuts, 0]
    return [Curve(*(part[low:high].copy() for part in whole)) for high, low in pairwise(edges)]


def _curve_of_group(problem: Problem, pred_first: bool, block_refs: Sequence[BlockRef]) -> Curve:
    return _merge_curves([_curve_of(problem, open_block(ref), pred_first) for ref in block_refs])


def _curve_of(problem: Problem, block: Block, pred_first: bool) -> Curve:
    """Sort the scores of one block; rows without weight are left out."""
    true, scores, weight = open_pair(block, pred_first)
    is_positive, score, rows = problem(true, scores)
    weight = np.ones(len(score)) if weight is None else weight[rows]
    if not np.isfinite(score).all():
        raise ValueError(
            f"Input y_score contains NaN or infinity in block {block.number}. "
            "Scores must be finite. Drop those rows, or see why they were predicted."
        )
    # As in scikit-learn: a row without weight adds no threshold.
    has_weight = weight != 0
    is_positive, score, weight = is_positive[has_weight], score[has_weight], weight[has_weight]
    return _by_score(score, weight * is_positive, weight * ~is_positive)


def _by_score(score: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Curve:
    """Add up the weights at equal scores."""
    order = np.argsort(score)[::-1]
    score = score[order]
    is_first = np.concatenate([[True], score[1:] != score[:-1]])[: len(score)]
    starts = np.flatnonzero(is_first)
    sums = (np.add.reduceat(weight[order], starts) for weight in (positive, negative))
    return Curve(score[starts], *sums)


def _merge_curves(curves: Sequence[Curve]) -> Curve:
    if len(curves) == 1:
        return curves[0]
    return _by_score(*(np.concatenate(parts) for parts in zip(*curves, strict=True)))


def _select_bucket(parts: Sequence[Curve], i: int) -> Curve:
    return parts[i]


def _totals(curve: Curve) -> tuple[float, float]:
    return float(curve.positive.sum()), float(curve.negative.sum())


def roc_area(
    max_fpr: float | None, curve: Curve, tp: float, fp: float, positive: float, negative: float
) -> float:
    """Return the area of a bucket under the ROC curve, by the trapezoidal rule."""
    if not len(curve.score) or not positive or not negative:
        return 0.0
    tpr = np.concatenate([[tp], tp + np.cumsum(curve.positive)]) / positive
    fpr = np.concatenate([[fp], fp + np.cumsum(curve.negative)]) / negative
    if max_fpr is not None and max_fpr < 1:
        if fpr[0] > max_fpr:
            return 0.0
        # Cut at max_fpr, on the straight line between the points about it.
        stop = np.searchsorted(fpr, max_fpr, side="right")
        if stop < len(fpr):
            end = np.interp(max_fpr, fpr[stop - 1 : stop + 1], tpr[stop - 1 : stop + 1])
            tpr, fpr = np.append(tpr[:stop], end), np.append(fpr[:stop], max_fpr)
    return float(np.trapezoid(tpr, fpr))


def precision_area(curve: Curve, tp: float, fp: float, positive: float, negative: float) -> float:
    """Return the area of a bucket in average precision: gains in recall times precision."""
    if not positive:
        return 0.0
    hits = tp + np.cumsum(curve.positive)
    return float((curve.positive / positive) @ (hits / (hits + fp + np.cumsum(curve.negative))))


def _binary_roc(rows: RowBlocks, pred_first: bool, max_fpr: Any, problem: Problem) -> Ranked:
    """Return the area under the ROC curve of one problem."""
    ranked = rank(problem, partial(roc_area, max_fpr), rows, pred_first)
    if ranked.positive in (0.0, ranked.total):
        warn(
            "Only one class is present in y_true. ROC AUC score is not defined in that case.",
            UndefinedMetricWarning,
        )
        return ranked._replace(value=np.nan)
    if max_fpr is None or max_fpr == 1:
        return ranked
    # McClish's correction (1989, Medical Decision Making 9): 0.5 for a random ranking
    random_area = 0.5 * max_fpr**2
    return ranked._replace(value=0.5 * (1 + (ranked.value - random_area) / (max_fpr - random_area)))


def _binary_precision(rows: RowBlocks, pred_first: bool, problem: Problem) -> Ranked:
    """Return the average precision of one problem."""
    ranked = rank(problem, precision_area, rows, pred_first)
    if not ranked.positive:
        warn(
            "No positive class found in y_true, recall is set to one for all thresholds.",
            UserWarning,
        )
    return ranked


def _averaged(score: Callable[[Problem], Ranked], average: Any, n: int, labels: Any) -> Any:
    """Average a metric over labels, or over the columns of indicators."""
    if average == "micro":
        return score(Micro(labels)).value
    if average not in ("macro", "weighted", None):
        raise ValueError(
            "average must be 'micro', 'macro', 'weighted' or None on Dask collections. "
            f"Got {average!r} instead."
        )
    problems = [Indicator(i) if labels is None else Versus(labels[i], i) for i in range(n)]
    results = [score(problem) for problem in problems]
    values = np.array([one.value for one in results])
    if average is None:
        return values
    if average == "macro":
        return float(values.mean())
    weights = np.array([one.positive for one in results])
    if not weights.any():
        return 0
    return float(np.average(np.where(weights == 0, 0.0, values), weights=weights))


def _one_vs_one(score: Callable[[Problem], Ranked], labels: np.ndarray, average: Any) -> float:
    """Average the area under the ROC curve over pairs of labels (Hand and Till, 2001)."""
    values, weights = [], []
    for i, j in combinations(range(len(labels)), 2):
        a = score(Versus(labels[i], i, labels[j]))
        # Either label's own column ranks the rows of both.
        b = score(Versus(labels[j], j, labels[i]))
        values.append((a.value + b.value) / 2)
        weights.append(a.total)
    return float(np.average(values, weights=weights if average == "weighted" else None))


def roc_auc(
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    options: dict[str, Any],
    rows: RowBlocks,
    pred_first: bool,
) -> Any:
    """Return `roc_auc_score` of values, of which `rows` are the aligned ones."""
    # The cases are told apart as in scikit-learn, by the labels, and have its errors.
    average, max_fpr = options["average"], options["max_fpr"]
    multi_class, labels = options["multi_class"], options["labels"]
    n_columns = _n_columns(y_score)
    score = partial(_binary_roc, rows, pred_first, max_fpr)
    if _n_columns(y_true) > 1:
        return _averaged(score, average, n_columns, None)
    # A pass over the labels alone; it says whether one ranking decides.
    present = unique_labels(y_true)
    if type_of_target(present).startswith("continuous"):
        raise ValueError("y_true must hold labels. Got continuous values instead.")
    if len(present) <= 2 and n_columns <= 2:
        if n_columns == 2:
            raise ValueError(
                "y_score must have one column for two labels. Got 2 instead. Give the scores of "
                "the greater label."
            )
        return score(Versus(present[-1])).value
    # Several labels: scikit-learn has no partial area for these.
    if max_fpr not in (None, 1):
        raise ValueError(f"max_fpr must be None for several labels. Got {max_fpr!r} instead.")
    if multi_class not in ("ovr", "ovo"):
        raise ValueError(f"multi_class must be in ('ovo', 'ovr'). Got {multi_class!r} instead.")
    # Columns of scores are by label, so each label must have one.
    classes = present if labels is None else np.asarray(labels)
    if not np.array_equal(classes, np.unique(classes)):
        raise ValueError("labels must be unique and in order. Sort them.")
    if len(np.setdiff1d(present, classes)) or len(classes) != n_columns:
        raise ValueError(
            "y_score must have one column for each label. "
            f"Got {n_columns} columns for the labels {classes}. Give labels."
        )
    if multi_class == "ovr":
        return _averaged(score, average, n_columns, classes)
    # Pairs of labels, for which scikit-learn has neither other averages nor weights.
    if average not in ("macro", "weighted"):
        raise ValueError(
            f"average must be 'macro' or 'weighted' for multi_class='ovo'. Got {average!r} instead."
        )
    if sample_weight is not None:
        raise ValueError("sample_weight must be None for multi_class='ovo'. Got weights instead.")
    return _one_vs_one(score, classes, average)


def average_precision(
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    options: dict[str, Any],
    rows: RowBlocks,
    pred_first: bool,
) -> Any:
    """Return `average_precision_score` of values, as `roc_auc` does."""
    average, pos_label = options["average"], options["pos_label"]
    n_columns = _n_columns(y_score)
    score = partial(_binary_precision, rows, pred_first)
    present = None if _n_columns(y_true) > 1 else unique_labels(y_true)
    if present is not None and len(present) <= 2:
        if len(present) == 2 and pos_label not in present:
            raise ValueError(
                f"pos_label={pos_label} is not a valid label. It should be one of {present}"
            )
        return score(Versus(pos_label)).value
    if pos_label != 1:
        raise ValueError(f"pos_label must be 1 for several labels. Got {pos_label!r} instead.")
    if present is not None and len(present) != n_columns:
        raise ValueError(
            "y_score must have one column for each label. "
            f"Got {n_columns} columns for the labels {present}."
        )
    return _averaged(score, average, n_columns, present)


def _n_columns(values: Any) -> int:
    shape = getattr(values, "shape", None)
    shape = np.shape(values) if shape is None else shape
    return int(shape[1]) if len(shape) == 2 else 1
