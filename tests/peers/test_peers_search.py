"""scikit-learn's own suites of its searches, on ours with two worker processes.

132 of the 141 items that can run here pass (132, and not 141, because a worker's copy is a copy):

====================================================  ===========================================
test_searchcv_raise_warning_with_non_finite_score (4)  The scorer counts its calls in itself.
test_multi_metric_search_forwards_metadata (2)         The scorer writes into a list of the test's.
test_search_callbacks_receive_search_instance (2)      Callbacks must see the very same search.
test_search_callbacks_with_partial_fit_failures        scikit-learn's callbacks pickle the
                                                       estimator, here of a local class, by name.
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


def test_scikit_learns_suite_of_its_searches(run):
    passed, report = run("test_search.py", ["GridSearchCV", "RandomizedSearchCV"], 1)
    assert passed >= 132, report


@pytest.mark.parametrize("threads", [1, 2])
def test_scikit_learns_suite_of_its_halving_searches(run, threads):
    searches = ["HalvingGridSearchCV", "HalvingRandomSearchCV"]
    passed, report = run("test_successive_halving.py", searches, threads)
    assert passed >= 98, report
