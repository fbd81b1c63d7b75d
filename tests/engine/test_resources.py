"""Worker resources: those that a device needs, and the error for an unsatisfiable request."""

import pickle
import subprocess
import sys

import pytest

from skfleet.engine._resources import (
    ANY_WORKER,
    ResourceRequest,
    check_satisfiable,
    resources_for_device,
)
from skfleet.exceptions import FleetError, PlacementError

CPU = ResourceRequest((("CPU", 1.0),))
GPU = ResourceRequest((("GPU", 1.0),))

PLAIN = {"a": {}, "b": {}}
CPUS = {"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}
GPUS = {"a": {"GPU": 1.0}}
MIXED = {"a": {"CPU": 2.0}, "b": {"GPU": 1.0}}
GPU_AND_PLAIN = {"a": {}, "b": {"GPU": 1.0}}
OTHER = {"a": {"LICENCE": 1.0}}


@pytest.mark.parametrize(
    ("device", "workers", "expected"),
    [
        ("auto", {}, ANY_WORKER),
        ("auto", GPUS, ANY_WORKER),
        ("cpu", {}, ANY_WORKER),
        ("cpu", PLAIN, ANY_WORKER),
        ("cpu", OTHER, ANY_WORKER),
        ("cpu", CPUS, CPU),
        ("cpu", MIXED, CPU),
        ("cuda", GPUS, GPU),
        ("cuda", MIXED, GPU),
        ("cuda", GPU_AND_PLAIN, GPU),
    ],
)
def test_device_gives_placement(device, workers, expected):
    assert resources_for_device(device, workers) == expected


@pytest.mark.parametrize(
    ("device", "workers"),
    [
        ("cuda", {}),
        ("cuda", PLAIN),
        ("cuda", CPUS),
        ("cpu", GPUS),
        # an unlabelled worker beside a labelled one cannot be asked for by a resource
        ("cpu", GPU_AND_PLAIN),
    ],
)
def test_device_nobody_offers_raises(device, workers):
    with pytest.raises(PlacementError, match=r"must be offered .* Got .* instead.* Label"):
        resources_for_device(device, workers)


def test_unknown_device_raises():
    with pytest.raises(ValueError, match=r"device must be one of .* Got 'gpu' instead. Use 'cuda'"):
        resources_for_device("gpu", MIXED)


def test_one_worker_must_offer_everything():
    both = ResourceRequest.of({"CPU": 1, "GPU": 1})
    with pytest.raises(PlacementError, match="CPU=1, GPU=1 instead, while the 2 worker"):
        check_satisfiable(both, MIXED)
    check_satisfiable(both, {"a": {"CPU": 1.0, "GPU": 1.0}})


def test_amounts_count():
    check_satisfiable(ResourceRequest.of({"CPU": 2}), CPUS)
    with pytest.raises(PlacementError, match=r"CPU=3 instead, .* offer CPU=2\."):
        check_satisfiable(ResourceRequest.of({"CPU": 3}), CPUS)


def test_placement_is_a_value():
    one, two = ResourceRequest.of({"B": 1, "A": 2}), ResourceRequest.of({"A": 2.0, "B": 1.0})
    assert one == two == pickle.loads(pickle.dumps(one))
    assert len({one, two, ANY_WORKER, ResourceRequest.of(None), ResourceRequest.of({})}) == 2
    given = one.as_dict()
    given["A"] = 9
    assert one.as_dict() == {"A": 2.0, "B": 1.0}
    assert str(one) == "A=2, B=1"
    assert str(ANY_WORKER) == "anywhere"


def test_placement_error_is_a_fleet_error():
    assert issubclass(PlacementError, FleetError)


@pytest.mark.slow
def test_names_of_dask_modules_are_imported_lazily():
    code = (
        "import sys, skfleet.engine as engine\n"
        "assert not {'dask', 'distributed'} & set(sys.modules)\n"
        "for name in engine.__all__:\n"
        "    getattr(engine, name)\n"
        "assert not hasattr(engine, 'Pickle') and not hasattr(engine, 'gather')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_placement_does_not_load_dask():
    """The decision is pure; the package around it may load more, so the file is run alone."""
    code = (
        "import runpy, sys, skfleet._config as known\n"
        "from skfleet.engine import _resources\n"
        "runpy.run_path(_resources.__file__)\n"
        "assert 'distributed' not in sys.modules, 'distributed was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
