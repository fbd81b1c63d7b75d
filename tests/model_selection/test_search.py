import inspect
import pickle
import subprocess
import sys

import joblib
import numpy as np
import pytest
import sklearn.model_selection as reference
from distributed import Client
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, NuSVC
from sklearn.tree import DecisionTreeClassifier

from skfleet._joblib import _parallel_call
from skfleet.joblib_backend import FleetBackend
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
)
from skfleet.model_selection._dispatch import _dispatcher
from skfleet.model_selection._dispatch._routes import _on_workers

X, y = load_iris(return_X_y=True)
OWN_ATTRIBUTES = {"shared_fits_", "n_checkpoint_fits_", "timeline_", "_answers_lazily"}


def own_parameters(search):
    """Give the parameters that scikit-learn's have not."""
    kind = search if isinstance(search, type) else type(search)
    own = {"share_fits", "checkpoint", "early_stopping"}
    return own if "Halving" in kind.__name__ else own | {"racing", "time_budget"}


PAIRS = [(GridSearchCV, reference.GridSearchCV), (RandomizedSearchCV, reference.RandomizedSearchCV)]


@pytest.fixture(scope="module", autouse=True)
def fleet(process_cluster):
    """Make a fleet of two worker processes the default."""
    with Client(process_cluster) as client:
        yield client


@pytest.fixture
def planned(monkeypatch):
    """Collect the fits that are put on a plan for the fleet."""
    calls = []
    add = _dispatcher.FitDispatcher.add

    def collecting(self, call, report):
        calls.append(call)
        return add(self, call, report)

    monkeypatch.setattr(_dispatcher.FitDispatcher, "add", collecting)
    return calls


@pytest.fixture
def bundles(monkeypatch):
    """Collect the calls that reach the fleet."""
    calls = []
    submit = _parallel_call.ParallelCall.submit

    def collecting(self, batches):
        calls.extend(call for batch in batches for call in batch.calls)
        return submit(self, batches)

    monkeypatch.setattr(_parallel_call.ParallelCall, "submit", collecting)
    return calls


def assert_same_results(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if not name.endswith("_time"):
            np.testing.assert_array_equal(ours[name], expected, err_msg=name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"return_train_score": True, "cv": 3},
        {"scoring": ["accuracy", "f1_macro"], "refit": "f1_macro"},
        {"n_jobs": 2, "refit": False},
        {"cv": KFold(4, shuffle=True, random_state=0)},
    ],
)
def test_grid_search_gives_scikit_learns_results(params, planned):
    pipeline = make_pipeline(StandardScaler(), SVC())
    grid = {"svc__C": [0.1, 1, 10], "svc__kernel": ["linear", "rbf"]}
    ours = GridSearchCV(pipeline, grid, **params).fit(X, y)
    assert len(planned) == 6 * ours.n_splits_
    theirs = reference.GridSearchCV(pipeline, grid, **params).fit(X, y)
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    assert vars(ours).keys() == vars(theirs).keys() | own_parameters(ours) | OWN_ATTRIBUTES
    if params.get("refit", True):
        assert ours.best_params_ == theirs.best_params_
        assert ours.best_score_ == theirs.best_score_
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_randomized_search_gives_scikit_learns_results(planned):
    params = {"C": loguniform(1e-2, 1e2), "gamma": loguniform(1e-3, 1)}
    ours = RandomizedSearchCV(SVC(), params, n_iter=4, random_state=3).fit(X, y)
    assert len(planned) == 20
    theirs = reference.RandomizedSearchCV(SVC(), params, n_iter=4, random_state=3).fit(X, y)
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    assert ours.best_params_ == theirs.best_params_


def public_attributes(search):
    """Give what code sees that compares all attributes of two searches, but times."""
    names = [name for name in dir(search) if name.endswith("_") and not name.startswith("_")]
    values = {name: getattr(search, name) for name in names if name != "refit_time_"}
    results = values.pop("cv_results_")
    values |= {name: list(v) for name, v in results.items() if not name.endswith("_time")}
    values |= {name: str(values[name]) for name in ("best_estimator_", "scorer_")}
    return values


@pytest.mark.parametrize(
    ("kind", "drawn"), [(GridSearchCV, {}), (HalvingGridSearchCV, {"random_state": 0})]
)
def test_code_that_compares_public_attributes_sees_scikit_learns(kind, drawn):
    kinds = kind, kind, getattr(reference, kind.__name__)
    searches = [search(SVC(), {"C": [0.1, 1, 10]}, cv=3, **drawn).fit(X, y) for search in kinds]
    first, second, other = map(public_attributes, searches)
    np.testing.assert_equal(first, second)
    np.testing.assert_equal(first, other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [HalvingGridSearchCV, HalvingRandomSearchCV])
@pytest.mark.parametrize("resource", ["n_samples", "n_estimators"])
def test_halving_gives_scikit_learns_results(kind, resource, planned):
    given = {"resource": resource, "random_state": 0, "cv": 3, "factor": 2}
    if resource == "n_estimators":
        given |= {"min_resources": 3, "max_resources": 12}
    if kind is HalvingRandomSearchCV:
        given["n_candidates"] = 6
    boosted = GradientBoostingClassifier(n_estimators=5, random_state=0)
    params = {"max_depth": [1, 2, 3], "max_features": [1, 2]}
    ours = kind(boosted, params, **given).fit(X, y)
    theirs = getattr(reference, kind.__name__)(boosted, params, **given).fit(X, y)
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    assert ours.n_resources_ == theirs.n_resources_
    assert ours.best_params_ == theirs.best_params_
    assert len(planned) == 3 * sum(ours.n_candidates_)
    assert vars(ours).keys() == vars(theirs).keys() | own_parameters(ours) | OWN_ATTRIBUTES


def test_forest_in_a_search():
    forest = RandomForestClassifier(n_estimators=5, random_state=0)
    grid = {"max_depth": [2, 3]}
    ours = GridSearchCV(forest, grid, cv=3).fit(X, y)
    theirs = reference.GridSearchCV(forest, grid, cv=3).fit(X, y)
    assert_same_results(ours.cv_results_, theirs.cv_results_)


def test_equal_looking_candidates_are_distinct():
    data, labels = make_classification(300, 8, random_state=0)
    tree = DecisionTreeClassifier(random_state=0)
    grid = {"max_features": [1, 1.0]}
    ours = GridSearchCV(tree, grid).fit(data, labels)
    theirs = reference.GridSearchCV(tree, grid).fit(data, labels)
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    first, second = ours.cv_results_["mean_test_score"]
    assert first != second

    grid = {"param": [1, 1.0, True]}
    results = GridSearchCV(ScoreByType(), grid, cv=2, refit=False).fit(X, y).cv_results_
    assert list(results["mean_test_score"]) == [1, 2, 3]


class ScoreByType(ClassifierMixin, BaseEstimator):
    """Its score tells the type of its parameter."""

    def __init__(self, param=1):
        self.param = param

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def score(self, X, y):
        return 1 + [int, float, bool].index(type(self.param))


class FailsSometimes(ClassifierMixin, BaseEstimator):
    def __init__(self, fails=False):
        self.fails = fails

    def fit(self, X, y):
        if self.fails:
            raise ValueError("no such model")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


def test_failing_fits_score_nan_and_warn():
    search = GridSearchCV(FailsSometimes(), {"fails": [False, True]}, cv=3)
    with (
        pytest.warns(FitFailedWarning, match="3 fits failed out of a total of 6"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search.fit(X, y)
    assert search.best_params_ == {"fails": False}
    assert np.isnan(search.cv_results_["mean_test_score"][1])


def test_all_fits_failing_raises():
    with pytest.raises(ValueError, match="All the 3 fits failed"):
        GridSearchCV(FailsSometimes(), {"fails": [True]}, cv=3).fit(X, y)


def test_error_score_raise_raises_the_error_of_the_fit():
    with pytest.raises(ValueError, match="no such model"):
        GridSearchCV(FailsSometimes(), {"fails": [True]}, error_score="raise").fit(X, y)


def test_generator_of_splits():
    splits = KFold(3, shuffle=True, random_state=0)
    ours = GridSearchCV(SVC(), {"C": [1, 10]}, cv=splits.split(X, y)).fit(X, y)
    theirs = reference.GridSearchCV(SVC(), {"C": [1, 10]}, cv=splits).fit(X, y)
    assert_same_results(ours.cv_results_, theirs.cv_results_)


class Listener:
    """The least that scikit-learn takes for a callback."""

    heard = []

    def __init__(self, kind="driver"):
        self.kind = kind

    def setup(self, *args, **kwargs):
        self.heard.append("setup")

    def teardown(self, *args, **kwargs):
        self.heard.append("teardown")

    def on_fit_task_begin(self, *args, **kwargs):
        self.heard.append("begin")

    def on_fit_task_end(self, *args, **kwargs):
        self.heard.append("end")


@pytest.mark.slow
@pytest.mark.parametrize("search_type", [GridSearchCV, reference.GridSearchCV])
def test_fits_travel_without_the_search_or_with_little_of_it(search_type, bundles):
    forest = RandomForestClassifier(100, random_state=0)
    search = search_type(forest, {"max_depth": [2, None]}, cv=KFold(5))
    with joblib.parallel_config("skfleet"):
        search.fit(X, y)
        own = [args[1] for call, args, _ in bundles if call is _on_workers.run_fit_batch]
        assert own
        assert all(b"SearchCV" not in bytes(parcel.header) for parcel in own)
        bundles.clear()
        search.set_callbacks(Listener()).fit(X, y)
    own = [args[1] for call, args, _ in bundles if call is _on_workers.run_fit_batch]
    assert all(b"GridSearchCV" in bytes(parcel.header) for parcel in own)
    fitted = len(pickle.dumps(search))
    # the search with its forest, and the tree of tasks with all others, stay at home
    assert max(parcel.nbytes for parcel in own) < fitted / 10
    assert search.best_estimator_ is not None


def test_results_come_straight_from_workers_of_this_machine(fleet, monkeypatch):
    scheduler = fleet.cluster.scheduler
    gather, asked = scheduler.handlers["gather"], []

    async def asking(keys, serializers=None):
        asked.append(keys)
        return await gather(keys=keys, serializers=serializers)

    monkeypatch.setitem(scheduler.handlers, "gather", asking)
    GridSearchCV(SVC(), {"C": [0.1, 1, 10]}, refit=False).fit(X, y)
    assert asked == []
    fleet.submit(len, [1]).result()
    assert len(asked) == 1


def test_bundles_have_few_names(fleet):
    GridSearchCV(NuSVC(), {"nu": np.linspace(0.1, 0.5, 39)}, refit=False).fit(X, y)
    names = [name for name in fleet.cluster.scheduler.task_prefixes if "NuSVC" in name]
    sizes = {2**n for n in range(1, 10)}
    allowed = {f"up_to_{size}_fits_of_NuSVC" for size in sizes}
    assert set(names) <= {"fit_and_score-NuSVC", *allowed}
    assert allowed & set(names)


@pytest.mark.slow
def test_fitted_search_is_used_in_a_process_without_cluster(tmp_path):
    search = GridSearchCV(SVC(), {"C": [0.1, 1]}).fit(X, y)
    joblib.dump((search, X, search.predict(X)), tmp_path / "search.pkl")
    code = (
        "import sys, joblib\n"
        "search, X, expected = joblib.load(sys.argv[1])\n"
        "assert (search.predict(X) == expected).all()\n"
        "assert 'distributed' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "search.pkl"], check=True, timeout=60)


@pytest.mark.parametrize("backend", ["sequential", "threading"])
def test_chosen_backend_wins(bundles, backend):
    with joblib.parallel_config(backend):
        GridSearchCV(SVC(), {"C": [0.1, 1]}).fit(X, y)
    assert bundles == []


def test_n_jobs_of_an_enclosing_context_is_kept(monkeypatch):
    asked = []
    configure = FleetBackend.configure

    def watching(self, n_jobs=1, parallel=None, **hints):
        asked.append(n_jobs)
        return configure(self, n_jobs, parallel, **hints)

    monkeypatch.setattr(FleetBackend, "configure", watching)
    with joblib.parallel_config(n_jobs=2):
        GridSearchCV(SVC(), {"C": [0.1, 1]}).fit(X, y)
    assert set(asked) == {2}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_they_look_like_scikit_learns(ours, theirs):
    own = list(inspect.signature(ours).parameters.values())
    known = list(inspect.signature(theirs).parameters.values())
    n_known = len(known)
    assert {one.name for one in own[n_known:]} == own_parameters(ours)
    for one, other in zip(own[:n_known], known, strict=True):
        assert str(one.replace(annotation=one.empty)) == str(other)
    assert issubclass(ours, theirs)
    search = ours(SVC(), {"C": [0.1, 1]})
    plain = theirs(SVC(), {"C": [1]})
    assert search.get_params().keys() == plain.get_params().keys() | own_parameters(ours)
    assert clone(search).get_params()["estimator__C"] == 1.0
    assert ours.__name__ in search._repr_html_()
    assert repr(search).startswith(f"{ours.__name__}(estimator=SVC()")


def test_callbacks_are_called():
    Listener.heard.clear()
    GridSearchCV(SVC(), {"C": [0.1, 1]}, cv=2).set_callbacks(Listener()).fit(X, y)
    assert Listener.heard[0] == "setup"
    assert Listener.heard[-1] == "teardown"
    assert "begin" in Listener.heard
