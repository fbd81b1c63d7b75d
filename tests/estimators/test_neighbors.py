"""Neighbours of rows in any container against scikit-learn's, in every world and counted."""

import gc
import pickle
import warnings
from copy import deepcopy

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import neighbors as reference
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV as ReferenceSearch
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors
from skfleet.estimators.neighbors import _indexed_rows, _neighbors
from skfleet.model_selection import GridSearchCV

N = 150
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 5))
QUERIES = rng.normal(size=(31, 5))
TEXT = np.array(["no", "yes", "perhaps"])[rng.integers(3, size=N)]
TARGETS = np.c_[X[:, 0] + X[:, 1], X[:, 2] ** 2]
LABELS = np.c_[TEXT, np.array(["a", "b"])[rng.integers(2, size=N)]]


def lazy(values, *cuts):
    cuts = cuts or (40, 0, 70, len(values) - 110)
    return da.from_array(values, chunks=(cuts, *values.shape[1:]))


@parametrize_with_checks([NearestNeighbors(), KNeighborsClassifier(), KNeighborsRegressor()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def same_neighbors(ours, theirs, world):
    (distances, numbers), (want, want_numbers) = ours, theirs
    np.testing.assert_allclose(world.host(distances), want, rtol=1e-12)
    np.testing.assert_array_equal(world.host(numbers), want_numbers)


def test_every_world_has_the_same_neighbors(world):
    model = NearestNeighbors(n_neighbors=4).fit(world.X(X))
    want = reference.NearestNeighbors(n_neighbors=4, algorithm="brute").fit(X)
    assert model.n_samples_fit_ == N
    assert model.effective_metric_ == "euclidean"
    same_neighbors(model.kneighbors(world.X(QUERIES)), want.kneighbors(QUERIES), world)
    same_neighbors(model.kneighbors(n_neighbors=3), want.kneighbors(n_neighbors=3), world)
    if world.name not in ("strict", "dask-array", "cluster-unknown"):
        return
    for queries in (QUERIES, sparse.csr_array(QUERIES), lazy(QUERIES, 20, 11)):
        numbers = model.kneighbors(queries, 2, return_distance=False)
        want_numbers = want.kneighbors(QUERIES, 2, return_distance=False)
        np.testing.assert_array_equal(world.host(numbers), want_numbers)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("weights", ["uniform", "distance", np.reciprocal], ids=str)
def test_every_world_gives_the_same_answer(world, weights):
    params = {"n_neighbors": 5, "weights": weights}
    theirs = reference.KNeighborsClassifier(**params, algorithm="brute").fit(X, TEXT)
    ours = KNeighborsClassifier(**params).fit(world.X(X), world.column(TEXT))
    queries = world.X(QUERIES)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_array_equal(world.host(ours.predict(queries)), theirs.predict(QUERIES))
    np.testing.assert_allclose(
        world.host(ours.predict_proba(queries)), theirs.predict_proba(QUERIES), atol=1e-12
    )
    theirs = reference.KNeighborsRegressor(**params, algorithm="brute").fit(X, X[:, 0])
    ours = KNeighborsRegressor(**params).fit(world.X(X), world.column(X[:, 0]))
    want = theirs.predict(QUERIES)
    np.testing.assert_allclose(world.host(ours.predict(queries)), want, rtol=1e-12)
    if world.name != "strict":
        score = theirs.score(QUERIES, QUERIES[:, 0])
        np.testing.assert_allclose(ours.score(queries, world.column(QUERIES[:, 0])), score)


def test_answers_come_in_the_kind_and_order_of_the_queries():
    model = KNeighborsClassifier(3).fit(lazy(X), lazy(TEXT, 75, 75))
    want = reference.KNeighborsClassifier(3, algorithm="brute").fit(X, TEXT)
    rows = lazy(QUERIES, 7, 0, 24)
    labels, shares, graph = (
        model.predict(rows),
        model.predict_proba(rows),
        model.kneighbors_graph(rows),
    )
    assert labels.chunks == ((7, 0, 24),)
    assert shares.chunks == graph.chunks[:1] + ((3,),) == ((7, 0, 24), (3,))
    assert labels.dtype == want.predict(QUERIES).dtype
    assert (labels.compute() == want.predict(QUERIES)).all()
    assert (graph.compute() != want.kneighbors_graph(QUERIES)).nnz == 0
    frame = pd.DataFrame(QUERIES, index=np.arange(100, 131))
    of_frame = dd.from_pandas(frame, npartitions=3)
    labels, shares = model.predict(of_frame), model.predict_proba(of_frame)
    assert labels.divisions == of_frame.divisions
    assert labels.compute().index.equals(frame.index)
    assert list(shares.columns) == list(shares.compute().columns) == list(want.classes_)
    graph = model.kneighbors_graph(of_frame).compute()
    assert (graph != want.kneighbors_graph(QUERIES)).nnz == 0
    unknown = rows[da.ones(31, chunks=rows.chunks[0], dtype=bool)]
    assert np.isnan(model.predict(unknown).shape[0])
    assert (model.predict(unknown).compute() == want.predict(QUERIES)).all()


@pytest.mark.parametrize("params", [{}, {"weights": "distance"}], ids=str)
def test_several_outputs(params):
    ours = KNeighborsClassifier(**params).fit(lazy(X), lazy(LABELS))
    theirs = reference.KNeighborsClassifier(**params, algorithm="brute").fit(X, LABELS)
    assert ours.outputs_2d_
    for queries in (QUERIES, lazy(QUERIES, 20, 11)):
        np.testing.assert_array_equal(ours.predict(queries), theirs.predict(QUERIES))
        pairs = zip(ours.predict_proba(queries), theirs.predict_proba(QUERIES), strict=True)
        for shares, want in pairs:
            np.testing.assert_allclose(shares, want)
    ours = KNeighborsRegressor(**params).fit(lazy(X), TARGETS)
    theirs = reference.KNeighborsRegressor(**params, algorithm="brute").fit(X, TARGETS)
    np.testing.assert_allclose(ours.predict(lazy(QUERIES, 31)), theirs.predict(QUERIES))
    np.testing.assert_allclose(ours.score(lazy(X), lazy(TARGETS)), theirs.score(X, TARGETS))
    with pytest.warns(DataConversionWarning):
        column = KNeighborsClassifier(**params).fit(lazy(X), lazy(TEXT[:, None]))
    assert not column.outputs_2d_
    assert column.predict(QUERIES).shape == (31,)


def test_training_rows_are_not_their_own_neighbors():
    rows = np.repeat(X[:30], 4, axis=0)
    model = KNeighborsClassifier(3).fit(lazy(rows, 50, 70), TEXT[:120])
    theirs = reference.KNeighborsClassifier(3, algorithm="kd_tree").fit(rows, TEXT[:120])
    numbers = model.kneighbors(return_distance=False)
    assert numbers.chunks == ((50, 70), (3,))
    group = np.arange(120) // 4
    np.testing.assert_array_equal(numbers.compute() // 4, np.repeat(group[:, None], 3, axis=1))
    assert not (numbers.compute() == np.arange(120)[:, None]).any()
    assert (model.predict(None).compute() == theirs.predict(None)).all()
    assert model.score(None, TEXT[:120]) == theirs.score(None, TEXT[:120])
    # more copies than neighbours: the first ones
    same = (
        NearestNeighbors(n_neighbors=2).fit(lazy(np.ones((9, 2)), 4, 5)).kneighbors()[1].compute()
    )
    assert same.tolist() == [[1, 2], [0, 2]] + [[0, 1]] * 7


def test_a_copy_at_distance_zero_has_all_the_weight():
    rows = X + 1e3  # where a product of matrices has no digits of a distance
    model = KNeighborsRegressor(4, weights="distance").fit(lazy(rows), lazy(X[:, 0]))
    np.testing.assert_array_equal(model.predict(rows[:20]), X[:20, 0])
    assert (model.kneighbors(rows)[0][:, 0] == 0).all()


@pytest.mark.parametrize(
    "params",
    [
        {"metric": "manhattan"},
        {"metric": "chebyshev"},
        {"p": 3},
        {"metric": "minkowski", "p": 1},
        {"metric": "minkowski", "metric_params": {"w": np.arange(1.0, 6)}},
        {"metric": "sqeuclidean"},
        {"metric": "cosine"},
        {"metric": "seuclidean", "metric_params": {"V": np.arange(1.0, 6)}},
        {"algorithm": "kd_tree", "leaf_size": 3},
        {"algorithm": "ball_tree", "metric": "manhattan"},
        pytest.param({"metric": lambda a, b: np.abs(a - b).max()}, id="a function"),
    ],
    ids=str,
)
def test_metrics(params):
    ours = NearestNeighbors(n_neighbors=3, **params).fit(lazy(X))
    theirs = reference.NearestNeighbors(n_neighbors=3, **{**params, "algorithm": "brute"}).fit(X)
    for got, want in zip(ours.kneighbors(QUERIES), theirs.kneighbors(QUERIES), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
    assert ours.effective_metric_ == theirs.effective_metric_
    assert str(ours.effective_metric_params_) == str(theirs.effective_metric_params_)


def test_missing_values_have_a_metric_of_their_own():
    holed = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    ours = NearestNeighbors(metric="nan_euclidean").fit(lazy(holed))
    theirs = reference.NearestNeighbors(metric="nan_euclidean").fit(holed)
    np.testing.assert_array_equal(
        ours.kneighbors(lazy(holed[:9], 9))[1], theirs.kneighbors(holed[:9])[1]
    )
    np.testing.assert_array_equal(ours.kneighbors(holed[:9])[1], theirs.kneighbors(holed[:9])[1])
    infinite = np.where(np.isnan(holed), np.inf, holed)
    with pytest.raises(ValueError, match="infinity"):
        ours.fit(lazy(infinite))


def test_rows_in_this_process_are_scikit_learns():
    for ours in (NearestNeighbors(), KNeighborsClassifier(weights="distance")):
        theirs = getattr(reference, type(ours).__name__)(**ours.get_params())
        for model in (ours, theirs):
            model.fit(X, TEXT)
        for mine, want in zip(ours.kneighbors(QUERIES), theirs.kneighbors(QUERIES), strict=True):
            np.testing.assert_array_equal(mine, want)
        of_lazy = ours.kneighbors(lazy(QUERIES, 20, 11))
        np.testing.assert_array_equal(of_lazy[1], theirs.kneighbors(QUERIES)[1])
        graph = ours.kneighbors_graph(lazy(QUERIES, 20, 11), mode="distance").compute()
        np.testing.assert_allclose(
            graph.toarray(), theirs.kneighbors_graph(QUERIES, mode="distance").toarray()
        )
    assert (ours.predict(lazy(QUERIES, 20, 11)).compute() == theirs.predict(QUERIES)).all()
    assert ours.score(lazy(X), lazy(TEXT)) == theirs.score(X, TEXT)
    again = pickle.loads(pickle.dumps(ours.fit(lazy(X), TEXT).fit(X, TEXT)))
    np.testing.assert_array_equal(again.predict(QUERIES), theirs.predict(QUERIES))
    pairs = ours.fit(X, TEXT).kneighbors(), theirs.kneighbors()
    np.testing.assert_array_equal(pairs[0], pairs[1])
    radius = NearestNeighbors(radius=2.0).fit(X).radius_neighbors(QUERIES[:2])[1]
    want = reference.NearestNeighbors(radius=2.0).fit(X).radius_neighbors(QUERIES[:2])[1]
    assert list(map(list, radius)) == list(map(list, want))


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_passes_and_batches(resident, cluster_client, monkeypatch):
    want = reference.NearestNeighbors(algorithm="brute").fit(X).kneighbors(QUERIES)[1]
    with cluster_client.as_current(), config_context(keep_blocks=resident):
        with counting() as counts:
            model = NearestNeighbors().fit(lazy(X))
        assert counts.passes == 1
        assert counts.loads == 4
        with counting() as counts:
            numbers = model.kneighbors(QUERIES)[1]
        np.testing.assert_array_equal(numbers, want)
        assert counts.passes == 1
        assert counts.loads == (0 if resident else 4)
        for name in ("BATCH_BYTES", "BATCH_BYTES_OUT_OF_CORE"):
            monkeypatch.setattr(_indexed_rows, name, 3_000)
        with counting() as counts:
            numbers = model.kneighbors(QUERIES)[1]
        np.testing.assert_array_equal(numbers, want)
        assert counts.passes == 4  # of at most ten queries
        answer = model.kneighbors(lazy(QUERIES, 5, 5, 5, 16), return_distance=False)
        n_searches = sum("search-block" in str(key) for key in dict(answer.dask))
        engine, rows = model._training.engine_and_rows()
        n_holders = len(engine.group_by_worker(rows.blocks))
        # of each worker's rows a block, and the combination where both have rows; or of four
        # blocks two batches
        assert n_searches == 4 * (n_holders + (n_holders > 1) if resident else 5)
        np.testing.assert_array_equal(answer.compute(), want)


@pytest.mark.parametrize("to", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_pieces_of_blocks(to, monkeypatch):
    monkeypatch.setattr(_neighbors, "PIECE_BYTES", 500)
    X_lazy = lazy(X).map_blocks(to)
    model = KNeighborsClassifier(7).fit(X_lazy, lazy(TEXT))
    want = reference.KNeighborsClassifier(7, algorithm="brute").fit(X, TEXT)
    np.testing.assert_array_equal(model.kneighbors(QUERIES)[1], want.kneighbors(QUERIES)[1])
    for queries in (to(QUERIES), lazy(QUERIES, 20, 11).map_blocks(to)):
        np.testing.assert_array_equal(model.predict(queries), want.predict(QUERIES))


def test_rows_stay_while_the_model_or_an_answer_lives(cluster_client):
    def n_blocks_in_memory():
        return sum(
            "load-block" in str(key) for keys in cluster_client.has_what().values() for key in keys
        )

    def wait_until(n):
        for _ in range(200):
            if n_blocks_in_memory() == n:
                return True
            cluster_client.sync(cluster_client.scheduler.identity)
        return False

    with cluster_client.as_current():
        gc.collect()
        before = n_blocks_in_memory()
        model = NearestNeighbors().fit(lazy(X, 75, 75))
        assert n_blocks_in_memory() == before + 2
        answer = model.kneighbors(lazy(QUERIES, 31))[1]
        del model
        gc.collect()
        want = reference.NearestNeighbors(algorithm="brute").fit(X).kneighbors(QUERIES)[1]
        np.testing.assert_array_equal(answer.compute(), want)
        del answer
        gc.collect()
        assert wait_until(before)


def test_models_of_dask_rows_are_not_pickled():
    model = KNeighborsRegressor().fit(lazy(X), X[:, 0])
    with pytest.raises(TypeError, match="must have its training rows in this process"):
        pickle.dumps(model)
    np.testing.assert_array_equal(deepcopy(model).predict(QUERIES), model.predict(QUERIES))


def test_models_move_from_cluster_to_process(cluster_client):
    with cluster_client.as_current():
        model = KNeighborsRegressor().fit(lazy(X), lazy(X[:, 0]))
        want = model.predict(QUERIES)
    np.testing.assert_array_equal(model.predict(QUERIES), want)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (KNeighborsClassifier(0), "n_neighbors"),
        (KNeighborsClassifier(1.5), "n_neighbors"),
        (KNeighborsClassifier(weights="odd"), "weights"),
        (KNeighborsClassifier(algorithm="odd"), "algorithm"),
        (KNeighborsClassifier(metric="odd"), "metric"),
        (KNeighborsClassifier(metric="precomputed"), "metric must be one of rows"),
        (KNeighborsClassifier(metric="mahalanobis"), "metric_params must have V or VI"),
        (KNeighborsClassifier(metric="cosine", algorithm="kd_tree"), "cosine"),
        (KNeighborsClassifier(p=-1), "'p' parameter"),
    ],
    ids=str,
)
def test_bad_parameters_raise_before_any_task(model, match):
    before = dict(vars(model))
    with counting() as counts, pytest.raises(ValueError, match=match):
        model.fit(lazy(X), lazy(TEXT))
    assert counts.tasks == 0
    assert vars(model) == before


def test_bad_rows():
    holed = X.copy()
    holed[77, 1] = np.nan
    model = KNeighborsClassifier()
    with pytest.raises(NotFittedError):
        model.predict(lazy(X))
    for bad, y, match in [
        (lazy(holed), lazy(TEXT), "Input X contains NaN"),
        (lazy(X), lazy(X[:, 0]), "Unknown label type"),
        (lazy(X), None, "requires y"),
        (lazy(X), TEXT[:-1], "as many rows"),
        (lazy(X)[:, 0], TEXT, "2D array"),
    ]:
        with pytest.raises(ValueError, match=match):
            model.fit(bad, y)
        assert not hasattr(model, "classes_")
    with pytest.raises(ValueError, match="y must be numeric"):
        KNeighborsRegressor().fit(lazy(X), lazy(TEXT))
    model.fit(lazy(X), lazy(TEXT))
    for queries in (X[:, :4], lazy(X[:, :4])):
        with pytest.raises(ValueError, match="X has 4 features"):
            model.predict(queries)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict(lazy(holed)).compute(scheduler="synchronous")
    with pytest.raises(ValueError, match="n_neighbors <= n_samples_fit"):
        model.kneighbors(X, N + 1)
    with pytest.raises(ValueError, match="n_neighbors < n_samples_fit"):
        model.kneighbors(n_neighbors=N)
    with pytest.raises(ValueError, match="mode must be"):
        model.kneighbors_graph(X, mode="odd")
    with pytest.raises(TypeError, match="X must be in this process for radius_neighbors"):
        NearestNeighbors().fit(lazy(X)).radius_neighbors(X)


def test_columns_have_names():
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = NearestNeighbors().fit(dd.from_pandas(frame, npartitions=2))
    assert list(model.feature_names_in_) == list("abcde")
    of_themselves = model.kneighbors()[0]
    assert of_themselves.chunks == ((75, 75), (5,))
    np.testing.assert_allclose(of_themselves, reference.NearestNeighbors().fit(X).kneighbors()[0])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.kneighbors(lazy(X))
    with pytest.raises(ValueError, match="feature names should match"):
        model.kneighbors(frame[list("edcba")])


def test_device_rows_have_euclidean_distances():
    xp = pytest.importorskip("array_api_strict")
    rows = xp.asarray(X, device=xp.Device("device1"))
    with pytest.raises(ValueError, match="metric must be Euclidean"):
        NearestNeighbors(p=1).fit(rows)
    model = pickle.loads(pickle.dumps(KNeighborsRegressor().fit(X, X[:, 0])))
    answer = model.predict(rows)  # of a model in memory, back to the device of the queries
    assert answer.device == rows.device


def test_a_search_for_the_number_of_neighbors(cluster_client):
    grid = {"n_neighbors": [1, 4, 9], "weights": ["uniform", "distance"]}
    want = ReferenceSearch(reference.KNeighborsClassifier(), grid, cv=3).fit(X, TEXT)
    with cluster_client.as_current(), warnings.catch_warnings():
        search = GridSearchCV(KNeighborsClassifier(), grid, cv=3).fit(lazy(X), lazy(TEXT))
        np.testing.assert_allclose(
            search.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"]
        )
        assert search.best_params_ == want.best_params_
        assert (search.predict(lazy(QUERIES, 31)).compute() == want.predict(QUERIES)).all()
