"""What passes over the rows are made of, next to what could take its place.

Each is timed alone, with the bytes that it reads or the operations that it does in a second, and
the distance of its answer from that in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from gpu_cases.run import Run

from skfleet import _cuda_gram, _linalg
from skfleet._array import to_host
from skfleet._device import to_device
from skfleet.blocks import Block, row_uniform
from skfleet.blocks._block import DEVICE_PIECE_BYTES
from skfleet.estimators import _moments_kernel
from skfleet.estimators._column_moments import moments_of_values
from skfleet.estimators._column_statistics import summarize

EXACT_ROWS = 200_000


def primitives(run: Run) -> None:
    """Sums, products, draws and uploads."""
    xp, sizes = run.machine.xp, run.sizes
    rng = run.machine.generator(0)
    X = rng.standard_normal((sizes.n_rows, sizes.n_columns), dtype=xp.float32)
    X += xp.asarray(np.linspace(-1, 1, sizes.n_columns), dtype=xp.float32)
    weights = rng.standard_normal(sizes.n_rows, dtype=xp.float32)
    n_piece = max(1, min(len(X), DEVICE_PIECE_BYTES // X[0].nbytes))
    piece, piece_weights = X[:n_piece], weights[:n_piece]
    _sums(run, X)
    _vector_products(run, X, piece, piece_weights)
    _grams(run, piece)
    _elementwise(run, X, piece, piece_weights)
    if run.machine.on_device:
        _uploads(run)


def _timed(
    run: Run,
    who: str,
    func: Callable[..., Any],
    X: Any,
    *arguments: Any,
    exact: Callable[..., Any] | None = None,
    n_operations: float = 0.0,
) -> None:
    """Time func(X, *arguments), and compare it on a few rows with `exact` of these in float64."""

    def facts(_: Any) -> dict[str, Any]:
        seconds = run.seconds[who]
        values = {"bytes_a_second": X.nbytes / seconds}
        if n_operations:
            values["operations_a_second"] = n_operations / seconds
        if exact is not None:
            few = [a[:EXACT_ROWS] if len(a) == len(X) else a for a in (X, *arguments)]
            truth = exact(*(to_host(a).astype(np.float64) for a in few))
            error = np.linalg.norm(to_host(func(*few)).astype(np.float64) - truth)
            values["from_float64"] = float(error / np.linalg.norm(truth))
        return values

    run.timed(who, lambda: func(X, *arguments), facts)


def _sums(run: Run, X: Any) -> None:
    """Sums of columns."""
    xp = run.machine.xp
    total = partial(np.sum, axis=0)
    _timed(run, "sums of columns", _linalg.column_sums, X, exact=total)
    _timed(run, "sums of columns, at once", lambda A: xp.sum(A, axis=0, dtype=xp.float64), X)
    for n_rows in (128, 2048):
        with patch.object(_linalg, "RUN_ROWS", n_rows):
            _timed(run, f"sums of columns, runs of {n_rows}", _linalg.column_sums, X)
    ones = xp.ones(len(X), dtype=xp.float32)
    _timed(
        run,
        "sums of columns, ones @ X",
        lambda A, one: one @ A,
        X,
        ones,
        exact=lambda A, _: total(A),
    )
    _timed(run, "sums of one column", lambda A: _linalg.sums_down(A), X[:, :1])
    _timed(run, "moments of columns", lambda A: moments_of_values(A).squares, X)
    with patch.object(_moments_kernel, "ENABLED", False):
        _timed(run, "moments of columns, by operations", lambda A: moments_of_values(A).squares, X)
    y = xp.arange(len(X)) % 2
    summary = lambda A, labels: summarize(Block(A, labels), 0.0, None)  # noqa: E731
    _timed(run, "first pass of a classifier", summary, X, y)
    with patch.object(_moments_kernel, "ENABLED", False):
        _timed(run, "first pass of a classifier, by operations", summary, X, y)


def _vector_products(run: Run, X: Any, piece: Any, weights: Any) -> None:
    """Predictions and gradients."""
    xp = run.machine.xp
    coef = xp.asarray(np.random.default_rng(1).normal(size=(X.shape[1], 1)), dtype=xp.float32)
    predict = lambda A, v: A @ v  # noqa: E731
    _timed(run, "prediction, X @ (d, 1)", predict, X, coef, exact=predict)
    gradient = lambda A, v: A.T @ v  # noqa: E731
    column = weights[:, None]
    _timed(run, "gradient of a piece, X.T @ (n, 1)", gradient, piece, column, exact=gradient)
    _timed(run, "gradient of a piece, X.T @ (n,)", gradient, piece, weights, exact=gradient)
    for n_batches in (132, 1056):
        func = partial(_gradient_in_batches, xp, n_batches)
        who = f"gradient of a piece, {n_batches} batches"
        _timed(run, who, func, piece, weights, exact=gradient)


def _gradient_in_batches(xp: Any, n_batches: int, X: Any, weights: Any) -> Any:
    """Return weights @ X as the sum of the products of runs of rows."""
    rows, columns = _batches(X, n_batches), _batches(weights[:, None], n_batches)
    return xp.sum(xp.matmul(xp.swapaxes(columns, 1, 2), rows), axis=(0, 1), dtype=xp.float64)


def _grams(run: Run, piece: Any) -> None:
    """Products of all columns with one another."""
    xp, n_operations = run.machine.xp, 2.0 * len(piece) * piece.shape[1] ** 2
    timed = partial(_timed, run, n_operations=n_operations)
    product = lambda A: A.T @ A  # noqa: E731
    timed("Gram matrix of a piece", product, piece, exact=product)
    for n_batches in (132, 1056):
        func = partial(_gram_in_batches, xp, n_batches)
        timed(f"Gram matrix of a piece, {n_batches} batches", func, piece, exact=product)
    one = xp.ones((len(piece), 1), dtype=piece.dtype)
    centred = lambda A: _linalg.weighted_gram(A, A[0], None, one[: len(A)])[0]  # noqa: E731
    about = lambda A: product(A - A[0])  # noqa: E731
    timed("centred Gram matrix of a piece", centred, piece, exact=about)
    with patch.object(_cuda_gram, "ENABLED", False):
        timed("centred Gram matrix of a piece, copied", centred, piece, exact=about)
    double = lambda A: product(A.astype(xp.float64))  # noqa: E731
    timed("Gram matrix of a piece, in float64", double, piece, exact=product)
    batches = lambda A: _gram_in_batches(xp, 132, A.astype(xp.float64))  # noqa: E731
    timed("Gram matrix of a piece, 132 batches in float64", batches, piece, exact=product)


def _gram_in_batches(xp: Any, n_batches: int, X: Any) -> Any:
    """Return X.T @ X as the sum of the products of runs of rows."""
    rows = _batches(X, n_batches)
    return xp.sum(xp.matmul(xp.swapaxes(rows, 1, 2), rows), axis=0, dtype=xp.float64)


def _batches(X: Any, n_batches: int) -> Any:
    """Cut rows into runs of equal length; which must be a divisor of their number."""
    n_batches = next(n for n in range(min(n_batches, len(X)), 0, -1) if len(X) % n == 0)
    return X.reshape(n_batches, len(X) // n_batches, X.shape[1])


def _elementwise(run: Run, X: Any, piece: Any, weights: Any) -> None:
    """Checks, copies, norms and draws."""
    xp = run.machine.xp
    _timed(run, "all finite", _linalg.all_finite, X)
    _timed(run, "scaled copy of a piece", lambda A, w: A * w[:, None], piece, weights)
    _timed(run, "norms of the rows of a piece", _linalg.row_norms, piece)
    _timed(run, "draws for the rows of a piece", lambda A: row_uniform(7, 0, len(A), A), piece)
    _timed(run, "order of the rows of a piece", xp.argsort, weights)


def _uploads(run: Run) -> None:
    """Copies from the host: by way of the staging buffers, by the driver, and at most."""
    xp = run.machine.xp
    n_bytes = int(run.sizes.copy_bytes)
    rows = np.random.default_rng(0).random((max(1, n_bytes // 400), 50))
    target = xp.empty(rows.shape, dtype=rows.dtype)
    _timed(run, "upload", to_device, rows)
    _timed(run, "upload by the driver", lambda A: target.set(A), rows)
    columns = np.asfortranarray(rows[: len(rows) // 4])
    _timed(run, "upload of rows in column order", to_device, columns)
    n_locked = min(n_bytes, 2**28) // 8
    locked = np.frombuffer(xp.cuda.alloc_pinned_memory(8 * n_locked), np.float64, n_locked)
    locked[:] = 1
    _timed(run, "upload of page-locked memory", xp.empty(n_locked).set, locked)
