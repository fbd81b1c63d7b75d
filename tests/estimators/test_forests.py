"""Forests of rows in any container: scikit-learn's own trees, tree for tree, in every world."""

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import ensemble as reference
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from random_examples import n_examples
from skfleet import config_context, estimators
from skfleet.engine import LocalEngine, counting
from skfleet.estimators import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from skfleet.estimators.ensemble import _forest_estimator, _groups, _training

CLASSES = [
    RandomForestClassifier,
    RandomForestRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
]
N = 240
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 4)).astype(np.float32)
TEXT = np.array(["no", "yes", "perhaps"])[(X[:, 0] > 0).astype(int) + (rng.random(N) < 0.2)]
TARGET = X[:, 0] + rng.normal(size=N)
WEIGHT = rng.integers(0, 4, N).astype(float)
MISSING = np.where(rng.random(X.shape) < 0.1, np.nan, X)


def lazy(values, *cuts):
    cuts = cuts or (50, 0, 90, len(values) - 140)
    return da.from_array(values, chunks=(cuts, *values.shape[1:]))


def pair(cls, **params):
    """Return our forest and scikit-learn's of the same parameters."""
    params = {"n_estimators": 5, "random_state": 0, **params}
    return cls(**params), getattr(reference, cls.__name__)(**params)


def target_of(cls):
    return TEXT if "Classifier" in cls.__name__ else TARGET


def assert_same_forest(ours, theirs):
    assert vars(ours).keys() == vars(theirs).keys()
    assert len(ours.estimators_) == len(theirs.estimators_)
    for tree, want in zip(ours.estimators_, theirs.estimators_, strict=True):
        assert tree.get_params() == want.get_params()
        assert vars(tree).keys() == vars(want).keys()
        state, want_state = tree.tree_.__getstate__(), want.tree_.__getstate__()
        for name in want_state["nodes"].dtype.names:
            np.testing.assert_array_equal(state["nodes"][name], want_state["nodes"][name])
        np.testing.assert_array_equal(state["values"], want_state["values"])
    for name in ("classes_", "n_classes_", "feature_importances_", "estimators_samples_"):
        if hasattr(theirs, name):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for name in ("n_outputs_", "n_features_in_"):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.fixture(autouse=True)
def in_this_process(request):
    """Dask rows are blocks of this process, but in the worlds of a cluster."""
    if "world" in request.fixturenames or "cluster_client" in request.fixturenames:
        yield
        return
    with config_context(engine="local"):
        yield


# scikit-learn's own fail these: bootstrap samples of weighted and of repeated rows differ.
EXPECTED_FAILURES = {
    f"check_sample_weight_equivalence_on_{kind}_data": "statistical equivalence only"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [cls(n_estimators=2, random_state=0) for cls in CLASSES],
    expected_failed_checks=lambda forest: EXPECTED_FAILURES if forest.bootstrap else {},
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("cls", [RandomForestClassifier, ExtraTreesRegressor])
def test_every_world_has_the_same_trees_and_answers(world, cls):
    y = target_of(cls)
    ours, theirs = pair(cls, bootstrap=True, max_samples=0.4)
    rows = world.X(X)
    ours.fit(rows, world.column(y), world.column(WEIGHT))
    theirs.fit(sparse.csr_array(X) if "csr" in world.name else X, y, WEIGHT)
    if "csr" not in world.name:
        names = vars(ours).pop("feature_names_in_", None)
        assert_same_forest(ours, theirs)
        if names is not None:
            ours.feature_names_in_ = names
    np.testing.assert_array_equal(world.host(ours.predict(rows)), theirs.predict(X))
    np.testing.assert_array_equal(world.host(ours.apply(rows)), theirs.apply(X))
    if hasattr(cls, "predict_proba"):
        proba = world.host(ours.predict_proba(rows))
        np.testing.assert_allclose(proba, theirs.predict_proba(X), atol=1e-12)
        log_proba = world.host(ours.predict_log_proba(rows))
        np.testing.assert_allclose(log_proba, theirs.predict_log_proba(X), atol=1e-12)
    if world.name not in ("strict", "cluster-unknown"):
        score = ours.score(rows, world.column(y))
        assert score == pytest.approx(theirs.score(X, y), abs=1e-6)


PARAMS = [
    {"criterion": "entropy", "max_features": None, "max_depth": 3},
    {"min_samples_leaf": 0.03, "min_samples_split": 0.1, "max_leaf_nodes": 9},
    {"min_weight_fraction_leaf": 0.05, "ccp_alpha": 0.01},
    {"class_weight": "balanced"},
    {"class_weight": "balanced_subsample"},
    {"class_weight": {"no": 1, "yes": 2, "perhaps": 0.5}},
]


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("bootstrap", [{"bootstrap": True, "max_samples": 0.3}, {}], ids=str)
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_parameters_and_weights_are_those_of_scikit_learn(params, bootstrap, weight):
    for cls in (RandomForestClassifier, ExtraTreesClassifier):
        ours, theirs = pair(cls, **params, **bootstrap)
        lazy_weight = None if weight is None else lazy(weight, 100, 140)
        ours.fit(lazy(MISSING), lazy(TEXT), lazy_weight)
        assert_same_forest(ours, theirs.fit(MISSING, TEXT, weight))


@pytest.mark.parametrize(
    ("cls", "params"),
    [
        (RandomForestRegressor, {"criterion": "poisson", "max_samples": 40}),
        (RandomForestRegressor, {"criterion": "absolute_error", "max_samples": 60}),
        (ExtraTreesRegressor, {"monotonic_cst": [1, 0, -1, 0]}),
        (ExtraTreesRegressor, {"bootstrap": True, "max_samples": 1.0, "max_depth": 4}),
    ],
    ids=str,
)
def test_regressors_are_those_of_scikit_learn(cls, params):
    ours, theirs = pair(cls, **params)
    y = np.exp(TARGET)
    for weight in (None, 0.5 + WEIGHT):
        ours.fit(lazy(X), lazy(y), None if weight is None else lazy(weight))
        assert_same_forest(ours, theirs.fit(X, y, weight))


def test_labels_that_few_rows_have_are_known_to_every_tree():
    y = np.zeros(N, dtype=int)
    y[[3, 7]] = [5, 9]
    ours, theirs = pair(RandomForestClassifier, max_samples=9)
    ours.fit(lazy(X), lazy(y))
    assert_same_forest(ours, theirs.fit(X, y))
    assert ours.predict_proba(lazy(X)).shape == (N, 3)


def test_counts_of_which_a_tree_draws_none():
    y = np.zeros(N)
    y[[3, 7]] = 1
    ours, theirs = pair(RandomForestRegressor, criterion="poisson", max_samples=5)
    assert_same_forest(ours.fit(lazy(X), lazy(y)), theirs.fit(X, y))


@pytest.mark.parametrize("cls", CLASSES)
def test_several_outputs(cls):
    y = np.c_[TEXT, np.where(X[:, 1] > 0, "a", "b")]
    if "Regressor" in cls.__name__:
        y = np.c_[TARGET, X[:, 1]]
    ours, theirs = pair(cls, bootstrap=True, max_samples=0.3)
    ours.fit(lazy(X), lazy(y))
    theirs.fit(X, y)
    assert [tree.tree_.node_count for tree in ours.estimators_] == [
        tree.tree_.node_count for tree in theirs.estimators_
    ]
    np.testing.assert_array_equal(ours.predict(lazy(X)), theirs.predict(X))
    if hasattr(cls, "predict_proba"):
        for part, want in zip(ours.predict_proba(lazy(X)), theirs.predict_proba(X), strict=True):
            np.testing.assert_allclose(part, want, atol=1e-12)


def test_a_column_of_targets_is_one_output():
    ours, theirs = pair(RandomForestRegressor)
    with pytest.warns(DataConversionWarning):
        ours.fit(lazy(X), lazy(TARGET[:, None]))
    assert_same_forest(ours, theirs.fit(X, TARGET))


@settings(
    max_examples=n_examples(8, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts=st.lists(st.integers(0, N), max_size=6), max_rows=st.integers(90, 400))
def test_the_forest_depends_on_no_partition_and_no_memory(cuts, max_rows):
    ours, theirs = pair(RandomForestClassifier, n_estimators=7, max_samples=60)
    ends = [0, *sorted(cuts), N]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_training, "max_rows_of_group", lambda *_: max_rows)
        ours.fit(lazy(X, *np.diff(ends).tolist()), lazy(TEXT))
    assert_same_forest(ours, theirs.fit(X, TEXT))


@pytest.mark.parametrize(
    ("room", "max_samples", "n_passes"), [(N, None, 2), (N, 30, 2), (80, 30, 3), (40, 30, 7)]
)
def test_passes_are_a_survey_and_one_for_the_groups_that_fit(
    monkeypatch, room, max_samples, n_passes
):
    memory = room / _groups.max_rows_of_group(10**9, 24, LocalEngine().n_threads) * 10**9
    monkeypatch.setattr(LocalEngine, "memory_limit", int(memory * 1.001))
    ours, theirs = pair(RandomForestClassifier, n_estimators=6, max_samples=max_samples)
    with counting() as counts, config_context(keep_blocks=False):
        ours.fit(lazy(X), lazy(TEXT))
    assert counts.passes == n_passes
    assert_same_forest(ours, theirs.fit(X, TEXT))


def test_rows_of_a_tree_that_no_worker_can_hold_are_refused(monkeypatch):
    monkeypatch.setattr(_training, "max_rows_of_group", lambda *_: 100)
    monkeypatch.setattr(_forest_estimator, "max_rows_of_group", lambda *_: 100)
    with pytest.raises(ValueError, match=r"max_samples must be .* Got 240 .*=100"):
        RandomForestClassifier(max_samples=240).fit(lazy(X), lazy(TEXT))
    with counting() as counts:
        with pytest.raises(ValueError, match=r"bootstrap must be True .* Got False, 240 rows"):
            ExtraTreesClassifier().fit(lazy(X), lazy(TEXT))
        with pytest.raises(ValueError, match="max_samples must be"):
            RandomForestClassifier().fit(lazy(X), lazy(TEXT))
        with pytest.raises(ValueError, match="monotonic_cst has shape 1"):
            RandomForestClassifier(monotonic_cst=[1]).fit(lazy(X), lazy(TEXT))
    assert counts.tasks == 0


def test_frames_have_names_and_answers_columns():
    frame = pd.DataFrame(X, columns=list("abcd"))
    rows = dd.from_pandas(frame, npartitions=3)
    y = dd.from_pandas(pd.Series(TEXT), npartitions=3)
    ours, theirs = pair(RandomForestClassifier)
    ours.fit(rows, y)
    assert_same_forest(ours, theirs.fit(frame, TEXT))
    assert list(ours.predict_proba(rows).columns) == ["no", "perhaps", "yes"]
    np.testing.assert_array_equal(ours.predict(rows).compute(), theirs.predict(frame))


@pytest.mark.parametrize("cls", [RandomForestClassifier, ExtraTreesClassifier])
def test_sparse_blocks(cls):
    dense = np.where(np.abs(X) < 0.7, 0, X)
    rows = lazy(dense).map_blocks(sparse.csr_matrix, meta=sparse.csr_matrix((0, 4), dtype="f4"))
    ours, theirs = pair(cls, bootstrap=True, max_samples=0.4)
    ours.fit(rows, lazy(TEXT))
    assert_same_forest(ours, theirs.fit(sparse.csr_matrix(dense), TEXT))


def test_warm_start_adds_trees():
    ours, theirs = pair(RandomForestClassifier, warm_start=True)
    for n_trees in (3, 7):
        ours.set_params(n_estimators=n_trees).fit(lazy(X), lazy(TEXT))
        theirs.set_params(n_estimators=n_trees).fit(X, TEXT)
    assert_same_forest(ours, theirs)
    with pytest.warns(UserWarning, match="without increasing n_estimators"):
        ours.fit(lazy(X), lazy(TEXT))
    with pytest.raises(ValueError, match=r"n_estimators must be .* Got 2 after 7"):
        ours.set_params(n_estimators=2).fit(lazy(X), lazy(TEXT))


def test_random_states_are_consumed_as_in_scikit_learn():
    states = np.random.RandomState(3), np.random.RandomState(3)
    ours, theirs = pair(ExtraTreesRegressor)
    for _ in range(2):
        ours.set_params(random_state=states[0]).fit(lazy(X), lazy(TARGET))
        theirs.set_params(random_state=states[1]).fit(X, TARGET)
    assert_same_forest(ours, theirs)


def test_a_model_of_dask_rows_can_be_pickled():
    ours, theirs = pair(RandomForestRegressor)
    ours = pickle.loads(pickle.dumps(ours.fit(lazy(X), lazy(TARGET))))
    np.testing.assert_array_equal(ours.predict(X), theirs.fit(X, TARGET).predict(X))


WITH_NAN = np.where(np.arange(N) == 9, np.nan, TARGET)
BAD = {
    "oob_score": ({"oob_score": True}, X, TARGET, None, "oob_score must be False"),
    "criterion": ({"criterion": "mean"}, X, TARGET, None, "'criterion' parameter"),
    "monotonic": ({"monotonic_cst": [1]}, X, TARGET, None, "monotonic_cst has shape 1"),
    "bootstrap": ({"bootstrap": False, "max_samples": 9}, X, TARGET, None, "max_sample"),
    "infinity": ({}, np.where(X > 2, np.inf, X), TARGET, None, "contains infinity"),
    "large": ({}, np.where(X > 2, 1e300, X.astype(float)), TARGET, None, "contains infinity"),
    "nan in y": ({}, X, WITH_NAN, None, "Input y contains NaN"),
    "text": ({}, X, TEXT, None, "y must be numeric"),
    "poisson": ({"criterion": "poisson"}, X, TARGET, None, "y must be non-negative"),
    "weight": ({}, X, TARGET, WEIGHT - 1, "sample_weight must be non-negative"),
    "no weight": ({}, X, TARGET, 0 * WEIGHT, "weight above 0"),
    "one dimension": ({}, X[:, 0], TARGET, None, "Expected 2D array"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_changes_nothing(case):
    params, rows, y, weight, message = BAD[case]
    model = RandomForestRegressor(3, **params)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message):
        model.fit(lazy(rows), lazy(y), None if weight is None else lazy(weight))
    assert vars(model) == before


def test_labels_and_answers_are_checked():
    model = RandomForestClassifier(3)
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(lazy(X), lazy(TARGET))
    with pytest.raises(ValueError, match="requires y to be passed"):
        model.fit(lazy(X), None)
    with pytest.raises(NotFittedError):
        model.predict(lazy(X))
    model.fit(lazy(X), lazy(TEXT))
    with pytest.raises(ValueError, match=r"3 features, but .* expecting 4"):
        model.predict(lazy(X[:, :3]))


def test_negative_weights_are_those_of_scikit_learn_without_bootstrap():
    ours, theirs = pair(ExtraTreesRegressor)
    ours.fit(lazy(X), lazy(TARGET), lazy(WEIGHT - 0.5))
    assert_same_forest(ours, theirs.fit(X, TARGET, WEIGHT - 0.5))


def test_all_forests_are_public():
    assert all(getattr(estimators, cls.__name__) is cls for cls in CLASSES)
