"""What tests of limits of memory share."""

import pytest
from worker_memory import import_all


@pytest.fixture(scope="session")
def idle_bytes():
    """The memory of a worker that has imported all."""
    from skfleet import Fleet

    with Fleet(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        return max(client.run(import_all).values())
