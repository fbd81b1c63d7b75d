"""Curves and reports of lazy labels and scores equal scikit-learn's, for any cut."""

import re
import warnings
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import calibration
from sklearn import metrics as reference

from random_examples import n_examples
from skfleet import metrics
from skfleet.engine import counting
from skfleet.metrics._contingency import Pairs, pairs_reduction
from skfleet.quantiles import _order_values

N = 40
CURVES = ["roc_curve", "precision_recall_curve", "det_curve"]
DOCS = Path(__file__).parents[2] / "docs/how_it_works/metrics.md"


def _outcome(function, *args, **kwargs):
    """Return the result and the warnings, or the type of the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            return type(error), None
    return result, sorted({(w.category, str(w.message)) for w in caught}, key=str)


def _assert_same(actual, expected):
    result, messages = actual
    expected_result, expected_messages = expected
    assert messages == expected_messages, (result, expected_result)
    if isinstance(expected_result, tuple):
        assert len(result) == len(expected_result)
        for values, wanted in zip(result, expected_result, strict=True):
            assert values.dtype == wanted.dtype
            np.testing.assert_allclose(values, wanted, rtol=1e-12)
    elif isinstance(expected_result, np.ndarray):
        assert result.dtype == expected_result.dtype
        np.testing.assert_allclose(result, expected_result, rtol=1e-12)
    elif isinstance(expected_result, dict):
        assert result.keys() == expected_result.keys()
        for key, values in expected_result.items():
            assert result[key] == pytest.approx(values, nan_ok=True)
    elif isinstance(expected_result, str):
        # a support of fractional weights has all digits of their sum
        assert _rounded(result) == _rounded(expected_result)
    else:
        assert result == expected_result


def _rounded(text):
    return re.sub(r" +(\d+\.\d{5,})$", lambda m: f"{float(m[1]):9.4f}", text, flags=re.MULTILINE)


@st.composite
def labels_and_scores(draw, n_labels=2):
    """Return true labels, scores in [0, 1] with ties and the weights of N rows, and a label."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    names = draw(st.sampled_from([[0, 1, 2], [-1, 1, 3], [False, True], ["no", "yes", "yet"]]))
    true = np.array(names)[rng.integers(0, min(n_labels, len(names)), N)]
    scores = rng.random(N).round(draw(st.sampled_from([1, 2, 17])))
    scores = scores.astype(draw(st.sampled_from([np.float64, np.float32])))
    kinds = [None, rng.integers(0, 4, N), rng.random(N) * (rng.random(N) > 0.3)]
    weight = kinds[draw(st.integers(0, 2))]
    return true, scores, weight, draw(st.sampled_from([None, names[1]]))


def _lazy(values, cuts):
    if values is None:
        return None
    edges = [0, *sorted(cuts), len(values)]
    return da.from_array(values, chunks=(tuple(np.diff(edges).tolist()),))


CUTS = st.lists(st.integers(0, N), max_size=4)


@settings(max_examples=n_examples(8, 150), deadline=None)
@given(
    rows=labels_and_scores(),
    name=st.sampled_from(CURVES),
    drops=st.booleans(),
    cuts=CUTS,
    scores_cuts=CUTS,
)
def test_curve_equals_scikit_learn(rows, name, drops, cuts, scores_cuts):
    true, scores, weight, label = rows
    options = {"pos_label": label, "drop_intermediate": drops}
    lazy = {} if weight is None else {"sample_weight": _lazy(weight, cuts)}
    weights = {} if weight is None else {"sample_weight": weight}
    actual = _outcome(
        getattr(metrics, name), _lazy(true, cuts), _lazy(scores, scores_cuts), **options, **lazy
    )
    _assert_same(actual, _outcome(getattr(reference, name), true, scores, **options, **weights))


@settings(max_examples=n_examples(6, 120), deadline=None)
@given(
    rows=labels_and_scores(),
    strategy=st.sampled_from(["uniform", "quantile"]),
    n_bins=st.integers(1, 12),
    cuts=CUTS,
)
def test_calibration_curve_equals_scikit_learn(rows, strategy, n_bins, cuts):
    true, scores, _, label = rows
    options = {"pos_label": label, "n_bins": n_bins, "strategy": strategy}
    actual = _outcome(metrics.calibration_curve, _lazy(true, cuts), _lazy(scores, cuts), **options)
    _assert_same(actual, _outcome(calibration.calibration_curve, true, scores, **options))


@settings(max_examples=n_examples(8, 150), deadline=None)
@given(data=st.data(), cuts=CUTS, other=CUTS)
def test_report_and_matrix_equal_scikit_learn(data, cuts, other):
    true, _, weight, _ = data.draw(labels_and_scores(n_labels=3))
    predicted = data.draw(labels_and_scores(n_labels=3))[0]
    if predicted.dtype != true.dtype:
        predicted = np.roll(true, 3)
    present = np.unique(np.concatenate([true, predicted])).tolist()
    labels = data.draw(st.sampled_from([None, present, present[::-1], present[:1]]))
    if data.draw(st.booleans()):
        name = "confusion_matrix"
        options = {"normalize": data.draw(st.sampled_from([None, "true", "pred", "all"]))}
    else:
        name = "classification_report"
        options = {
            "digits": data.draw(st.integers(1, 4)),
            "output_dict": data.draw(st.booleans()),
            "zero_division": data.draw(st.sampled_from(["warn", 0.0, np.nan])),
        }
        if labels is not None and data.draw(st.booleans()):
            options["target_names"] = [f"class {label} 1.0" for label in labels]
    options["labels"] = labels
    lazy = {} if weight is None else {"sample_weight": _lazy(weight, cuts)}
    weights = {} if weight is None else {"sample_weight": weight}
    actual = _outcome(
        getattr(metrics, name), _lazy(true, cuts), _lazy(predicted, other), **options, **lazy
    )
    _assert_same(actual, _outcome(getattr(reference, name), true, predicted, **options, **weights))


def test_report_of_many_rows_has_their_number():
    zero = np.zeros(1, dtype=int)
    reduction = pairs_reduction(reference.classification_report, {}, weighted=False)
    lines = reduction.finalize(Pairs(zero, zero, np.array([12_345_678]))).splitlines()
    assert lines[2] == "           0       1.00      1.00      1.00  12345678"


@pytest.mark.parametrize("name", [*CURVES, "calibration_curve", "classification_report"])
def test_takes_one_pass(name):
    true = da.from_array(np.arange(N) % 2, chunks=10)
    predicted = true if name == "classification_report" else da.linspace(0, 1, N, chunks=10)
    with counting() as counts:
        getattr(metrics, name)(true, predicted)
    assert counts.passes == 1


def test_quantile_bins_of_many_rows_take_three_passes(monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 16)
    rng = np.random.default_rng(0)
    true, scores = rng.integers(0, 2, 500), rng.random(500)
    options = {"n_bins": 7, "strategy": "quantile"}
    with counting() as counts:
        curve = metrics.calibration_curve(_lazy(true, [99]), _lazy(scores, [200, 300]), **options)
    assert counts.passes == 3
    for actual, expected in zip(
        curve, calibration.calibration_curve(true, scores, **options), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("name", [*CURVES, "calibration_curve"])
def test_frames_and_columns_are_taken(name):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.integers(0, 2, N), "score": rng.random(N)})
    lazy = dd.from_pandas(frame, npartitions=3)
    function = getattr(calibration if name == "calibration_curve" else reference, name)
    expected = function(frame["y"], frame["score"])
    for y in (lazy["y"], lazy[["y"]], lazy["y"].astype("category"), frame["y"]):
        for actual, values in zip(
            getattr(metrics, name)(y, lazy[["score"]]), expected, strict=True
        ):
            np.testing.assert_allclose(actual, values)


@pytest.mark.parametrize("name", [*CURVES, "calibration_curve"])
def test_several_columns_are_refused_before_any_task(name):
    true = da.from_array(np.arange(N) % 2, chunks=10)
    with counting() as counts, pytest.raises(ValueError, match="1d array"):
        getattr(metrics, name)(true, da.ones((N, 2), chunks=10))
    assert counts.passes == 0


def test_docs_list_every_metric():
    """The table of docs/how_it_works/metrics.md has the names of `__all__`, and no others."""
    text = DOCS.read_text()
    table = text[text.index("| metrics |") : text.index("`get_scorer(name)`")]
    scorers = {"check_scoring", "get_scorer", "get_scorer_names"}
    options = {"labels"}
    assert set(table.split("`")[1::2]) - options == set(metrics.__all__) - scorers


def test_docs_list_every_scorer_that_is_not_supported():
    text = DOCS.read_text()
    listed = set(text[text.index("are not supported") :].split("`")[1::2])
    assert listed == set(reference.get_scorer_names()) - set(metrics.get_scorer_names())
