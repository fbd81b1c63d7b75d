"""Metrics of lazy values equal scikit-learn's on the whole, weighted or not, for any cut."""

import inspect
from contextlib import nullcontext

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.exceptions import UndefinedMetricWarning

from random_examples import n_examples
from skfleet import config_context, metrics
from skfleet.engine import counting
from skfleet.metrics import _ranking
from skfleet.metrics._scores import CURVES
from skfleet.quantiles import _order_values

N = 60
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, N), RNG.integers(0, 3, N)
BINARY = RNG.integers(0, 2, N), RNG.integers(0, 2, N)
WORDS = tuple(np.array(["ant", "bee", "cat"])[v] for v in LABELS)
MULTILABEL = RNG.integers(0, 2, (N, 4)), RNG.integers(0, 2, (N, 4))
TARGETS = RNG.gamma(2.0, size=N), RNG.gamma(2.0, size=N)
OUTPUTS = RNG.gamma(2.0, size=(N, 3)), RNG.gamma(2.0, size=(N, 3))
COUNTS = RNG.poisson(2.0, size=N), RNG.poisson(2.0, size=N)
PROBABILITIES = RNG.dirichlet(np.ones(3), size=N)
ROUNDED = np.round(RNG.uniform(size=N), 1)  # with ties
WEIGHT = RNG.uniform(size=N) * (RNG.uniform(size=N) > 0.2)

CASES = [
    ("accuracy_score", *WORDS, {}),
    ("accuracy_score", *BINARY, {"normalize": False}),
    ("accuracy_score", *(v.astype(bool) for v in BINARY), {}),
    ("accuracy_score", *MULTILABEL, {}),
    ("balanced_accuracy_score", *WORDS, {"adjusted": True}),
    ("cohen_kappa_score", *LABELS, {"weights": "quadratic"}),
    ("confusion_matrix", *WORDS, {}),
    ("confusion_matrix", *LABELS, {"labels": [2, 0], "normalize": "true"}),
    ("f1_score", *BINARY, {}),
    ("f1_score", *WORDS, {"average": None}),
    ("f1_score", *MULTILABEL, {"average": "samples", "zero_division": 0}),
    ("fbeta_score", *LABELS, {"beta": 2, "average": "weighted"}),
    ("hamming_loss", *MULTILABEL, {}),
    ("jaccard_score", *LABELS, {"average": "macro"}),
    ("matthews_corrcoef", *LABELS, {}),
    ("multilabel_confusion_matrix", *LABELS, {}),
    ("multilabel_confusion_matrix", *MULTILABEL, {}),
    ("precision_recall_fscore_support", *LABELS, {}),
    ("precision_score", *WORDS, {"average": "binary", "pos_label": "bee", "labels": None}),
    ("precision_score", *LABELS, {"average": "micro", "labels": [0, 1]}),
    ("recall_score", *MULTILABEL, {"average": "macro"}),
    ("zero_one_loss", *LABELS, {}),
    ("brier_score_loss", BINARY[0], ROUNDED, {}),
    ("brier_score_loss", np.array(["no", "yes"])[BINARY[0]], ROUNDED, {"pos_label": "yes"}),
    ("brier_score_loss", WORDS[0], PROBABILITIES, {}),
    ("log_loss", BINARY[0], ROUNDED, {}),
    ("log_loss", WORDS[0], PROBABILITIES, {}),
    ("log_loss", LABELS[0], PROBABILITIES, {"normalize": False, "labels": [0, 1, 2]}),
    ("top_k_accuracy_score", WORDS[0], PROBABILITIES, {"k": 2}),
    ("top_k_accuracy_score", LABELS[0], PROBABILITIES, {"k": 1, "normalize": False}),
    ("explained_variance_score", *TARGETS, {}),
    ("explained_variance_score", *OUTPUTS, {"multioutput": "raw_values"}),
    ("r2_score", *TARGETS, {}),
    ("r2_score", *OUTPUTS, {"multioutput": "variance_weighted"}),
    ("r2_score", *OUTPUTS, {"multioutput": [0.2, 0.3, 0.5]}),
    ("r2_score", *OUTPUTS, {"multioutput": None}),
    ("max_error", *TARGETS, {}),
    ("mean_absolute_error", *OUTPUTS, {}),
    ("mean_absolute_percentage_error", *TARGETS, {}),
    ("mean_gamma_deviance", *TARGETS, {}),
    ("mean_pinball_loss", *OUTPUTS, {"alpha": 0.2, "multioutput": [1, 2, 3]}),
    ("mean_poisson_deviance", *TARGETS, {}),
    ("mean_squared_error", *TARGETS, {}),
    ("mean_squared_error", *OUTPUTS, {"multioutput": "raw_values"}),
    ("mean_squared_log_error", *OUTPUTS, {}),
    ("mean_tweedie_deviance", *TARGETS, {"power": 1.5}),
    ("median_absolute_error", *TARGETS, {}),
    ("median_absolute_error", *OUTPUTS, {"multioutput": "raw_values"}),
    ("median_absolute_error", *COUNTS, {}),
    ("median_absolute_error", *OUTPUTS, {"multioutput": [0.2, 0.3, 0.5]}),
    ("d2_absolute_error_score", *TARGETS, {}),
    ("d2_absolute_error_score", *OUTPUTS, {"multioutput": "raw_values"}),
    ("d2_absolute_error_score", *COUNTS, {}),
    ("d2_pinball_score", *TARGETS, {"alpha": 0.9}),
    ("d2_pinball_score", *TARGETS, {"alpha": 0, "multioutput": "raw_values"}),
    ("d2_pinball_score", *COUNTS, {"alpha": 0.25}),
    ("d2_pinball_score", *OUTPUTS, {"alpha": 0.2, "multioutput": [1, 2, 3]}),
    ("d2_tweedie_score", *TARGETS, {}),
    ("d2_tweedie_score", *TARGETS, {"power": 1}),
    ("d2_tweedie_score", *TARGETS, {"power": 1.5}),
    ("d2_tweedie_score", *TARGETS, {"power": 2}),
    ("d2_tweedie_score", *TARGETS, {"power": 3}),
    ("root_mean_squared_error", *OUTPUTS, {}),
    ("root_mean_squared_log_error", *TARGETS, {}),
    ("average_precision_score", BINARY[0], ROUNDED, {}),
    ("average_precision_score", BINARY[0], ROUNDED, {"pos_label": 0}),
    ("average_precision_score", WORDS[0], PROBABILITIES, {"average": "weighted"}),
    ("average_precision_score", LABELS[0], PROBABILITIES, {"average": "micro"}),
    ("average_precision_score", MULTILABEL[0], RNG.uniform(size=(N, 4)), {"average": None}),
    ("roc_auc_score", BINARY[0], ROUNDED, {}),
    ("roc_auc_score", np.array(["no", "yes"])[BINARY[0]], ROUNDED, {"max_fpr": 0.37}),
    ("roc_auc_score", WORDS[0], PROBABILITIES, {"multi_class": "ovr"}),
    ("roc_auc_score", WORDS[0], PROBABILITIES, {"multi_class": "ovr", "average": "weighted"}),
    ("roc_auc_score", LABELS[0], PROBABILITIES, {"multi_class": "ovo"}),
    ("roc_auc_score", LABELS[0], PROBABILITIES, {"multi_class": "ovo", "average": "weighted"}),
    ("roc_auc_score", MULTILABEL[0], RNG.uniform(size=(N, 4)), {"average": "micro"}),
]
IDS = [f"{case[0]}-{i}" for i, case in enumerate(CASES)]
CASES = [
    case
    if case[3].get("pos_label") != "bee"
    else (case[0], *(np.where(v == "cat", "bee", v) for v in WORDS), case[3])
    for case in CASES
]
NO_WEIGHT = {"max_error"}


def _cut(values, cuts):
    edges = [0, *sorted(cuts), len(values)]
    return da.from_array(values, chunks=(tuple(np.diff(edges).tolist()), *values.shape[1:]))


def _weights_for(name, options, weighted):
    usable = name not in NO_WEIGHT and options.get("multi_class") != "ovo"
    return {"sample_weight": WEIGHT} if weighted and usable else {}


CUTS = st.lists(st.integers(0, N), max_size=8)


@pytest.mark.sampled(31)
@pytest.mark.parametrize(("name", "true", "predicted", "options"), CASES, ids=IDS)
@settings(max_examples=n_examples(4, 8), deadline=None)
@given(cuts=CUTS, other=CUTS, weighted=st.booleans())
def test_equals_scikit_learn(name, true, predicted, options, cuts, other, weighted):
    weight = _weights_for(name, options, weighted)
    got = getattr(metrics, name)(_cut(true, cuts), _cut(predicted, other), **weight, **options)
    want = getattr(reference, name)(true, predicted, **weight, **options)
    for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        assert np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize(("name", "true", "predicted", "options"), CASES, ids=IDS)
def test_values_in_this_process_are_left_to_scikit_learn(name, true, predicted, options):
    got = getattr(metrics, name)(true, predicted, **options)
    want = getattr(reference, name)(true, predicted, **options)
    np.testing.assert_array_equal(got, want)


def test_every_public_metric_is_tried():
    helpers = {"check_scoring", "unique_labels", "get_scorer", "get_scorer_names"}
    tried_in_test_curves = {*CURVES, "classification_report"}
    assert {case[0] for case in CASES} | tried_in_test_curves == set(metrics.__all__) - helpers


@pytest.mark.parametrize("name", ["f1_score", "roc_auc_score", "mean_squared_error", "log_loss"])
@pytest.mark.parametrize("kind", ["mixed", "frame", "unknown", "cluster"])
def test_other_containers(name, kind, cluster_client):
    true, predicted = BINARY[0], (BINARY[1] if name == "f1_score" else ROUNDED)
    want = getattr(reference, name)(true, predicted, sample_weight=WEIGHT)
    weight = WEIGHT
    if kind == "mixed":
        lazy = true, _cut(predicted, [7, 7, 30])
    elif kind == "frame":
        lazy = tuple(dd.from_pandas(pd.Series(v), npartitions=3) for v in (true, predicted))
        weight = dd.from_pandas(pd.Series(WEIGHT), npartitions=3)
    elif kind == "unknown":
        mask = da.ones(N, chunks=13, dtype=bool)
        lazy = tuple(da.from_array(v, chunks=13)[mask] for v in (true, predicted))
        weight = da.from_array(WEIGHT, chunks=13)[mask]
    else:
        lazy = _cut(true, [7, 7, 30]).persist(), _cut(predicted, [5])
    if kind == "cluster":
        with cluster_client.as_current():
            got = getattr(metrics, name)(*lazy, sample_weight=weight)
    else:
        got = getattr(metrics, name)(*lazy, sample_weight=weight)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize("name", ["roc_auc_score", "average_precision_score"])
def test_ranking_of_many_buckets(name, on_cluster, monkeypatch, cluster_client):
    monkeypatch.setattr(_ranking, "BUCKET_ROWS", 7)
    rng = np.random.default_rng(1)
    true, weight = rng.integers(0, 2, 500), rng.uniform(size=500)
    for predicted in (rng.normal(size=500), np.round(rng.normal(size=500)), np.zeros(500)):
        want = getattr(reference, name)(true, predicted, sample_weight=weight)
        lazy = _cut(true, [100, 100, 350]), _cut(predicted, [20, 60])
        if on_cluster:
            with cluster_client.as_current():
                got = getattr(metrics, name)(*lazy, sample_weight=weight)
        else:
            got = getattr(metrics, name)(*lazy, sample_weight=weight)
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("n_rows", [None, 500])
def test_scores_are_computed_once_to_be_ranked(n_rows, monkeypatch):
    monkeypatch.setattr(_ranking, "BUCKET_ROWS", 50)
    rng = np.random.default_rng(2)
    true, blocks = rng.integers(0, 2, 500), []

    def score(block):
        blocks.append(len(block))
        return block + rng.normal(size=len(block))

    y = da.from_array(true, chunks=50)
    y = y if n_rows else y[da.ones(500, chunks=50, dtype=bool)]
    scores = y.map_blocks(score, dtype=float, meta=np.empty(0))
    assert 0.5 < metrics.roc_auc_score(da.from_array(true, chunks=50) if n_rows else y, scores) < 1
    assert blocks == [50] * 10


@pytest.mark.parametrize("name", ["accuracy_score", "mean_squared_error", "r2_score"])
def test_one_pass(name):
    with counting() as counts:
        getattr(metrics, name)(da.ones(6, chunks=2), da.ones(6, chunks=3))
    assert counts.passes == 1


QUANTILE_METRICS = ["median_absolute_error", "d2_absolute_error_score", "d2_pinball_score"]


@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize("kind", ["normal", "ties", "float32", "two outputs"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", QUANTILE_METRICS)
def test_quantiles_of_more_rows_than_the_sample(
    name, weighted, kind, on_cluster, monkeypatch, cluster_client
):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 50)
    rng = np.random.default_rng(3)
    true, predicted = rng.normal(size=(2, 2000, 2) if kind == "two outputs" else (2, 2000))
    if kind == "ties":
        true, predicted = np.round(true), np.round(predicted)
    if kind == "float32":
        true, predicted = true.astype(np.float32), predicted.astype(np.float32)
    options = {"alpha": 0.8} if name == "d2_pinball_score" else {}
    if weighted:
        # without rounding errors, cumulative weights tie as in one sum
        options["sample_weight"] = rng.integers(0, 3, 2000).astype(true.dtype)
    want = getattr(reference, name)(true, predicted, **options)
    lazy = _cut(true, [300, 300, 1400]), _cut(predicted, [250, 600])
    context = cluster_client.as_current() if on_cluster else nullcontext()
    with context, config_context(single_task_below=0), counting() as counts:
        got = getattr(metrics, name)(*lazy, **options)
    np.testing.assert_allclose(got, want, rtol=1e-6 if kind == "float32" else 1e-12)
    # a bracket that misses costs a pass more
    assert counts.passes - (2 if name == "median_absolute_error" else 3) in (0, 1)


@pytest.mark.parametrize("name", QUANTILE_METRICS)
def test_predictions_are_computed_once_for_quantiles(name):
    blocks, y = [], da.from_array(np.arange(60.0), chunks=20)

    def predict(block):
        blocks.append(len(block))
        return block + 1

    getattr(metrics, name)(y, y.map_blocks(predict, dtype=float, meta=np.empty(0)))
    assert blocks == [20] * 3


@pytest.mark.parametrize("predicted", [2.0, 3.0])
@pytest.mark.parametrize("name", QUANTILE_METRICS)
def test_quantiles_of_constant_targets(name, predicted):
    true, predicted = np.full(6, 2.0), np.full(6, predicted)
    want = getattr(reference, name)(true, predicted)
    assert getattr(metrics, name)(_cut(true, [2]), _cut(predicted, [3])) == want


def test_explained_loss_of_one_row_is_undefined():
    with pytest.warns(UndefinedMetricWarning, match="less than two samples"):
        assert np.isnan(metrics.d2_absolute_error_score(da.ones(1), da.ones(1)))


@pytest.mark.parametrize("name", QUANTILE_METRICS)
def test_outputs_must_agree_for_quantiles(name):
    with pytest.raises(ValueError, match="y_pred must have the shape of y_true"):
        getattr(metrics, name)(da.ones((6, 2), chunks=(3, 2)), da.ones((6, 3), chunks=(3, 3)))


def test_constant_targets():
    ones = da.ones(6, chunks=2)
    assert metrics.r2_score(ones, ones) == 1.0
    assert metrics.r2_score(ones, ones + 1) == reference.r2_score(np.ones(6), np.ones(6) + 1)


def test_one_class_has_no_roc_curve():
    with pytest.warns(Warning, match="Only one class"):
        got = metrics.roc_auc_score(da.ones(6, chunks=2), da.arange(6, chunks=2))
    assert np.isnan(got)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("f1_score", {"average": "nope"}),
        ("log_loss", {"normalize": "nope"}),
        ("roc_auc_score", {"max_fpr": 2}),
    ],
)
def test_bad_options_are_refused_before_any_work(name, options):
    with counting() as counts, pytest.raises(ValueError, match="must be"):
        getattr(metrics, name)(da.ones(6, chunks=2), da.ones(6, chunks=2), **options)
    assert counts.passes == counts.tasks == 0


def test_other_numbers_of_predictions_are_refused():
    with pytest.raises(ValueError, match="y_pred must have as many rows as y_true"):
        metrics.accuracy_score(da.ones(6, chunks=2), da.ones(5, chunks=2))


def test_numbers_are_no_labels():
    with pytest.raises(ValueError, match="y_pred must hold labels"):
        metrics.accuracy_score(da.ones(6, chunks=2), da.full(6, 0.5, chunks=2))


def test_scores_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        metrics.roc_auc_score(da.arange(6, chunks=2) % 2, da.full(6, np.nan, chunks=2))


def test_signatures_are_those_of_scikit_learn():
    for name in {case[0] for case in CASES}:
        ours, theirs = (inspect.signature(getattr(m, name)) for m in (metrics, reference))
        assert str(ours) == str(theirs)


@pytest.mark.parametrize("name", ["accuracy_score", "mean_squared_error", "r2_score"])
def test_weights_of_zero_are_refused(name):
    y, weight = da.arange(6, chunks=4) % 2, da.zeros(6, chunks=4)
    with pytest.raises(ValueError, match="at least one non-zero number"):
        getattr(metrics, name)(y, y, sample_weight=weight)


@pytest.mark.parametrize(("n_labels", "n_passes"), [(2, 2), (3, 4)])
def test_each_sort_is_a_pass(n_labels, n_passes):
    """One over the labels, and one for each that is ranked against the others."""
    rng = np.random.default_rng(0)
    true, scores = rng.integers(0, n_labels, 90), rng.dirichlet(np.ones(n_labels), 90)
    scores = scores[:, 1] if n_labels == 2 else scores
    lazy = [da.from_array(v, chunks=(30, *v.shape[1:])) for v in (true, scores)]
    with config_context(single_task_below=0), counting() as counts:
        metrics.roc_auc_score(*lazy, multi_class="ovr")
    assert counts.passes == n_passes
