"""What is needed of scikit-learn's private parts: a test fails when one of them goes."""

import copy
import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor, _transport
from sklearn.callback._callback_context import CallbackContext
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import _scorer, check_scoring
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.model_selection._validation import _fit_and_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import (
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import parallel

from skfleet import _sklearn_private as private
from skfleet._joblib._callbacks import _rebuild_callback


def calls_of(monkeypatch, run):
    """Collect what scikit-learn gives to joblib."""
    calls = []

    class Collecting(parallel.Parallel):
        def __call__(self, iterable):
            iterable = list(iterable)
            calls.extend(iterable)
            return super().__call__(iterable)

    for module in ("_search", "_validation"):
        monkeypatch.setattr(f"sklearn.model_selection.{module}.Parallel", Collecting)
    run()
    return calls


X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2


def test_fits_of_searches_and_of_cross_validation_are_recognised(monkeypatch):
    search = GridSearchCV(LogisticRegression(), {"C": [1, 2]}, cv=2)
    calls = calls_of(monkeypatch, lambda: search.fit(X, y))
    calls += calls_of(monkeypatch, lambda: cross_validate(LogisticRegression(), X, y, cv=2))
    assert len(calls) == 6
    assert all(private.is_fit(*call) for call in calls)


def test_other_calls_are_not_taken_for_fits():
    assert not private.is_fit(print, (1, 2, 3), {})
    assert not private.is_fit(_fit_and_score, (1, 2, 3), {"train": []})


def test_result_of_a_fit_has_what_is_read_of_it():
    result = _fit_and_score(
        LogisticRegression(), X, y, scorer=lambda *_: 1.0, train=range(10), test=range(10, 20),
        verbose=0, parameters=None, fit_params=None, score_params=None, return_times=True,
        return_train_score=True,
    )  # fmt: skip
    assert result.keys() >= {"fit_error", "test_scores", "train_scores", "fit_time", "score_time"}


@pytest.mark.parametrize("scoring", [None, "r2", ["r2", "neg_max_error"]])
@pytest.mark.parametrize("train_score", [False, True])
def test_result_of_a_fit_can_be_told_without_it(monkeypatch, scoring, train_score):
    search = GridSearchCV(
        Ridge(), {"alpha": [1]}, scoring=scoring, cv=2, return_train_score=train_score, refit=False
    )
    function, args, kwargs = calls_of(monkeypatch, lambda: search.fit(X, y))[0]
    result = function(*args, **kwargs)
    scorers = private.scorers_of(kwargs["scorer"])
    assert set(scorers) == ({"r2", "neg_max_error"} if isinstance(scoring, list) else {None})
    assert (scorers.get(None) == "score") == (scoring is None)
    scores = dict.fromkeys(scorers, 0.5)
    told = private.fit_result(kwargs, scores, scores, 10, 0.1)
    assert told.keys() == result.keys()
    for name, value in told.items():
        assert isinstance(value, dict) == isinstance(result[name], dict)
        if isinstance(value, dict):
            assert value.keys() == result[name].keys()
    assert told["n_test_samples"] == result["n_test_samples"]


@pytest.mark.parametrize("scoring", ["r2", ["r2", "neg_max_error"]])
def test_a_replaced_scorer_calls_the_function_and_is_of_the_same_kind(scoring):
    scorer = check_scoring(Ridge(), scoring)
    replaced = private.replace_scorer(scorer, lambda *args, **kwargs: (args, kwargs))
    assert replaced(1, 2, weight=3) == ((1, 2), {"weight": 3})
    is_several = isinstance(scoring, list)
    assert isinstance(replaced, _scorer._MultimetricScorer) == is_several


def test_rows_are_taken_of_every_container():
    assert private.take_rows(["a", "b", "c"], np.array([2, 0])) == ["c", "a"]


def test_contexts_have_the_parts_that_are_read_and_left_out():
    search = GridSearchCV(LogisticRegression(), {"C": [1]})
    root = search._init_callback_context(max_subtasks=None)
    task = root.subcontext()
    assert private.is_context(task)
    assert not private.is_context(search)
    assert not private.has_callbacks(task)
    assert list(root) == [root, task]  # the tree is what `_children_map` says
    assert vars(root)["_children_map"] == {0: task}
    assert private.context_without_children(root)["_children_map"] == {}
    assert task.parent is root


def test_callbacks_are_where_they_are_looked_for():
    monitor = ScoringMonitor(scoring="accuracy")
    search = GridSearchCV(LogisticRegression(), {"C": [1]}).set_callbacks(monitor)
    assert "_skl_callbacks" in vars(search)
    assert private.has_callbacks(search._init_callback_context(max_subtasks=None))
    assert len(list(private.listeners_of(monitor))) == 1
    assert private.has_callbacks_set(pickle.dumps(search))
    monitor._log.append("gathered")
    assert private.callback_state(monitor)["_log"] == []
    bar = ProgressBar()
    bar._listener_handles["run"] = _transport.ListenerHandle("here", b"key")
    assert [handle.address for handle in private.listeners_of(bar)] == ["here"]
    assert "on_fit_task_end" in dir(ScoringMonitor)
    assert "call_on_fit_task_begin" in dir(CallbackContext)


def test_callbacks_are_called_around_a_fit():
    calls = []

    class Recorder:
        setup = teardown = lambda self, estimator, context: calls.append("outside")
        on_fit_task_begin = on_fit_task_end = lambda self, e, context: calls.append("inside")

    scaler = StandardScaler().set_callbacks(Recorder())
    before = {*vars(scaler)}
    with private.calling_callbacks(scaler, X, None, None):
        assert calls == ["outside", "inside"]
    assert calls == ["outside", "inside", "inside", "outside"]
    assert {*vars(scaler)} == before
    with private.calling_callbacks(Ridge(), X, None, None):
        pass


def test_splits_of_a_fitted_search_are_where_they_are_left_out():
    search = GridSearchCV(LogisticRegression(), {"C": [1]}, cv=2).fit(X, y)
    assert "_checked_cv_orig" in vars(search)
    light = private.search_state(search)
    assert light["cv"] == 2
    assert not {name for name in light if name.endswith("_")} | light.keys() & {"_checked_cv_orig"}


def test_messages_go_to_the_consumer_of_an_address():
    heard = []
    private.message_consumers()["nowhere"] = heard.append
    _rebuild_callback(object, ["nowhere"])  # a copy of a callback does not replace a consumer
    _transport.send(_transport.ListenerHandle("nowhere", b""), "a message")
    assert heard == ["a message"]
    del private.message_consumers()["nowhere"]


def test_listeners_are_looked_for_where_they_can_be_replaced():
    # a monitor is unpickled without its own `__setstate__`, which does no more than this
    source = inspect.getsource(ScoringMonitor.__setstate__)
    assert "self.__dict__.update(state)" in source
    assert "open_listener" in source


def test_iterations_of_boosting_can_be_cut():
    X = np.random.RandomState(0).rand(50, 2)
    model = HistGradientBoostingRegressor(max_iter=5, early_stopping=False, random_state=0)
    expected = clone(model).set_params(max_iter=2).fit(X, X[:, 0])
    cut = private.truncate_hist_boosting(model.fit(X, X[:, 0]), 2)
    assert cut.n_iter_ == 2
    np.testing.assert_array_equal(cut.predict(X), expected.predict(X))
    np.testing.assert_array_equal(cut.train_score_, expected.train_score_)


def test_whole_tree_is_pruned():
    rng = np.random.RandomState(0)
    X, y = rng.rand(80, 3), rng.rand(80)
    whole = DecisionTreeRegressor(random_state=0).fit(X, y)
    alone = DecisionTreeRegressor(random_state=0, ccp_alpha=0.004).fit(X, y)
    n_nodes = whole.tree_.node_count
    found = private.prune_tree(copy.copy(whole).set_params(ccp_alpha=0.004))
    assert found.tree_.node_count == alone.tree_.node_count < n_nodes == whole.tree_.node_count
    np.testing.assert_array_equal(found.predict(X), alone.predict(X))


def test_support_vector_machine_of_a_kernel_becomes_one_of_rows():
    rng = np.random.RandomState(0)
    X, y = rng.randn(60, 3), rng.randint(0, 2, 60)
    alone = SVC(gamma=0.3, tol=1e-9).fit(X, y)
    on_kernel = SVC(kernel="precomputed", gamma=0.3, tol=1e-9).fit(rbf_kernel(X, gamma=0.3), y)
    template = SVC(gamma=0.3, tol=1e-9).fit(X[:20], y[:20])
    found = private.svm_from_kernel_fit(template, on_kernel.set_params(kernel="rbf"), X)
    assert vars(found).keys() == vars(alone).keys()
    np.testing.assert_allclose(found.decision_function(X), alone.decision_function(X), 1e-6, 1e-6)


def test_rows_to_impute_are_numbers_and_a_mask():
    X, mask = private.rows_to_impute(SimpleImputer(), pd.DataFrame({"a": [1, None], "b": [2, 3]}))
    np.testing.assert_array_equal(X, [[1.0, 2.0], [np.nan, 3.0]])
    np.testing.assert_array_equal(mask, [[False, False], [True, False]])


def test_matrices_are_compared_to_rounding():
    assert private.is_close(X, pd.DataFrame(X + 1e-12))
    assert not private.is_close(X, X + 1e-3)
    assert private.is_close(sparse.csr_array(X), sparse.csr_array(X + 0.0))


def test_neighbors_tell_whether_they_use_a_tree():
    for algorithm, in_tree in (("kd_tree", True), ("ball_tree", True), ("brute", False)):
        model = KNeighborsClassifier(algorithm=algorithm).fit(X, y)
        assert private.uses_tree(model) == in_tree


def test_first_columns_of_any_container():
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert private.take_columns(frame, slice(1)).columns.tolist() == ["a"]
    np.testing.assert_array_equal(private.take_columns(X, slice(1)), X[:, :1])


def test_encoders_are_fitted_on_categories():
    columns = np.array([["x", "y"], ["x", "z"], ["z", "z"]], dtype=object)
    params = {"min_frequency": 2, "handle_unknown": "ignore"}
    alone = OneHotEncoder(**params).fit(columns)
    encoder = OneHotEncoder(handle_unknown="ignore")
    categories, counts = private.block_categories(encoder, columns, "ignore", with_counts=True)
    assert [n.tolist() for n in counts] == [[2, 1], [1, 2]]
    encoder.set_params(**params)
    private.fit_on_categories(encoder, OneHotEncoder, categories, counts, 3)
    assert vars(encoder).keys() == vars(alone).keys()
    np.testing.assert_array_equal(
        encoder.transform(columns).toarray(), alone.transform(columns).toarray()
    )
    codes, is_known = np.array([[0, 1], [1, 0]]), np.array([[True, True], [True, False]])
    private.map_infrequent(encoder, codes, is_known, None)
    assert codes.tolist() == [[0, 0], [1, 1]]
    assert [c.dtype for c in private.check_encoder_columns(encoder, columns)] == [object] * 2


def test_encoders_know_the_columns_of_each_category():
    rows = [["a", 1], ["b", 2], ["c", 2]]
    assert private.encoded_widths(OneHotEncoder(drop="first").fit(rows)) == [2, 1]
    assert private.encoded_widths(OrdinalEncoder().fit(rows)) == [1, 1]


def test_encoders_report_unknown_categories_where_they_transform():
    columns = np.array([["x"], ["new"]], dtype=object)
    encoder = OneHotEncoder(drop="first").fit([["x"], ["y"]])
    options = {"handle_unknown": "error", "ensure_all_finite": "allow-nan"}
    with pytest.raises(ValueError, match=r"unknown categories \['new'\] in column 0"):
        private.transform_with_categories(encoder, OneHotEncoder, columns, [["x"]], options)
    assert "self._transform(" in inspect.getsource(OneHotEncoder.transform)
    assert "self._transform(" in inspect.getsource(OrdinalEncoder.transform)


def test_target_encoder_encodes_the_rows_of_splits():
    columns = np.array([["x"], ["y"], ["x"]], dtype=object)
    encoder = TargetEncoder(smooth=1.0).fit(columns, [0.0, 1.0, 2.5])
    result = np.zeros((3, 1))
    encodings = [([np.array([3.0, 4.0])], 0.0), ([np.array([5.0, 6.0])], 0.0)]
    private.encode_targets(encoder, columns, result, [[0], [1, 2]], encodings)
    assert result.ravel().tolist() == [3.0, 6.0, 5.0]


def test_scaler_of_power_transformer_can_be_set():
    rows = np.random.RandomState(0).rand(20, 2)
    fitted = PowerTransformer().fit(rows)
    copied = PowerTransformer()
    copied.lambdas_, copied.n_features_in_ = fitted.lambdas_, 2
    powers = clone(fitted).set_params(standardize=False).fit_transform(rows)
    private.set_power_scaler(copied, StandardScaler().fit(powers))
    np.testing.assert_allclose(copied.transform(rows), fitted.transform(rows), rtol=1e-12)


def test_eigenvectors_of_a_partition_are_that_partition():
    labels = np.repeat([0, 1, 2], 5)
    rotated = np.eye(3)[labels] @ np.linalg.qr(np.random.RandomState(0).rand(3, 3))[0]
    found = private.discretize(rotated, np.random.RandomState(0))
    assert len(set(zip(labels, found, strict=True))) == len(set(found)) == 3


def test_constant_columns_are_recognised():
    rows = np.stack([np.full(9, 0.1), np.arange(9)], axis=1)
    is_constant = private.is_constant_column(rows.var(axis=0), rows.mean(axis=0), len(rows))
    assert is_constant.tolist() == [True, False]


def test_bootstrap_samples_of_a_forest_follow_from_its_parameters():
    weight = 1.0 + np.arange(20) % 3
    params = {"class_weight": {0: 1, 1: 2}, "max_samples": 0.6, "random_state": 0}
    for sample_weight in (None, weight):
        forest = RandomForestClassifier(3, **params).fit(X, y, sample_weight)
        weights = private.expand_class_weight(clone(forest), y[:, None], sample_weight)
        weights = weights if sample_weight is None else weights * sample_weight
        planned = RandomForestClassifier(3, **params)
        n_drawn = private.set_bootstrap(planned, len(X), weights)
        assert n_drawn == planned._n_samples_bootstrap == forest._n_samples_bootstrap
        assert vars(planned).keys() <= vars(forest).keys()
        for tree, rows in zip(forest.estimators_, forest.estimators_samples_, strict=True):
            drawn = private.bootstrap_indices(tree.random_state, len(X), n_drawn, weights)
            np.testing.assert_array_equal(drawn, rows)
    assert private.set_bootstrap(planned.set_params(bootstrap=False), len(X), None) is None
