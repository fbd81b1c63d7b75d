"""The page for users of dask-ml: each of its names has a row, and each row is true."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
import dask_ml_names as names

needs_dask_ml = pytest.mark.skipif(names.folder() is None, reason="dask-ml is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "coming_from" / "dask_ml.md"
ROWS = [(module, name) for module, rows in names.ROWS.items() for name in rows]


@needs_dask_ml
def test_every_module_of_dask_ml_has_a_table_or_a_reason():
    deeper = {"dask_ml.feature_extraction.text", "dask_ml.metrics.pairwise"}
    assert set(names.modules()) == (set(names.ROWS) - deeper) | set(names.NO_TABLE)


@needs_dask_ml
@pytest.mark.parametrize("module", names.ROWS)
def test_every_name_of_dask_ml_has_a_row(module):
    public = set(names.public_names(module))
    if module == "dask_ml.metrics.pairwise":
        public -= set(names.ROWS["dask_ml.metrics"])
    assert public == set(names.ROWS[module])


@needs_dask_ml
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("module", "name"), ROWS)
def test_a_row_tells_of_keywords_and_attributes_that_are_not_here(module, name):
    row = names.ROWS[module][name]
    missing = names.missing_keywords(module, name)
    assert [keyword for keyword in missing if names.told(row, keyword) is None] == []
    assert set(row.keywords) <= set(missing)
    unsaid = [a for a in names.missing_attributes(module, name) if f"`{a}`" not in row.remark]
    assert unsaid == []


@pytest.mark.parametrize(("module", "name"), ROWS)
def test_what_replaces_a_name_exists(module, name):
    for dotted in names.ROWS[module][name].ours.split():
        if "XGB" in dotted:
            pytest.importorskip("xgboost")
        assert names.resolve(dotted) is not None


@pytest.mark.parametrize("module", names.ROWS)
def test_the_page_has_the_table_of_each_module(module):
    assert f"{{dask-ml-names}} {module}\n" in PAGE.read_text(encoding="utf-8")
    heading, rule, *lines = names.table_lines(module)
    assert heading.count("|") == rule.count("|") == 4
    assert lines
    for line in lines:
        assert line.replace(r"\|", "").count("|") == 4
