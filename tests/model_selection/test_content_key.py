"""Keys of contents: the same in every process, and different where the contents differ."""

import copy
import functools
import json
import os
import runpy
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import make_scorer

from skfleet.model_selection._records._tokenize import content_key, unfitted

SCRIPT = Path(__file__).with_name("kinds_of_content.py")
X = np.random.default_rng(0).normal(size=(30, 4))
y = (X[:, 0] > 0).astype(int)


def test_keys_are_the_same_in_every_process_and_differ_between_contents(
    tmp_path, capsys, monkeypatch
):
    """Elsewhere in another file, under another seed of hashes, and where somebody drew before."""
    (tmp_path / "rows").mkdir()
    pd.DataFrame({"a": [1, 2], "b": [1.0, 2.0]}).to_parquet(tmp_path / "rows" / "0.parquet")
    moved = tmp_path / "moved.py"
    before = "\n\n\nimport numpy as np\nnp.random.seed(5), np.random.rand()\n"
    moved.write_text(before + SCRIPT.read_text())
    other = subprocess.Popen(
        [sys.executable, str(moved), str(tmp_path / "rows")],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "2"},
    )
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "rows")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    one, two = json.loads(capsys.readouterr().out), json.loads(other.communicate(timeout=120)[0])
    assert {name for name in one if one[name] != two[name]} == set()
    by_key = {}
    for name, key in one.items():
        by_key.setdefault(key, []).append(name)
    assert [names for names in by_key.values() if len(names) > 1] == []


@pytest.mark.parametrize("make", [pd.Int64Dtype, lambda: pd.array([1, None], dtype="Int64")])
def test_what_pandas_keeps_of_answers_is_no_content(make):
    asked = make()
    assert (asked.dtype if hasattr(asked, "isna") else asked.numpy_dtype) is not None
    assert vars(asked)["_cache"]
    new = make()
    vars(new).pop("_cache", None)
    assert content_key(asked) == content_key(new)
    assert content_key(pd.Int64Dtype()) != content_key(pd.Float64Dtype())


def seeded(distribution, seed):
    distribution.random_state = seed
    return distribution


class Own(BaseEstimator):
    def __init__(self, a=1):
        self.a = a


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class Names(frozenset):
    pass


class Known:
    def __init__(self, a):
        self.lock, self.a = threading.Lock(), a

    def __dask_tokenize__(self):
        return self.a


def unsorted():
    matrix = sparse.csr_array(([1.0, 2.0], [1, 0], [0, 2]), shape=(1, 2))
    assert not matrix.has_sorted_indices
    return matrix


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, np.asfortranarray(X)),
        (X[::2], X[::2].copy()),
        (X.T[:3], np.array(X.T[:3])),
        (np.array(3.0), np.array(3.0)),
        (np.empty((0, 3)), np.empty((0, 3))),
        (unsorted(), unsorted().sorted_indices()),
        (sparse.csc_array(X), sparse.csc_array(np.asfortranarray(X))),
        (pd.DataFrame(X), pd.DataFrame({i: X[:, i] for i in range(4)})),
        (pd.DataFrame(X), pd.DataFrame(X, index=range(1, 31)).reset_index(drop=True)),
        (pd.DataFrame(X), pd.DataFrame(X, index=list(range(30)))),
        ([X[0], X[0]], [X[0], X[0].copy()]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (stats.loguniform(1, 2), copy.deepcopy(stats.loguniform(1, 2))),
        (seeded(stats.norm(), 3), copy.deepcopy(seeded(stats.norm(), 3))),
        (stats.dirichlet([1, 2]), copy.deepcopy(stats.dirichlet([1, 2]))),
        (Names("abcdef"), Names("fedcba")),
        (Slots(1), Slots(1)),
        (Known(1), Known(1)),
        (unfitted(Ridge().fit(X, y)), Ridge()),
        (unfitted([{"m": [Ridge().fit(X, y), None]}]), [{"m": [Ridge(), None]}]),
        (make_scorer(lambda y, z: 0), make_scorer(lambda y, z: 0)),
    ],
)  # fmt: skip
def test_equal_contents_have_equal_keys(one, other):
    assert content_key(one) == content_key(other)


def scorer_with(model):
    return lambda other, X, y: model.score(X, y)


def adds(value):
    class Adder:
        def __call__(self, x):
            return x + value

        if value == 3:

            @staticmethod
            def more():
                return 1

    return Adder()


FITTED, OTHER = LogisticRegression().fit(X, y), LogisticRegression().fit(-X, y)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, X.astype(np.float32)),
        (X, X.ravel()),
        (X, X[::-1]),
        (X, X + 1e-12),
        (pd.DataFrame(X), X),
        (pd.DataFrame(X), pd.DataFrame(X)[[1, 0, 2, 3]]),
        (pd.Series(["a", "b"]), pd.Series(["a", "b"], dtype="category")),
        (pd.CategoricalDtype(["a", "b"]), pd.CategoricalDtype(["b", "a"])),
        (sparse.csr_array(X), sparse.csr_matrix(X)),
        ([1, 2], [2, 1]),
        ([1], [True]),
        (["ab", "c"], ["a", "bc"]),
        ([[1], 2], [1, [2]]),
        ({"a": 1}, {"a": 2}),
        (Slots(1), Slots(2)),
        (Known(1), Known(2)),
        (stats.norm(0, 1), stats.norm(0, 2)),
        (stats.norm(), stats.uniform()),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (lambda x: x in {1, 2}, lambda x: x in {1, 3}),
        (lambda x, a=1: x, lambda x, a=2: x),
        (scorer_with(FITTED), scorer_with(OTHER)),
        (FrozenEstimator(FITTED), FrozenEstimator(OTHER)),
        (unfitted(FrozenEstimator(FITTED)), unfitted(FrozenEstimator(OTHER))),
        (adds(1), adds(2)),
        (adds(2), adds(3)),
        (Own(1), Own(1.0)),
        (np.random.RandomState(0), np.random.RandomState(1)),
        (np.random.default_rng(0), np.random.default_rng(1)),
    ],
)  # fmt: skip
def test_other_contents_have_other_keys(one, other):
    assert content_key(one) != content_key(other)


SOURCE = """
{before}
PENALTY = {penalty}
START = object()

def help(x):
    return x - {shift} * PENALTY

def score(model, X, y):
    global n_calls
    n_calls = globals().get("n_calls", 0) + 1
    return help(model.score(X, y)), START

class Model:
    n_fits = {state}

    def fit(self, X, y):
        return {shift}
"""


def defined(before="", penalty=1, shift=1, state=0):
    scope = {"__name__": "of_a_user"}
    exec(SOURCE.format(before=before, penalty=penalty, shift=shift, state=state), scope)
    return scope


@pytest.mark.parametrize(
    ("change", "is_another_score", "is_another_model"),
    [
        ({"before": "\n\n# moved"}, False, False),
        ({"state": 3}, False, False),
        ({"penalty": 2}, True, False),
        ({"penalty": [2]}, True, False),
        ({"shift": 2}, True, True),
    ],
)
def test_functions_and_classes_of_users_are_known_by_their_code(
    change, is_another_score, is_another_model
):
    one, other = defined(), defined(**change)
    other["n_calls"] = 3  # what a function counts is no part of it
    assert (content_key(one["score"]) != content_key(other["score"])) is is_another_score
    assert (content_key(one["Model"]()) != content_key(other["Model"]())) is is_another_model


def test_the_state_of_the_global_generator_is_no_part_of_a_distribution():
    """The hash of joblib, which keys were made of, takes it in."""
    drawn = stats.loguniform(1, 2)
    before, clones = (
        (content_key(drawn), joblib.hash(drawn)),
        content_key(clone([drawn], safe=False)),
    )
    stats.norm.rvs()
    assert content_key(drawn) == before[0]
    assert joblib.hash(drawn) != before[1]
    assert content_key(clone([drawn], safe=False)) == clones == content_key([drawn])


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(TypeError, match=r"must be picklable .* Got <unlocked _thread.lock"):
        content_key({"a": [threading.Lock()]})


def test_objects_that_contain_themselves():
    one, other = [1], [2]
    one.append(one)
    other.append(other)
    assert content_key(one) != content_key(other)
    assert content_key(one) == content_key(copy.deepcopy(one))


def test_nothing_is_computed_of_a_dask_collection():
    import dask.array as da

    def refuse(block):
        raise AssertionError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        content_key(da.from_array(X, chunks=10).map_blocks(refuse, meta=np.empty((0, 0))))
