"""scikit-learn's own suites of every room, with our classes in the place of theirs.

What fails is a row of `differences.toml`, with its kind. A failure without a row fails here, and so
does a row whose test passes, unless it may.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import sklearn

from skfleet import estimators, model_selection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SKLEARN = Path(sklearn.__file__).parent
ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "differences.toml").read_text(encoding="utf-8"))


class Suite(NamedTuple):
    """Test files, what is replaced in them (see `plug_rooms`), and threads of a worker."""

    files: list[str]
    names: str = "estimators"
    threads: str | None = None


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
    "cluster": Suite([f"cluster/tests/test_{x}.py" for x in ("k_means", "spectral")]),
    "decomposition": Suite(
        [f"decomposition/tests/test_{x}.py" for x in ("pca", "incremental_pca", "truncated_svd")]
    ),
    "mixture": Suite([f"mixture/tests/test_{x}.py" for x in ("gaussian_mixture", "mixture")]),
    "rows": Suite(["neighbors/tests/test_neighbors.py", "ensemble/tests/test_forest.py"]),
    "metrics": Suite(
        [f"metrics/tests/test_{x}.py" for x in ("classification", "ranking", "regression")],
        "metrics",
    ),
    "splits": Suite(["model_selection/tests/test_split.py"], "model_selection"),
    "validation": Suite(["model_selection/tests/test_validation.py"], "model_selection", "1"),
    "routing": Suite(
        ["tests/test_metaestimators_metadata_routing.py"], "estimators model_selection", "0"
    ),
    **{
        f"searches, {threads} threads": Suite(
            [f"model_selection/tests/test_{x}.py" for x in ("search", "successive_halving")],
            "model_selection",
            threads,
        )
        for threads in ("1", "2")
    },
}


def text_of(source):
    """Return a page of the docs, or the docstring of a class or function, with single blanks."""
    if source.endswith(".md"):
        text = (ROOT / source).read_text(encoding="utf-8")
    else:
        room = estimators if hasattr(estimators, source) else model_selection
        text = getattr(room, source).__doc__
    return " ".join(text.split())


def pattern(name):
    """Return the regular expression of a row's test: `*` is any text, no parameters are all."""
    text = re.escape(name).replace(r"\*", ".*")
    return re.compile(text if "[" in name else rf"{text}(\[.*)?")


@pytest.mark.parametrize("row", TABLE["row"], ids=lambda row: f"{row['file']}: {row['tests'][0]}")
def test_every_difference_has_a_kind(row):
    assert row["kind"] in TABLE["kinds"]
    assert row["why"].endswith(".")
    assert ("says" in row) == ("docs" in row) == (row["kind"] == "design")
    if "says" in row:
        assert row["says"] in text_of(row["docs"])


@pytest.mark.parametrize("room", SUITES)
def test_scikit_learns_suite(run_suite, tmp_path, monkeypatch, room):
    suite, path = SUITES[room], tmp_path / "outcomes"
    monkeypatch.setenv("SKFLEET_TEST_NAMES", suite.names)
    monkeypatch.setenv("SKFLEET_TEST_OUTCOMES", str(path))
    if suite.threads is not None:
        monkeypatch.setenv("SKFLEET_TEST_THREADS", suite.threads)
    first, *more = [SKLEARN / file for file in suite.files]
    run_suite("plug_rooms", first, *more)
    outcomes = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {Path(file).stem for file in suite.files}
    expected = [
        (row["file"], pattern(name), row.get("may_pass", False))
        for row in TABLE["row"]
        if row["file"] in names and row.get("on") != "Dask rows"
        for name in row["tests"]
    ]
    unexplained, passed, unused = [], [], {name.pattern for _, name, _ in expected}
    for file, name, outcome, error in outcomes:
        if outcome not in ("passed", "failed"):
            continue
        found = [(p, may_pass) for f, p, may_pass in expected if f == file and p.fullmatch(name)]
        unused -= {p.pattern for p, _ in found}
        if outcome == "failed" and not found:
            unexplained.append(f"{file}: {name}: {error}")
        if outcome == "passed" and found and not any(may_pass for _, may_pass in found):
            passed.append(f"{file}: {name}")
    assert not unexplained, "fail without a row:\n" + "\n".join(unexplained)
    assert not passed, "pass, and are no differences:\n" + "\n".join(passed)
    assert unused == set(), "name no tests"
