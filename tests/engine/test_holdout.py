"""Rows held out for scores: how many, of which labels, and the same ones for every cut."""

from itertools import pairwise
from math import ceil

import dask.array as da
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skfleet.blocks import open_block, row_blocks
from skfleet.engine import LocalEngine, draw_holdout
from skfleet.engine import _holdout as holdouts


def held_out(y, size, seed, cuts=None, labels="rows"):
    """Return which rows of a column are held out."""
    cuts = [len(y)] if cuts is None else cuts
    rows = row_blocks(np.zeros((len(y), 1)), y, block_sizes=cuts, dtype=None)
    holdout = draw_holdout(LocalEngine(), rows, size, seed, labels)
    return np.concatenate([holdout.mask(open_block(block)) for block in rows.blocks])


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 60), st.floats(1e-6, 0.99), st.integers(0, 2**31 - 2))
def test_as_many_as_scikit_learn_holds_out_and_never_none(n, size, seed):
    assert held_out(np.zeros(n), size, seed, labels=None).sum() == ceil(size * n)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from("abcd"), min_size=8, max_size=80),
    st.integers(1, 7),
    st.integers(0, 1000),
    st.lists(st.integers(0, 80), max_size=3),
)
@example(list("aaaaaabc"), 5, 0, [])
def test_the_shares_of_labels_are_kept_however_the_rows_are_cut(labels, size, seed, ends):
    y = np.array(labels)
    held = held_out(y, size, seed)
    kinds, counts = np.unique(y, return_counts=True)
    most = sum(counts - 1)
    assert held.sum() == (min(size, most) or size)
    for kind, count in zip(kinds, counts, strict=True):
        if most:
            assert (held & (y == kind)).sum() < count
            if size <= most and (counts * size / len(y) < counts - 1).all():
                assert abs((held & (y == kind)).sum() - count * size / len(y)) < 1
    cuts = [b - a for a, b in pairwise([0, *sorted(min(e, len(y)) for e in ends), len(y)])]
    np.testing.assert_array_equal(held_out(y, size, seed, cuts), held)
    np.testing.assert_array_equal(held_out(y, size, seed, cuts, labels=list(y)), held)


@pytest.mark.parametrize("labels", [None, "rows"])
def test_of_many_rows_about_the_share(labels, monkeypatch):
    monkeypatch.setattr(holdouts, "MAX_EXACT_ROWS", 20)
    monkeypatch.setattr(holdouts, "CHUNK_ROWS", 1000)
    y = np.repeat(["many", "some", "few"], [9000, 990, 10])
    held = held_out(y, 0.2, 0, labels=labels)
    assert abs(held.sum() - 2000) < 200
    if labels:
        assert (held & (y == "few")).sum() == 2
    # few of many are exact, and drawn in parts
    assert held_out(y, 7, 0, labels=None).sum() == 7


def test_labels_without_number_are_drawn_without_regard_to_them(monkeypatch):
    monkeypatch.setattr(holdouts, "MAX_CLASSES", 3)
    y = np.arange(40)
    for cuts in ([40], [2, 2, 36]):
        assert held_out(y, 0.25, 1, cuts).sum() == 10
    np.testing.assert_array_equal(held_out(y, 0.25, 1), held_out(y, 0.25, 1, labels=None))
    several = np.column_stack([y, y])
    assert held_out(several, 0.25, 1).sum() == held_out(several, 0.25, 1, labels=several).sum()


def test_labels_are_read_without_the_rows():
    y = da.from_array(np.repeat([0, 1], [90, 10]), chunks=30)

    def fail(block):
        raise AssertionError("rows are not asked for")

    rows = row_blocks(da.zeros((100, 2), chunks=(40, 2)).map_blocks(fail, dtype=float), y)
    holdout = draw_holdout(LocalEngine(), rows, 0.2, 0, y)
    draws = row_blocks(np.zeros((100, 1)), np.asarray(y), dtype=None).blocks[0]
    assert holdout.mask(draws)[90:].sum() == 2
