"""Fits that share rows and first steps give what they give alone."""

import copy
import pickle
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import check_scoring
from sklearn.model_selection import KFold, ParameterGrid
from sklearn.model_selection._validation import _fit_and_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.parallel import delayed

from skfleet.engine._dask import _serialize
from skfleet.engine._dask._serialize import Pickled
from skfleet.model_selection._dispatch import _step_cache
from skfleet.model_selection._dispatch._fit_tasks import FitCall, JobSpec, run_fits
from skfleet.model_selection._dispatch._requests import RequestReader, prefix_digests

X, y = load_iris(return_X_y=True)
FOLDS = dict(enumerate(KFold(3, shuffle=True, random_state=0).split(X)))


@pytest.fixture
def all_read_only(monkeypatch):
    """Let even small rows be shared read-only."""
    for module in (_serialize, _step_cache):
        monkeypatch.setattr(module, "MMAP_THRESHOLD", 0)


def run(estimator, grid, rows=X, targets=y, *, shares=True, folds=FOLDS, discard=None, **options):
    """Evaluate a grid, split by split, and give results without times."""
    function, _, _ = delayed(_fit_and_score)()
    function = function.with_config_and_warning_filters(sklearn.get_config(), warnings.filters)
    options = {
        "scorer": check_scoring(estimator, options.pop("scoring", None)),
        "fit_params": {},
        "score_params": {},
        "return_train_score": True,
        "return_times": True,
        "error_score": "raise",
        "verbose": 0,
        **options,
    }
    job = JobSpec(function, (Pickled.dumps(clone(estimator)),), options, shares, shares)
    fits = [
        FitCall(0, fold, {"parameters": parameters})
        for fold in folds
        for parameters in ParameterGrid(grid)
    ]
    found = list(run_fits(job, fits, rows, targets, folds, discard or (lambda: None)))
    return [
        {name: value for name, value in one.result.items() if not name.endswith("_time")}
        for one in found
    ], found


TEXTS = np.array(["red", "green blue", "blue", "red green", "yellow"])[y + X[:, 0].astype(int) % 3]


@pytest.mark.parametrize(
    ("estimator", "grid", "rows"),
    [
        (DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}, X),
        (DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2]}, X.tolist()),
        (DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2]}, pd.DataFrame(X)),
        (LogisticRegression(max_iter=1000), {"C": [0.1, 1]}, sp.csr_array(X)),
        (LogisticRegression(max_iter=1000), {"C": [0.1, 1]}, np.asfortranarray(X)),
        (SVC(kernel="precomputed"), {"C": [0.1, 1]}, X @ X.T),
        (
            make_pipeline(StandardScaler(), PCA(), SVC()),
            {"pca__n_components": [1, 2], "svc__C": [0.1, 1, 10]},
            pd.DataFrame(X, columns=list("abcd")),
        ),
        (
            make_pipeline(CountVectorizer(), LogisticRegression()),
            {"countvectorizer__binary": [True, False], "logisticregression__C": [0.1, 1]},
            TEXTS.tolist(),
        ),
        (
            make_pipeline("passthrough", StandardScaler(), None, SVC()),
            {"svc__C": [0.1, 1], "passthrough": ["passthrough"]},
            X,
        ),
        (make_pipeline(PCA(2), StandardScaler()), {"standardscaler__with_std": [True, False]}, X),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_results_are_those_of_fits_alone(estimator, grid, rows, read_only, request):
    if read_only:
        request.getfixturevalue("all_read_only")
    scoring = (lambda model, X, y: float(np.sum(model.transform(X)))) if not hasattr(
        estimator, "predict"
    ) else None  # fmt: skip
    if "passthrough" in grid:
        grid = {"svc__C": grid["svc__C"]}
    ours, _ = run(estimator, grid, rows, scoring=scoring)
    alone, _ = run(estimator, grid, rows, shares=False, scoring=scoring)
    assert ours == alone


class Counting(TransformerMixin, BaseEstimator):
    """Counts what it does in the class."""

    n_fits = n_transforms = 0

    def __init__(self, shift=0, seconds=0.0):
        self.shift = shift
        self.seconds = seconds

    def fit(self, X, y=None):
        type(self).n_fits += 1
        time.sleep(self.seconds)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        type(self).n_transforms += 1
        time.sleep(self.seconds)
        return X + self.shift


@pytest.fixture
def counted():
    Counting.n_fits = Counting.n_transforms = 0
    return Counting


def test_each_first_step_is_fitted_and_applied_once_per_split(counted):
    pipeline = Pipeline([("one", Counting()), ("two", Counting()), ("svc", SVC())])
    grid = {"one__shift": [0, 1], "two__shift": [0, 1, 2], "svc__C": [0.1, 1]}
    # sorted as the plan does: by first steps
    ours, _ = run(pipeline, [{"one__shift": [a], "two__shift": [b], "svc__C": [0.1, 1]}
                             for a in (0, 1) for b in (0, 1, 2)])  # fmt: skip
    n_fits, n_transforms = counted.n_fits, counted.n_transforms
    assert n_fits == 3 * (2 + 6)
    # each transforms its training rows in `fit_transform`, and then both parts to be scored
    assert n_transforms == 3 * (2 + 6) * 3
    alone, _ = run(pipeline, grid, shares=False)
    assert counted.n_fits - n_fits == 3 * 2 * 12
    assert sorted(map(str, ours)) == sorted(map(str, alone))


def test_equal_looking_parameters_of_a_step_are_told_apart(counted):
    pipeline = make_pipeline(Counting(), SVC())
    run(pipeline, {"counting__shift": [1, 1.0, True, 1]})
    assert counted.n_fits == 3 * 4  # neighbours are compared, and these differ


def test_shared_steps_count_for_every_fit(counted):
    pipeline = make_pipeline(Counting(seconds=0.05), SVC())
    _, found = run(pipeline, {"svc__C": [0.1, 1, 10]}, return_train_score=False)
    assert all(one.result["fit_time"] >= 0.1 for one in found)  # a fit and a transform
    assert all(one.result["score_time"] >= 0.05 for one in found)
    assert [one.shared_seconds >= 0.15 for one in found] == 3 * [True, False, False]
    assert [one.seconds < 0.1 for one in found] == 3 * [False, True, True]


def test_memory_of_the_user_is_used(tmp_path, counted):
    pipeline = make_pipeline(Counting(), SVC(), memory=str(tmp_path))
    run(pipeline, {"svc__C": [0.1, 1]})
    assert counted.n_fits == 3
    assert list(tmp_path.iterdir())


class Overwriting(ClassifierMixin, BaseEstimator):
    """Makes a mess of what it is given."""

    def __init__(self, p=1):
        self.p = p

    def fit(self, X, y):
        X += self.p
        self.mean_ = X.mean(axis=0)
        self.classes_ = np.unique(y)
        X *= 0
        return self

    def predict(self, X):
        X -= self.mean_
        found = (np.abs(X).sum(axis=1) * 10).astype(int) % 3
        X *= 0
        return found


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("error_score", ["raise", np.nan])
@pytest.mark.parametrize(
    "estimator",
    [Overwriting(), make_pipeline(StandardScaler(copy=False), PCA(copy=False), Overwriting())],
)
def test_fits_that_write_to_their_rows_disturb_no_other(estimator, error_score, read_only, request):
    if read_only:
        request.getfixturevalue("all_read_only")
    name = "p" if isinstance(estimator, Overwriting) else "overwriting__p"
    rows, dropped = X.copy(), []
    ours, _ = run(
        estimator, {name: [1, 2, 3]}, rows, error_score=error_score,
        discard=lambda: dropped.append(1),
    )  # fmt: skip
    assert_array_equal(rows, X)
    alone, _ = run(estimator, {name: [1, 2, 3]}, X.copy(), shares=False)
    assert ours == alone
    # the first fit of each split finds out; what says that it writes gets rows of its own
    says_so = not isinstance(estimator, Overwriting)
    assert len(dropped) == (3 if read_only and not says_so else 0)


class Writer(Overwriting):
    """Writes only when it predicts."""

    def fit(self, X, y):
        self.mean_ = X.mean(axis=0)
        self.classes_ = np.unique(y)
        return self


def test_scores_that_write_to_their_rows_are_made_on_rows_of_their_own(all_read_only):
    with pytest.warns(UserWarning, match="read-only"):  # of the first try; a worker takes it back
        ours, _ = run(Writer(), {"p": [1, 2]}, X.copy(), error_score=np.nan)
    alone, _ = run(Writer(), {"p": [1, 2]}, X.copy(), shares=False)
    assert ours == alone


def test_fit_that_fails_by_itself_fails_as_it_does_alone(all_read_only):
    with pytest.raises(ValueError, match="bad"):
        run(make_pipeline(StandardScaler(), Failing()), {"failing__p": [1, 2]})
    ours, _ = run(Failing(), {"p": [1, 2]}, error_score=-1.0)
    assert all("bad" in one["fit_error"] and one["test_scores"] == -1.0 for one in ours)


class Failing(Overwriting):
    def fit(self, X, y):
        raise ValueError("bad")


def fit_anew(model, X, y):
    """Score by other models made from this one, in all the ways there are."""
    for other in (clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.fit(X[::2], y[::2])
        assert_array_equal(
            other[:-1].transform(X), clone(model)[:-1].fit(X[::2], y[::2]).transform(X)
        )
    model.fit(X[::2], y[::2])
    return model.score(X, y)


def test_models_made_of_a_shared_pipeline_are_fitted_on_their_own_rows():
    pipeline = make_pipeline(StandardScaler(), PCA(2), SVC())
    ours, _ = run(pipeline, {"svc__C": [0.1, 1, 10]}, scoring=fit_anew)
    alone, _ = run(pipeline, {"svc__C": [0.1, 1, 10]}, scoring=fit_anew, shares=False)
    assert ours == alone


def test_array_api_dispatch_leaves_rows_alone():
    fits = RequestReader(Pickled.dumps)
    with sklearn.config_context(array_api_dispatch=False):
        fits.read(*call(Ridge()), None)
    assert fits.jobs[0].spec().loads().shares_rows
    function, args, kwargs = call(Ridge())
    function = function.with_config_and_warning_filters({"array_api_dispatch": True}, [])
    fits.read(function, args, kwargs, None)
    assert not fits.jobs[1].spec().loads().shares_rows


def call(estimator, fold=0, parameters=None, **options):
    """Make a call as scikit-learn does."""
    train, test = FOLDS[fold]
    return delayed(_fit_and_score)(
        estimator, X, y, train=train, test=test, parameters=parameters, scorer=None,
        fit_params=None, score_params=None, error_score="raise", **options,
    )  # fmt: skip


def test_equal_fits_are_made_once_and_reported_to_all():
    fits = RequestReader(Pickled.dumps)
    first = fits.read(*call(Ridge(), parameters={"alpha": 1}), "a")
    assert fits.read(*call(Ridge(), parameters={"alpha": 1}), "b") is None
    assert first.callbacks == ["a", "b"]
    for other in (
        call(Ridge(), parameters={"alpha": 1.0}),
        call(Ridge(), parameters={"alpha": True}),
        call(Ridge(), parameters={"alpha": np.float64(1)}),
        call(Ridge(fit_intercept=False), parameters={"alpha": 1}),
        call(Ridge(), fold=1, parameters={"alpha": 1}),
        call(Ridge(), parameters={"alpha": 1}, return_estimator=True),
    ):
        assert fits.read(*other, "c") is not None
    fits.finish(first)
    assert fits.read(*call(Ridge(), parameters={"alpha": 1}), "d") is not None


def test_fitted_estimators_that_are_asked_for_are_not_shared():
    fits = RequestReader(Pickled.dumps)
    pipeline = make_pipeline(StandardScaler(), Ridge())
    one = fits.read(*call(pipeline, return_estimator=True), "a")
    other = fits.read(*call(pipeline, return_estimator=True), "b")
    assert other is not None
    assert one.prefix_key == ()
    assert not fits.jobs[0].spec().loads().shares_steps


def test_estimators_with_equal_first_steps_have_a_common_prefix():
    fits = RequestReader(Pickled.dumps)

    def prefix(*steps, **options):
        return fits.read(*call(make_pipeline(*steps), **options), "a").prefix_key

    first = prefix(StandardScaler(), PCA(), Ridge())
    assert len(first) == 2
    assert prefix(StandardScaler(), PCA(), SVC()) == first
    assert prefix(StandardScaler(), PCA(), SVC(), parameters={"svc__C": 2}) == first
    for other in (
        prefix(StandardScaler(), PCA(1), SVC()),
        prefix(StandardScaler(), PCA(), SVC(), parameters={"pca__n_components": 1}),
    ):
        assert other != first
        assert other[0] == first[0]
    assert prefix(PCA(), StandardScaler(), SVC())[0] != first[0]


def test_estimators_travel_once():
    fits = RequestReader(Pickled.dumps)
    weights = np.arange(3.0)
    for alpha in range(20):
        fits.read(*call(clone(Ridge(alpha=weights)), parameters={"alpha": alpha}), None)
        fits.read(*call(clone(SVC()), parameters={"C": alpha}), None)
    assert len(fits.jobs) == 1
    assert len(fits.jobs[0].pickled_estimators) == 2


@pytest.mark.parametrize(
    ("parameters", "n_steps"),
    [
        ({"pca__n_components": 1, "svc__C": 1}, 2),
        ({"pca": None}, 2),
        ({"svc": SVC()}, 2),
        (None, 2),
        ({"memory": "here"}, 0),
        ({"steps": []}, 0),
        ({"transform_input": ["a"]}, 0),
    ],
)
def test_first_steps_are_told_apart_by_their_parameters(parameters, n_steps):
    pipeline = make_pipeline(StandardScaler(), PCA(), SVC())
    assert len(prefix_digests(pipeline, parameters)) == n_steps
    assert prefix_digests(SVC(), parameters) == ()
    assert prefix_digests(make_pipeline(SVC()), parameters) == ()
