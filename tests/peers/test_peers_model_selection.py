"""scikit-learn's own suites of model selection, with ours in the place of theirs."""

import ast

import pytest
from suites import SKLEARN, Suite, assert_differences_alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def selection_by_name(name, file):
    """Return what selects the tests of a file of scikit-learn whose code has a name."""
    functions = ast.parse((SKLEARN / file).read_text(encoding="utf-8")).body
    names = [
        function.name
        for function in functions
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
        if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))
    ]
    assert len(names) >= 25
    return " or ".join(names)


SEARCHES = "model_selection/tests/test_search.py"
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
    "searches, 2 threads": Suite([SEARCHES], "model_selection", "2"),
    "Bayesian search": Suite(
        [SEARCHES],
        "model_selection RandomizedSearchCV=BayesSearchCV",
        "1",
        selection_by_name("RandomizedSearchCV", SEARCHES),
    ),
}


@pytest.mark.parametrize("room", SUITES)
def test_scikit_learns_suite(run_suite, tmp_path, monkeypatch, room):
    assert_differences_alone(run_suite, tmp_path, monkeypatch, SUITES[room])
