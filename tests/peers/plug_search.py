"""A pytest plugin that runs scikit-learn's tests of its searches on ours, in worker processes."""

import pytest
import sklearn.model_selection
from distributed import Client

from skfleet.model_selection import GridSearchCV, RandomizedSearchCV

sklearn.model_selection.GridSearchCV = GridSearchCV
sklearn.model_selection.RandomizedSearchCV = RandomizedSearchCV


@pytest.fixture(scope="session", autouse=True)
def fleet():
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        yield client
