"""Cross-validation of rows on Dask has the results of scikit-learn's on the computed rows."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import get_worker
from sklearn import model_selection as reference
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from skfleet import model_selection
from skfleet.engine import counting
from skfleet.estimators import (
    ColumnTransformer,
    LogisticRegression,
    OneHotEncoder,
    Ridge,
    SGDRegressor,
    SimpleImputer,
    StandardScaler,
)

rng = np.random.default_rng(0)
N_ROWS = 240
FRAME = pd.DataFrame(
    {
        "x": rng.normal(size=N_ROWS),
        "gaps": np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.random(N_ROWS)),
        "kind": rng.choice(["a", "b", "c"], N_ROWS),
        "weight": rng.integers(1, 4, N_ROWS),
        "group": rng.integers(0, 9, N_ROWS),
    },
    index=rng.permutation(N_ROWS) % 70,
)
FRAME["target"] = FRAME["x"] + FRAME["kind"].map({"a": 0.0, "b": 1.0, "c": 2.0})
FRAME["label"] = pd.cut(FRAME["target"] + rng.normal(size=N_ROWS), 3, labels=["lo", "mid", "hi"])
FRAME["label"] = FRAME["label"].astype(object)
FEATURES = ["x", "gaps", "kind"]
TIMES = ("fit_time", "score_time", "estimator")


def mixed(last):
    """Return a pipeline of transformers of the columns, and a last step."""
    columns = ColumnTransformer(
        [
            ("numeric", make_pipeline(SimpleImputer(), StandardScaler()), ["x", "gaps"]),
            ("kind", OneHotEncoder(sparse_output=False), ["kind"]),
        ]
    )
    return make_pipeline(columns, last)


@pytest.fixture
def lazy(cluster_client):
    """Yield the frame on Dask, of unknown lengths and with an empty partition."""
    ends = (0, 90, 90, 240)

    def part(i, frame):
        return frame.iloc[ends[i] : ends[i + 1]]

    with cluster_client.as_current():
        yield dd.from_map(part, range(3), frame=FRAME, meta=FRAME.iloc[:0])


CASES = {
    "ours": (lambda: mixed(LogisticRegression(tol=1e-10)), "label"),
    "regression": (lambda: mixed(Ridge()), "target"),
    "last step of scikit-learn": (lambda: mixed(DecisionTreeClassifier(random_state=0)), "label"),
}


@pytest.mark.parametrize("case", CASES)
def test_scores(lazy, case):
    make, target = CASES[case]
    options = {"cv": KFold(2), "return_train_score": True, "return_indices": True}
    expected = reference.cross_validate(make(), FRAME[FEATURES], FRAME[target], **options)
    result = model_selection.cross_validate(make(), lazy[FEATURES], lazy[target], **options)
    assert result.keys() == expected.keys()
    for name in ("test_score", "train_score"):
        np.testing.assert_allclose(result[name], expected[name], rtol=1e-9)
    for part in ("train", "test"):
        np.testing.assert_array_equal(result["indices"][part], expected["indices"][part])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n_jobs", [None, 1])
def test_weights_and_groups_on_dask(lazy, n_jobs):
    def score(module, frame):
        return module.cross_val_score(
            Ridge(),
            frame[["x"]],
            frame["target"],
            cv=GroupKFold(2),
            groups=frame["group"],
            params={"sample_weight": frame["weight"]},
            scoring="neg_mean_absolute_error",
            n_jobs=n_jobs,
        )

    np.testing.assert_allclose(score(model_selection, lazy), score(reference, FRAME), rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_estimators_are_whole(lazy, case):
    make, target = CASES[case]
    arguments = make(), lazy[FEATURES], lazy[target]
    models = model_selection.cross_validate(*arguments, cv=2, return_estimator=True)["estimator"]
    for model in models:
        assert [name for name, _ in model.steps] == [name for name, _ in make().steps]
        assert len(model.predict(FRAME[FEATURES])) == N_ROWS


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "method"),
    [
        ("ours", "predict"),
        ("ours", "decision_function"),
        ("regression", "predict"),
        ("last step of scikit-learn", "predict_proba"),
    ],
)
def test_predictions_are_lazy_in_kind_and_in_order(lazy, case, method):
    make, target = CASES[case]
    options = {"cv": KFold(2, shuffle=True, random_state=0), "method": method}
    expected = reference.cross_val_predict(make(), FRAME[FEATURES], FRAME[target], **options)
    with counting() as counts:
        result = model_selection.cross_val_predict(make(), lazy[FEATURES], lazy[target], **options)
    n_passes = counts.passes
    computed = result.compute()
    assert counts.passes == n_passes
    pd.testing.assert_index_equal(computed.index, FRAME.index)
    assert type(computed) is type(result._meta)
    if method == "predict" and target == "label":
        np.testing.assert_array_equal(computed, expected)
    else:
        np.testing.assert_allclose(computed, expected, rtol=1e-8, atol=1e-10)
    if method == "predict_proba":
        assert list(result.columns) == ["hi", "lo", "mid"]


def test_predictions_of_another_library_for_dask_arrays(cluster_client):
    X, y = FRAME[["x", "weight"]].to_numpy(), FRAME["label"].to_numpy().astype(str)
    lazy = da.from_array(X, chunks=((100, 0, 140), 1)), da.from_array(y, chunks=100)
    model = RandomForestClassifier(5, random_state=0)
    with cluster_client.as_current():
        for method in ("predict", "predict_proba"):
            options = {"cv": StratifiedKFold(3), "method": method}
            expected = reference.cross_val_predict(model, X, y, **options)
            result = model_selection.cross_val_predict(model, *lazy, **options)
            assert result.chunks[0] == lazy[0].chunks[0]
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result.compute(), expected)


def test_predictions_of_several_outputs(cluster_client):
    X = FRAME[["x"]].to_numpy()
    y = np.column_stack([FRAME["label"] == "lo", FRAME["weight"] > 1]).astype(int)
    model = MultiOutputClassifier(PlainLogisticRegression())
    lazy = da.from_array(X, chunks=100), da.from_array(y, chunks=100)
    options = {"cv": KFold(3), "method": "predict_proba"}
    expected = reference.cross_val_predict(model, X, y, **options)
    with cluster_client.as_current():
        result = model_selection.cross_val_predict(model, *lazy, **options)
    assert len(result) == len(expected) == 2
    for part, expected_part in zip(result, expected, strict=True):
        np.testing.assert_allclose(part.compute(), expected_part, rtol=1e-9)


@pytest.mark.parametrize("method", ["predict_proba", "predict_log_proba", "decision_function"])
def test_classes_that_a_split_lacks(cluster_client, method):
    X = FRAME[["x"]].to_numpy()[:90]
    y = np.repeat(["a", "b", "c"], 30)
    model, cv = PlainLogisticRegression(), KFold(3)
    lazy = da.from_array(X, chunks=40), da.from_array(y, chunks=40)
    with cluster_client.as_current():
        if method == "decision_function":
            with pytest.raises(ValueError, match="must have all classes"):
                model_selection.cross_val_predict(model, *lazy, cv=cv, method=method)
            return
        with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
            result = model_selection.cross_val_predict(model, *lazy, cv=cv, method=method)
        result = result.compute()
    with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
        expected = reference.cross_val_predict(model, X, y, cv=cv, method=method)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("shuffle", [False, True])
def test_learning_curve(lazy, shuffle):
    options = {"train_sizes": [30, 100], "cv": 2, "shuffle": shuffle, "random_state": 0}
    expected = reference.learning_curve(Ridge(), FRAME[["x"]], FRAME["target"], **options)
    result = model_selection.learning_curve(Ridge(), lazy[["x"]], lazy["target"], **options)
    for values, expected_values in zip(result, expected, strict=True):
        np.testing.assert_allclose(values, expected_values, rtol=1e-9)


def test_learning_curve_by_partial_fit_is_refused(lazy):
    options = {"exploit_incremental_learning": True}
    with pytest.raises(ValueError, match="exploit_incremental_learning must be False"):
        model_selection.learning_curve(SGDRegressor(), lazy[["x"]], lazy["target"], **options)


def test_validation_curve(lazy):
    options = {"param_name": "ridge__alpha", "param_range": [0.1, 1000.0], "cv": 2}
    expected = reference.validation_curve(
        mixed(Ridge()), FRAME[FEATURES], FRAME["target"], **options
    )
    arguments = mixed(Ridge()), lazy[FEATURES], lazy["target"]
    result = model_selection.validation_curve(*arguments, **options)
    for values, expected_values in zip(result, expected, strict=True):
        np.testing.assert_allclose(values, expected_values, rtol=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["regression", "classification", "groups"])
def test_permutation_test(lazy, kind):
    def run(module, frame):
        options = {"n_permutations": 2, "random_state": 0, "cv": 2}
        model, target = Ridge(), "target"
        if kind == "classification":
            model, target = LogisticRegression(tol=1e-10), "label"
            options["cv"] = ShuffleSplit(2, random_state=0)
        elif kind == "groups":
            options |= {"groups": frame["group"], "cv": GroupKFold(3)}
        return module.permutation_test_score(model, frame[["x"]], frame[target], **options)

    for values, expected in zip(run(model_selection, lazy), run(reference, FRAME), strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-9)


class FittedOnWorker(DecisionTreeClassifier):
    """A tree that is fitted in a task."""

    def fit(self, X, y):
        """Fit the tree, or raise outside of a task."""
        get_worker()
        return super().fit(X, y)


def test_rows_in_this_process_are_fitted_on_the_fleet(cluster_client):
    X, y = FRAME[["x"]], FRAME["label"]
    model = DecisionTreeClassifier(random_state=0)
    with cluster_client.as_current():
        remote = FittedOnWorker(random_state=0)
        scores = model_selection.cross_val_score(remote, X, y, cv=3, error_score="raise")
        predictions = model_selection.cross_val_predict(remote, X, y, cv=3)
    np.testing.assert_array_equal(scores, reference.cross_val_score(model, X, y, cv=3))
    np.testing.assert_array_equal(predictions, reference.cross_val_predict(model, X, y, cv=3))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"cv": ShuffleSplit(2)}, "only works for partitions"),
        ({"cv": [(np.arange(100), np.arange(100, 240))]}, "only works for partitions"),
    ],
)
def test_invalid_splits_are_refused_before_work(lazy, options, match):
    with counting() as counts, pytest.raises(ValueError, match=match):
        model_selection.cross_val_predict(Ridge(), lazy[["x"]], lazy["target"], **options)
    assert counts.passes <= 1  # for the lengths


def test_failing_fits(lazy):
    arguments = Ridge(alpha=-1.0), lazy[["x"]], lazy["target"]
    with pytest.raises(ValueError, match="alpha"):
        model_selection.cross_val_predict(*arguments)
    with pytest.raises(ValueError, match="All the 5 fits failed"):
        model_selection.cross_validate(*arguments)
