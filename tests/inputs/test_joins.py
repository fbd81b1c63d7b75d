"""Joined frames from Parquet, whose files Dask reads together or not, by the columns in use."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge as StockRidge
from sklearn.pipeline import make_pipeline

from skfleet.blocks import compute_together
from skfleet.estimators import PCA, Ridge
from skfleet.estimators.compose import make_column_transformer
from skfleet.estimators.preprocessing import OneHotEncoder, StandardScaler
from skfleet.model_selection import GridSearchCV, shuffle_rows

# a metric that needs fits
MEDIAN = "neg_median_absolute_error"
N_ROWS, COLUMNS = 3000, ["a", "b", "c"]


@pytest.fixture(scope="module")
def join_folder(tmp_path_factory):
    """Parquet of a, b, c and two wide columns, and of y, which is linear in a, b and c."""
    folder, rng = tmp_path_factory.mktemp("joins"), np.random.default_rng(0)
    left = pd.DataFrame(rng.normal(size=(N_ROWS, 3)), columns=COLUMNS)
    left["text"] = [f"{'x' * 90}{i}" for i in range(N_ROWS)]
    left["kind"], left["key"] = left["a"].round().astype(int).astype(str), rng.permutation(N_ROWS)
    right = pd.DataFrame({"key": left["key"], "y": left[COLUMNS] @ [1, 2, 3], "z": "z" * 90})
    right = right.sort_values("key")
    for name, table, n_files in (("left", left, 5), ("right", right, 3)):
        (folder / name).mkdir()
        for i in range(n_files):
            rows = table.iloc[i * N_ROWS // n_files : (i + 1) * N_ROWS // n_files]
            rows.reset_index(drop=True).to_parquet(folder / name / f"{i}.parquet")
    return folder


@pytest.fixture
def joined(join_folder):
    left, right = (dd.read_parquet(join_folder / side) for side in ("left", "right"))
    return left.merge(right, on="key")


def check_pairs(model, X, y):
    assert model.fit(X, y).score(X, y) > 1 - 1e-6


@pytest.mark.sampled(1)
def test_a_frame_and_its_column(place, joined):
    assert joined["y"].optimize().npartitions < joined.optimize().npartitions
    numbers = make_column_transformer((StandardScaler(), COLUMNS))
    check_pairs(make_pipeline(numbers, Ridge(alpha=1e-9)), joined, joined["y"])
    search = GridSearchCV(
        make_pipeline(numbers, Ridge()), {"ridge__alpha": [1e-9]}, scoring=MEDIAN, cv=2
    )
    assert search.fit(joined, joined["y"]).best_score_ > -1e-6
    numbers.set_output(transform="pandas")
    chosen = joined.drop(columns=["text", "z"])[joined["a"] > -1]
    check_pairs(make_pipeline(numbers, Ridge(alpha=1e-9)), chosen, chosen["y"])


@pytest.mark.sampled(1)
def test_rows_that_are_computed(place, joined):
    X, y = compute_together(joined, joined["y"])
    np.testing.assert_allclose(X[COLUMNS] @ [1, 2, 3], y)
    X, y = compute_together(StandardScaler().fit_transform(joined[COLUMNS]), joined["y"])
    check_pairs(Ridge(alpha=1e-9), X, y)


@pytest.mark.slow
def test_arrays_made_of_a_frame(place, joined):
    kinds = (OneHotEncoder(handle_unknown="ignore"), ["kind"])
    prepared = make_column_transformer((StandardScaler(), COLUMNS), kinds)
    check_pairs(make_pipeline(prepared, Ridge(alpha=1e-9)), joined, joined["y"])
    X, y = StandardScaler().fit_transform(joined[COLUMNS]), joined["y"]
    check_pairs(make_pipeline(PCA(), Ridge(alpha=1e-9)), X, y)
    assert GridSearchCV(Ridge(), {"alpha": [1e-9]}, cv=2).fit(X, y).best_score_ > 1 - 1e-6
    X_shuffled, y_shuffled = shuffle_rows(X, y, random_state=0)
    check_pairs(Ridge(alpha=1e-9), X_shuffled, y_shuffled)


@pytest.mark.sampled(1)
def test_an_array_alone(place, joined):
    X = StandardScaler().fit_transform(joined[COLUMNS])
    assert np.isnan(X.shape[0])
    expected = np.sort(StandardScaler().fit_transform(joined[COLUMNS].compute()), axis=0)
    for rows in (X, X.persist(), X[:, :2], da.hstack([X, X], allow_unknown_chunksizes=True)):
        got = np.sort(rows.compute(), axis=0)
        np.testing.assert_allclose(got[:, :2], expected[:, :2])
    assert X.compute_chunk_sizes().shape == (N_ROWS, 3)
    np.testing.assert_allclose(
        PCA().fit(X).components_, PCA().fit(X.compute()).components_, atol=1e-9
    )


@pytest.mark.sampled(1)
def test_rows_of_two_joins_are_refused(place, joined):
    X, y = joined[COLUMNS].to_dask_array(), joined["y"]
    for rows in (X, StandardScaler().fit_transform(joined[COLUMNS]).persist()):
        with pytest.raises(ValueError, match="y must come from the shuffle that X comes from"):
            Ridge().fit(rows, y)
        with pytest.raises(ValueError, match="must come from the shuffle that X comes from"):
            GridSearchCV(StockRidge(), {"alpha": [1.0]}).fit(rows, y)
    persisted = joined.persist()
    check_pairs(Ridge(alpha=1e-9), persisted[COLUMNS].to_dask_array(), persisted["y"])
