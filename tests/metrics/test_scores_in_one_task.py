"""Metrics and scores of few Dask rows: one task, with the answer of passes over blocks."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from distributed import wait

from skfleet import config_context, metrics
from skfleet.engine import counting
from skfleet.estimators import LogisticRegression
from skfleet.metrics import _reductions, _scores, check_scoring

pytestmark = pytest.mark.usefixtures("single_task", "current_client")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
Y = RNG.integers(0, 2, size=300)
PROBABILITY = RNG.uniform(0.01, 1, size=300)
WEIGHT = RNG.uniform(0.5, 2, size=300)
GUESS = (PROBABILITY > 0.5).astype(int)
OF_GUESSES = {
    "balanced_accuracy_score", "accuracy_score", "f1_score", "precision_score", "recall_score",
    "zero_one_loss", "jaccard_score", "hamming_loss", "matthews_corrcoef", "cohen_kappa_score",
    "confusion_matrix", "classification_report", "multilabel_confusion_matrix",
    "precision_recall_fscore_support", "fbeta_score",
}  # fmt: skip
OF_PROBABILITIES = {
    "average_precision_score", "brier_score_loss", "calibration_curve", "det_curve", "log_loss",
    "precision_recall_curve", "roc_auc_score", "roc_curve", "top_k_accuracy_score",
}  # fmt: skip
NOT_METRICS = {"check_scoring", "get_scorer", "get_scorer_names", "unique_labels"}
NAMES = sorted({*metrics.__all__} - NOT_METRICS)


def persisted(*values):
    collections = [da.from_array(v, chunks=(70, *v.shape[1:])).persist() for v in values]
    wait(collections)
    return collections


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_is_one_task_with_the_answer_of_blocks(name):
    if name in OF_GUESSES:
        values = Y, GUESS
    else:
        values = (Y if name in OF_PROBABILITIES else PROBABILITY[::-1].copy()), PROBABILITY
    options = {"beta": 2.0} if name == "fbeta_score" else {}
    options |= {"k": 1} if name == "top_k_accuracy_score" else {}
    metric = getattr(metrics, name)
    rows = [da.from_array(v, chunks=70) for v in values]
    with counting() as counts:
        answer = metric(*rows, **options)
    with config_context(single_task_below=0), counting() as on_blocks:
        want = metric(*rows, **options)
    assert counts.tasks == 1 < on_blocks.tasks
    if isinstance(want, str):
        assert answer == want
        return
    parts, expected = (v if isinstance(v, tuple) else [v] for v in (answer, want))
    for part, value in zip(parts, expected, strict=True):
        if value is not None:
            np.testing.assert_allclose(part, value, rtol=1e-12)


def test_weights_and_values_of_this_process():
    (y,) = persisted(Y)
    with counting() as counts:
        score = metrics.roc_auc_score(y, PROBABILITY, sample_weight=WEIGHT)
    assert counts.tasks == 1
    assert score == pytest.approx(metrics.roc_auc_score(Y, PROBABILITY, sample_weight=WEIGHT))


def test_scores_of_one_response_are_one_task_with_its_predictions():
    rows, y = persisted(X, Y)
    model = LogisticRegression().fit(X, Y)
    scoring = ["accuracy", "f1", "roc_auc", "average_precision"]
    with counting() as counts:
        scores = check_scoring(scoring=scoring)(model, rows, y, WEIGHT)
    want = check_scoring(scoring=scoring)(model, X, Y, WEIGHT)
    assert counts.tasks == 2  # of predictions, and of the decision function
    assert scores == pytest.approx(want)
    with counting() as counts:
        assert model.score(rows, y) == pytest.approx(model.score(X, Y))
    assert counts.tasks == 1


def test_predictions_of_many_rows_are_made_block_by_block(monkeypatch):
    monkeypatch.setattr(_reductions, "SMALL_BYTES", X.nbytes - 1)  # more than the labels have
    rows, y = persisted(X, Y)
    model = LogisticRegression().fit(X, Y)
    with counting() as counts:
        metrics.accuracy_score(y, GUESS)
    assert counts.tasks == 1
    with counting() as counts:
        model.score(rows, y)
    assert counts.tasks > 4


@pytest.mark.parametrize("name", ["roc_curve", "roc_auc_score", "median_absolute_error"])
def test_values_that_are_sorted_are_more_in_one_task(monkeypatch, name):
    monkeypatch.setattr(_reductions, "SMALL_BYTES", 1)
    y, score = persisted(Y, PROBABILITY)
    with counting() as counts:
        got = getattr(metrics, name)(y, score, sample_weight=WEIGHT)
    assert counts.tasks == 1
    want = getattr(sklearn.metrics, name)(Y, PROBABILITY, sample_weight=WEIGHT)
    for one, other in zip(np.atleast_1d(got), np.atleast_1d(want), strict=True):
        np.testing.assert_allclose(one, other)
    monkeypatch.setattr(_scores, "SMALL_SORTED_BYTES", 1)
    with counting() as counts:
        metrics.roc_auc_score(y, score)
    assert counts.tasks > 4


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("name", ["roc_auc_score", "d2_pinball_score", "log_loss"])
def test_values_of_several_passes_are_known_by_the_metadata_of_files(name, dropped, tmp_path):
    frame = pd.DataFrame({"y": Y, "p": PROBABILITY})
    for i in range(5):
        frame[i * 60 : (i + 1) * 60].to_parquet(tmp_path / f"{i}.parquet")
    ddf = dd.read_parquet(tmp_path)
    if dropped:  # nobody knows how many
        ddf, frame = ddf[ddf.p > 0.3], frame[frame.p > 0.3]
    with counting() as counts:
        score = getattr(metrics, name)(ddf.y, ddf.p)
    assert (counts.tasks == 1) == (not dropped)
    assert score == pytest.approx(getattr(sklearn.metrics, name)(frame.y, frame.p))
    if name == "log_loss" and not dropped:  # of labels that are known it is one pass
        with counting() as counts:
            assert metrics.log_loss(ddf.y, ddf.p, labels=[0, 1]) == pytest.approx(score)
        assert counts.tasks > 1


@pytest.mark.parametrize("n_files", [2, 3])
def test_few_blocks_of_unknown_lengths(n_files, tmp_path):
    frame = pd.DataFrame({"y": Y, "p": PROBABILITY}, index=np.arange(300) // 2)
    for i in range(n_files):
        frame[i * 300 // n_files : (i + 1) * 300 // n_files].to_parquet(tmp_path / f"{i}.parquet")
    ddf, used = dd.read_parquet(tmp_path), frame[frame.p > 0.3]
    ddf = ddf[ddf.p > 0.3]
    with counting() as counts:
        score = metrics.log_loss(ddf.y, ddf.p)
    assert (counts.tasks == 1) == (n_files == 2)
    assert score == pytest.approx(metrics.log_loss(used.y, used.p))


def test_errors_are_those_of_blocks():
    y, values = persisted(Y, np.where(PROBABILITY > 0.9, np.nan, PROBABILITY))
    with pytest.raises(ValueError, match="y_pred must"):
        metrics.mean_squared_error(y, values)
    with pytest.raises(ValueError, match="as many rows"):
        metrics.accuracy_score(y, GUESS[:-1])
    zero = np.zeros(300)
    with pytest.raises(ValueError, match="at least one non-zero"):
        metrics.accuracy_score(y, y, sample_weight=zero)
