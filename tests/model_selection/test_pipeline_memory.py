"""A pipeline's memory works for steps of the caller's own classes, which workers cannot import."""

import sys

import cloudpickle
import joblib
import numpy as np
import pytest
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV as TheirSearch
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from random_examples import n_examples
from skfleet.model_selection import GridSearchCV, cross_validate
from skfleet.model_selection._dispatch._memory_of_steps import drop_memory

# of a machine that is busy with other work
pytestmark = pytest.mark.filterwarnings("ignore:Persisting input arguments")

X, Y = load_iris(return_X_y=True, as_frame=True)


class DropFirst(TransformerMixin, BaseEstimator):
    """Drops columns, and notes its fits in a file."""

    def __init__(self, n=1, path=None):
        self.n, self.path = n, path

    def fit(self, X, y=None):
        if self.path is not None:
            with open(self.path, "a") as file:
                file.write("x")
        return self

    def transform(self, X):
        return X.drop(columns=X.columns[: self.n])


def local_class():
    """Return a class like that above that has no name by which it could be imported."""

    class DropSome(DropFirst):
        pass

    return DropSome


def pipeline(drop, memory, *, is_nested=False):
    steps = [("drop", drop), ("scale", StandardScaler())]
    tree = ("tree", DecisionTreeClassifier(random_state=0))
    if not is_nested:
        return Pipeline([*steps, tree], memory=memory)
    columns = make_column_transformer((Pipeline(steps, memory=memory), list(X.columns)))
    return Pipeline([("columns", columns), tree], memory=memory)


def memories(folder):
    return {
        "path": str(folder / "a"),
        "Memory": joblib.Memory(folder / "b", verbose=0),
        "none": None,
    }


@settings(max_examples=n_examples(4, 30), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    memory=st.sampled_from(["path", "Memory"]),
    kind=st.sampled_from(["class", "function", "candidate", "importable"]),
    is_nested=st.booleans(),
    in_grid=st.booleans(),
)
def test_searches(on_cluster, tmp_path, memory, kind, is_nested, in_grid):
    used = memories(tmp_path)[memory]
    drop = {
        "class": local_class()(),
        "function": FunctionTransformer(lambda X: X.iloc[:, 1:]),
        "candidate": "passthrough",
        "importable": DropFirst(),
    }[kind]
    grid = {"tree__max_depth": [1, 3]}
    if kind == "candidate" and not is_nested:
        grid["drop"] = [local_class()(1), local_class()(2)]
    expected = TheirSearch(pipeline(drop, None, is_nested=is_nested), grid, cv=3).fit(X, Y)
    if in_grid:
        search = GridSearchCV(
            pipeline(drop, None, is_nested=is_nested), {**grid, "memory": [used]}, cv=3
        )
    else:
        search = GridSearchCV(pipeline(drop, used, is_nested=is_nested), grid, cv=3)
    search.set_params(error_score="raise", refit=False).fit(X, Y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )


def test_first_steps_are_shared(on_cluster, tmp_path):
    path = tmp_path / "fits"
    model = pipeline(local_class()(path=str(path)), str(tmp_path / "memory"))
    grid = {"drop__n": [1, 2], "tree__max_depth": [1, 2, 3]}
    GridSearchCV(model, grid, cv=3, error_score="raise", refit=False).fit(X, Y)
    assert 6 <= len(path.read_text()) < 18


def test_a_memory_that_knows_the_steps_stays(tmp_path):
    for name, memory in memories(tmp_path).items():
        model = pipeline(DropFirst(), memory, is_nested=True)
        parameters = {"memory": memory, "tree__max_depth": 2}
        assert drop_memory(model, parameters) == parameters
        assert model.memory is memory, name
        assert model.steps[0][1].transformers[0][1].memory is memory


@pytest.mark.parametrize("name", ["path", "Memory"])
def test_a_memory_that_cannot_know_the_steps_keeps_its_name(tmp_path, name):
    memory = memories(tmp_path)[name]
    model = pipeline(local_class()(), memory, is_nested=True)
    parameters = drop_memory(model, {"memory": memory, "tree__max_depth": 2})
    assert model.memory is None
    assert model.steps[0][1].transformers[0][1].memory is None
    assert repr(parameters["memory"]) == repr(memory)
    assert parameters["memory"].cache(abs)(-1) == 1
    assert drop_memory(model, None) is None


@pytest.mark.slow
def test_on_worker_processes(process_cluster, tmp_path):
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        with Client(process_cluster):
            for name, memory in memories(tmp_path).items():
                model = pipeline(DropFirst(path=str(tmp_path / name)), memory)
                grid = {"drop__n": [1, 2], "tree__max_depth": [1, 3]}
                expected = TheirSearch(clone_without_memory(model), grid, cv=3).fit(X, Y)
                search = GridSearchCV(model, grid, cv=3, error_score="raise").fit(X, Y)
                np.testing.assert_allclose(
                    search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
                )
                scores = cross_validate(model, X, Y, cv=3, error_score="raise")["test_score"]
                assert np.isfinite(scores).all()
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def clone_without_memory(model):
    return Pipeline(model.steps)
