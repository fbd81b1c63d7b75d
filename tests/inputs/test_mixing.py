"""scikit-learn's classes and functions on Dask rows: what works, and what to import instead."""

from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import ensemble, inspection, metrics, multiclass
from sklearn import linear_model as theirs
from sklearn import model_selection as reference
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline

from skfleet import estimators as ours
from skfleet import model_selection
from skfleet.datasets import sample_rows

DOCS = (Path(__file__).parents[2] / "docs" / "how_it_works" / "inputs.md").read_text()
_, _, SECTION = DOCS.partition("## scikit-learn's own classes and functions on Dask rows")

rng = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80)})
FRAME["city"] = rng.choice(["x", "y"], 80)
FRAME["label"] = (FRAME["a"] + FRAME["b"] > 0).astype(int)
LAZY = dd.from_pandas(FRAME, npartitions=2)
X, Y = LAZY[["a", "b"]], LAZY["label"]
CV = reference.KFold(2)


@pytest.fixture(autouse=True, scope="module")
def _on_cluster(cluster_client):
    with cluster_client.as_current():
        yield


def numbers(answer):
    return np.asarray(answer.compute() if hasattr(answer, "compute") else answer)


def model():
    return ours.GaussianNB()


def columns(library):
    return library.ColumnTransformer([("a", ours.StandardScaler(), ["a"])])


class Theirs:
    ColumnTransformer, FeatureUnion = ColumnTransformer, FeatureUnion
    TransformedTargetRegressor, train_test_split = (
        TransformedTargetRegressor,
        staticmethod(reference.train_test_split),
    )


def around(estimator):
    return model_selection.GridSearchCV(estimator, {}, cv=2).fit(X, Y).predict(X)


# What fails, and what the docs say to import instead.
FUNCTIONS = {
    name: (lambda module, name=name, more=more: getattr(module, name)(model(), X, Y, cv=CV, **more))
    for name, more in {
        "cross_validate": {},
        "cross_val_score": {},
        "cross_val_predict": {},
        "learning_curve": {"train_sizes": [0.5, 1.0]},
        "validation_curve": {"param_name": "var_smoothing", "param_range": [1e-9]},
        "permutation_test_score": {"n_permutations": 1},
    }.items()
}
SEARCHES = {
    name: lambda module, name=name: getattr(module, name)(model(), {"var_smoothing": [1e-9]}, cv=2)
    for name in ("GridSearchCV", "HalvingGridSearchCV")
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_cross_validation(name):
    with pytest.raises((AttributeError, TypeError, NotImplementedError)):
        FUNCTIONS[name](reference)
    FUNCTIONS[name](model_selection)
    assert f"`{name}`" in SECTION


@pytest.mark.parametrize("name", SEARCHES)
def test_searches(name):
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401

    with pytest.raises((AttributeError, TypeError, NotImplementedError)):
        SEARCHES[name](reference).fit(X, Y)
    SEARCHES[name](model_selection).fit(X, Y).predict(X).compute()
    assert f"`{name}`" in SECTION


INSTEAD = {
    "train_test_split": (
        lambda: reference.train_test_split(X, Y),
        lambda: model_selection.train_test_split(X, Y),
    ),
    "ColumnTransformer": (
        lambda: columns(Theirs).fit_transform(X),
        lambda: columns(ours).fit_transform(X).compute(),
    ),
    "TransformedTargetRegressor": (
        lambda: TransformedTargetRegressor(ours.Ridge()).fit(X, Y).predict(X),
        lambda: ours.TransformedTargetRegressor(ours.Ridge()).fit(X, Y).predict(X).compute(),
    ),
    "CalibratedClassifierCV": (
        lambda: CalibratedClassifierCV(model(), cv=2).fit(X, Y),
        lambda: around(CalibratedClassifierCV(model(), cv=2)).compute(),
    ),
    "StackingClassifier": (
        lambda: ensemble.StackingClassifier([("a", model())], cv=2).fit(X, Y),
        lambda: around(ensemble.StackingClassifier([("a", model())], cv=2)).compute(),
    ),
    "permutation_importance": (
        lambda: inspection.permutation_importance(model().fit(X, Y), X, Y, n_repeats=1),
        lambda: inspection.permutation_importance(
            model().fit(X, Y), *sample_rows(X, Y, n_samples=40, random_state=0), n_repeats=1
        ),
    ),
}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_to_import_instead(name):
    pytest.importorskip("matplotlib")
    fails, works = INSTEAD[name]
    with pytest.raises(Exception):  # noqa: B017, PT011 - of scikit-learn, Dask or pandas
        fails()
    works()
    assert f"`{name}`" in SECTION


# Estimators of scikit-learn around, or after, this library's.
WORKS = {
    "VotingClassifier": lambda: ensemble.VotingClassifier([("a", model())]),
    "OneVsRestClassifier": lambda: multiclass.OneVsRestClassifier(ours.LogisticRegression()),
    "BaggingClassifier": lambda: ensemble.BaggingClassifier(model(), 2, random_state=0),
    "Pipeline": lambda: make_pipeline(ours.StandardScaler(), theirs.LogisticRegression()),
}


@pytest.mark.parametrize("name", WORKS)
def test_estimators_that_work(name):
    local = WORKS[name]().fit(FRAME[["a", "b"]], FRAME["label"])
    answer = WORKS[name]().fit(X, Y).predict(X)
    np.testing.assert_array_equal(numbers(answer), local.predict(FRAME[["a", "b"]]))
    assert f"`{name}`" in SECTION


def test_displays_and_metrics_that_work():
    pytest.importorskip("matplotlib")
    fitted, local = model().fit(X, Y), model().fit(FRAME[["a", "b"]], FRAME["label"])
    display = metrics.ConfusionMatrixDisplay.from_estimator(fitted, X, Y)
    expected = local.predict(FRAME[["a", "b"]])
    assert display.confusion_matrix.trace() == (expected == FRAME["label"]).sum()
    curve = metrics.RocCurveDisplay.from_estimator(fitted, X, Y)
    of_local = metrics.RocCurveDisplay.from_estimator(local, FRAME[["a", "b"]], FRAME["label"])
    np.testing.assert_allclose(curve.tpr, of_local.tpr)
    assert curve.roc_auc == pytest.approx(of_local.roc_auc)
    same = metrics.RocCurveDisplay.from_predictions(Y, fitted.predict_proba(X).iloc[:, 1])
    np.testing.assert_array_equal(same.tpr, curve.tpr)
    assert "`RocCurveDisplay.from_estimator`" in SECTION
    score = metrics.accuracy_score(Y, fitted.predict(X))
    assert score == metrics.accuracy_score(FRAME["label"], expected)


@pytest.mark.parametrize("make", [theirs.LogisticRegression, theirs.Perceptron])
def test_sparse_rows_name_the_class_to_import(make):
    name = make.__name__
    encoder = ours.ColumnTransformer(
        [("city", ours.OneHotEncoder(), ["city"])], sparse_threshold=1.0
    )
    with pytest.raises(TypeError, match=f"dense.* for scikit-learn's {name}. Got sparse") as caught:
        make_pipeline(encoder, make()).fit(LAZY, Y)
    names_ours = f"Import {name} from skfleet.estimators" in str(caught.value)
    assert names_ours == hasattr(ours, name)
    assert len(str(caught.value)) < 400
    search = model_selection.GridSearchCV(make_pipeline(encoder, make()), {}, cv=2)
    assert search.fit(LAZY, Y).predict(LAZY).compute().shape == (80,)
