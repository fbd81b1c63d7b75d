"""What was fitted answers Dask frames as it does pandas', by the names of the columns, lazily."""

import copy
import pickle

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import linear_model as theirs
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier, StackingClassifier, VotingRegressor
from sklearn.model_selection import GridSearchCV as TheirSearch
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from random_examples import n_examples
from skfleet import estimators as ours
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    IncrementalSearchCV,
    RandomizedSearchCV,
    cross_validate,
)

N_ROWS = 120
rng = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": 5 + 3 * rng.normal(size=N_ROWS),
        "b": rng.normal(size=N_ROWS),
        "city": rng.choice(list("xyz"), N_ROWS),
    },
    index=rng.permutation(N_ROWS) % 50,
)
FRAME["amount"] = FRAME["a"] + 2 * FRAME["b"]
FRAME["label"] = np.where(FRAME["a"] - 5 + FRAME["b"] > 0, "high", "low")
FRAME["label"] = FRAME["label"].astype(object)

METHODS = ("predict", "predict_proba", "decision_function", "transform", "score_samples")


def columns(library):
    return library.ColumnTransformer(
        [("city", library.OneHotEncoder(), ["city"]), ("scale", library.StandardScaler(), ["a"])]
    )


class Theirs:
    ColumnTransformer, OneHotEncoder = ColumnTransformer, OneHotEncoder
    StandardScaler = StandardScaler


# Estimator, target, whether the text is among its columns, and whether it goes by position.
MODELS = {
    "forest": (lambda: RandomForestClassifier(3, random_state=0), "label", False),
    "calibrated": (
        lambda: CalibratedClassifierCV(theirs.LogisticRegression(), cv=2),
        "label",
        False,
    ),
    "stacking": (
        lambda: StackingClassifier([("a", theirs.LogisticRegression())], cv=2),
        "label",
        False,
    ),
    "voting": (lambda: VotingRegressor([("a", theirs.Ridge())]), "amount", False),
    "target": (lambda: TransformedTargetRegressor(theirs.Ridge()), "amount", False),
    "our target": (
        lambda: ours.TransformedTargetRegressor(theirs.Ridge(), transformer=StandardScaler()),
        "amount",
        False,
    ),
    "one for each class": (
        lambda: OneVsRestClassifier(ours.LogisticRegression()),
        "label",
        False,
    ),
    "pipeline": (lambda: make_pipeline(StandardScaler(), theirs.Lasso()), "amount", False),
    "our scaler": (lambda: make_pipeline(ours.StandardScaler(), theirs.Lasso()), "amount", False),
    "columns": (
        lambda: make_pipeline(columns(Theirs), theirs.LogisticRegression()),
        "label",
        True,
    ),
    "our columns": (
        lambda: make_pipeline(columns(ours), theirs.LogisticRegression()),
        "label",
        True,
    ),
    "search": (lambda: TheirSearch(theirs.Ridge(), {"alpha": [1.0]}, cv=2), "amount", False),
    "components": (lambda: PCA(1), None, False),
    "clusters": (lambda: KMeans(2, n_init=1, random_state=0), None, False),
    "ours": (lambda: ours.Ridge(), "amount", False),
}
SEARCHES = {
    "grid": lambda model, scoring: GridSearchCV(model, {}, cv=2, scoring=scoring),
    "random": lambda model, scoring: RandomizedSearchCV(model, {}, cv=2, n_iter=1, scoring=scoring),
    "halving": lambda model, scoring: HalvingGridSearchCV(model, {}, cv=2, scoring=scoring),
}


def lazily(frame):
    """Return a frame on Dask, of unknown lengths and with an empty partition."""
    ends = (0, 50, 50, len(frame))
    return dd.from_map(lambda i: frame.iloc[ends[i] : ends[i + 1]], range(3), meta=frame.iloc[:0])


def assert_same_answers(model, local, features):
    """Compare answers of a model for Dask rows with those of a local one for pandas'."""
    X, lazy = FRAME[features], lazily(FRAME[features])
    for name in METHODS:
        if not hasattr(local, name):
            assert not hasattr(model, name)
            continue
        answer, expected = getattr(model, name)(lazy), getattr(local, name)(X)
        assert answer.npartitions == 3
        answer = answer.compute()
        if hasattr(answer, "index"):
            pd.testing.assert_index_equal(answer.index, X.index)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(answer, expected, rtol=1e-8, atol=1e-10)
        else:
            np.testing.assert_array_equal(answer, expected)


def assert_goes_by_name(model, local, features, target):
    X, y = FRAME[features], None if target is None else FRAME[target]
    lazy, lazy_y = lazily(X), None if target is None else lazily(FRAME)[target]
    score = local.score(X, y)
    np.testing.assert_allclose(model.score(lazy, lazy_y), score, rtol=1e-8)
    turned = features[::-1]
    if "city" in features:
        np.testing.assert_allclose(model.score(lazy[turned], lazy_y), score, rtol=1e-8)
        return
    other = lazy.rename(columns={"a": "q"})
    name = "predict" if hasattr(model, "predict") else "transform"
    for rows in (lazy[turned], other):
        for call in (lambda rows: model.score(rows, lazy_y), getattr(model, name)):
            with pytest.raises(ValueError, match="feature names should match"):
                call(rows)


@pytest.fixture(autouse=True)
def _on_cluster(on_cluster):
    pass


@pytest.mark.slow
@settings(max_examples=n_examples(6, 80), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from(sorted(MODELS)),
    kind=st.sampled_from(sorted(SEARCHES)),
    fitted_on_dask=st.booleans(),
    is_copied=st.booleans(),
    is_named=st.booleans(),
)
def test_searches(case, kind, fitted_on_dask, is_copied, is_named):
    make, target, has_text = MODELS[case]
    features = ["a", "b", "city"] if has_text else ["a", "b"]
    scoring = None
    if is_named and target is not None:
        scoring = "balanced_accuracy" if target == "label" else "neg_mean_absolute_error"
    search = SEARCHES[kind](make(), scoring)
    rows = lazily(FRAME) if fitted_on_dask else FRAME
    search.fit(rows[features], None if target is None else rows[target])
    local = SEARCHES[kind](make(), scoring).fit(
        FRAME[features], None if target is None else FRAME[target]
    )
    if is_copied:
        search = pickle.loads(pickle.dumps(search))
    assert_same_answers(search, local, features)
    assert_goes_by_name(search, local, features, target)
    if fitted_on_dask:
        assert_same_answers(search.best_estimator_, local.best_estimator_, features)
        best = search.best_estimator_
        assert_goes_by_name(best, local.best_estimator_, features, target)


@pytest.mark.parametrize("case", ["forest", "columns", "clusters"])
def test_every_copy_is_scikit_learns_alone(case):
    make, target, has_text = MODELS[case]
    features = ["a", "b", "city"] if has_text else ["a", "b"]
    rows = lazily(FRAME)
    search = GridSearchCV(make(), {}, cv=2)
    search.fit(rows[features], None if target is None else rows[target])
    best, plain = search.best_estimator_, clone(search.best_estimator_)
    plain.fit(FRAME[features], None if target is None else FRAME[target])
    assert "predict" in vars(best)
    assert b"skfleet" not in pickle.dumps(best)
    for other in (copy.copy(best), copy.deepcopy(best), pickle.loads(pickle.dumps(best))):
        assert vars(other).keys() == vars(plain).keys()
        np.testing.assert_array_equal(other.predict(FRAME[features]), best.predict(FRAME[features]))
    assert "predict" in vars(copy.deepcopy(search).best_estimator_)


def test_estimators_of_cross_validation():
    rows = lazily(FRAME)
    options = {"cv": 2, "return_estimator": True}
    model = make_pipeline(StandardScaler(), theirs.Ridge())
    result = cross_validate(model, rows[["a", "b"]], rows["amount"], **options)
    for fitted in result["estimator"]:
        assert_same_answers(fitted, fitted, ["a", "b"])
        assert_goes_by_name(fitted, fitted, ["a", "b"], "amount")


def test_the_best_model_of_an_adaptive_search():
    rows = lazily(FRAME)
    model = theirs.SGDRegressor(random_state=0)
    search = IncrementalSearchCV(
        model, {"alpha": [0.1, 1.0]}, n_initial_parameters="grid", max_iter=2
    )
    search.fit(rows[["a", "b"]], rows["amount"])
    best = pickle.loads(pickle.dumps(search)).best_estimator_
    assert_same_answers(best, best, ["a", "b"])
    assert_goes_by_name(best, best, ["a", "b"], "amount")


@pytest.mark.parametrize("case", ["our target", "ours"])
def test_regressors_on_transformed_targets(case):
    rows = lazily(FRAME)
    regressor = ours.Ridge() if case == "ours" else make_pipeline(StandardScaler(), theirs.Ridge())
    model = ours.TransformedTargetRegressor(regressor, transformer=StandardScaler())
    local = clone(model).fit(FRAME[["a", "b"]], FRAME["amount"])
    for y in (rows["amount"], FRAME["amount"].to_numpy()):
        model.fit(rows[["a", "b"]], y)
        assert_same_answers(model, local, ["a", "b"])
        assert_goes_by_name(model, local, ["a", "b"], "amount")
