"""Every transformer in partitions, containers and engines; all of them in `make test-matrix`."""

import os

import pytest
from cases import CASES, combinations, pairwise_share
from row_partitions import check_like_reference

ALL = combinations(["in process", "distributed"])
IS_WHOLE = bool(os.environ.get("SKFLEET_WHOLE_MATRIX"))


@pytest.fixture(params=["in process", "distributed"])
def scheduler(request):
    """Make an engine current, and return the scheduler of its lazy results.

    A cluster has two worker processes for the whole matrix, and two threads for a share of it.
    """
    if request.param == "in process":
        yield "synchronous"
    elif IS_WHOLE:
        from distributed import Client

        with Client(request.getfixturevalue("process_cluster")):
            yield None
    else:
        with request.getfixturevalue("cluster_client").as_current():
            yield None


@pytest.mark.sampled(25)
@pytest.mark.filterwarnings("ignore:Skipping features without any observed:UserWarning")
@pytest.mark.parametrize(
    ("name", "partition", "container", "scheduler"),
    ALL if IS_WHOLE else pairwise_share(ALL),
    indirect=["scheduler"],
)
def test_like_scikit_learn(name, partition, container, scheduler):
    case = CASES[name]
    check_like_reference(
        *case.pair(),
        *case.make_rows(container),
        partition=partition,
        container=container,
        scheduler=scheduler,
        **case.tolerance,
    )
