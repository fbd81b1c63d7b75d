"""Suites of scikit-learn's tests that run with our classes in the place of theirs, and their rows.

What fails is a row of `differences.toml`, with its kind. A failure without a row is a failure of
ours, and so is a row whose test passes, unless it may.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import sklearn

SKLEARN = Path(sklearn.__file__).parent
TABLE = tomllib.loads((Path(__file__).parent / "differences.toml").read_text(encoding="utf-8"))


class Suite(NamedTuple):
    """Test files, what is replaced in them (see `plug_rooms`), threads of a worker, and `-k`."""

    files: list[str]
    names: str = "estimators"
    threads: str | None = None
    only: str = ""


def pattern(name):
    """Return the regular expression of a row's test: `*` is any text, no parameters are all."""
    text = re.escape(name).replace(r"\*", ".*")
    return re.compile(text if "[" in name else rf"{text}(\[.*)?")


def assert_differences_alone(run_suite, tmp_path, monkeypatch, suite):
    """Run a suite, and assert that those of its tests fail that are rows, and no others."""
    path = tmp_path / "outcomes"
    monkeypatch.setenv("SKFLEET_TEST_NAMES", suite.names)
    monkeypatch.setenv("SKFLEET_TEST_OUTCOMES", str(path))
    if suite.threads is not None:
        monkeypatch.setenv("SKFLEET_TEST_THREADS", suite.threads)
    first, *more = [SKLEARN / file for file in suite.files]
    only = ["-k", suite.only] if suite.only else []
    run_suite("plug_rooms", first, *only, *more)
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
