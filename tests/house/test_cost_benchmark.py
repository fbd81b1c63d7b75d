"""The benchmark of costs: no public name is forgotten, and cells are counted as they should be."""

import json
import math

import bench_cost
import numpy as np
import pandas as pd
import pytest
from bench_cost import QUICK, Cell, Patience, Run
from cost_cases import CASES, NO_CASE, OURS, THEIRS, Case, difference, public_names
from cost_rows import CONTAINERS, Rows, dicts, numbers
from sklearn.linear_model import Ridge

from skfleet.estimators.boosting import LIBRARIES

WRAPPERS = {
    "BlockwiseVotingClassifier", "BlockwiseVotingRegressor", "Incremental", "ParallelPostFit",
}  # fmt: skip


def cell(ours, theirs=1.0, **more):
    return Cell(**{"case": "Ridge", "action": "fit", "container": "numpy", "n_rows": 1_000} | more,
                theirs=theirs, ours=ours)  # fmt: skip


def rows(tmp_path, n=200, target="number"):
    return Rows(numbers, target, n, tmp_path)


def test_every_public_name_with_a_counterpart_has_a_case_or_a_reason():
    cases = {case.name.split(",")[0] for case in CASES}
    # some have no counterpart where their library is not installed
    assert public_names() - set(LIBRARIES) | WRAPPERS == (cases | set(NO_CASE)) - set(LIBRARIES)
    assert public_names() <= cases | set(NO_CASE)
    assert not cases & set(NO_CASE)
    assert {"GridSearchCV", "HalvingRandomSearchCV", "KMeans", "r2_score"} <= cases
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_cases_build_each_librarys_own():
    estimators = [case for case in CASES if "fit" in case.actions]
    assert len(estimators) > 70
    for case in estimators:
        ours, theirs = case.build(OURS), case.build(THEIRS)
        assert type(ours).__module__.startswith("skfleet")
        assert type(theirs).__module__.split(".")[0] in ("sklearn", "lightgbm", "xgboost")


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask
def test_rows_are_the_same_in_files(tmp_path):
    given = rows(tmp_path, 30_000, "label")
    assert given.containers == list(CONTAINERS)
    X, y = given.given("parquet")
    assert X.npartitions == 2
    for frame, target in ((X.compute(), y.compute()), given.read("parquet")):
        np.testing.assert_array_equal(frame, given.X)
        np.testing.assert_array_equal(target, given.y)
    first, _ = given.few("parquet")
    assert isinstance(first, pd.DataFrame)
    assert len(first) == 1_000
    assert "parquet" not in Rows(dicts, None, 10, tmp_path).containers


@pytest.mark.parametrize(
    ("ours", "theirs", "slowness"),
    [(0.049, 0.0, 0), (0.051, 0.0, 1), (0.11, 0.0, 2), (12.0, 10.0, 0), (12.1, 10.0, 1)],
)
def test_cells_are_slow_above_a_ratio_and_a_constant(ours, theirs, slowness):
    assert cell(ours, theirs).slowness == slowness


def test_a_cell_that_failed_counts_as_slow():
    assert cell(math.nan, error="ValueError: no").slowness == 2


def test_the_summary_counts_and_sorts():
    run = Run(QUICK)
    run.cells = [
        cell(1.0),
        cell(1.5, case="Lasso"),
        cell(5.0, case="PCA", is_worse=True),
        cell(0.5, case="KMeans", n_rows=1_000_000),
        cell(2.0, case="SGDRegressor", n_rows=1_000_000),
    ]
    run.left_out = [("GaussianMixture", "fit", "numpy", 1_000_000, "scikit-learn takes 30.0 s")]
    text = "\n".join(bench_cost.summary_lines(run))
    assert "3 of 5 cells above 1.2 x + 50 ms (60.0%)" in text
    assert "1 above 2 x + 100 ms, or failed" in text
    assert "50.0% of 2 fits of 1,000,000 rows faster" in text
    assert "1 of less quality, 0 failed, 1 left out" in text
    slow = text.partition("of less quality:")[0]
    assert slow.index("PCA") < slow.index("SGDRegressor") < slow.index("Lasso")
    assert "KMeans" not in text
    assert "scikit-learn takes 30.0 s" in text


def test_two_runs_next_to_one_another():
    before = [cell(1.0), cell(1.0, case="PCA"), cell(1.0, case="Lasso")]
    after = [cell(1.05), cell(3.0, case="PCA"), cell(1.0, case="KMeans")]
    lines = bench_cost.compared_lines(before, after)
    assert [line.split()[0] for line in lines if "->" in line] == ["PCA"]


def counted(calls, **more):
    """Return a case of Ridge that counts what scikit-learn is called for."""

    def theirs():
        calls.append("fit")
        return Ridge()

    return Case("Ridge", target="number", theirs=theirs, **more)


def test_what_takes_scikit_learn_too_long_is_left_out_with_more_rows_too(tmp_path):
    calls, run = [], Run(Patience(limit=-1.0), ("numpy", "parquet"))
    assert run.measure(counted(calls), rows(tmp_path)) == []
    assert [(step, container) for _, step, container, *_ in run.left_out] == [
        ("fit", "numpy"),
        ("fit", "parquet"),
    ]
    n_calls = len(calls)
    assert run.measure(counted(calls), rows(tmp_path, 400)) == []
    assert len(calls) == n_calls
    assert "fewer rows" in run.left_out[-1][-1]


def test_what_does_not_fit_into_memory_is_not_tried(tmp_path):
    calls, run = [], Run(QUICK, ("numpy",))
    assert run.measure(counted(calls, square_arrays=10**9), rows(tmp_path)) == []
    assert calls == []
    assert "GB" in run.left_out[0][-1]


def test_what_has_no_time_left_is_left_out(tmp_path):
    calls, run = [], Run(Patience(all=-1.0))
    assert run.measure(counted(calls), rows(tmp_path)) == []
    assert calls == []
    assert run.left_out == [("Ridge", "all", "all", 200, "no time left")]
    assert "no time left: Ridge" in "\n".join(bench_cost.summary_lines(run))


def test_an_error_of_scikit_learns_ends_its_case_alone(tmp_path):
    run = Run(QUICK, ("numpy",))
    assert run.measure(Case("Ridge", theirs=lambda: Ridge(solver="none")), rows(tmp_path)) == []
    assert run.left_out[0][-1].startswith("InvalidParameterError: ")


def test_a_call_is_made_four_times_and_two_where_it_is_long(tmp_path):
    calls = []
    Run(Patience(), ("numpy",)).measure(counted(calls), rows(tmp_path))
    assert len(calls) == 4
    Run(Patience(long=-1.0, n_rows=0), ("numpy",)).measure(counted(calls), rows(tmp_path))
    assert len(calls) == 6


def test_less_quality_and_errors_are_seen(tmp_path):
    given = rows(tmp_path)
    for params, is_worse, error in (
        ({"alpha": 1.0}, False, ""),
        ({"alpha": 1e9}, True, ""),
        ({"solver": "none"}, False, "solver"),
    ):
        run = Run(QUICK, ("numpy",))
        cells = run.measure(counted([], params=params), given)
        assert cells == run.cells
        assert [c.action for c in cells] == (["fit"] if error else ["fit", "predict"])
        assert cells[0].is_worse is is_worse
        assert error in cells[0].error
        assert bool(cells[0].error) == bool(error)


def test_differences_of_numbers_texts_and_shapes():
    assert difference(1.1, 1.0) == pytest.approx(0.1)
    assert difference("a", "a") == 0.0
    assert difference("a", "b") == math.inf
    assert difference((np.ones(3), 2.0), (np.ones(3), 4.0)) == 0.5
    assert difference(np.ones(3), np.ones(2)) == math.inf
    assert difference(np.array([1.0, np.nan]), np.ones(2)) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_runs_and_is_no_worse(case, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_cost, "best_of", lambda call, *_: (0.0, call()))
        run = bench_cost.measure_all([case], [1_000], Run(QUICK, ("numpy",)), tmp_path)
    assert len(run.cells) == len(case.actions)
    assert [(c.error, c.is_worse) for c in run.cells] == [("", False)] * len(run.cells)


@pytest.mark.slow
def test_the_command_prints_writes_draws_and_compares(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    given = ["--only", "MinMaxScaler", "zero_one", "--rows", "500", "--json", str(figures)]
    assert bench_cost.main([*given, "--picture", str(picture)]) == 0
    found = [Cell(**kwargs) for kwargs in json.loads(figures.read_text())["cells"]]
    keys = {(c.action, c.container) for c in found if c.case == "MinMaxScaler"}
    assert keys == {(step, c) for step in ("fit", "transform") for c in CONTAINERS}
    assert len(found) == 9
    assert picture.stat().st_size > 1_000
    assert "of 9 cells above 1.2 x + 50 ms" in capsys.readouterr().out
    assert bench_cost.main([*given, "--compare", str(figures)]) == 0
    assert "before, and now:" in capsys.readouterr().out


@pytest.mark.slow
def test_counts_under_asv(monkeypatch):
    monkeypatch.setattr(bench_cost, "CASES", [c for c in CASES if c.name == "MaxAbsScaler"])
    cost = bench_cost.Cost()
    cells = cost.setup_cache()
    assert [(c.n_rows, c.container) for c in cells] == [
        (1_000, "numpy"), (1_000, "numpy"), (1_000, "array"), (1_000, "array")
    ]  # fmt: skip
    assert 0 <= cost.track_cells_above_the_bar(cells) <= 4
    assert cost.track_cells_of_less_quality(cells) == 0
