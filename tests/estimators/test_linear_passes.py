"""Linear models in every container: equal results, few passes, many columns."""

import logging

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_cases import CASES, Case, make_design
from scipy import sparse
from sklearn import linear_model as reference

from skfleet import config_context
from skfleet import estimators as ours
from skfleet.blocks import _block
from skfleet.engine import counting
from skfleet.estimators.linear_model import _glm_fit

EVERYWHERE = {
    **{k: CASES[k] for k in ("ols", "lasso", "elastic net", "poisson", "gamma", "tweedie")},
    **{k: CASES[k] for k in ("logistic l1", "multinomial elastic")},
    "lasso cv": Case(ours.LassoCV(alphas=10), "number"),
    "elastic net cv": Case(ours.ElasticNetCV(l1_ratio=[0.5, 1.0], alphas=5, cv=3), "number"),
    "ridge cv": Case(ours.RidgeCV(), "number"),
    "ridge cv folds": Case(ours.RidgeCV(cv=4), "number"),
    "ridge classifier": Case(ours.RidgeClassifier(class_weight="balanced"), "three"),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_world_gives_the_same_answer(world, name):
    case, X = EVERYWHERE[name], make_design("plain")
    y = case.y(X)
    y = np.searchsorted(np.unique(y), y) if y.dtype.kind == "U" else y
    weight = np.random.default_rng(0).uniform(0.5, 3, len(X))
    make = type(case.model)
    settings = case.model.get_params() | ({"tol": 1e-9} if hasattr(case.model, "tol") else {})
    want = make(**settings).fit(X, y, sample_weight=weight)
    got = make(**settings)
    got.fit(world.X(X), world.column(y), sample_weight=world.column(weight))
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got.intercept_, want.intercept_, rtol=1e-6, atol=1e-8)
    answer = world.host(got.predict(world.X(X)))
    np.testing.assert_allclose(answer, want.predict(X), rtol=1e-6)
    if "strict" not in world.name:
        score = got.score(world.X(X), world.column(y))
        np.testing.assert_allclose(score, want.score(X, y), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=8), name=st.sampled_from(sorted(EVERYWHERE)))
def test_any_cut_gives_the_same_answer(cuts, name):
    case, X = EVERYWHERE[name], make_design("plain", n_rows=200)
    y = case.y(X)
    edges = [0, *sorted(cuts), 200]
    rows = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), 8))
    settings = case.model.get_params() | ({"tol": 1e-9} if hasattr(case.model, "tol") else {})
    want, got = (type(case.model)(**settings).fit(data, y) for data in (X, rows))
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-6, atol=1e-8)


PASSES = {
    "ols": 1, "ridge": 1, "lasso": 1, "elastic net": 1, "lasso cv": 1, "elastic net cv": 1,
    "ridge cv": 2, "ridge cv folds": 1,
}  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("name", PASSES)
def test_passes_of_least_squares(cluster_client, name, streamed, unknown):
    from skfleet import config_context

    case = (CASES | EVERYWHERE)[name]
    X = make_design("plain", n_rows=1000)
    rows, y = da.from_array(X, chunks=(200, 8)), da.from_array(case.y(X), chunks=200)
    if unknown:
        every = da.ones(1000, chunks=200, dtype=bool)
        rows, y = rows[every], y[every]
    with (
        cluster_client.as_current(),
        config_context(keep_blocks=not streamed),
        counting() as counts,
    ):
        type(case.model)(**case.model.get_params()).fit(rows, y)
    assert counts.passes == PASSES[name]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie", "logistic", "logistic l1"])
@pytest.mark.parametrize("n_features", [5, 60])
def test_streamed_rows_are_passed_over_a_few_times(cluster_client, name, n_features):
    """At most four times after the pass that draws a sample, to a gap of a millionth."""
    from skfleet import config_context

    case = CASES[name]
    X = make_design("plain", n_rows=60_000, n_features=n_features)
    y = case.y(X)
    rows, targets = da.from_array(X, chunks=(10_000, -1)), da.from_array(y, chunks=10_000)
    with cluster_client.as_current(), config_context(keep_blocks=False), counting() as counts:
        got = type(case.model)(**case.model.get_params()).fit(rows, targets)
    assert counts.passes <= 1 + 4
    best = type(case.model)(**case.model.get_params() | {"tol": 1e-10}).fit(X, y)
    weight = np.ones(len(X))
    gap = case.objective(got, X, y, weight) - case.objective(best, X, y, weight)
    assert gap <= 1e-6 * abs(case.loss(*case.null(X, y, weight), X, y, weight)[0])


@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "ElasticNet", "Lasso"])
@pytest.mark.parametrize("lazy", [False, True])
def test_more_columns_than_their_products_have_room_for(name, lazy, monkeypatch):
    monkeypatch.setattr("skfleet.glm._normal_equations.MAX_SPARSE_GRAM_COLUMNS", 20)
    X = make_design("sparse", n_features=40)
    y = CASES["ridge"].y(X)
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X))
    rows = sparse.csr_array(X)
    if lazy:
        rows = da.from_array(X, chunks=(70, -1)).map_blocks(sparse.csr_matrix)
    with counting() as counts:
        got = getattr(ours, name)(tol=1e-8).fit(rows, y, sample_weight=weight)
    assert counts.passes > 1
    tight = {} if name == "LinearRegression" else {"tol": 1e-12}
    want = getattr(reference, name)(**tight).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-5)
    np.testing.assert_allclose(got.intercept_, want.intercept_, atol=1e-5)
    for bad in ({"positive": True}, {"alpha": [1.0, 2.0]}):
        if name == "Ridge" or ("positive" in bad):
            with pytest.raises(ValueError, match="Leave columns out first"):
                getattr(ours, name)(**bad).fit(rows, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="at most 20 columns for RidgeCV"):
        ours.RidgeCV().fit(rows, y)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
def test_a_million_hashed_columns(l1_ratio):
    """Nothing is made dense but vectors as long as there are columns."""
    rng = np.random.default_rng(0)
    n_rows, n_features = 3000, 2**20
    places = (rng.zipf(1.3, size=(n_rows, 15)) * 7919 % n_features).astype(np.int32)
    rows = np.repeat(np.arange(n_rows, dtype=np.int32), 15)
    X = sparse.csr_matrix((np.ones(places.size), (rows, places.ravel())), (n_rows, n_features))
    known = np.unique(places)[::50]
    y = np.asarray(X[:, known].sum(axis=1)).ravel() + 0.3 * rng.normal(size=n_rows) > 1
    model = ours.LogisticRegression(C=0.1, l1_ratio=l1_ratio, tol=1e-4)
    with counting() as counts:
        model.fit(X, y)
    # every column that occurs, and no other: as a dense matrix, it takes another way
    used = np.unique(places)
    narrow = ours.LogisticRegression(C=0.1, l1_ratio=l1_ratio, tol=1e-6)
    narrow.fit(X[:, used].toarray(), y)
    np.testing.assert_allclose(model.coef_[:, used], narrow.coef_, atol=2e-3)
    assert not np.delete(model.coef_, used, axis=1).any()
    assert counts.passes <= 30


def test_sparse_rows_on_the_disk_start_from_a_sample_and_keep_a_hessian(monkeypatch, caplog):
    rng = np.random.default_rng(0)
    X = sparse.random_array((60_000, 320), density=0.02, format="csr", rng=rng)
    y = (X @ rng.normal(size=320) + 0.1 * rng.logistic(size=60_000) > 0).astype(int)
    rows = da.from_array(X, chunks=(15_000, 320), asarray=False).map_blocks(lambda x: x.copy())
    monkeypatch.setattr(_glm_fit, "MAX_SAMPLE_BYTES", 500_000)  # too few as dense rows
    n_hessians = {}
    for row_bytes in (8 * 320, 60):
        monkeypatch.setattr(_block, "SPARSE_ROW_BYTES", row_bytes)
        caplog.clear()
        with (
            caplog.at_level(logging.DEBUG, "skfleet.engine"),
            config_context(engine="local", keep_blocks=False, disk_cache=True),
        ):
            model = ours.LogisticRegression(solver="newton-cholesky", tol=1e-6).fit(
                rows, da.from_array(y, 10_000)
            )
        logged = [record.getMessage() for record in caplog.records]
        n_hessians[row_bytes] = sum("glm-hessian: 4 blocks" in text for text in logged)
    assert n_hessians[60] < n_hessians[8 * 320] - 1
    expected = reference.LogisticRegression(tol=1e-6, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-3)
