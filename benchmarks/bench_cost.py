"""All estimators, transformers, metrics, wrappers and searches next to scikit-learn's: the cost.

    python benchmarks/bench_cost.py --quick
    python benchmarks/bench_cost.py --json figures.json --picture figures.png

Each cell is a fit, an answer (``predict``, ``transform``, ``kneighbors``) or a score of 20 columns
(text and categories where they belong), on a NumPy array, on a Dask array in the memory of two
workers of one thread, or on a Dask DataFrame of Parquet files; next to it is the time that
scikit-learn (LightGBM, XGBoost) takes with both cores in the same run, and what each has reached.
A cell is slow above 1.2 times that time and 50 ms, and very slow above 2 times and 100 ms.

One call warms up, the best of three counts (of one, where a call of a million rows takes more than
two seconds). Lazy answers end where they are in the memory of the workers. For files, the time of
scikit-learn includes that of pandas to read all columns. A cell whose scikit-learn takes more than
ten seconds, or more memory than there is, is left out. Estimators that look among training rows are
asked for a thousand rows, in this process.

The first command takes up to five minutes (there, three seconds of scikit-learn's are the limit,
and calls of 0.3 s count once), the second up to two hours; what has no time left is left out.
``--minutes`` bounds them otherwise. Figures are written as they come.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import dask
import numpy as np
import psutil
from cost_cases import CASES, OURS, THEIRS
from cost_rows import CONTAINERS, Rows
from distributed import wait

from skfleet import Fleet

ROWS, QUICK_ROWS = (1_000, 10_000, 100_000, 1_000_000), (1_000, 100_000)
MARKS = ("", "*", "**")
# A small size says little of how long a larger one takes: so many times less, and less a constant.
FORECAST_ERROR, CONSTANT_SECONDS = 10, 0.3


@dataclass(frozen=True)
class Patience:
    """The seconds in which scikit-learn must be done, and those that are not spent three times."""

    limit: float = 10.0
    long: float = 2.0
    n_rows: int = 1_000_000  # from so many on
    all: float = 7200.0


FULL, QUICK = Patience(), Patience(3.0, 0.3, 0, 280.0)


class CostError(Exception):
    """A call took more time, or memory, than a cell may."""


@dataclass
class Cell:
    """What one step costs in one container: ours next to scikit-learn's."""

    case: str
    action: str
    container: str
    n_rows: int
    theirs: float
    ours: float = np.nan
    their_loss: float = np.nan
    our_loss: float = np.nan
    is_worse: bool = False
    error: str = ""

    @property
    def key(self):
        """What makes it the same cell in another run."""
        return self.case, self.action, self.container, self.n_rows

    @property
    def ratio(self):
        """Our time in units of theirs."""
        return self.ours / self.theirs

    @property
    def slowness(self):
        """0 where it is within the bar, 1 where it is slow, 2 where it is very slow or failed."""
        if self.error or self.ours > 2 * self.theirs + 0.1:
            return 2
        return int(self.ours > 1.2 * self.theirs + 0.05)

    def __str__(self):
        if self.error:
            return f"{'error':>17}"
        worse = "!" if self.is_worse else ""
        return f"{self.ours:9.4f} {self.ratio:5.1f}{MARKS[self.slowness] + worse:2}"


def finished(answer):
    """Wait until a lazy answer is in the memory of the workers."""
    parts = answer if isinstance(answer, (tuple, list)) else [answer]
    lazy = [part for part in parts if dask.is_dask_collection(part)]
    if lazy:
        wait(dask.persist(*lazy))
    return answer


def best_of(call, patience, n_rows):
    """Return the seconds of a call, after one that warms up, and what it returned."""
    began = time.perf_counter()
    value = finished(call())
    first = time.perf_counter() - began
    if first > 5 * FULL.limit:
        return first, value
    is_long = first > patience.limit or (first > patience.long and n_rows >= patience.n_rows)
    seconds = []
    for _ in range(1 if is_long else 3):
        began = time.perf_counter()
        value = finished(call())
        seconds.append(time.perf_counter() - began)
    return min(seconds), value


@dataclass
class Run:
    """Cells, and what was left out."""

    patience: Patience
    containers: tuple = CONTAINERS
    cells: list = field(default_factory=list)
    left_out: list = field(default_factory=list)
    _seconds: dict = field(default_factory=dict)  # of scikit-learn's, with the latest size
    _began: float = field(default_factory=time.perf_counter)

    def measure(self, case, rows):
        """Return the cells of one case."""
        cells, theirs = [], {}
        if time.perf_counter() - self._began > self.patience.all:
            self.left_out.append((case.name, "all", "all", rows.n, "no time left"))
            return []
        for container in self.containers:
            if container not in rows.containers:
                continue
            source = "files" if container == "parquet" else "memory"
            if source not in theirs:
                theirs[source] = self._theirs(case, rows, container)
            if theirs[source]:
                cells += self._ours(case, rows, container, theirs[source])
        self.cells += cells
        return cells

    def _theirs(self, case, rows, container):
        """Return the seconds and the value of each step of scikit-learn's that is not left out."""
        steps, model = {}, None
        load, few = partial(rows.read, container), rows.few(container)
        for action in case.actions:
            key = (case.name, action, container == "parquet")
            try:
                self._check_forecast(case, key, rows.n)
                call = _call(case, action, THEIRS, model, load, few)
                seconds, value = best_of(call, self.patience, rows.n)
                self._seconds[key] = rows.n, seconds
                if seconds > self.patience.limit:
                    raise CostError(f"scikit-learn takes {seconds:.1f} s")
            except Exception as error:
                self._seconds[key] = rows.n, np.inf
                told = str(error) if isinstance(error, CostError) else _described(error)
                self.left_out.append((case.name, action, container, rows.n, told))
                break
            steps[action] = seconds, value if model is None else None
            model = value if model is None else model
        return steps

    def _ours(self, case, rows, container, theirs):
        """Yield the cells of the steps that scikit-learn took."""
        model, given, few = None, rows.given(container), rows.few(container)
        load = partial(rows.read, container) if case.fits_in_memory else lambda: given
        for action, (seconds, reference) in theirs.items():
            cell = Cell(case.name, action, container, rows.n, seconds)
            try:
                load_now = load if model is None else lambda: given
                call = _call(case, action, OURS, model, load_now, few)
                cell.ours, value = best_of(call, self.patience, rows.n)
                if model is None:
                    model = value
                    losses = case.losses(model, reference, *few)
                    cell.our_loss, cell.their_loss = map(float, losses)
                    bar = case.tolerance * max(1.0, abs(cell.their_loss))
                    cell.is_worse = not cell.our_loss <= cell.their_loss + bar
            except Exception as error:
                cell.error = _described(error)
            yield cell
            if model is None:
                return

    def _check_forecast(self, case, key, n):
        """Raise where the time of fewer rows, or the memory, says that this is too much."""
        n_bytes = 8 * case.square_arrays * n**2
        if n_bytes > psutil.virtual_memory().total:
            raise CostError(f"scikit-learn takes {n_bytes / 1e9:.0f} GB")
        fewer, seconds = self._seconds.get(key, (n, 0.0))
        forecast = max(seconds - CONSTANT_SECONDS, 0.0) * (n / fewer) ** case.growth
        if forecast > FORECAST_ERROR * self.patience.limit:
            told = "too long with fewer rows" if np.isinf(forecast) else f"about {forecast:.0f} s"
            raise CostError(f"scikit-learn takes {told}")


def _described(error):
    return f"{type(error).__name__}: {str(error)[:200]}"


def _call(case, action, library, model, load, few):
    """Return the call of a step, which loads its rows."""
    step = case.actions[action]
    if model is not None and case.asks_few_rows:
        return lambda: step(library, model, *few)
    return lambda: step(library, model, *load())


def measure_all(cases, sizes, run, folder, report=lambda cells: None):
    """Measure cases with few rows, then with more; rows of a kind are made once for all of them."""
    in_order = sorted(cases, key=_rows_of)
    for n in sorted(sizes):
        for _, alike in groupby(in_order, _rows_of):
            rows = None  # those before go first
            for case in alike:
                rows = rows or Rows(case.rows, case.target, n, folder)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    report(run.measure(case, rows))
    return run


def _rows_of(case):
    return case.rows.__name__, case.target or ""


# -- what is shown ---------------------------------------------------------------------------------


def table_lines(cells, containers):
    """Return a line for each step: the seconds of scikit-learn, and ours with their ratio."""
    lines = []
    for action in dict.fromkeys(cell.action for cell in cells):
        step = {cell.container: cell for cell in cells if cell.action == action}
        first = next(iter(step.values()))
        texts = []
        for container in containers:
            cell = step.get(container)
            if container != "array" or "numpy" not in containers:
                texts.append(f"{cell.theirs:9.4f}" if cell else f"{'':9}")
            texts.append(f"{'' if cell is None else str(cell):17}")
        lines.append(f"{first.case:27} {action:10} {first.n_rows:9,} {' '.join(texts)}".rstrip())
    return lines


def heading(containers):
    """Return the line above the table."""
    texts = []
    for container in containers:
        if container != "array" or "numpy" not in containers:
            texts.append(f"{'read, sk' if container == 'parquet' else 'sk-learn':>9}")
        texts.append(f"{container:>9} ratio  ")
    return f"{'seconds':27} {'':10} {'rows':>9} {' '.join(texts)}".rstrip()


def summary_lines(run):
    """Return the cells that are slow, worse or failed, what was left out, and the counts."""
    cells, lines = run.cells, []
    slow = sorted((c for c in cells if c.slowness and not c.error), key=lambda c: -c.ratio)
    lines += ["", "above 1.2 x + 50 ms:", *(f"  {_line(c)}" for c in slow)] if slow else []
    worse = [c for c in cells if c.is_worse]
    told = (f"  {_line(c)}  loss {c.our_loss:.6g}, theirs {c.their_loss:.6g}" for c in worse)
    lines += ["", "of less quality:", *told] if worse else []
    failed = [c for c in cells if c.error]
    lines += ["", "errors:", *(f"  {_name(c)}  {c.error}" for c in failed)] if failed else []
    if run.left_out:
        lines += ["", "left out, with the steps that come after:"]
        by_reason = groupby(run.left_out, lambda left: left[1:])
        for (step, container, n, told), alike in by_reason:
            names = " ".join(name for name, *_ in alike)
            lines.append(f"  {step:10} {n:9,} {container:8} {told}: {names}")
    n_slow, n_very_slow = (sum(c.slowness >= bar for c in cells) for bar in (1, 2))
    share = n_slow / max(len(cells), 1)
    lines += ["", f"{n_slow} of {len(cells)} cells above 1.2 x + 50 ms ({share:.1%})"]
    lines += [f"{n_very_slow} above 2 x + 100 ms, or failed"]
    large = [c for c in cells if c.action == "fit" and c.n_rows == ROWS[-1]]
    if large:
        faster = sum(c.ours < c.theirs for c in large) / len(large)
        lines += [f"{faster:.1%} of {len(large)} fits of {ROWS[-1]:,} rows faster"]
    lines += [f"{len(worse)} of less quality, {len(failed)} failed, {len(run.left_out)} left out"]
    return lines


def compared_lines(before, after):
    """Return a line for each cell whose time next to scikit-learn's is not what it was."""
    known, lines = {cell.key: cell for cell in before}, []
    for now in after:
        then = known.get(now.key)
        if then is None or then.error or now.error:
            continue
        changed = max(now.ratio / then.ratio, then.ratio / now.ratio) > 1.2
        if now.slowness != then.slowness or (changed and abs(now.ours - then.ours) > 0.05):
            lines.append((now.ratio / then.ratio, f"  {_name(now)} {then} -> {now}"))
    return ["", "before, and now:", *(text for _, text in sorted(lines, reverse=True))]


def _name(cell):
    return f"{cell.case:27} {cell.action:10} {cell.n_rows:9,} {cell.container:8}"


def _line(cell):
    return f"{_name(cell)} {cell.theirs:9.4f} {cell}".rstrip()


def draw(cells, path):
    """Draw our seconds over scikit-learn's, both in powers of ten, for each container."""
    from matplotlib.figure import Figure

    containers = [c for c in CONTAINERS if any(cell.container == c for cell in cells)]
    figure = Figure(figsize=(5 * len(containers), 5), layout="constrained")
    axes = figure.subplots(1, len(containers), sharex=True, sharey=True, squeeze=False)[0]
    bar = np.logspace(-5, 1.3, 100)
    for axis, container in zip(axes, containers, strict=True):
        for n in sorted({cell.n_rows for cell in cells}):
            dots = [c for c in cells if (c.container, c.n_rows) == (container, n) and not c.error]
            seconds = [c.theirs for c in dots], [c.ours for c in dots]
            axis.scatter(*seconds, s=12, label=f"{n:,} rows")
        axis.plot(bar, bar, color="gray", linewidth=0.5, label="as fast")
        axis.plot(bar, 1.2 * bar + 0.05, color="black", linewidth=1, label="1.2 x + 50 ms")
        axis.set(xscale="log", yscale="log", title=container, xlabel="scikit-learn's seconds")
    axes[0].set_ylabel("our seconds")
    axes[0].legend()
    figure.savefig(path)


def machine_load():
    """Return the load of the machine in words."""
    return "load of the machine " + ", ".join(f"{part:.1f}" for part in os.getloadavg())


# -- asv, and the command --------------------------------------------------------------------------


class Cost:
    """Cells of 1,000 rows, in the memory of this process and of the workers."""

    timeout = 1200

    def setup_cache(self):
        run = Run(replace(QUICK, all=900.0), ("numpy", "array"))
        with tempfile.TemporaryDirectory() as folder, _fleet():
            return measure_all(CASES, [1_000], run, Path(folder)).cells

    def track_cells_above_the_bar(self, cells):
        return sum(cell.slowness >= 1 for cell in cells)

    def track_cells_of_less_quality(self, cells):
        return sum(cell.is_worse or bool(cell.error) for cell in cells)


def _fleet():
    return Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None)


def _read(path):
    return [Cell(**cell) for cell in json.loads(path.read_text())["cells"]]


def main(argv=None):
    """Run all, and print a line for each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1,000 and 100,000 rows, no files")
    parser.add_argument("--only", nargs="+", help="parts of names of cases")
    parser.add_argument("--rows", nargs="+", type=lambda n: int(float(n)), help="numbers of rows")
    parser.add_argument("--containers", nargs="+", choices=CONTAINERS)
    parser.add_argument("--minutes", type=float, help="for all of them")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--compare", type=Path, help="a file of figures to show these next to")
    parser.add_argument("--picture", type=Path, help="a file for a picture (needs matplotlib)")
    parser.add_argument("--folder", type=Path, help="a folder for the rows, which stay there")
    given = parser.parse_args(argv)
    chosen = given.containers or (CONTAINERS[:2] if given.quick else CONTAINERS)
    containers = tuple(c for c in CONTAINERS if c in chosen)
    parts = given.only or [""]
    cases = [case for case in CASES if any(part in case.name for part in parts)]
    patience = QUICK if given.quick else FULL
    if given.minutes is not None:
        patience = replace(patience, all=60 * given.minutes)
    run = Run(patience, containers)
    before = _read(given.compare) if given.compare else None
    began = time.perf_counter()

    def report(cells):
        for line in table_lines(cells, containers):
            print(line, flush=True)
        if given.json and cells:
            figures = {"cells": [asdict(cell) for cell in run.cells], "left_out": run.left_out}
            given.json.write_text(json.dumps(figures, indent=1))

    print(f"{len(cases)} cases, {machine_load()}\n{heading(containers)}", flush=True)
    with tempfile.TemporaryDirectory() as folder, _fleet():
        sizes = given.rows or (QUICK_ROWS if given.quick else ROWS)
        measure_all(cases, sizes, run, given.folder or Path(folder), report)
    print(*summary_lines(run), sep="\n")
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes, {machine_load()}")
    if before is not None:
        print(*compared_lines(before, run.cells), sep="\n")
    if given.picture:
        draw(run.cells, given.picture)
    return int(any(cell.is_worse or cell.error for cell in run.cells))


if __name__ == "__main__":
    sys.exit(main())
