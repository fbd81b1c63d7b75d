"""scikit-learn's compiled Lloyd iterations, for rows of this process that are few."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import sklearn
from sklearn.cluster import KMeans as SklearnKMeans

from skfleet._array import FLOAT64, is_not_numpy
from skfleet._config import get_config
from skfleet._linalg import with_int32_indices
from skfleet._validation import check_total_weight
from skfleet._warnings import without_convergence_warnings
from skfleet.blocks import Block, RowBlocks, as_numeric, open_block
from skfleet.engine import limit_threadpools, log_pass
from skfleet.estimators.cluster._reductions import host_weights

# Rows of which copies in float64, and about their mean, do not matter beside the process.
MAX_BYTES = 2**26
# Iterations on fewer rows are over before other threads have begun.
MIN_ROWS_OF_THREADS = 2048


def compiled_block(rows: RowBlocks) -> Block | None:
    """Return the rows for `compiled_iterations`; None where it is not for them.

    They are in float64, in which sums of float32 rows are kept in any case. It is not where sums
    must be the same to the last bit: threads add in any order.
    """
    if rows.on_dask or len(rows.blocks) != 1 or get_config().deterministic:
        return None
    if rows.n_bytes is None or rows.n_bytes > MAX_BYTES:
        return None
    block = open_block(rows.blocks[0])
    if is_not_numpy(block.X):
        return None
    block = as_numeric(block, FLOAT64)
    return block._replace(X=with_int32_indices(block.X))


def compiled_iterations(
    block: Block, mean: np.ndarray | None, centers: np.ndarray, tol: float, max_iter: int
) -> tuple[np.ndarray, int]:
    """Return the centres after Lloyd iterations to convergence, about the mean, and their number.

    Each counts as a pass over the rows.
    """
    X, weight = block.X, None
    if block.sample_weight is not None:
        weight = host_weights(block)
        check_total_weight(float(weight.sum()))
    settings = {"tol": tol, "max_iter": max_iter, "algorithm": "lloyd"}
    model = SklearnKMeans(len(centers), init=centers, n_init=1, copy_x=mean is None, **settings)
    one_thread = block.n_rows < MIN_ROWS_OF_THREADS
    with (
        limit_threadpools(1) if one_thread else nullcontext(),
        sklearn.config_context(assume_finite=True, skip_parameter_validation=True),
        without_convergence_warnings(),  # the caller warns of empty clusters
    ):
        model.fit(X if mean is None else X - mean, sample_weight=weight)
    for _ in range(model.n_iter_):
        log_pass("lloyd", 1, 1)
    return model.cluster_centers_, model.n_iter_
