import functools
import importlib
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed.protocol import deserialize, serialize
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.parallel import delayed

from skfleet._joblib._batch_task import task_name
from skfleet.engine._dask._serialize import Pickled

A = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "obj",
    [
        A,
        np.asfortranarray(A),
        A[:, ::2],
        np.array(["a", None], dtype=object),
        sp.csr_array(A),
        pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
        [A, {"k": A}],
        lambda: A,
    ],
)
@pytest.mark.parametrize("protocol", ["dask", 4, 5])
@pytest.mark.parametrize("how", [{}, {"steal": True}, {"readonly": True}])
def test_parcel_keeps_its_content(obj, protocol, how):
    parcel = Pickled.dumps(obj)
    digest, nbytes = parcel.digest(), parcel.nbytes
    if protocol == "dask":
        parcel = deserialize(*serialize(parcel))
    else:
        parcel = pickle.loads(pickle.dumps(parcel, protocol=protocol))
    assert (parcel.digest(), parcel.nbytes) == (digest, nbytes)
    opened = parcel.loads(**how)
    if callable(obj):
        obj, opened = obj(), opened()
    if isinstance(obj, list):
        assert_array_equal(opened[1]["k"], A)
        obj, opened = obj[0], opened[0]
    if isinstance(obj, pd.DataFrame):
        pd.testing.assert_frame_equal(opened, obj)
    elif sp.issparse(obj):
        assert_array_equal(opened.toarray(), A)
    else:
        assert type(opened) is type(obj)
        assert_array_equal(opened, obj)


def test_content_decides_the_digest():
    assert Pickled.dumps(A).digest() == Pickled.dumps(A.copy()).digest()
    digests = {Pickled.dumps(x).digest() for x in (A, A + 1, A.T, A.astype("f4"), A.ravel())}
    assert len(digests) == 5


def test_opened_arrays_are_copies_or_read_only_views():
    parcel = Pickled.dumps(A)
    copy, view = parcel.loads(), parcel.loads(readonly=True)
    assert not np.shares_memory(copy, A)
    assert copy.flags.writeable
    assert np.shares_memory(view, A)
    assert not view.flags.writeable


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ([(len, ([],), {})], "len"),
        ([(lambda x: x, (1,), {})], "lambda"),
        ([(functools.partial(len, []), (), {})], "len"),
        ([delayed(len)(StandardScaler(), A)], "len-StandardScaler"),
        ([(len, (), {"tree": DecisionTreeClassifier(), "X": A})], "len-DecisionTreeClassifier"),
        ([(len, (make_pipeline(StandardScaler()),), {})], "len-Pipeline"),
        ([(len, ([],), {})] * 3, "batch_of_len_3_calls"),
    ],
)
def test_tasks_are_named_after_function_and_estimator(calls, name):
    assert task_name(calls) == name


def test_a_module_that_workers_lack_is_named_with_what_to_do(processes, tmp_path, monkeypatch):
    """The process of the call found it after the workers had started."""
    (tmp_path / "module_of_the_caller.py").write_text("def three():\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    three = importlib.import_module("module_of_the_caller").three
    with (
        joblib.parallel_config("skfleet", client=processes),
        pytest.raises(ModuleNotFoundError) as error,
    ):
        joblib.Parallel()([delayed(call)(three)])
    (note,) = error.value.__notes__
    assert note.startswith("Workers cannot import 'module_of_the_caller', which this process can.")
    with (
        joblib.parallel_config("skfleet", client=processes),
        pytest.raises(ModuleNotFoundError) as error,
    ):  # nobody has it
        joblib.Parallel()([delayed(importlib.import_module)("no_such_module")])
    assert not getattr(error.value, "__notes__", [])


def call(function):
    return function()
