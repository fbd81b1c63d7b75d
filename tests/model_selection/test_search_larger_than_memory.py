"""A search over a pipeline on Dask rows that are larger than the memory of all workers."""

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import Ridge, StandardScaler
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.slow

MEMORY_LIMIT = 500_000_000  # of each of two workers
N_ROWS, N_COLUMNS, CHUNK = 7_500_000, 50, 60_000
ALPHAS = np.logspace(-2, 6, 20)


def expected_scores(X, y, n_splits):
    """Return R2 of ridge regressions on standardised rows, one block of rows after the other."""
    n = N_COLUMNS + 1
    sums, squares = np.zeros((n_splits, n)), np.zeros((n_splits, n, n))
    size = N_ROWS // n_splits
    for i in range(N_ROWS // CHUNK):
        rows = slice(i * CHUNK, (i + 1) * CHUNK)
        block = np.column_stack(dask.compute(X[rows], y[rows], scheduler="sync"))
        for fold in range(n_splits):
            low, high = np.clip(
                [fold * size - rows.start, (fold + 1) * size - rows.start], 0, CHUNK
            )
            # about 0.5, which is near all means
            part = block[low:high] - 0.5
            sums[fold] += part.sum(axis=0)
            squares[fold] += part.T @ part
    scores = []
    for fold in range(n_splits):
        n_train = N_ROWS - size
        mean = (sums.sum(axis=0) - sums[fold]) / n_train
        train = squares.sum(axis=0) - squares[fold] - n_train * np.outer(mean, mean)
        shift = sums[fold] / size - mean
        test = squares[fold] / size - np.outer(sums[fold], sums[fold]) / size**2
        test_variance = test[-1, -1]
        test = test + np.outer(shift, shift)
        scale = np.sqrt(np.diag(train)[:-1] / n_train)
        gram = train[:-1, :-1] / np.outer(scale, scale)
        for alpha in ALPHAS:
            solution = np.linalg.solve(gram + alpha * np.eye(N_COLUMNS), train[:-1, -1] / scale)
            residual = np.append(-solution / scale, 1.0)
            scores.append(1 - residual @ test @ residual / test_variance)
    return np.array(scores).reshape(n_splits, len(ALPHAS))


def test_one_pass_over_rows_three_times_as_large():
    rng = da.random.default_rng(0)
    X = rng.random((N_ROWS, N_COLUMNS), chunks=(CHUNK, N_COLUMNS)) + np.arange(N_COLUMNS) / 100
    y = X @ np.linspace(0, 1, N_COLUMNS) + rng.normal(size=N_ROWS, chunks=CHUNK)
    assert X.nbytes >= 3 * 2 * MEMORY_LIMIT
    pipeline = make_pipeline(StandardScaler(), Ridge())
    options = {"cv": KFold(5), "scoring": "r2"}
    with Fleet(n_workers=2, memory_limit=MEMORY_LIMIT):
        search = GridSearchCV(pipeline, {"ridge__alpha": ALPHAS}, refit=False, **options)
        with counting() as counts:
            search.fit(X, y)
        assert counts.passes == 1
        assert search.timeline_.empty
        with counting() as counts:
            refitted = GridSearchCV(pipeline, {"ridge__alpha": ALPHAS}, **options).fit(X, y)
        assert counts.passes == 2  # the scaler of the last fit is fitted while scoring
    expected = expected_scores(X, y, 5)
    for fold, scores in enumerate(expected):
        np.testing.assert_allclose(search.cv_results_[f"split{fold}_test_score"], scores, 1e-10)
    assert refitted.best_params_ == {"ridge__alpha": ALPHAS[expected.mean(axis=0).argmax()]}
