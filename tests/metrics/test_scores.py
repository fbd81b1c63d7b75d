"""Scores of lazy answers equal scikit-learn's on the whole, weighted or not, for any cut."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from skfleet.engine import counting
from skfleet.metrics import accuracy_score, r2_score


def _cut(values, cuts):
    edges = [0, *sorted(cuts), len(values)]
    return da.from_array(values, chunks=(tuple(np.diff(edges).tolist()), *values.shape[1:]))


CUTS = st.lists(st.integers(0, 50), max_size=8)


@settings(max_examples=30, deadline=None)
@given(cuts=CUTS, other=CUTS, weighted=st.booleans(), kind=st.sampled_from(["i", "U", "?"]))
def test_accuracy(cuts, other, weighted, kind):
    rng = np.random.default_rng(0)
    true, predicted = (rng.integers(0, 2, 50).astype(kind) for _ in range(2))
    weight = rng.uniform(size=50) if weighted else None
    for normalize in (True, False):
        got = accuracy_score(
            _cut(true, cuts), _cut(predicted, other), sample_weight=weight, normalize=normalize
        )
        want = reference.accuracy_score(true, predicted, sample_weight=weight, normalize=normalize)
        np.testing.assert_allclose(got, want, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(cuts=CUTS, other=CUTS, weighted=st.booleans(), n_outputs=st.sampled_from([None, 1, 3]))
def test_r2(cuts, other, weighted, n_outputs):
    rng = np.random.default_rng(0)
    true = rng.normal(size=(50,) if n_outputs is None else (50, n_outputs)) + 1e3
    predicted = true + rng.normal(size=true.shape)
    weight = rng.uniform(size=50) if weighted else None
    got = r2_score(_cut(true, cuts), _cut(predicted, other), sample_weight=weight)
    want = reference.r2_score(true, predicted, sample_weight=weight)
    np.testing.assert_allclose(got, want, rtol=1e-10)


@pytest.mark.parametrize("score", [accuracy_score, r2_score])
def test_one_side_may_be_in_this_process(score):
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, 3, 50), rng.integers(0, 3, 50)
    want = getattr(reference, score.__name__)(true, predicted)
    for given_true, given_predicted in (
        (true, predicted),
        (da.from_array(true, chunks=7), predicted),
        (true, da.from_array(predicted, chunks=7)),
    ):
        np.testing.assert_allclose(score(given_true, given_predicted), want, rtol=1e-12)


def test_constant_targets():
    ones = da.ones(6, chunks=2)
    assert r2_score(ones, ones) == 1.0
    assert r2_score(ones, ones + 1) == reference.r2_score(np.ones(6), np.ones(6) + 1)


def test_one_pass():
    with counting() as counts:
        accuracy_score(da.ones(6, chunks=2), da.ones(6, chunks=3))
    assert counts.passes == 1


def test_other_numbers_of_predictions_are_refused():
    with pytest.raises(ValueError, match="as many rows"):
        accuracy_score(da.ones(6, chunks=2), da.ones(5, chunks=2))
