"""Forests of rows in 16 partitions on two workers, next to forests of blocks that vote.

``python bench_forest.py [ROWS]`` prints a table of the area under the ROC curve against seconds, of
scikit-learn's forest in memory too. Rows are flights, labelled by a delay above 15 minutes, where
the variable DATA names the folder of ``flights-200k.arrow``; otherwise they are drawn.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import dask.array as da
import numpy as np
from distributed import wait
from sklearn.ensemble import RandomForestClassifier as Reference
from sklearn.metrics import roc_auc_score

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import BlockwiseVotingClassifier, RandomForestClassifier

N_ROWS, N_BLOCKS = 200_000, 16
SHARES = {"1/16": 1 / 16, "1/4": 0.25, "1": None}


def flights(n_rows):
    """Return rows and labels in the order of the file, or drawn ones in an order of their own."""
    path = Path(os.environ.get("DATA", "")) / "flights-200k.arrow"
    if path.exists():
        import pyarrow.feather

        frame = pyarrow.feather.read_table(path).to_pandas().head(n_rows)
        return frame[["distance", "time"]].to_numpy(np.float32), (frame["delay"] > 15).to_numpy()
    rng = np.random.default_rng(0)
    hour = np.sort(rng.uniform(0, 24, n_rows))
    X = np.column_stack([rng.gamma(2.0, 400.0, n_rows), hour]).astype(np.float32)
    chance = 0.1 + 0.2 * (X[:, 0] % 700 < 200) + 0.02 * np.abs(hour - 12)
    return X, rng.random(n_rows) < chance


def split(n_rows, order):
    """Return training and test rows, with labels, in the order of the file or shuffled."""
    X, y = flights(n_rows)
    rng = np.random.default_rng(0)
    if order == "shuffled":
        numbers = rng.permutation(len(X))
        X, y = X[numbers], y[numbers]
    is_test = rng.random(len(X)) < 0.3
    return X[~is_test], y[~is_test], X[is_test], y[is_test]


def lazy(values):
    """Return rows in blocks on the workers."""
    step = -(-len(values) // N_BLOCKS)
    with warnings.catch_warnings():  # of a large graph
        warnings.simplefilter("ignore")
        rows = da.from_array(values, chunks=(step, *values.shape[1:])).persist()
    wait(rows)
    return rows


def measure(model, rows, y, X_test, y_test):
    """Return seconds of a fit, the area under the curve, and passes over the rows."""
    began = time.perf_counter()
    with counting() as counts:
        model.fit(rows, y)
    seconds = time.perf_counter() - began
    return seconds, roc_auc_score(y_test, model.predict_proba(X_test)[:, 1]), counts.passes


def compare(n_rows, order, sizes=(16, 64), leaves=(1, 10), shares=SHARES):
    """Yield names of models and their measures; scikit-learn's own come last for each size."""
    X, y, *test = split(n_rows, order)
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None):
        rows, labels = lazy(X), lazy(y)
        for leaf in leaves:
            for size in sizes:
                params = {"min_samples_leaf": leaf, "random_state": 0}
                case = leaf, size
                for n_votes in (size, 8 * size):  # as many trees in all, and for as many seconds
                    forest = Reference(max(1, n_votes // N_BLOCKS), **params)
                    blocks = BlockwiseVotingClassifier(forest, voting="soft")
                    votes = measure(blocks, rows, labels, *test)
                    yield leaf, n_votes, "blocks that vote", *votes
                for name, share in shares.items():
                    model = RandomForestClassifier(size, max_samples=share, **params)
                    yield *case, f"max_samples {name}", *measure(model, rows, labels, *test)
                theirs = Reference(size, n_jobs=2, **params)
                yield *case, "scikit-learn", *measure(theirs, X, y, *test)


class AgainstScikitLearn:
    """A forest of 16 trees on all rows, next to scikit-learn's with as many threads."""

    timeout = 1800

    def track_seconds_as_a_multiple_of_scikit_learns(self):
        ours, theirs = list(compare(N_ROWS, "shuffled", (16,), (10,), {"1": None}))[2:]
        return ours[3] / theirs[3]


if __name__ == "__main__":
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    print(f"{n_rows:,} rows, {N_BLOCKS} blocks, 2 worker processes")
    print("order     leaf  trees  model              seconds     AUC  passes")
    for order in ("file", "shuffled"):
        for leaf, size, name, seconds, auc, passes in compare(n_rows, order):
            print(
                f"{order:8}  {leaf:4d}  {size:5d}  {name:17}  {seconds:7.2f}  {auc:6.4f}"
                f"  {passes:6d}"
            )
