"""Fits of small rows on Dask: one task, on a worker that has all rows, or in this process."""

import inspect
import re
import threading
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait
from scipy import sparse
from sklearn.base import clone, is_regressor
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.pipeline import make_pipeline

import skfleet.estimators as estimators
from clusters import local_client, persist_in_turn
from skfleet import config_context
from skfleet.engine import SmallFitMixin, _single_task, counting
from skfleet.estimators import (
    ColumnTransformer,
    GaussianMixture,
    KMeans,
    KNeighborsClassifier,
    LogisticRegression,
    MiniBatchKMeans,
    OneHotEncoder,
    PolynomialFeatures,
    RandomForestClassifier,
    Ridge,
    SimpleImputer,
    StandardScaler,
)
from skfleet.estimators.ensemble import _forest_estimator
from skfleet.estimators.ensemble._forest_estimator import TREE_BYTES

pytestmark = pytest.mark.usefixtures("single_task")

RNG = np.random.default_rng(0)
X = np.abs(RNG.normal(size=(120, 4)))
Y = (X[:, 0] + RNG.normal(size=120) > 1).astype(int)
T = 3 * X[:, 0] + np.abs(RNG.normal(size=120))
W = RNG.uniform(0.5, 2, size=120)
FRAME = pd.DataFrame(X, columns=[*"abcd"])
# The fit, and a task of each of the two workers, which passes on the rows that it has.
PERSISTED_IN_ONE_TASK = 3


def on_blocks(values, n_rows=20):
    values = np.asarray(values)
    return da.from_array(values, chunks=(n_rows, *values.shape[1:]))


@pytest.fixture
def persisted(current_client):
    """Return X, Y and T in the memory of the workers."""
    return persist_in_turn(current_client, map(on_blocks, (X, Y, T)))


def takes_rows_of_numbers(cls):
    parameters = inspect.signature(cls).parameters.values()
    is_other = re.search("Vectorizer|FeatureHasher|Label(Bin|Enc)", cls.__name__)
    return not is_other and all(p.default is not p.empty for p in parameters)


SMALL = [
    cls
    for cls in (getattr(estimators, name) for name in estimators.__all__)
    if inspect.isclass(cls) and issubclass(cls, SmallFitMixin) and takes_rows_of_numbers(cls)
]
# These keep the training rows where they are.
ON_BLOCKS = {"KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors"}
# Of these an answer on Dask rows is another one than on rows of this process.
AS_ON_BLOCKS = {"IncrementalPCA"}


@pytest.mark.filterwarnings("ignore:n_quantiles", "ignore:k=10 is greater")
@pytest.mark.parametrize("cls", SMALL, ids=lambda cls: cls.__name__)
def test_a_fit_is_one_task_with_the_answer_of_this_process(cls, persisted, caplog):
    caplog.set_level("INFO", logger="skfleet")
    rows, labels, targets = persisted
    model = cls(random_state=0) if "random_state" in inspect.signature(cls).parameters else cls()
    y, host_y = (targets, T) if is_regressor(model) else (labels, Y)
    with counting() as counts:
        fitted = clone(model).fit(rows, y)
    if cls.__name__ in ON_BLOCKS:
        with config_context(single_task_below=0), counting() as on_blocks:
            clone(model).fit(rows, y)
        assert counts == on_blocks
        return
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    assert f"{cls.__name__} was fitted in one task" in caplog.text
    assert counts.passes
    with config_context(single_task_below=0):
        want = vars(clone(model).fit(*((rows, y) if cls.__name__ in AS_ON_BLOCKS else (X, host_y))))
    for name, value in vars(fitted).items():
        is_number = isinstance(value, np.ndarray | float | int) and name != "history_"
        if name.endswith("_") and is_number and np.asarray(value).dtype.kind in "fiu":
            np.testing.assert_allclose(value, want[name], rtol=1e-9, err_msg=name)


def test_forests_of_many_trees_are_divided_among_machines(persisted, monkeypatch, caplog):
    caplog.set_level("INFO", logger="skfleet")
    rows, labels, _ = persisted
    forest = RandomForestClassifier(TREE_BYTES // X.nbytes + 1, max_depth=1, random_state=0)
    with counting() as counts:
        forest.fit(rows, labels)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    assert forest.n_jobs is None
    monkeypatch.setattr(_forest_estimator, "threads_of_task", lambda engine: (1, 2))
    with counting() as counts:
        forest.fit(rows, labels)
    assert counts.tasks > 2
    assert caplog.text.count("in one task") == 1
    forest.set_params(n_estimators=5)
    with counting() as counts:
        forest.fit(rows, labels)
    assert counts.tasks == PERSISTED_IN_ONE_TASK


def test_larger_rows_stay_on_blocks(persisted):
    rows, labels, _ = persisted
    with counting() as in_one:
        LogisticRegression().fit(rows, labels)
    with config_context(single_task_below=X.nbytes - 1), counting() as on_blocks:
        LogisticRegression().fit(rows, labels)
    with config_context(single_task_below=0), counting() as off:
        LogisticRegression().fit(rows, labels)
    assert in_one.tasks == PERSISTED_IN_ONE_TASK
    assert on_blocks == off
    assert off.tasks > 2
    assert in_one.passes == off.passes


@pytest.mark.parametrize(
    "settings",
    [{"keep_blocks": True}, {"disk_cache": False}, {"block_bytes": 2**20}, {"engine": "local"}],
    ids=str,
)
def test_settings_of_blocks_are_followed(settings, current_client):
    with config_context(**settings), counting() as counts:
        LogisticRegression().fit(on_blocks(X), on_blocks(Y))
    assert counts.tasks != 1


def test_rows_that_take_too_much_of_a_workers_memory_stay_on_blocks(persisted, monkeypatch, caplog):
    caplog.set_level("INFO", logger="skfleet")
    rows, labels, _ = persisted
    monkeypatch.setattr(_single_task, "MEMORY_PARTS", 1e12)
    with counting() as counts:
        LogisticRegression().fit(rows, labels)
    assert counts.tasks > 2
    assert "in one task" not in caplog.text


@pytest.mark.parametrize("value", [-1, "small", True, None, np.inf])
def test_invalid_limits(value):
    refused = pytest.raises(ValueError, match="single_task_below must be one of 'auto' or a num")
    with refused, config_context(single_task_below=value):
        pass


# -- kinds of rows ---------------------------------------------------------------------------------


def test_frames_of_unknown_lengths(current_client):
    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=5)
    frame = frame[frame["a"] > 0.2]
    rows = FRAME[FRAME["a"] > 0.2]
    with counting() as counts:
        model = LogisticRegression().fit(frame[[*"abcd"]], frame["y"])
    assert counts.tasks == 1
    assert counts.loads == 5
    assert list(model.feature_names_in_) == [*"abcd"]
    want = LogisticRegression().fit(rows, Y[FRAME["a"] > 0.2])
    np.testing.assert_allclose(model.coef_, want.coef_, rtol=1e-9)


def test_frames_that_turn_out_to_be_large_are_fitted_on_blocks(current_client):
    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=5)
    frame = frame[frame["a"] > -1]
    with config_context(single_task_below=2000), counting() as counts:
        model = LogisticRegression().fit(frame[[*"abcd"]], frame["y"])
    assert counts.tasks > 2
    np.testing.assert_allclose(model.coef_, LogisticRegression().fit(X, Y).coef_, rtol=1e-6)


def test_persisted_frames_are_known_without_a_task(current_client, caplog):
    caplog.set_level("INFO", logger="skfleet")
    frame = current_client.persist(dd.from_pandas(FRAME, npartitions=5).query("a > -1"))
    wait(frame)
    with counting() as counts:
        KMeans(2, n_init=1, random_state=0).fit(frame)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    with config_context(single_task_below=100), counting() as counts:
        KMeans(2, n_init=1, random_state=0).fit(frame)
    assert counts.tasks > 1
    assert caplog.text.count("in one task") == 1


def test_shuffled_frames_of_unknown_size_stay_on_blocks(current_client):
    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=4).shuffle("y", npartitions=4)
    with counting() as counts:
        model = Ridge().fit(frame[[*"abcd"]], frame["y"])
    assert counts.tasks > 1
    np.testing.assert_allclose(model.coef_, Ridge().fit(X, Y).coef_, rtol=1e-9)


def test_sparse_rows(current_client):
    rows = on_blocks(X).map_blocks(sparse.csr_matrix, meta=sparse.csr_matrix((0, 4)))
    with counting() as counts:
        model = LogisticRegression().fit(rows, on_blocks(Y))
    assert counts.tasks == 1
    np.testing.assert_allclose(model.coef_, LogisticRegression().fit(X, Y).coef_, rtol=1e-6)


@pytest.mark.parametrize("weight", [on_blocks(W), W, 2.0], ids=["Dask", "NumPy", "number"])
@pytest.mark.parametrize("y", [on_blocks(Y, 30), Y], ids=["other chunks", "NumPy"])
def test_values_per_row(weight, y, current_client):
    with counting() as counts:
        model = LogisticRegression().fit(on_blocks(X), y, sample_weight=weight)
    assert counts.tasks in (1, 5)  # that the chunks of y are cut of those of X takes four
    assert counts.loads == 6
    host = W if not isinstance(weight, float) else np.full(len(X), weight)
    want = LogisticRegression().fit(X, Y, sample_weight=host)
    np.testing.assert_allclose(model.coef_, want.coef_, rtol=1e-6)


def test_prepared_rows(current_client):
    frame = dd.from_pandas(FRAME.assign(town=np.where(Y, "a", "b"), y=Y), npartitions=5)
    prepare = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), [*"abcd"]),
        ("town", OneHotEncoder(), ["town"]),
    ])  # fmt: skip
    rows = prepare.fit(frame).transform(frame)
    with counting() as counts:
        model = LogisticRegression().fit(rows, frame["y"])
    assert counts.tasks == 1  # every block has the fitted transformers, which are small
    assert counts.loads == 5
    assert model.score(rows, frame["y"]) == 1.0


# -- what a fit does beside its answer -------------------------------------------------------------


@pytest.mark.parametrize("cls", [KMeans, MiniBatchKMeans])
def test_labels_are_lazy(cls, persisted):
    rows, *_ = persisted
    model = cls(2, random_state=0).fit(rows)
    assert isinstance(model.labels_, da.Array)
    np.testing.assert_array_equal(model.labels_, cls(2, random_state=0).fit(X).labels_)
    assert isinstance(cls(2, random_state=0).fit_predict(rows), da.Array)


def test_neighbours_stay_where_they_are(persisted):
    rows, labels, _ = persisted
    model = KNeighborsClassifier().fit(rows, labels)
    assert isinstance(model.kneighbors(rows, return_distance=False), da.Array)


def test_warnings_come_once(persisted):
    rows, labels, _ = persisted
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        LogisticRegression(max_iter=1).fit(rows, labels[:, None])
    kinds = [(warning.category, warning.filename) for warning in told]
    assert kinds == [(DataConversionWarning, __file__), (ConvergenceWarning, __file__)]


def test_wrong_parameters_are_refused_before_a_task(persisted):
    rows, labels, _ = persisted
    with counting() as counts:
        with pytest.raises(ValueError, match="C must be"):
            LogisticRegression(C=-1).fit(rows, labels)
        with pytest.raises(ValueError, match="n_clusters"):
            KMeans(0).fit(rows)
        with pytest.raises(TypeError):
            KMeans().fit(rows, wrong=1)
    assert not counts.tasks


def test_promises_are_refused_by_their_name(current_client):
    with pytest.raises(TypeError, match=r"X must be .* Got Delayed instead"):
        Ridge().fit(dask.delayed(X), T)


def test_a_fit_that_fails_changes_nothing(current_client):
    model = LogisticRegression().fit(X, Y)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(on_blocks(np.where(X > 2, np.nan, X)), on_blocks(Y))
    assert vars(model) == before


def test_random_numbers_follow_their_generators(persisted):
    rows, *_ = persisted
    ours, theirs = np.random.RandomState(3), np.random.RandomState(3)
    model = KMeans(2, random_state=ours).fit(rows)
    assert model.random_state is ours
    want = KMeans(2, random_state=theirs).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, want.cluster_centers_)
    assert ours.randint(10**9) == theirs.randint(10**9)
    inertias = []
    for _ in range(2):
        np.random.seed(5)  # noqa: NPY002
        inertias.append(KMeans(3, n_init=1, max_iter=1).fit(rows).inertia_)
    assert inertias[0] == inertias[1]


def test_warm_starts_go_on_and_others_forget(persisted):
    rows, *_ = persisted
    model = GaussianMixture(2, warm_start=True, random_state=0, max_iter=2, tol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        bounds = [model.fit(rows).lower_bound_ for _ in range(3)]
    assert bounds[0] < bounds[1] < bounds[2]
    model = Ridge().fit(np.hstack([X, X]), T)
    assert model.fit(rows, persisted[2]).coef_.shape == (4,)


def test_parameters_that_cannot_be_sent(current_client):
    class Start:
        def __init__(self):
            self.lock = threading.Lock()

        def __array__(self, dtype=None, copy=None):
            return np.ones((2, 4)) * np.arange(2)[:, None]

    with counting() as counts:
        model = KMeans(2, init=Start(), n_init=1).fit(on_blocks(X))
    assert counts.tasks > 1
    assert model.cluster_centers_.shape == (2, 4)


def test_users_subclasses_see_dask_rows(persisted, caplog):
    caplog.set_level("INFO", logger="skfleet")
    seen = []

    class Mine(Ridge):
        def fit(self, X, y):
            seen.append(type(X))
            return super().fit(X, y)

    rows, _, targets = persisted
    with counting() as counts:
        model = Mine().fit(rows, targets)
    assert seen == [da.Array]
    assert counts.tasks > 1
    assert "in one task" not in caplog.text
    np.testing.assert_allclose(model.coef_, Ridge().fit(X, T).coef_)


# -- places ----------------------------------------------------------------------------------------


def test_rows_of_this_process_are_loaded_once():
    loaded = []
    rows = on_blocks(X).map_blocks(lambda block: loaded.append(1) or block, meta=X[:0])
    with dask.config.set(scheduler="sync"), counting() as counts:
        model = LogisticRegression().fit(rows, on_blocks(Y))
    assert len(loaded) == counts.loads == 6
    np.testing.assert_array_equal(model.coef_, LogisticRegression().fit(X, Y).coef_)


def test_pipelines_without_a_client_tell_of_no_trip():
    frame = dd.from_pandas(FRAME.assign(y=Y), npartitions=3)
    with dask.config.set(scheduler="sync"), warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pipeline(StandardScaler(), LogisticRegression()).fit(frame[[*"abcd"]], frame["y"])


def test_stateless_steps_take_no_task(persisted):
    with counting() as counts:
        PolynomialFeatures().fit(persisted[0])
    assert not counts.tasks


@pytest.mark.slow
def test_fits_in_tasks():
    def fit(rows, labels):
        with counting() as counts:
            return LogisticRegression().fit(rows, labels).coef_, counts.tasks

    # in processes: distributed makes the client of a task the default one of its process
    with local_client(2, threads_per_worker=1) as client:
        coef, n_tasks = client.submit(fit, on_blocks(X), on_blocks(Y)).result()
    assert n_tasks == 1
    np.testing.assert_allclose(coef, LogisticRegression().fit(X, Y).coef_)


def test_workers_with_labels_and_threads():
    options = {"threads_per_worker": 2, "processes": False, "resources": {"GPU": 1, "CPU": 1}}
    with local_client(1, **options), counting() as counts:
        model = LogisticRegression().fit(on_blocks(X), on_blocks(Y))
    assert counts.tasks == 1
    np.testing.assert_allclose(model.coef_, LogisticRegression().fit(X, Y).coef_)


def test_rows_stay_where_they_are(persisted, current_client):
    """Dask may drop the originals of copies: then one worker has all rows."""
    rows, labels, _ = persisted
    before = current_client.who_has(persisted)
    assert len({address for own in before.values() for address in own}) == 2
    with counting() as counts:
        LogisticRegression().fit(rows, labels)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    assert current_client.who_has(persisted) == before
