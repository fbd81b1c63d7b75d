"""scikit-learn's own suite of its splitters, on ours: all pass that pass there."""

from pathlib import Path

import pytest
import sklearn.model_selection.tests

SUITES = Path(sklearn.model_selection.tests.__file__).parent


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_scikit_learns_suite_of_its_splitters(run_suite):
    passed, report = run_suite("plug_split", SUITES / "test_split.py")
    assert passed >= 200, report
    assert "FAILED" not in report, report
