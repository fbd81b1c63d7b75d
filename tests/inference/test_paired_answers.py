"""Lazy answers for a Dask DataFrame are those of its rows, whatever their index."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression as TheirLogisticRegression
from sklearn.model_selection import StratifiedKFold

from random_examples import n_examples
from skfleet.blocks._dask_optimize import is_reordered
from skfleet.estimators import (
    ColumnTransformer,
    GaussianNB,
    KNeighborsClassifier,
    LogisticRegression,
    ParallelPostFit,
    StandardScaler,
    TargetEncoder,
)
from skfleet.model_selection import GridSearchCV, cross_val_predict

N_ROWS, N_FILES = 200, 10
COLUMNS = ["a", "b"]
rng = np.random.default_rng(0)
TABLE = pd.DataFrame(rng.normal(size=(N_ROWS, 2)), columns=COLUMNS)
TABLE["town"] = rng.choice(["Rome", "Oslo", "Lima"], N_ROWS)
TABLE["sold"] = np.where(TABLE["a"] + rng.normal(size=N_ROWS) > 0, "yes", "no")
TABLE["number"] = np.arange(N_ROWS)
for name in ("u", "v", "w", "x"):  # few of many columns are read several files at a time
    TABLE[name] = rng.normal(size=N_ROWS)


def part(i):
    return TABLE.iloc[20 * i : 20 * i + 20].reset_index(drop=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sales")
    for i in range(N_FILES):
        part(i).to_parquet(folder / f"{i}.parquet")
    return folder


SOURCES = {
    "files": dd.read_parquet,
    "files by Arrow": lambda folder: dd.read_parquet(folder, filesystem="arrow"),
    "parts": lambda folder: dd.from_map(part, range(N_FILES)),
    "delayed": lambda folder: dd.from_delayed(
        [dask.delayed(part)(i) for i in range(N_FILES)], meta=part(0), verify_meta=False
    ),
    "text": lambda folder: dd.from_pandas(
        TABLE.set_index(TABLE["number"].astype(str).rename("key")), npartitions=3, sort=False
    ),
    "sorted": lambda folder: dd.from_pandas(TABLE, npartitions=3),
}


def encoder():
    return TargetEncoder(cv=StratifiedKFold(3)).set_output(transform="pandas")


ANSWERS = {
    "cross_val_predict": lambda X, y: cross_val_predict(LogisticRegression(), X[COLUMNS], y, cv=3),
    "last step of scikit-learn": lambda X, y: cross_val_predict(
        TheirLogisticRegression(), X[COLUMNS], y, cv=3
    ),
    "probabilities": lambda X, y: cross_val_predict(
        GaussianNB(), X[COLUMNS], y, cv=3, method="predict_proba"
    )["yes"],
    "neighbors": lambda X, y: KNeighborsClassifier(3).fit(X[COLUMNS], y).predict(X[COLUMNS]),
    "model": lambda X, y: LogisticRegression().fit(X[COLUMNS], y).predict(X[COLUMNS]),
    "wrapper": lambda X, y: (
        ParallelPostFit(TheirLogisticRegression())
        .fit(X[COLUMNS].compute(), y.compute())
        .predict_proba(X[COLUMNS])["yes"]
    ),
    "search": lambda X, y: (
        GridSearchCV(TheirLogisticRegression(), {"C": [1.0]}, cv=2)
        .fit(X[COLUMNS], y)
        .predict(X[COLUMNS])
    ),
    "targets": lambda X, y: encoder().fit_transform(X[["town"]], y)["town"],
    "targets of columns": lambda X, y: (
        ColumnTransformer([("a", encoder(), ["town"]), ("b", StandardScaler(), COLUMNS)])
        .set_output(transform="pandas")
        .fit_transform(X[["town", *COLUMNS]], y)["a__town"]
    ),
}
FRAMES = {
    "rows": lambda X: X,
    "the same columns": lambda X: X[COLUMNS],
    "others": lambda X: X[["u"]],
    "with a new one": lambda X: X.assign(more=X["a"] + X["b"]),
}


def check(frame, answer, values):
    """Compare an answer that is a column of a frame with its values in the order of the rows."""
    named = frame.assign(answer=answer)
    computed = named.compute()
    column = frame.columns[-1]
    np.testing.assert_array_equal(computed[column], frame[column].compute())
    np.testing.assert_array_equal(computed["answer"], values)
    some = named.partitions[[0, 2]].compute()["answer"]
    of_partitions = answer.partitions[[0, 2]].compute()
    np.testing.assert_array_equal(some, of_partitions)


@given(
    source=st.sampled_from(sorted(SOURCES)),
    name=st.sampled_from(sorted(ANSWERS)),
    frame=st.sampled_from(sorted(FRAMES)),
)
@settings(max_examples=n_examples(4, 150), deadline=None)
def test_an_answer_is_a_column_of_its_frame(source, name, frame, folder):
    X = SOURCES[source](folder)
    answer = ANSWERS[name](X, X["sold"])
    values = answer.compute().to_numpy()
    if name in ("cross_val_predict", "neighbors"):
        whole = dd.from_pandas(X.compute().reset_index(drop=True), npartitions=1)
        np.testing.assert_array_equal(values, ANSWERS[name](whole, whole["sold"]).compute())
    check(FRAMES[frame](X), answer, values)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross_val_predict", "neighbors", "targets"])
@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # by Dask's writer
def test_files_with_one_index_each(name, folder, tmp_path, cluster_client):
    with cluster_client.as_current():
        X = dd.read_parquet(folder)
        answer = ANSWERS[name](X, X["sold"])
        assert answer.npartitions == X.npartitions
        values = answer.compute().to_numpy()
        check(X, answer, values)
        assert not is_reordered(X.assign(answer=answer))  # by no shuffle
        chosen = X.assign(answer=answer)
        chosen = chosen[chosen["a"] > 0][["number", "answer"]].compute()
        assert list(chosen["number"]) == list(np.flatnonzero(TABLE["a"] > 0))
        np.testing.assert_array_equal(chosen["answer"], values[chosen["number"]])
        X[["number"]].assign(answer=answer).to_parquet(tmp_path)
        written = dd.read_parquet(tmp_path).compute()
        np.testing.assert_array_equal(written["answer"], values[written["number"]])


def test_no_row_is_read_for_the_pairs_alone():
    loaded = []

    def load(i):
        loaded.append(i)
        return part(i)

    X = dd.from_map(load, range(N_FILES), meta=part(0))
    model = KNeighborsClassifier(3).fit(X[COLUMNS], X["sold"])
    answer = model.predict(X[COLUMNS])
    loaded.clear()
    answer.compute()
    assert sorted(loaded) == list(range(N_FILES))
