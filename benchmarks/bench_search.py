"""A search on two worker processes, in multiples of the ideal: the seconds of its fits over two.

The fits are busy for a given time, so that what is measured is the search, the backend and Dask.
``python benchmarks/bench_search.py`` prints the table of the documentation, with loky and joblib's
Dask backend in the same run; with a number, how a search over so many candidates comes out; with
``loky``, short fits in turn with loky. ``--json FILE`` writes the seconds by number of workers,
next to scikit-learn with as many jobs and to the ideal, in about eight minutes.
"""

import argparse
import threading
import time
import warnings
from pathlib import Path
from statistics import median

import joblib
import numpy as np
import psutil
import results_file
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV as StockGridSearchCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

X = np.random.RandomState(0).rand(200, 5)
Y = np.arange(200) % 2


class Busy(ClassifierMixin, BaseEstimator):
    """Is busy for some seconds."""

    def __init__(self, seconds=0.005, p=0):
        self.seconds = seconds
        self.p = p

    def fit(self, X, y):
        end = time.perf_counter() + self.seconds
        self.classes_ = np.unique(y)
        while time.perf_counter() < end:
            pass
        return self

    def score(self, X, y):
        return 0.5


class Waiting(Busy):
    """Waits for some seconds, without a core."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        time.sleep(self.seconds)
        return self


def busy_search(kind, seconds, n_fits):
    """Give a search over fits that are busy for so long."""
    return kind(Busy(seconds), {"p": list(range(n_fits // 5))}, cv=5, refit=False)


def documents(n_documents=3000):
    """Make documents of 80 words whose frequencies follow Zipf's law, and labels."""
    rng = np.random.RandomState(0)
    words = np.array([f"w{i}" for i in range(5000)])
    texts = [" ".join(words[rng.zipf(1.3, size=80) % 5000]) for _ in range(n_documents)]
    return texts, rng.randint(0, 2, n_documents)


NGRAMS = [(1, 1), (1, 2)]
ALPHAS = np.logspace(-6, -1, 8)


def text_search(kind):
    """Give a search over 16 candidates with two kinds of first step."""
    pipeline = Pipeline(
        [("words", TfidfVectorizer()), ("model", SGDClassifier(random_state=0, max_iter=20))]
    )
    grid = {"words__ngram_range": NGRAMS, "model__alpha": ALPHAS}
    return kind(pipeline, grid, cv=3, refit=False)


def text_ideal(texts, labels):
    """Do the work of `text_search` once, each first step once per split."""
    for train, test in StratifiedKFold(3).split(texts, labels):
        for ngrams in NGRAMS:
            words = TfidfVectorizer(ngram_range=ngrams)
            fitted = words.fit_transform([texts[i] for i in train])
            tested = words.transform([texts[i] for i in test])
            for alpha in ALPHAS:
                model = SGDClassifier(random_state=0, max_iter=20, alpha=alpha)
                model.fit(fitted, labels[train]).score(tested, labels[test])


def seconds(func, repeat=3):
    """Give the median of a few runs, after one that does not count."""
    taken = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeat + 1):
            began = time.perf_counter()
            func()
            taken.append(time.perf_counter() - began)
    return median(taken[1:])


class Overhead:
    """Searches over short and longer fits, as multiples of the ideal."""

    params = ([(0.005, 200), (0.1, 100)],)
    param_names = ("seconds, fits",)
    timeout = 300

    def setup(self, fits):
        self.fleet = Fleet(n_workers=2)

    def teardown(self, fits):
        self.fleet.close()

    def track_ratio_to_ideal(self, fits):
        search = busy_search(GridSearchCV, *fits)
        return seconds(lambda: search.fit(X, Y)) / (fits[0] * fits[1] / 2)


class PipelineCache:
    """A search over pipelines, as a multiple of the ideal with each first step fitted once."""

    timeout = 300

    def setup(self):
        self.fleet = Fleet(n_workers=2)
        self.data = documents()

    def teardown(self):
        self.fleet.close()

    def track_ratio_to_ideal(self):
        search = text_search(GridSearchCV)
        return seconds(lambda: search.fit(*self.data)) / (
            seconds(lambda: text_ideal(*self.data)) / 2
        )


def many_candidates(n_candidates):
    """Search over so many candidates that do nothing, and tell what it took."""
    scheduler = psutil.Process()
    most, stop = 0, threading.Event()

    def watch():
        nonlocal most
        while not stop.wait(0.1):
            most = max(most, scheduler.memory_info().rss)

    with Fleet(n_workers=2):
        before = scheduler.memory_info().rss
        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        busy_search(GridSearchCV, 0.0, 5 * n_candidates).set_params(cv=2).fit(X, Y)
        taken = time.perf_counter() - began
        stop.set()
        watcher.join()
    return taken, before, most


def compare():
    """Print what the documentation says of the overhead."""
    texts, labels = documents()
    cases = {
        "200 fits of 5 ms": (
            lambda kind: busy_search(kind, 0.005, 200).fit(X, Y),
            lambda: 0.5,
        ),
        "100 fits of 100 ms": (
            lambda kind: busy_search(kind, 0.1, 100).fit(X, Y),
            lambda: 5.0,
        ),
        "Tfidf + SGD, 48 fits, 2 first steps": (
            lambda kind: text_search(kind).fit(texts, labels),
            lambda: seconds(lambda: text_ideal(texts, labels)) / 2,
        ),
    }
    print(f"{'':38}{'skfleet':>9}{'loky':>9}{'Dask':>9}")
    with Fleet(n_workers=2):
        for name, (run, ideal) in cases.items():
            row = [seconds(lambda: run(GridSearchCV))]  # noqa: B023
            for backend in ("loky", "dask"):
                with joblib.parallel_config(backend, n_jobs=2):
                    row.append(seconds(lambda: run(StockGridSearchCV)))  # noqa: B023
            unit = ideal()
            print(f"{name:38}" + "".join(f"{one / unit:9.2f}" for one in row))


def against_loky(n_runs=7):
    """Return the median seconds of 200 fits of 5 ms, of this backend and loky in turn."""
    ours, loky = [], []
    searches = [busy_search(kind, 0.005, 200) for kind in (GridSearchCV, StockGridSearchCV)]
    with Fleet(n_workers=2):
        for _ in range(n_runs + 1):  # the first one does not count
            ours.append(timed(searches[0]))
            with joblib.parallel_config("loky", n_jobs=2):
                loky.append(timed(searches[1]))
    return median(ours[1:]), median(loky[1:])


def timed(search, X=X, y=Y):
    """Return the seconds of a search."""
    began = time.perf_counter()
    search.fit(X, y)
    return time.perf_counter() - began


# -- by number of workers --------------------------------------------------------------------------

TREES = {"max_features": [6, 8, 10, 12], "min_samples_leaf": [1, 2, 4]}


def tree_search(kind):
    """Return a search over 12 trees, and its rows: fits that need a core for about 100 ms."""
    rows = make_classification(12_000, 20, n_informative=10, flip_y=0.1, random_state=0)
    return kind(DecisionTreeClassifier(random_state=0), TREES, cv=5, refit=False), *rows


def waiting_search(kind):
    """Return a search over 32 candidates, and its rows: fits that wait for 100 ms."""
    return kind(Waiting(0.1), {"p": list(range(32))}, cv=5, refit=False), X, Y


def seconds_of_trees():
    """Return the seconds that the fits and scores of the trees take one after the other."""
    search, *rows = tree_search(StockGridSearchCV)
    results = search.set_params(n_jobs=1).fit(*rows).cv_results_
    return float(np.sum(results["mean_fit_time"] + results["mean_score_time"]) * search.n_splits_)


def by_workers(make_search, seconds_of_fits, n_workers, repeat):
    """Return the seconds of a search on so many workers of one thread, in turn with the others."""
    ours, stock = make_search(GridSearchCV), make_search(StockGridSearchCV)
    rows = []
    with Fleet(n_workers=n_workers, threads_per_worker=1, dashboard_address=None):
        for _ in range(repeat + 1):  # the first one does not count
            seconds = [timed(*ours)]
            with joblib.parallel_config("loky", n_jobs=n_workers):
                seconds.append(timed(*stock))
            rows.append([*seconds, seconds_of_fits(), results_file.load()])
    columns = [[round(value, 4) for value in column] for column in zip(*rows[1:], strict=True)]
    names = ("scikit-fleet", "scikit-learn", "fits", "load")
    return {"workers": n_workers, **dict(zip(names, columns, strict=True))}


def write_by_workers(path, repeat):
    """Write and print the seconds of two searches by number of workers."""
    note = (
        "Seconds of a search, of all repeats, which are in turn. Workers have one thread, and "
        "scikit-learn has as many jobs of loky. fits: the seconds of the fits and scores one after "
        "the other in one process, measured in each repeat where they compute. load: of the "
        "machine in the minute before the end of a repeat, with the benchmark's own."
    )
    cases = {
        "computing": ("60 fits of DecisionTreeClassifier", tree_search, seconds_of_trees, (1, 2)),
        "waiting": ("160 fits of time.sleep(0.1)", waiting_search, lambda: 16.0, (1, 2, 4, 8, 16)),
    }
    series = {name: {"fits": case[0], "searches": []} for name, case in cases.items()}
    content = results_file.heading("python benchmarks/bench_search.py --json FILE", note)
    content["series"] = series
    for name, (_, make_search, seconds_of_fits, numbers) in cases.items():
        for n_workers in numbers:
            seconds = by_workers(make_search, seconds_of_fits, n_workers, repeat)
            series[name]["searches"].append(seconds)
            results_file.write(path, content)
            sides = (seconds[side] for side in ("scikit-fleet", "scikit-learn", "fits"))
            one, other, fits = map(median, sides)
            print(
                f"{name:10}{n_workers:3} workers {one:7.2f} s, scikit-learn {other:7.2f} s, "
                f"ideal {fits / n_workers:7.2f} s, load {seconds['load']}",
                flush=True,
            )


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", help="'loky', or a number of candidates")
    parser.add_argument("--json", type=Path, help="a file for the seconds by number of workers")
    parser.add_argument("--repeat", type=int, default=4, help="searches that count, for --json")
    arguments = parser.parse_args()
    if arguments.json:
        write_by_workers(arguments.json, arguments.repeat)
    elif arguments.what == "loky":
        one, other = against_loky()
        print(f"200 fits of 5 ms: {one:.3f} s, loky {other:.3f} s, {one / other:.3f} times as long")
    elif arguments.what:
        n_candidates = int(arguments.what)
        taken, before, most = many_candidates(n_candidates)
        print(
            f"{2 * n_candidates} fits in {taken:.0f} s; client and scheduler in one process: "
            f"{most / 1e6:.0f} MB, {before / 1e6:.0f} before"
        )
    else:
        compare()


if __name__ == "__main__":
    main()
