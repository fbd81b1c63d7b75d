"""Groups and other metadata of the splitter reach it through all functions of cross-validation."""

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model as theirs
import sklearn.model_selection as reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, StratifiedGroupKFold

from random_examples import n_examples
from skfleet import model_selection
from skfleet.estimators import Ridge
from skfleet.model_selection import GridSearchCV

N_ROWS = 90
rng = np.random.default_rng(0)
X = rng.normal(size=(N_ROWS, 3))
Y = X.sum(axis=1) + rng.normal(size=N_ROWS)
GROUPS = rng.permutation(9)[np.repeat(np.arange(9), 10)]
WEIGHTS = rng.integers(1, 4, N_ROWS)

FUNCTIONS = {
    "cross_validate": {"return_train_score": True},
    "cross_val_score": {},
    "cross_val_predict": {},
    "learning_curve": {"train_sizes": [0.5, 1.0]},
    "validation_curve": {"param_name": "alpha", "param_range": [0.1, 10.0]},
    "permutation_test_score": {"n_permutations": 2, "random_state": 0},
}

CONTAINERS = {
    "numpy": lambda values: values,
    "array": lambda values: da.from_array(values, chunks=(40, *values.shape[1:])),
    "frame": lambda values: dd.from_pandas(
        pd.Series(values) if values.ndim == 1 else pd.DataFrame(values, columns=list("abc")),
        npartitions=3,
    ),
}


class MarkedRows(BaseEstimator):
    """Splitter that wants values of its own name, and is of no class of scikit-learn's."""

    def split(self, X, y=None, marks=None):
        marks = np.asarray(marks)
        for mark in np.unique(marks)[:3]:
            yield np.flatnonzero(marks != mark), np.flatnonzero(marks == mark)
        yield np.flatnonzero(marks < 3), np.flatnonzero(marks >= 3)

    def get_n_splits(self, X=None, y=None, marks=None):
        return 4


SPLITTERS = {
    "groups": lambda: GroupKFold(3),
    "leave one out": LeaveOneGroupOut,
    "alias": lambda: GroupKFold(3).set_split_request(groups="alias"),
    "marks": lambda: MarkedRows().set_split_request(marks="marks"),
}


def assert_alike(result, expected):
    if isinstance(expected, dict):
        result, expected = (
            [values for name, values in scores.items() if not name.endswith("_time")]
            for scores in (result, expected)
        )
    if not isinstance(expected, (tuple, list)):
        result, expected = [result], [expected]
    for values, expected_values in zip(result, expected, strict=True):
        values = values.compute() if hasattr(values, "compute") else values
        np.testing.assert_allclose(np.asarray(values), expected_values, rtol=1e-8)


@pytest.fixture(autouse=True)
def _on_cluster(on_cluster):
    pass


@settings(max_examples=n_examples(6, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    function=st.sampled_from(sorted(FUNCTIONS)),
    container=st.sampled_from(sorted(CONTAINERS)),
    splitter=st.sampled_from(sorted(SPLITTERS)),
    is_ours=st.booleans(),
    is_weighted=st.booleans(),
)
def test_metadata_of_splitters(function, container, splitter, is_ours, is_weighted):
    lazy, options = CONTAINERS[container], FUNCTIONS[function]
    name = splitter if splitter in ("alias", "marks") else "groups"
    params = {name: GROUPS} | ({"sample_weight": WEIGHTS} if is_weighted else {})
    with config_context(enable_metadata_routing=True):

        def scores(module, model, container):
            model.set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
            return getattr(module, function)(
                model,
                container(X),
                container(Y),
                cv=SPLITTERS[splitter](),
                params={key: container(values) for key, values in params.items()},
                **options,
            )

        expected = scores(reference, theirs.Ridge(), CONTAINERS["numpy"])
        assert_alike(
            scores(model_selection, Ridge() if is_ours else theirs.Ridge(), lazy), expected
        )


@settings(max_examples=n_examples(3, 30), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    function=st.sampled_from([name for name in FUNCTIONS if name != "validation_curve"]),
    container=st.sampled_from(sorted(CONTAINERS)),
    is_ours=st.booleans(),
    is_routed=st.booleans(),
)
def test_searches_inside_have_groups(function, container, is_ours, is_routed):
    lazy, options = CONTAINERS[container], FUNCTIONS[function]

    def scores(module, model, container):
        groups, search = container(GROUPS), module.GridSearchCV
        own = {} if is_routed else {"groups": groups}
        return getattr(module, function)(
            search(model, {"alpha": [0.1, 100.0]}, cv=GroupKFold(2)),
            container(X),
            container(Y),
            cv=GroupKFold(3),
            params={"groups": groups},
            **own,
            **options,
        )

    with config_context(enable_metadata_routing=is_routed):
        expected = scores(reference, theirs.Ridge(), CONTAINERS["numpy"])
        result = scores(model_selection, Ridge() if is_ours else theirs.Ridge(), lazy)
    assert_alike(result, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_labels_and_groups_together(function):
    labels, options = (Y > 0).astype(int), FUNCTIONS[function]
    if function == "validation_curve":
        options = {"param_name": "C", "param_range": [0.1, 10.0]}
    arguments = theirs.LogisticRegression(), X, labels
    options = {**options, "cv": StratifiedGroupKFold(3), "params": {"groups": GROUPS}}
    with config_context(enable_metadata_routing=True):
        expected = getattr(reference, function)(*arguments, **options)
        assert_alike(getattr(model_selection, function)(*arguments, **options), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("is_routed", [True, False])
def test_groups_that_scikit_learn_refuses(function, is_routed):
    options = {**FUNCTIONS[function], "cv": GroupKFold(3)} | (
        {"groups": GROUPS} if is_routed else {}
    )
    errors = []
    with config_context(enable_metadata_routing=is_routed):
        for module in (reference, model_selection):
            with pytest.raises(ValueError, match="groups") as caught:
                getattr(module, function)(theirs.Ridge(), X, Y, **options)
            errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_calls_whose_generator_fails_at_once():
    def calls():
        raise ValueError("no split")
        yield

    with joblib.parallel_config("skfleet"), pytest.raises(ValueError, match="no split"):
        joblib.Parallel(pre_dispatch="all")(calls())


class CountingScorer:
    """Scorer that counts its calls."""

    n_calls = 0

    def __call__(self, model, X, y):
        self.n_calls += 1
        return 0.0


def test_a_scorer_on_threads_of_this_process_is_the_callers():
    scorer = CountingScorer()
    GridSearchCV(theirs.Ridge(), {"alpha": [1.0, 2.0]}, cv=3, scoring=scorer).fit(X, Y)
    assert scorer.n_calls == 6
