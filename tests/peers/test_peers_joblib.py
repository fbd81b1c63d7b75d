"""joblib's own suites, on our backend. What fails, and why:

joblib/test/test_dask.py, with our class in the place of joblib's: 32 of 36 pass.

======================================  =========================================================
test_manual_scatter                      Scattered objects are pickled once; the test wants as many
                                         times as distributed does it (three).
test_auto_scatter                        10 kB travel within the call, and two equal arrays would be
                                         one; the test wants two transfers.
test_errors                              Making the backend looks for no client, so it cannot raise
                                         for want of one.
test_correct_nested_backend              Nesting levels are counted, as in joblib's local backends,
                                         so that threads below three levels are sequential.
======================================  =========================================================

joblib/test/test_parallel.py, with our backend among those it goes through: 75 of 78 pass.

======================================  =========================================================
test_nested_loop[loky-skfleet]           A loky worker has not imported skfleet, which registers the
test_nested_loop[back_compat...]         backend.
test_abort_backend[-2-skfleet]           Sleeping tasks of the test before it occupy the fleet:
                                         a thread cannot be stopped. Passes on its own.
======================================  =========================================================
"""

from pathlib import Path

import joblib.test
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUITES = Path(joblib.test.__file__).parent


def test_joblibs_suite_of_its_dask_backend(run_suite):
    passed, report = run_suite("plug_backend", SUITES / "test_dask.py")
    assert passed >= 32, report


def test_joblibs_suite_of_parallel(run_suite):
    passed, report = run_suite("plug_parallel", SUITES / "test_parallel.py", "-k", "skfleet")
    assert passed >= 74, report
