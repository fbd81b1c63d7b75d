"""Dask DataFrames as scripts make them give what scikit-learn gives on the computed rows."""

import itertools
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from entries import (
    ENTRIES,
    in_parts,
    least_squares,
    preparation,
    scores,
    search_of_others,
    splits,
    wrapped,
)
from frame_expressions import EXPRESSIONS, SOURCES, TABLE
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as ReferenceRidge
from sklearn.model_selection import GroupKFold

from random_examples import n_examples
from skfleet.estimators import Incremental, KNeighborsRegressor, Ridge
from skfleet.metrics import mean_squared_error
from skfleet.model_selection import GridSearchCV

# Each expression with another source: what one of them breaks, another may not.
PAIRS = list(zip(EXPRESSIONS, itertools.cycle(SOURCES)))


def columns(frame):
    """Return X, y and weights as a script takes them from a frame."""
    return frame[["a", "b"]], frame["y"], frame["a"] ** 2 + 0.1


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("expression", "source"), PAIRS)
def test_expressions_without_a_client(read, expression, source):
    frame = EXPRESSIONS[expression](read(source))
    least_squares(*columns(frame))
    in_parts(*columns(frame))


@pytest.mark.slow
@pytest.mark.parametrize(("expression", "source"), PAIRS)
def test_expressions_on_threads(cluster_client, read, expression, source):
    with cluster_client.as_current():
        test_expressions_without_a_client(read, expression, source)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("expression", "source"), [*PAIRS[::3], ("shuffle", "read_parquet")])
def test_preparation(read, place, expression, source):
    preparation(*columns(EXPRESSIONS[expression](read(source))))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("source", SOURCES)
def test_sources(read, place, source):
    least_squares(*columns(read(source)))
    scores(*columns(read(source)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "expression", ["shuffle", "merge of two", "set_index", "sort_values", "categorize"]
)
def test_rows_that_change_places_stay_paired(read, place, expression):
    for entry in (wrapped, search_of_others, splits):
        entry(*columns(EXPRESSIONS[expression](read("read_parquet"))))


# to shrink a failure takes an hour
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.mark.slow
@settings(
    max_examples=n_examples(3, 20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
)
@given(
    source=st.sampled_from(list(SOURCES)),
    names=st.lists(st.sampled_from(list(EXPRESSIONS)), min_size=2, max_size=4),
)
def test_compositions_without_a_client(table_folder, source, names):
    compose(SOURCES[source](table_folder), names, [least_squares, splits])


def compose(frame, names, entries):
    """Try entries on a frame to which expressions were applied one after the other."""
    try:
        for name in names:
            frame = EXPRESSIONS[name](frame)
        n_rows = len(dask.compute(*columns(frame))[0])
    except (KeyError, IndexError, ValueError):  # what pandas or Dask itself cannot compute
        reject()
    if n_rows < 20:
        return
    for entry in entries:
        entry(*columns(frame))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_every_entry_on_processes(process_fleet, read, entry):
    sources = itertools.cycle(["from_pandas", "read_parquet", "read_csv", "from_map"])
    shift = ENTRIES.index(entry)
    for expression, source in zip(
        EXPRESSIONS, itertools.islice(sources, shift, None), strict=False
    ):
        try:
            entry(*columns(EXPRESSIONS[expression](read(source))))
        except Exception as error:
            error.add_note(f"{expression} of {source}")
            raise


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(
    source=st.sampled_from(list(SOURCES)),
    names=st.lists(st.sampled_from(list(EXPRESSIONS)), min_size=2, max_size=5),
    entry=st.sampled_from(ENTRIES[:12]),
)
def test_compositions_on_processes(process_fleet, table_folder, source, names, entry):
    compose(SOURCES[source](table_folder), names, [entry])


def test_answers_are_paired_with_the_rows_of_a_categorized_frame():
    frame = EXPRESSIONS["categorize"](dd.from_pandas(TABLE, npartitions=2))
    X, y, _ = columns(frame)
    model = KNeighborsRegressor(1).fit(X, y)
    together, answer = dask.compute(y, model.predict(X))
    np.testing.assert_allclose(answer, together)


def test_dask_itself_fails_on_several_readers_of_a_categorized_frame():
    """Once this fails, blocks/_dask_categorize.py can go."""
    frame = EXPRESSIONS["categorize"](dd.from_pandas(TABLE, npartitions=2))
    with pytest.raises(KeyError):
        dask.compute(frame[["a", "b"]], frame["y"])


def test_expressions_that_dask_must_simplify_before_it_makes_a_graph(read):
    frame = read("read_parquet")
    for name in ("repartition", "rename", "more partitions", "set_index", "filter"):
        frame = EXPRESSIONS[name](frame)
    least_squares(*columns(frame))


@pytest.mark.timeout(60)  # Python 3.11 locks the properties in which Dask runs tasks
def test_divisions_that_are_calculated_of_one_another(read, cluster_client):
    frame = read("read_parquet").set_index("a").reset_index().set_index("b").reset_index()
    frame = frame.set_index("a").repartition(npartitions=2)
    frame = frame.assign(c=1.0, a=frame.index)
    with cluster_client.as_current():
        model = Ridge(alpha=0).fit(frame[["a", "b"]], frame["y"])
    np.testing.assert_allclose(model.coef_, [1, -2])


def test_other_indices_are_refused(place):
    frame = dd.from_pandas(TABLE, npartitions=3)
    target = dd.from_pandas(TABLE.y.set_axis(TABLE.index + 1), npartitions=3)
    with pytest.raises(ValueError, match="y must have the index of X"):
        Ridge().fit(frame[["a", "b"]], target)
    known = target.to_dask_array(lengths=True)
    np.testing.assert_allclose(Ridge(alpha=0).fit(frame[["a", "b"]], known).coef_, [1, -2])


def test_partitions_that_are_cut_otherwise_keep_their_pairs(place):
    frame = dd.from_pandas(TABLE, npartitions=3)
    target = frame["y"].repartition(npartitions=5)
    weight = np.linspace(1, 2, len(TABLE))
    model = Ridge(alpha=0).fit(frame[["a", "b"]], target, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, [1, -2])
    with pytest.raises(ValueError, match="must have as many rows as X"):
        Ridge().fit(frame[["a", "b"]], target[target > 0])


def test_arrays_of_two_shuffles_are_refused(place):
    frame = dd.from_pandas(TABLE, npartitions=3).shuffle("k")
    X, y = frame[["a", "b"]].to_dask_array(), frame["y"].to_dask_array()
    with pytest.raises(ValueError, match="y must come from the shuffle that X comes from"):
        Ridge().fit(X, y)
    least_squares(*columns(frame.persist()))


@pytest.mark.parametrize("expression", ["filter", "shuffle"])
@pytest.mark.parametrize("estimator", [Ridge(), ReferenceRidge()])
def test_weights_and_groups_of_a_search(read, cluster_client, estimator, expression):
    frame = EXPRESSIONS[expression](read("read_parquet"))
    target = frame.y.where(frame.k > 3, 0.0)
    weight = (frame.k > 3).astype(float) + 1e-9
    params = {"sample_weight": weight, "groups": frame.k}
    with cluster_client.as_current():
        search = GridSearchCV(estimator, {"alpha": [1e-10, 1.0]}, cv=GroupKFold(2))
        search.fit(frame[["a", "b"]], target, **params)
    # scikit-learn weighs the fits, and the scores not
    np.testing.assert_allclose(search.best_estimator_.coef_, [1, -2], atol=1e-4)


def test_a_frame_made_of_an_array():
    X = da.from_array(np.random.default_rng(0).normal(size=(200, 3)), chunks=(60, 3))
    frame = dd.from_dask_array(X / X.std(axis=0, keepdims=True), columns=["a", "b", "c"])
    from sklearn.preprocessing import StandardScaler

    scaler = Incremental(StandardScaler()).fit(frame).estimator_
    assert scaler.n_samples_seen_ == 200
    np.testing.assert_allclose(scaler.var_, 1)


def test_metrics_of_a_series_and_an_array(place):
    frame = dd.from_pandas(TABLE, npartitions=3)
    assert mean_squared_error(frame["y"], frame["y"].to_dask_array(lengths=True)) == 0


def test_a_shuffle_is_made_once_for_blocks_that_are_learned_in_turn(cluster_client):
    from sklearn.naive_bayes import GaussianNB

    from skfleet.engine import counting

    frame = dd.from_pandas(pd.concat([TABLE] * 4), npartitions=12).shuffle("k", npartitions=12)
    X, y = frame[["a", "b"]], frame["y"] > 0
    with cluster_client.as_current(), counting() as costs:
        Incremental(GaussianNB()).partial_fit(X, y, classes=[False, True])
    # a dozen parts read, sent, and put together; then a few tasks for each block
    assert costs.tasks < 12 * 12


def n_bytes_read():
    """Return how many bytes this process has read, from files and from what is cached of them."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what is read")
def test_only_the_columns_that_are_needed_are_read(tmp_path, place):
    noise = [np.random.default_rng(i).bytes(50_000).hex() for i in range(len(TABLE))]
    TABLE.assign(noise=noise).to_parquet(tmp_path / "wide.parquet", row_group_size=60)
    frame = dd.read_parquet(tmp_path / "wide.parquet", split_row_groups=True)
    frame = frame[frame.s != "x"]
    Ridge().fit(frame[["a", "b"]], frame["y"])  # whatever else is read once, is read now
    before = n_bytes_read()
    np.testing.assert_allclose(Ridge(alpha=0).fit(frame[["a", "b"]], frame["y"]).coef_, [1, -2])
    assert n_bytes_read() - before < (tmp_path / "wide.parquet").stat().st_size / 5
