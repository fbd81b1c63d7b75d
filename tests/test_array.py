"""What is an array, also while a library of arrays is being imported."""

import importlib
import sys
import types

import array_api_strict
import dask.array as da
import numpy as np

from skfleet._array import is_array, is_not_numpy


def test_arrays_are_told_apart():
    assert is_array(np.ones(2))
    assert is_array(array_api_strict.ones(2))
    assert not is_array(da.ones(2))
    assert not is_array([1.0])
    assert [is_not_numpy(x) for x in (np.ones(2), np.float64(1), array_api_strict.ones(2))] == [
        False, False, True,
    ]  # fmt: skip


def test_while_another_thread_imports_dask(monkeypatch):
    imported = sys.modules["dask.array"]
    monkeypatch.setitem(sys.modules, "dask.array", types.ModuleType("dask.array"))
    calls = []

    def import_module(name):
        calls.append(name)
        sys.modules[name] = imported

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert is_array(np.ones(2))
    assert not calls
    assert not is_array(type("Rows", (), {})())  # of a class that was not asked about before
    assert calls == ["dask.array"]
