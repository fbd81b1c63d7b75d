"""Draws by global row number: the same for every cut, and the right ones."""

import shutil
from pathlib import Path

import array_api_strict as strict
import numpy as np
import pandas as pd
import pytest
from emulated_kernels import Kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from skfleet._array import to_host
from skfleet.blocks import (
    Block,
    _philox,
    combine_k_smallest,
    copy_block_rows,
    k_smallest,
    row_uniform,
)


@given(
    start=st.integers(0, 10**13),
    n=st.integers(0, 60),
    cut=st.integers(0, 60),
    seed=st.integers(0, 2**31),
)
def test_a_rows_draw_does_not_depend_on_the_cut(start, n, cut, seed):
    cut = min(cut, n)
    whole = row_uniform(seed, start, n)
    parts = [row_uniform(seed, start, cut), row_uniform(seed, start + cut, n - cut)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_draws_are_uniform_and_of_their_seed():
    draws = row_uniform(1, 3, 100_000)
    assert 0 <= draws.min() < draws.max() < 1
    np.testing.assert_allclose(np.histogram(draws, 10, (0, 1))[0] / 1e5, 0.1, atol=0.005)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.02
    assert not np.array_equal(draws, row_uniform(2, 3, 100_000))


@settings(deadline=None)
@given(start=st.integers(0, 10**13), n=st.integers(1, 30), seed=st.integers(0, 2**128 - 1))
def test_draws_on_a_device_are_those_of_the_host(start, n, seed):
    there = row_uniform(seed, start, n, _there(np.zeros(1)))
    np.testing.assert_array_equal(to_host(there), row_uniform(seed, start, n))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source = Path(_philox.__file__).with_name("philox.cu")
    return Kernels(source, (), tmp_path_factory.mktemp("kernels") / "philox.so")


@given(start=st.integers(0, 10**13), n=st.integers(1, 300), seed=st.integers(0, 2**128 - 1))
def test_draws_of_the_kernel_are_those_of_the_host(kernels, start, n, seed):
    draws = np.full(n + 1, -1.0)
    numbers = _philox.kernel_numbers(seed, start, n)
    grid = (-(-n // _philox.THREADS), 1, 1)
    kernels.launch("uniform", grid, _philox.THREADS, 0, (*numbers, draws))
    np.testing.assert_array_equal(draws[:n], row_uniform(seed, start, n))
    assert draws[n] == -1


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_draws_with_cupy_are_those_of_the_host(n):
    import cupy

    draws = row_uniform(2**80 + 1, 7, n, cupy.zeros(1, np.float32))
    assert isinstance(draws, cupy.ndarray)
    np.testing.assert_array_equal(draws.get(), row_uniform(2**80 + 1, 7, n))


@given(
    keys=st.lists(st.sampled_from([0.0, 0.5, 2.0, np.inf, np.nan]), min_size=1, max_size=30),
    n=st.integers(1, 10),
)
def test_the_smallest_keys_on_a_device(keys, n):
    keys, X = np.array(keys), np.arange(1.0, len(keys) + 1)[:, None]
    expected, found = k_smallest(keys, 7, X, n), k_smallest(_there(keys), 7, _there(X), n)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _there(values):
    return strict.asarray(values, device=strict.Device("device1"))


@given(
    keys=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]), min_size=1, max_size=30),
    cut=st.integers(0, 30),
    n=st.integers(1, 10),
    as_sparse=st.booleans(),
)
def test_the_smallest_keys_win_for_any_cut(keys, cut, n, as_sparse):
    keys = np.array(keys)
    cut = min(cut, len(keys))
    X = np.arange(1.0, len(keys) + 1)[:, None]
    X = sparse.csr_array(X) if as_sparse else X
    whole = k_smallest(keys, 0, X, n)
    parts = combine_k_smallest(
        k_smallest(keys[:cut], 0, X[:cut], n), k_smallest(keys[cut:], cut, X[cut:], n), n
    )
    np.testing.assert_array_equal(parts.keys, whole.keys)
    np.testing.assert_array_equal(parts.numbers, whole.numbers)
    np.testing.assert_array_equal(np.sort(keys[np.isfinite(keys)])[:n], whole.keys)
    for drawn in (whole, parts):
        rows = drawn.rows.toarray() if as_sparse else drawn.rows
        np.testing.assert_array_equal(rows[:, 0], drawn.numbers + 1.0)


def test_copies_of_read_only_frames_take_values():
    values = np.ones((3, 2))
    values.flags.writeable = False
    block = Block(pd.DataFrame(values, copy=False), pd.Series(values[:, 0], copy=False))
    copied = copy_block_rows(block)
    del block  # the last reference for which pandas would copy on writing
    copied.X.iloc[:] = 0.0
    copied.y.iloc[:] = 0.0
    assert values.all()
