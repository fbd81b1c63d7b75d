"""Where collections are worked on: this process, a cluster in it, or a fleet of processes."""

import pytest
from frame_expressions import SOURCES, write_files


@pytest.fixture(scope="session")
def table_folder(tmp_path_factory):
    """The table as files of Parquet and CSV."""
    folder = tmp_path_factory.mktemp("tables")
    write_files(folder)
    return folder


@pytest.fixture
def read(table_folder):
    """Return the table from a source."""
    return lambda source: SOURCES[source](table_folder)


@pytest.fixture(params=["no client", "threads"])
def place(request):
    """Run a test without a client, and on a cluster in this process."""
    if request.param == "no client":
        yield request.param
        return
    client = request.getfixturevalue("cluster_client")
    with client.as_current():
        yield request.param


@pytest.fixture(scope="module")
def process_fleet():
    """A fleet of two worker processes."""
    from skfleet import Fleet

    with Fleet(n_workers=2) as fleet:
        yield fleet
