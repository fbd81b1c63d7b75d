"""scikit-learn's own suites of model selection, with ours in the place of theirs."""

import pytest
from suites import Suite, assert_differences_alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUITES = {
    "splits": Suite(["model_selection/tests/test_split.py"], "model_selection"),
    "validation": Suite(["model_selection/tests/test_validation.py"], "model_selection", "1"),
    "routing": Suite(
        ["tests/test_metaestimators_metadata_routing.py"], "estimators model_selection", "0"
    ),
    "searches": Suite(
        [f"model_selection/tests/test_{x}.py" for x in ("search", "successive_halving")],
        "model_selection",
        "1",
    ),
    "searches, 2 threads": Suite(["model_selection/tests/test_search.py"], "model_selection", "2"),
}


@pytest.mark.parametrize("room", SUITES)
def test_scikit_learns_suite(run_suite, tmp_path, monkeypatch, room):
    assert_differences_alone(run_suite, tmp_path, monkeypatch, SUITES[room])
