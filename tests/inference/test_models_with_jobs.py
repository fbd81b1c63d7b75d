"""Models with ``n_jobs``, which joblib warns of in the daemons that workers are."""

import warnings

import numpy as np
import pytest
from distributed import Client
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

from skfleet.inference._predict import apply_method

X = np.random.default_rng(0).normal(size=(50, 3))
Y = (X[:, 0] > 0).astype(int)


def messages(model, rows, predict):
    """Return the warnings of predictions, in a worker."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        predict(model, rows)
    return [str(warning.message) for warning in told]


def by_itself(model, rows):
    return model.predict(rows)


def by_block(model, rows):
    return apply_method(model, rows, method="predict", params={})


@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(5, n_jobs=2), KNeighborsClassifier(n_jobs=2)],
    ids=lambda model: type(model).__name__,
)
def test_workers_predict_without_a_warning(model, process_cluster):
    model.fit(X, Y)
    with Client(process_cluster, set_as_default=False) as client:
        assert "daemon" in client.submit(messages, model, X, by_itself).result()[0]
        assert client.submit(messages, model, X, by_block).result() == []
