"""Adaptive searches that give candidates rows, trees, rounds, iterations or folds."""

import warnings
from itertools import pairwise

import dask.array as da
import numpy as np
import pytest
from adaptive_cases import SEARCHES, Counter, numbered, sgd
from scipy.stats import loguniform, randint
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.exceptions import FitFailedWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import (
    GroupKFold,
    HalvingGridSearchCV,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skfleet.engine import counting
from skfleet.model_selection import (
    HyperbandSearchCV,
    IncrementalSearchCV,
    SuccessiveHalvingSearchCV,
)
from skfleet.model_selection._adaptive._whole_rows import nested_order

SPACE = {"C": loguniform(1e-2, 1e2)}


@pytest.fixture(scope="module")
def few(digits):
    """Two hundred digits."""
    return digits[0][:200], digits[1][:200]


def search(estimator, parameters, **params):
    how = {"n_initial_parameters": "grid", "n_jobs": 1, "random_state": 0} | params
    return SuccessiveHalvingSearchCV(estimator, parameters, **how)


class Rows(SVC):
    """Remembers the rows of its fit."""

    def fit(self, X, y, sample_weight=None):
        self.rows_, self.weight_ = {*map(bytes, np.asarray(X))}, sample_weight
        return super().fit(X, y, sample_weight)

    def score(self, X, y):
        self.tested_ = {*map(bytes, np.asarray(X))}
        return super().score(X, y)


@pytest.mark.parametrize("on_dask", [False, True])
def test_shares_of_rows_are_nested_stratified_and_the_same_for_all(on_dask, few, cluster_client):
    X, y = few
    rows, labels = (da.from_array(X, (60, -1)), da.from_array(y, 60)) if on_dask else few
    models = []
    for best in range(3):
        made = search(
            Rows(), {"C": [0.1, 1.0, 10.0]}, resource="n_samples", n_initial_iter=1 + best,
            max_iter=9, refit=lambda results, best=best: best,
        )  # fmt: skip
        if on_dask:
            with cluster_client.as_current():
                made.set_params(n_jobs=None).fit(rows, labels)
        else:
            made.fit(rows, labels)
        model = made.best_estimator_
        n_train = len({*map(bytes, X)} - model.tested_)
        assert len(model.rows_) == -(-n_train * made.n_iter_ // 9)
        assert not model.rows_ & model.tested_
        models.append((made.n_iter_, model))
    assert len({frozenset(model.tested_) for _, model in models}) == 1
    by_size = sorted(models, key=lambda pair: pair[0])
    assert all(a.rows_ <= b.rows_ for (_, a), (_, b) in pairwise(by_size))


def test_every_part_of_a_nested_order_is_stratified():
    labels = np.repeat([0, 1, 2], [300, 90, 10])
    order = nested_order(np.arange(400), labels, 0)
    assert sorted(order) == list(range(400))
    for n in (3, 40, 133, 399):
        counts = np.bincount(labels[order[:n]], minlength=3)
        assert (np.abs(counts - np.array([0.75, 0.225, 0.025]) * n) <= 2).all()
        assert counts.min() >= 1
    assert not np.array_equal(order, nested_order(np.arange(400), labels, 1))


def test_the_last_rung_is_a_fit_on_all_training_rows(few):
    made = search(SVC(), {"C": [0.01, 1.0, 100.0]}, resource="n_samples")
    made.fit(*few)
    assert made.metadata["brackets"][0]["rungs"] == [(3, 1), (1, 3)]
    assert made.metadata_ == made.metadata
    assert made.metadata_["n_resources"] == 5
    history = made.history_
    assert history.n_samples_seen.tolist() == [57, 57, 57, 170]
    assert sorted(made.cv_results_["n_resources"]) == [1, 1, 3]
    assert "partial_fit_calls" not in history


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("kind", "params"), SEARCHES)
@pytest.mark.parametrize("resource", ["n_samples", "max_depth", "n_estimators", "folds"])
def test_every_search_takes_every_resource(kind, params, resource, few, on_cluster):
    params = {name: value for name, value in params.items() if resource != "folds" or "n_i" in name}
    if resource == "folds":
        params["cv"] = 3
    forest = RandomForestClassifier(2, max_depth=3, random_state=0)
    made = kind(forest, {"min_samples_leaf": randint(1, 4)}, resource=resource, random_state=0)
    made.set_params(**params).fit(*few)
    assert made.best_score_ > 0.5
    assert made.metadata_["n_resources"] == made.cv_results_["n_resources"].sum()
    if resource in made.best_estimator_.get_params():
        assert getattr(made.best_estimator_, resource) == made.n_iter_


class Level:
    """A scorer by which the model of the last level is best."""

    def __init__(self, resource):
        self.resource = resource

    def __call__(self, model, X, y):
        return float(model.get_params()[self.resource])


def _in_stages_and_at_once(estimator, resource, rows, **params):
    """Models that were trained on from 9 to 18 and 27, and at once."""
    models = []
    for step, n_scores in ((9, 3), (27, 1)):
        made = IncrementalSearchCV(
            estimator, {}, n_initial_parameters=1, max_iter=27, fits_per_score=step, n_jobs=1,
            resource=resource, random_state=0, scoring=Level(resource),
        ).set_params(**params).fit(*rows)  # fmt: skip
        assert len(made.history_) == n_scores
        models.append(made.best_estimator_)
    return models


@pytest.mark.parametrize(
    ("estimator", "resource"),
    [
        (RandomForestClassifier(random_state=0, class_weight="balanced"), "n_estimators"),
        (BaggingClassifier(DecisionTreeClassifier(max_depth=3), random_state=0), "n_estimators"),
        (GradientBoostingClassifier(random_state=0, max_depth=2), "n_estimators"),
        (HistGradientBoostingClassifier(random_state=0, max_depth=2), "max_iter"),
        (make_pipeline(StandardScaler(), RandomForestClassifier(random_state=0)),
         "randomforestclassifier__n_estimators"),
        (LogisticRegression(solver="liblinear", random_state=0), "max_iter"),
    ],
    ids=lambda value: getattr(type(value), "__name__", value),
)  # fmt: skip
def test_model_that_is_trained_on_is_that_of_one_fit(estimator, resource, few):
    rows = few[0], few[1] % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staged, whole = _in_stages_and_at_once(estimator, resource, rows)
    np.testing.assert_array_equal(staged.predict_proba(rows[0]), whole.predict_proba(rows[0]))
    assert staged.get_params()[resource] == whole.get_params()[resource]
    assert not staged.get_params().get("warm_start", False)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "ours-xgboost", "ours-lightgbm"])
def test_boosting_goes_on_from_the_rounds_before(library, few):
    module = pytest.importorskip(library.removeprefix("ours-"))
    if library.startswith("ours"):
        module = pytest.importorskip("skfleet.estimators.boosting")
    is_xgboost = library.endswith("xgboost")
    kind = module.XGBClassifier if is_xgboost else module.LGBMClassifier
    params = {} if is_xgboost else {"verbose": -1, "min_child_samples": 5}
    model = kind(max_depth=2, n_jobs=1, random_state=0, **params)
    rows = few[0], few[1] % 2
    staged, whole = _in_stages_and_at_once(model, "n_estimators", rows)
    found, expected = staged.predict_proba(rows[0]), whole.predict_proba(rows[0])
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert np.abs(found - clone(model).set_params(n_estimators=9).fit(*rows).predict_proba(rows[0])
                  ).max() > 0.1  # fmt: skip
    n_rounds = (
        staged.get_booster().num_boosted_rounds() if is_xgboost else staged.booster_.num_trees()
    )
    assert n_rounds == staged.n_estimators == 27


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        SGDClassifier(random_state=0, tol=None),
        MLPClassifier((4,), random_state=0, tol=0.0),
        LogisticRegression(tol=1e-12),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_iterations_of_all_levels_are_those_of_the_last(estimator, few):
    """Solvers with a warm start make the iterations that are missing, and not all again."""
    made = IncrementalSearchCV(
        estimator, {}, n_initial_parameters=1, max_iter=6, fits_per_score=2, resource="max_iter",
        n_jobs=1, random_state=0, scoring=Level("max_iter"),
    ).fit(*few)  # fmt: skip
    model = made.best_estimator_
    assert model.max_iter == made.n_iter_ == 6
    assert not model.warm_start
    assert np.max(model.n_iter_) == 2  # those of the last fit


def test_rung_of_a_parameter_is_a_fit_with_it(few):
    """Without a warm start the model of a level is fitted afresh."""
    X, y = few
    made = search(DecisionTreeClassifier(random_state=0), {"criterion": ["gini", "entropy"]},
                  resource="max_depth", max_iter=3)  # fmt: skip
    made.fit(X, y)
    assert made.best_estimator_.get_depth() <= made.n_iter_ == made.best_estimator_.max_depth
    steps = make_pipeline(StandardScaler(), FunctionTransformer(kw_args=None), Ridge())
    X, y = load_diabetes(return_X_y=True)
    made = search(steps, {"ridge__alpha": [0.1, 1.0]}, resource="ridge__max_iter", max_iter=3)
    assert made.fit(X, y).best_estimator_[-1].max_iter == made.n_iter_
    grown = search(make_pipeline(StandardScaler(), DecisionTreeClassifier()), {},
                   resource="decisiontreeclassifier__max_depth", cv=3, max_iter=4)  # fmt: skip
    grown.set_params(n_initial_parameters=1, n_initial_iter=4).fit(*few)
    assert grown.best_estimator_[-1].max_depth == 4


class Scaler(StandardScaler):
    """Counts its fits."""

    fitted_on = []

    def fit(self, X, y=None, sample_weight=None):
        self.fitted_on.append(len(X))
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"resource": "svc__max_iter"}, {170: 2}),
        ({"resource": "n_samples"}, {57: 2, 170: 1}),
        ({"resource": "n_samples", "cv": KFold(2)}, {34: 4, 100: 2, 200: 1}),
        ({"resource": "folds", "cv": KFold(4)}, {150: 4, 200: 1}),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_equal_first_steps_are_fitted_once(params, expected, few, monkeypatch):
    """Four candidates with two scalers; the best one, or the best two, go on."""
    monkeypatch.setattr(Scaler, "fitted_on", [])
    space = {"scaler__with_std": [True, False], "svc__C": [1.0, 2.0]}
    made = search(make_pipeline(Scaler(), SVC()), space, max_iter=3, **params)
    made.fit(*few)
    counts = dict(zip(*np.unique(Scaler.fitted_on, return_counts=True), strict=True))
    assert counts == expected


@pytest.mark.parametrize("cv", [3, StratifiedKFold(3), ShuffleSplit(3, test_size=0.2)])
def test_scores_of_several_splits_are_those_of_cross_validation(cv, few):
    X, y = few
    splits = list(ShuffleSplit(3, random_state=0).split(X)) if isinstance(cv, ShuffleSplit) else cv
    made = search(SVC(), {"C": [0.01, 1.0, 100.0]}, resource="n_samples", cv=splits, max_iter=3)
    results = made.fit(X, y).cv_results_
    assert made.n_splits_ == 3
    at_end = np.flatnonzero(results["budget"] == 3)
    assert len(at_end)
    for i in at_end:
        expected = cross_val_score(SVC(**results["params"][i]), X, y, cv=splits)
        scores = [results[f"split{k}_test_score"][i] for k in range(3)]
        np.testing.assert_allclose(scores, expected)
        assert results["mean_test_score"][i] == pytest.approx(expected.mean())
        assert results["std_test_score"][i] == pytest.approx(expected.std())
    best = SVC(**made.best_params_).fit(X, y)  # on all rows
    np.testing.assert_array_equal(made.decision_function(X), best.decision_function(X))


@pytest.mark.parametrize("n_jobs", [1, None])
def test_calls_on_several_splits(n_jobs, on_cluster):
    X, y = numbered(40)
    folds = KFold(4)
    made = SuccessiveHalvingSearchCV(
        Counter(), {"quality": [0.2, 0.4]}, n_initial_parameters="grid", aggressiveness=2,
        max_iter=2, cv=folds, batch_size=10, n_jobs=n_jobs, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert made.metadata_["partial_fit_calls"] == 3
    assert made.history_.n_samples_seen.tolist() == [40, 40, 80]
    model = made.best_estimator_  # that of all rows, in as many calls
    assert len(model.seen_) == made.n_iter_ == 2
    assert len({*np.concatenate(model.seen_)}) == 20
    assert made.cv_results_["std_test_score"].tolist() == [0.0, 0.0]
    assert not hasattr(model, "scored_on_")


def test_folds_are_fitted_one_after_the_other(few):
    X, y = few
    made = search(SVC(), {"C": [0.01, 1.0, 100.0]}, resource="folds", cv=5)
    assert made.metadata["brackets"][0]["rungs"] == [(3, 1), (1, 3)]
    results = made.fit(X, y).cv_results_
    for i, n in enumerate(results["budget"]):
        expected = cross_val_score(SVC(**results["params"][i]), X, y, cv=5)[:n]
        scores = np.array([results[f"split{k}_test_score"][i] for k in range(5)])
        np.testing.assert_allclose(scores[:n], expected)
        assert np.isnan(scores[n:]).all()
        assert results["mean_test_score"][i] == pytest.approx(expected.mean())
        assert results["std_test_score"][i] == pytest.approx(expected.std())
    best = SVC(**made.best_params_).fit(X, y)
    np.testing.assert_array_equal(made.decision_function(X), best.decision_function(X))
    everything = HyperbandSearchCV(SVC(), SPACE, resource="folds", random_state=0, n_jobs=1)
    assert [b["rungs"] for b in everything.metadata["brackets"]] == [[(3, 1), (1, 5)], [(2, 5)]]
    groups = np.arange(len(X)) % 4
    grouped = search(SVC(), {"C": [1.0]}, resource="folds", cv=GroupKFold(4))
    grouped.set_params(n_initial_iter=4).fit(X, y, groups=groups)
    assert (
        grouped.best_score_ == cross_val_score(SVC(), X, y, cv=GroupKFold(4), groups=groups).mean()
    )


def test_halving_of_rows_finds_what_that_of_scikit_learn_finds(digits):
    X, y = digits[0][:600], digits[1][:600]
    grid = {"C": np.logspace(-4, 3, 9)}
    theirs = HalvingGridSearchCV(SVC(), grid, cv=3, random_state=0, min_resources=60).fit(X, y)
    ours = search(SVC(), grid, resource="n_samples", cv=3).fit(X, y)
    assert (
        [n for n, _ in ours.metadata_["brackets"][0]["rungs"]] == theirs.n_candidates_ == [9, 3, 1]
    )
    assert abs(np.log10(ours.best_params_["C"] / theirs.best_params_["C"])) < 3
    assert ours.best_score_ == pytest.approx(theirs.best_score_, abs=0.03)


def test_weights_and_rows_that_were_held_out(few):
    X, y = few
    weights = np.linspace(0.5, 2, len(X))
    made = search(Rows(), {"C": [1.0]}, resource="n_samples", refit_on_test=True, max_iter=2)
    model = made.fit(X, y, sample_weight=weights).best_estimator_
    assert len(model.weight_) == len(model.rows_) == len({*map(bytes, X)})
    assert not np.array_equal(model.weight_, weights)  # in the order of the rows
    at = {bytes(row): weight for row, weight in zip(X, weights, strict=True)}
    made.set_params(refit_on_test=False, cv=2).fit(X, y, sample_weight=weights)
    assert sorted(made.best_estimator_.weight_) == sorted(at.values())


def test_candidate_that_cannot_be_fitted_is_out(few):
    space = {"strategy": ["constant", "most_frequent", "uniform"], "constant": [-1]}
    with pytest.warns(FitFailedWarning, match="(?s)1 of 3 candidates failed.*constant"):
        made = search(DummyClassifier(random_state=0), space, resource="n_samples").fit(*few)
    assert np.isnan(made.cv_results_["mean_test_score"]).sum() == 1
    with pytest.raises(ValueError, match="constant"):
        made.set_params(error_score="raise").fit(*few)


def test_patience_time_and_progress_know_the_resource(few, capsys, caplog, on_cluster):
    forest = RandomForestClassifier(random_state=0)
    made = IncrementalSearchCV(
        forest, {"max_depth": randint(1, 5)}, n_initial_parameters=2, max_iter=60, patience=6,
        fits_per_score=3, resource="n_estimators", verbose=2, random_state=0,
    )  # fmt: skip
    with caplog.at_level("INFO", "skfleet.model_selection"):
        made.fit(*few)
    assert made.metadata_["n_resources"] < made.metadata["n_resources"] == 120
    output = capsys.readouterr().out
    assert "3 n_estimators, score=" in output
    assert any("n_estimators in" in message for message in caplog.messages)
    html = made._repr_mimebundle_()["text/html"]
    assert "of resource=&#x27;n_estimators&#x27;" in html
    made.set_params(time_budget=1e-6, verbose=0)
    with pytest.raises(ValueError, match="larger time_budget"):
        made.fit(*few)


def test_plot_has_the_resource_on_its_axis(few):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = search(SVC(), {"C": [0.1, 1.0]}, resource="folds", max_iter=2).fit(*few).plot()
    assert axes.get_xlabel() == "folds"
    pyplot.close("all")


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"resource": "rows"}, ValueError, "resource must be one of 'calls', 'n_samples', 'folds'"),
        ({"resource": None}, ValueError, "resource must be a name"),
        ({"resource": "C"}, ValueError, "parameters must not have the resource"),
        ({"points_to_evaluate": [{"max_iter": 3}], "resource": "max_iter"}, ValueError,
         "parameters must not have the resource"),
        ({"resource": "calls"}, TypeError, 'or give candidates another resource: resource="n_sam'),
        ({"batch_size": 10}, ValueError, "batch_size must be None with resource='n_samples'"),
        ({"cv": 3, "test_size": 0.2}, ValueError, "test_size must be None with"),
        ({"resource": "folds", "refit_on_test": True}, ValueError, "refit_on_test must be False"),
        ({"resource": "folds", "max_iter": 6}, ValueError, "max_iter must be at most the number"),
        ({"resource": "folds", "max_iter": 0}, ValueError, "max_iter must be a whole number"),
    ],
)  # fmt: skip
def test_errors_come_before_any_work(params, error, message, few, on_cluster):
    made = search(SVC(), {"C": [0.1, 1.0]}, n_jobs=None, **{"resource": "n_samples"} | params)
    with counting() as counts, pytest.raises(error, match=message):
        made.fit(*few)
    assert counts.tasks == 0


def test_several_splits_are_of_rows_in_this_process(few, on_cluster):
    X, y = da.from_array(few[0], (50, -1)), da.from_array(few[1], 50)
    for params in ({"cv": 3}, {"resource": "folds"}, {"resource": "n_samples", "cv": 3}):
        with pytest.raises(ValueError, match="X must be rows of this process with cv="):
            search(sgd(), {"alpha": [1e-4]}, n_jobs=None, **params).fit(X, y)
    trees = search(RandomForestClassifier(random_state=0), {"max_depth": [1, 4]},
                   resource="n_estimators", n_jobs=None).fit(X, y)  # fmt: skip
    assert trees.best_params_ == {"max_depth": 4}
    net = search(ElasticNet(), {"alpha": [0.1, 1.0]}, resource="n_samples", n_jobs=None)
    assert net.fit(X, y).history_.n_samples_seen.max() <= 170
