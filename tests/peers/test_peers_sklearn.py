"""scikit-learn's own suites of estimators and metrics, with ours in the place of theirs."""

from pathlib import Path

import pytest
from suites import TABLE, Suite, assert_differences_alone

from skfleet import estimators, model_selection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]

SUITES = {
    "linear": Suite(
        [f"linear_model/tests/test_{x}.py" for x in ("base", "common", "ridge")]
        + ["linear_model/_glm/tests/test_glm.py"]
    ),
    "descent": Suite(
        [
            f"linear_model/tests/test_{x}.py"
            for x in ("coordinate_descent", "sparse_coordinate_descent")
        ]
    ),
    # thousands of epochs of SGD are compared with it
    "logistic": Suite(["linear_model/tests/test_logistic.py"], "estimators -SGDClassifier"),
    "sgd": Suite(["linear_model/tests/test_sgd.py"]),
    "cluster": Suite([f"cluster/tests/test_{x}.py" for x in ("k_means", "spectral")]),
    "decomposition": Suite(
        [f"decomposition/tests/test_{x}.py" for x in ("pca", "incremental_pca", "truncated_svd")]
    ),
    "mixture": Suite([f"mixture/tests/test_{x}.py" for x in ("gaussian_mixture", "mixture")]),
    "rows": Suite(["neighbors/tests/test_neighbors.py", "ensemble/tests/test_forest.py"]),
    # scorers of ours are of rows on Dask; searches and these tests take scikit-learn's
    "metrics": Suite(
        [
            f"metrics/tests/test_{x}.py"
            for x in ("classification", "ranking", "regression", "common", "score_objects")
        ]
        + ["tests/test_calibration.py"],
        "metrics -get_scorer -check_scoring -get_scorer_names",
        only="not test_calibration.py or calibration_curve",
    ),
}


def text_of(source):
    """Return a page of the docs, or the docstring of a class or function, with single blanks."""
    if source.endswith(".md"):
        text = (ROOT / source).read_text(encoding="utf-8")
    else:
        room = estimators if hasattr(estimators, source) else model_selection
        text = getattr(room, source).__doc__
    return " ".join(text.split())


@pytest.mark.parametrize("row", TABLE["row"], ids=lambda row: f"{row['file']}: {row['tests'][0]}")
def test_every_difference_has_a_kind(row):
    assert row["kind"] in TABLE["kinds"]
    assert row["why"].endswith(".")
    assert ("says" in row) == ("docs" in row) == (row["kind"] == "design")
    if "says" in row:
        assert row["says"] in text_of(row["docs"])


@pytest.mark.parametrize("room", SUITES)
def test_scikit_learns_suite(run_suite, tmp_path, monkeypatch, room):
    assert_differences_alone(run_suite, tmp_path, monkeypatch, SUITES[room])
