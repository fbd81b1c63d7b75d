"""scikit-learn's own suites of its searches, on ours with two worker processes.

139 of the 141 items that can run here pass, with one thread per worker and with two:

====================================================  ===========================================
test_multi_metric_search_forwards_metadata (2)         The scorer writes into a list of the test's,
                                                       of which a worker has a copy.
====================================================  ===========================================

98 of the 102 items of the halving searches pass:

====================================================  ===========================================
test_cv_results (2)                                    The scorer draws from a generator of the
                                                       test's, of which each fit gets a copy.
test_base_estimator_inputs (2)                         The estimator writes into a test's lists.
====================================================  ===========================================
"""

from pathlib import Path

import pytest
import sklearn.model_selection.tests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUITES = Path(sklearn.model_selection.tests.__file__).parent


@pytest.fixture
def run(run_suite, monkeypatch):
    """Run a suite with some of our searches in place, on workers of so many threads."""

    def run(suite, searches, threads):
        monkeypatch.setenv("SKFLEET_TEST_SEARCHES", ",".join(searches))
        monkeypatch.setenv("SKFLEET_TEST_THREADS", str(threads))
        return run_suite("plug_search", SUITES / suite)

    return run


@pytest.mark.parametrize("threads", [1, 2])
def test_scikit_learns_suite_of_its_searches(run, threads):
    # The four of a scorer that counts its calls pass as long as one worker is given five of twelve
    # short fits, which a busy machine may prevent.
    passed, report = run("test_search.py", ["GridSearchCV", "RandomizedSearchCV"], threads)
    assert passed >= 136, report


@pytest.mark.parametrize("threads", [1, 2])
def test_scikit_learns_suite_of_its_halving_searches(run, threads):
    searches = ["HalvingGridSearchCV", "HalvingRandomSearchCV"]
    passed, report = run("test_successive_halving.py", searches, threads)
    assert passed >= 98, report
