"""Pieces of files that are larger than they seem are halved after a worker died of one."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import SGDRegressor

import skfleet
from skfleet import Fleet
from skfleet.blocks import _file_parts
from skfleet.estimators import Incremental, LogisticRegression, Ridge
from skfleet.exceptions import FleetError

pytestmark = pytest.mark.slow

N_ROWS, TEXT_BYTES = 120_000, 10_000


@pytest.fixture(scope="module")
def table():
    """Long texts, between the short ones that are all that a file's metadata tell of."""
    rng = np.random.default_rng(0)
    texts = np.full(N_ROWS, "x" * TEXT_BYTES, dtype=object)
    texts[:2] = "a", "z"
    x = rng.normal(size=N_ROWS)
    return pd.DataFrame({"text": texts, "x": x, "y": 3 * x + rng.normal(size=N_ROWS)})


@pytest.fixture(scope="module")
def files(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    table.to_parquet(folder / "0.parquet", index=False)
    return str(folder)


@pytest.fixture(scope="module")
def fleet():
    """A worker for half of such a piece."""
    # A task fails with its first worker, which saves the start of another.
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        Fleet(memory_limit="900 MB", **options) as client,
    ):
        yield client


@pytest.fixture
def rows(files, monkeypatch):
    """Columns made of the texts, in two pieces of 600 MB each; none are halved yet."""
    monkeypatch.setattr(_file_parts, "_n_parts", type(_file_parts._n_parts)())
    frame = dd.read_parquet(files)
    X = frame.assign(n=frame["text"].str.len().astype("float64") / TEXT_BYTES)[["x", "n"]]
    with skfleet.config_context(block_bytes=2.1e6):
        yield X, frame["y"]


def _n_deaths(client):
    return len(client.get_events("worker-restart-memory"))


def _ridge(X, y):
    model = Ridge(alpha=1e-3).fit(X, y)
    return [*model.coef_, model.intercept_]


def _logistic(X, y):
    return LogisticRegression().fit(X, (y > 0).astype(int)).coef_[0]  # measured and loaded first


def _incremental(X, y):
    model = Incremental(SGDRegressor(random_state=0), shuffle=False).fit(X, y)
    return [*model.coef_, model.n_samples_seen_]


@pytest.mark.parametrize("fit", [_ridge, _logistic, _incremental])
def test_pieces_are_halved_with_one_warning(fleet, rows, table, fit):
    before = _n_deaths(fleet)
    with pytest.warns(
        UserWarning, match=r"each is read in [248] parts now.*block_bytes="
    ) as warned:
        answer = fit(*rows)
    assert [w for w in warned if "parts now" in str(w.message)] == warned.list
    after = _n_deaths(fleet)
    assert after > before
    np.testing.assert_allclose(fit(*rows), answer, rtol=1e-9)  # in parts from the start
    assert _n_deaths(fleet) == after
    x = table[["x"]].assign(n=table["text"].str.len() / TEXT_BYTES)
    if fit is _ridge:
        np.testing.assert_allclose(answer[:2], Ridge(alpha=1e-3).fit(x, table["y"]).coef_)
    elif fit is _logistic:
        expected = LogisticRegression().fit(x, (table["y"] > 0).astype(int)).coef_[0]
        np.testing.assert_allclose(answer[0], expected[0], rtol=1e-4)  # the other is of one value
    else:
        assert answer[-1] == N_ROWS  # none twice


def test_the_error_after_the_last_halving(fleet, rows, monkeypatch):
    monkeypatch.setattr(_file_parts, "MAX_PARTS", 1)
    with pytest.raises(FleetError, match=r"block-products must fit into the memory.*block_bytes="):
        _ridge(*rows)
    assert fleet.submit(sum, [1, 2]).result() == 3
