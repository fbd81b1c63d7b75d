"""Lazy answers: one task for each run of rows, announced as they come."""

import sys
from dataclasses import replace
from types import ModuleType
from unittest.mock import Mock

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skfleet.inference import OutputSpec, map_rows
from skfleet.inference._output import with_index


def _sums(model, X):
    return np.asarray(X).sum(axis=1) + model


def _pairs(model, X):
    return np.asarray(X)[:, :2] + model


def _both(model, X):
    return [_sums(model, X), _pairs(model, X)]


ONE, TWO = OutputSpec(np.dtype(float)), OutputSpec(np.dtype(float), 2)


@pytest.mark.parametrize(("func", "output"), [(_sums, ONE), (_pairs, TWO)])
def test_making_rows_and_answering_is_one_task(func, output):
    rows = da.ones((100, 3), chunks=(10, 3)) * 2
    answer = map_rows(func, 1.0, rows, output, convert=False)
    assert len(dict(dask.optimize(answer)[0].dask)) == 10 + 1  # and the model
    np.testing.assert_array_equal(answer, func(1.0, np.full((100, 3), 2.0)))


@pytest.mark.parametrize(("func", "output"), [(_sums, ONE), (_pairs, TWO)])
def test_reading_rows_and_answering_is_one_task(func, output, tmp_path):
    for i in range(3):
        pd.DataFrame({"a": np.arange(4.0), "b": i}).to_parquet(tmp_path / f"{i}.parquet")
    frame = dd.read_parquet(tmp_path)
    answer = map_rows(func, 1.0, frame, replace(output, is_array=True), convert=False)
    keys = map(str, dask.optimize(answer)[0].__dask_graph__())
    assert sum("model-of" not in key for key in keys) == 3
    np.testing.assert_array_equal(answer, func(1.0, frame.compute()))


def test_several_outputs_share_a_task():
    rows = da.ones((100, 3), chunks=(10, 3))
    answers = map_rows(_both, 1.0, rows, [ONE, TWO], convert=False)
    for got, want in zip(dask.compute(*answers), _both(1.0, np.ones((100, 3))), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_are_checked_where_they_are():
    def check(block):
        if np.isnan(block.X).any():
            raise ValueError("not a number")

    rows = da.from_array(np.array([[1.0], [np.nan]]), chunks=1)
    answer = map_rows(_sums, 1.0, rows, ONE, check=check)
    assert answer[:1].compute() == [2.0]
    with pytest.raises(ValueError, match="not a number"):
        answer.compute()


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ([1.0, 2.0], OutputSpec(np.dtype(float))),
        (np.zeros((2, 3), np.float32), OutputSpec(np.dtype(np.float32), 3)),
        (pd.DataFrame({"a": [1], "b": [2]}), OutputSpec(np.dtype(int), 2, ["a", "b"])),
        (sparse.csr_array((2, 4)), OutputSpec(np.dtype(float), 4)),
    ],
)
def test_an_answer_is_described(answer, output):
    got = OutputSpec.infer(answer)
    assert (got.dtype, got.width, got.columns) == (output.dtype, output.width, output.columns)
    empty = got.empty()
    assert type(empty) is (np.ndarray if isinstance(answer, list) else type(answer))
    assert empty.shape == (0, *([] if got.width is None else [got.width]))


def test_names_are_taken_where_they_fit():
    assert OutputSpec.infer(np.zeros((1, 2)), ["a", "b"]).columns == ["a", "b"]
    assert OutputSpec.infer(np.zeros((1, 2)), ["a"]).columns is None
    assert OutputSpec.infer(pd.DataFrame({"c": [1], "d": [1]}), ["a", "b"]).columns == ["c", "d"]


def test_types_are_kept_where_nothing_is_lost():
    wide = OutputSpec(np.dtype("<U4"))
    assert wide.cast(["a", "b"]).dtype == np.dtype("<U4")
    assert OutputSpec(np.dtype("<U1")).cast(["aaaa"]).tolist() == ["aaaa"]
    assert OutputSpec(np.dtype(float)).cast(np.ones(2, np.float32)).dtype == np.float64
    assert OutputSpec(np.dtype(np.float32)).cast(np.ones(2)).dtype == np.float64
    ragged = OutputSpec(np.dtype(object)).cast([np.arange(2), np.arange(3)])
    assert [len(part) for part in ragged] == [2, 3]


def test_no_rows_on_a_device_have_an_answer_there():
    xp = pytest.importorskip("array_api_strict")
    there = xp.Device("device1")
    X = xp.zeros((0, 3), device=there)
    one = map_rows(_sums, 1.0, X, ONE)
    both = map_rows(_both, 1.0, X, [ONE, TWO])
    assert [answer.shape for answer in (one, *both)] == [(0,), (0,), (0, 2)]
    assert {answer.device for answer in (one, *both)} == {there}
    text = map_rows(_sums, 1.0, X, OutputSpec(np.dtype("<U3")))
    assert type(text) is np.ndarray  # no device holds text


@pytest.mark.gpu
def test_answers_for_arrays_on_a_device_are_there_and_say_so():
    cupy = pytest.importorskip("cupy")
    X = da.from_array(np.arange(12.0).reshape(6, 2), chunks=((4, 0, 2), 2)).map_blocks(cupy.asarray)
    answer = map_rows(lambda model, rows: rows[:, 0] * model, 2.0, X, OutputSpec(np.dtype(float)))
    assert type(answer._meta) is cupy.ndarray
    np.testing.assert_array_equal(cupy.asnumpy(answer.compute()), 2.0 * np.arange(0, 12, 2))


def test_answers_for_frames_are_frames_of_their_library(monkeypatch):
    library = ModuleType("other_frames")
    library.Series, library.DataFrame = Mock(), Mock()
    index = type("Index", (), {"__module__": "other_frames.core.index"})()
    monkeypatch.setitem(sys.modules, "other_frames", library)
    with_index([1, 2], index, OutputSpec(np.dtype(object)))
    library.Series.assert_called_once_with([1, 2], index=index, dtype=None)
    with_index([[1], [2]], index, OutputSpec(np.dtype(int), 1))
    library.DataFrame.assert_called_once()
