"""Generated rows: a worker dies in the middle, and rows are larger than the workers' memory."""

import os
from functools import partial

import numpy as np
import pytest
from test_faults_fits import killing_one_worker

from clusters import local_client
from skfleet.datasets import make_classification, make_regression
from skfleet.estimators import Ridge

pytestmark = pytest.mark.slow

MEMORY_LIMIT = 500 * 2**20
LOW_RANK = partial(
    make_regression, 2_000_000, 20, effective_rank=5, noise=1.0, random_state=0, chunks=100_000
)


@pytest.fixture
def client(request):
    """A client of two worker processes."""
    with local_client(2, threads_per_worker=1, **getattr(request, "param", {})) as client:
        yield client


def test_the_pass_of_a_low_rank_matrix_survives_a_killed_worker(client):
    undisturbed = LOW_RANK()
    with killing_one_worker(client, after_passes=1) as killed:
        again = LOW_RANK()
    assert killed
    # names follow from the values, to the last bit
    assert [x.name for x in again] == [x.name for x in undisturbed]


def test_drawn_rows_survive_a_killed_worker(client):
    X, y = LOW_RANK()
    undisturbed = Ridge(alpha=1e-9).fit(X, y).coef_
    with killing_one_worker(client, after_passes=1) as killed:
        again = Ridge(alpha=1e-9).fit(X, y).coef_
    assert killed
    np.testing.assert_allclose(again, undisturbed, rtol=1e-8)


@pytest.mark.parametrize("client", [{"memory_limit": MEMORY_LIMIT}], indirect=True)
def test_rows_larger_than_memory_are_drawn_block_by_block(client):
    before = client.run(os.getpid)
    X, y, coef = make_regression(8_000_000, 20, coef=True, random_state=0, chunks=100_000)
    assert X.nbytes > 2 * MEMORY_LIMIT
    np.testing.assert_allclose(Ridge(alpha=1e-9).fit(X, y).coef_, coef, atol=1e-6)
    X, y = make_classification(8_000_000, weights=[0.7], flip_y=0, random_state=0, chunks=100_000)
    assert y.sum().compute() == 2_400_000
    assert client.run(os.getpid) == before
