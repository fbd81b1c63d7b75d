"""Dask arrays that are expressions of others, and bags of text."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from entries import (
    ENTRIES,
    classification,
    in_parts,
    least_squares,
    preparation,
    scores,
    search_of_ours,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline

from skfleet.estimators import Incremental, ParallelPostFit, Ridge

N_ROWS = 240


def make_rows() -> np.ndarray:
    """Return a, b and y = a - 2b."""
    rows = np.random.default_rng(0).normal(size=(N_ROWS, 2))
    return np.column_stack([rows, rows @ [1, -2]])


ROWS = make_rows()


def _from_delayed():
    parts = [dask.delayed(part) for part in np.split(ROWS, 4)]
    return da.concatenate([da.from_delayed(part, (60, 3), dtype=float) for part in parts])


def _unknown():
    parts = [dask.delayed(part) for part in np.split(ROWS, 4)]
    return da.concatenate([da.from_delayed(part, (np.nan, 3), dtype=float) for part in parts])


SOURCES = {
    "from_array": lambda: da.from_array(ROWS, chunks=(70, 3)),
    "columns cut": lambda: da.from_array(ROWS, chunks=(70, 2)),
    "from_delayed": _from_delayed,
    "unknown lengths": _unknown,
    "persisted": lambda: da.from_array(ROWS, chunks=(70, 3)).persist(),
}


def _known(expression):
    """Skip what Dask cannot do on rows of unknown number."""
    return lambda rows: rows if np.isnan(rows.shape[0]) else expression(rows)


EXPRESSIONS = {
    "slice": _known(lambda rows: rows[5:-7]),
    "steps": _known(lambda rows: rows[::2]),
    "backwards": _known(lambda rows: rows[::-1]),
    "fancy index": _known(lambda rows: rows[np.arange(len(rows))[::-1] // 2]),
    "mask": lambda rows: rows[rows[:, 0] > -0.5],
    "rechunk": _known(lambda rows: rows.rechunk((37, 1))),
    "concatenate": lambda rows: da.concatenate([rows, rows]),
    "vstack": _known(lambda rows: da.vstack([rows, 2 * rows])),
    "map_blocks": lambda rows: rows.map_blocks(np.asarray),
    "map_overlap": _known(lambda rows: rows.map_overlap(lambda part: part, depth=0)),
    "transposed": lambda rows: rows.T.T,
    "product": lambda rows: rows.rechunk({1: -1}) @ np.eye(3),
    "scaled": lambda rows: rows / abs(rows).mean(axis=0).max(),
    "where": lambda rows: da.where(rows > 0, rows, rows),
    "columns": _known(lambda rows: da.stack([rows[:, i] for i in range(3)], axis=1)),
    "empty block": lambda rows: da.concatenate([rows, rows[rows[:, 0] > 99]]),
}


def columns(rows):
    """Return X, y and weights as a script takes them from an array."""
    return rows[:, :2], rows[:, 2], rows[:, 0] ** 2 + 0.1


def compose(source, names, entries):
    """Try entries on an array to which expressions were applied one after the other."""
    rows = SOURCES[source]()
    for name in names:
        rows = EXPRESSIONS[name](rows)
    for entry in entries:
        entry(*columns(rows))


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("source", ["columns cut", "unknown lengths"])
def test_expressions(source, expression):
    compose(source, [expression], [least_squares, in_parts])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", SOURCES)
def test_sources(place, source):
    entries = [least_squares, scores, classification, search_of_ours, preparation]
    compose(source, ["mask"], entries)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    source=st.sampled_from(list(SOURCES)),
    names=st.lists(st.sampled_from(list(EXPRESSIONS)), min_size=2, max_size=4),
)
def test_compositions(source, names):
    compose(source, names, [least_squares])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_every_entry_on_processes(process_fleet, entry):
    for i, expression in enumerate(EXPRESSIONS):
        source = list(SOURCES)[(i + ENTRIES.index(entry)) % len(SOURCES)]
        try:
            compose(source, [expression], [entry])
        except Exception as error:
            error.add_note(f"{expression} of {source}")
            raise


TEXTS = ["free money now", "see you at lunch", "win free prizes", "call me later"] * 15
LABELS = np.array(["spam", "ham", "spam", "ham"] * 15)


def test_a_bag_of_text_is_answered(place):
    model = make_pipeline(HashingVectorizer(n_features=2**10), SGDClassifier(random_state=0))
    model.fit(TEXTS, LABELS)
    bag = db.from_sequence(TEXTS, npartitions=4)
    answers = ParallelPostFit(model).predict(bag)
    np.testing.assert_array_equal(answers.compute(), LABELS)
    upper = ParallelPostFit(model).predict(bag.map(str.upper).map(str.lower))
    np.testing.assert_array_equal(upper.compute(), LABELS)


def test_a_bag_is_no_matrix(place):
    bag = db.from_sequence(range(20), npartitions=2)
    with pytest.raises(ValueError, match=r"Expected 2D array.* X\.to_dataframe\(.*of a bag"):
        Ridge().fit(bag, np.arange(20))
    frame = bag.to_dataframe(columns=["x"])  # as the error says
    assert Ridge().fit(frame, da.arange(20, chunks=10)).n_features_in_ == 1
    with pytest.raises(TypeError, match="y must be a Dask array or Series"):
        Ridge().fit(da.ones((20, 2), chunks=10), bag)


@pytest.mark.parametrize("model", [Ridge(), Incremental(SGDClassifier())])
def test_a_delayed_value_is_no_rows(place, model):
    with pytest.raises(TypeError, match="X must be a Dask array, a Dask DataFrame or a bag"):
        model.fit(dask.delayed(ROWS), ROWS[:, 2])
