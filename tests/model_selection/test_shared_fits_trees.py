"""Trees that differ in their pruning only score as if each had been grown by itself."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_search import compare
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)

from random_examples import n_examples
from skfleet.model_selection._paths._trees import CostComplexityPath

KINDS = [DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier, ExtraTreeRegressor]
rng = np.random.RandomState(0)
X = rng.randn(150, 4)
yr = X[:, 0] + rng.randn(150) / 2
y = np.digitize(yr, [-0.5, 0.5])


pytestmark = pytest.mark.usefixtures("one_thread")


@settings(
    max_examples=n_examples(12, 30), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from(KINDS),
    alphas=st.lists(st.floats(0.0, 0.2), min_size=2, max_size=5, unique=True),
    criterion=st.booleans(),
    max_depth=st.sampled_from([None, 1, 4]),
    max_leaf_nodes=st.sampled_from([None, 6]),
    max_features=st.sampled_from([None, 2]),
    weighted=st.booleans(),
    in_pipeline=st.booleans(),
    kind_of_rows=st.sampled_from(["array", "holes", "sparse"]),
    seed=st.integers(0, 1000),
)
def test_at_random(
    kind,
    alphas,
    criterion,
    max_depth,
    max_leaf_nodes,
    max_features,
    weighted,
    in_pipeline,
    kind_of_rows,
    seed,
):
    model = kind(
        random_state=seed,
        max_depth=max_depth,
        max_leaf_nodes=max_leaf_nodes,
        max_features=max_features,
    )
    if criterion:
        model.set_params(criterion="entropy" if is_classifier(model) else "absolute_error")
    rows = X.copy()
    if kind_of_rows == "holes":
        rows[::7, 1] = np.nan
    rows = sparse.csr_array(rows) if kind_of_rows == "sparse" else rows
    grid, params = {"ccp_alpha": alphas}, {"sample_weight": rng.rand(150)} if weighted else {}
    if in_pipeline:
        model = make_pipeline(StandardScaler(with_mean=False), model)
        step = model.steps[-1][0]
        grid = {f"{step}__{name}": value for name, value in grid.items()}
        params = {f"{step}__{name}": value for name, value in params.items()}
    compare(model, grid, rows, y if is_classifier(kind()) else yr, fit_params=params)


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_tree_is_pruned(kind):
    targets = y if is_classifier(kind()) else np.c_[yr, -yr]
    candidates = [{"ccp_alpha": alpha} for alpha in (0.0, 0.05, 0.01)]
    found = CostComplexityPath().fit(kind(random_state=0), candidates, X, targets)
    sizes = []
    for one, candidate in zip(found, candidates, strict=True):
        alone = clone(one).set_params(**candidate).fit(X, targets)
        assert vars(one).keys() == vars(alone).keys()
        assert one.get_params() == alone.get_params()
        assert one.tree_.node_count == alone.tree_.node_count
        np.testing.assert_array_equal(one.predict(X), alone.predict(X))
        sizes.append(one.tree_.node_count)
    assert sizes[0] > sizes[1]
    assert sizes[0] >= sizes[2] >= sizes[1]


def test_grown_once_a_split():
    grid = {"ccp_alpha": [0.0, 0.01, 0.02, 0.05], "max_depth": [3, None]}
    (use,) = compare(DecisionTreeClassifier(random_state=0), grid, X, y).shared_fits_
    assert (use.estimator, use.parameters) == ("DecisionTreeClassifier", ("ccp_alpha",))
    assert use.n_fits == 24
    assert 9 < use.n_saved <= 18  # bundles that take long leave some to others


@pytest.mark.parametrize(
    ("params", "word"),
    [({"random_state": None}, "random_state must be"), ({"ccp_alpha": -1.0}, "positive number")],
)
def test_what_might_differ_is_fitted_by_itself(params, word):
    grid = {"ccp_alpha": [0.01, params.pop("ccp_alpha", 0.1)]}
    model = DecisionTreeClassifier(**{"random_state": 0, "max_depth": 1, **params})
    uses = compare(model, grid, X, y).shared_fits_
    assert any(word in use.refused for use in uses if use.refused)
    assert sum(use.n_saved for use in uses) == 0
