"""Checks and reductions of values that estimators and metrics share."""

import numpy as np
import pytest

from skfleet._validation import unique_values


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b", "", "ab"],
        [3, 1, 2, 1],
        [2.5, 1.0, 2.5],
        [np.str_("b"), "a"],
        [True, False, True],
        [],
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [object, None])
def test_labels_and_codes_are_those_of_numpy(labels, dtype):
    y = np.asarray(labels, dtype=dtype)
    want, want_codes = np.unique(y, return_inverse=True)
    got, codes = unique_values(y, return_inverse=True)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(codes, want_codes)
    np.testing.assert_array_equal(unique_values(y), want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("end", ["low", "high", "both"])
def test_whole_numbers_at_the_ends_of_their_type(dtype, end):
    info, steps = np.iinfo(dtype), np.array([3, 0, 7, 3], dtype=dtype)
    parts = {"low": info.min + steps, "high": info.max - steps}
    y = np.concatenate([*parts.values()]) if end == "both" else parts[end]
    want, want_codes = np.unique(y, return_inverse=True)
    got, codes = unique_values(y, return_inverse=True)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(codes, want_codes)


@pytest.mark.parametrize("labels", [["a", None], ["a", 1], ["a", ["b"]]], ids=repr)
def test_labels_without_order_are_refused(labels):
    y = np.empty(2, dtype=object)
    y[:] = labels
    with pytest.raises(ValueError, match="labels of one kind"):
        unique_values(y)
