"""Parameters that scikit-learn takes with a warning are taken with the same one."""

import warnings

import dask.array as da
import numpy as np
import pytest
from sklearn import linear_model as reference
from sklearn.datasets import make_classification

from skfleet.estimators import LogisticRegression, SGDClassifier, SGDRegressor

X, Y = make_classification(200, 5, n_redundant=0, random_state=0)


def _with_warnings(model, X=X):
    """Fit a model; return it, and what it warned of and where."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(X, Y if isinstance(X, np.ndarray) else da.from_array(Y, chunks=100))
    return model, {(one.category, str(one.message)) for one in said}, {one.filename for one in said}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "parameters",
    [
        {"penalty": "l1"},
        {"penalty": "l1", "l1_ratio": 1.0, "C": 0.1},
        {"penalty": "l2", "C": 0.1},
        {"penalty": "l2", "l1_ratio": 0.3},
        {"penalty": "elasticnet", "l1_ratio": 0.4},
        {"penalty": None},
        {"penalty": None, "C": 2.0},
        {"l1_ratio": None},
        {"n_jobs": 2},
    ],
    ids=repr,
)
def test_logistic_regression(parameters, lazy):
    how = {"solver": "saga", "tol": 1e-10, "max_iter": 100_000}
    theirs, wanted, _ = _with_warnings(reference.LogisticRegression(**parameters, **how))
    rows = da.from_array(X, chunks=(100, 5)) if lazy else X
    ours, said, places = _with_warnings(LogisticRegression(tol=1e-10, **parameters), rows)
    assert said == wanted
    assert places == {__file__}
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)


def test_the_penalty_may_stand_first():
    with pytest.warns(FutureWarning, match="'penalty' was deprecated"):
        assert LogisticRegression("l2").fit(X, Y).get_params()["penalty"] == "l2"


def test_bad_penalties_raise():
    with pytest.raises(ValueError, match="penalty must be one of"):
        LogisticRegression(penalty="l3").fit(X, Y)
    with pytest.raises(ValueError, match="l1_ratio must be specified"):
        LogisticRegression(penalty="elasticnet", l1_ratio=None).fit(X, Y)


@pytest.mark.parametrize("name", ["SGDClassifier", "SGDRegressor"])
def test_negative_powers_of_rates(name):
    how = {"learning_rate": "invscaling", "power_t": -0.01, "eta0": 1e-3, "shuffle": False}
    how |= {"max_iter": 3, "tol": None}
    theirs, wanted, _ = _with_warnings(getattr(reference, name)(**how))
    cls = {"SGDClassifier": SGDClassifier, "SGDRegressor": SGDRegressor}[name]
    ours, said, places = _with_warnings(cls(batch_size=1, **how))
    assert said == wanted
    assert places == {__file__}
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
