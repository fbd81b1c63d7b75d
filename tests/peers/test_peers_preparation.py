"""scikit-learn's own suites of its transformers, on ours: in this process, and on Dask rows.

In this process all tests pass that pass there. On Dask rows those of `differences.toml` do not, for
the reasons in it.
"""

import json
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import sklearn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SKLEARN = Path(sklearn.__file__).parent
TABLE = tomllib.loads((Path(__file__).parent / "differences.toml").read_text(encoding="utf-8"))
# The suites of each room, and the least share of tests with Dask rows that pass on them.
ROOMS = {
    "preprocessing": (["preprocessing/tests"], 0.97),
    "impute": ([f"impute/tests/test_{x}.py" for x in ("base", "impute", "common")], 0.95),
    # nine of twelve others route metadata, which on Dask rows are weights alone
    "compose": (["compose/tests", "tests/test_pipeline.py"], 0.92),
    "feature_extraction": (["feature_extraction/tests"], 0.96),
    # functions of the tests' own, and mutual information, score all rows at once
    "feature_selection": (
        [f"feature_selection/tests/test_{x}.py" for x in ("feature_select", "chi2")]
        + ["feature_selection/tests/test_variance_threshold.py"],
        0.83,
    ),
    "naive_bayes": (["tests/test_naive_bayes.py"], 1.0),
}
# Of a suite of several classes, those of ours.
ONLY = {"compose": "feature_union or test_column_transformer or test_target"}


@pytest.fixture
def outcomes(run_suite, tmp_path, monkeypatch):
    """Run the suites of a room; return name, outcome, and use of Dask rows of each test."""

    def run(room):
        path = tmp_path / "outcomes"
        monkeypatch.setenv("SKFLEET_TEST_OUTCOMES", str(path))
        first, *more = [SKLEARN / suite for suite in ROOMS[room][0]]
        only = ["-k", ONLY[room]] if room in ONLY else []
        run_suite("plug_preparation", first, *only, *more)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return run


@pytest.mark.parametrize("room", ROOMS)
def test_scikit_learns_suite_in_this_process(outcomes, room):
    results = outcomes(room)
    assert not any(with_dask for _, _, with_dask in results)
    assert [name for name, outcome, _ in results if outcome == "failed"] == []


@pytest.mark.parametrize("room", ROOMS)
def test_scikit_learns_suite_on_dask_rows(outcomes, room, monkeypatch):
    monkeypatch.setenv("SKFLEET_DASK_ROWS", "1")
    results = outcomes(room)
    rows = [row for row in TABLE["row"] if row.get("on") == "Dask rows" and row["file"] == room]
    differences = {name for row in rows for name in row["tests"]}
    all_rows = {name for row in rows if row.get("wants_all_rows") for name in row["tests"]}
    failed = {name for name, outcome, _ in results if outcome == "failed"}
    known = {name for name, _, _ in results if {name, name.partition("[")[0]} & differences}
    assert failed - known == set()
    assert known - failed == set(), "pass, and are no differences"
    covered = known | {name.partition("[")[0] for name in known}
    assert differences <= covered, "name no tests"
    counted = [row for row in results if not {row[0], row[0].partition("[")[0]} & all_rows]
    with_dask = Counter(outcome for _, outcome, with_dask in counted if with_dask)
    assert with_dask["passed"] >= ROOMS[room][1] * with_dask.total(), with_dask
