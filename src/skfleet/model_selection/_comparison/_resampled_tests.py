"""Student's t-test of scores on splits that have training rows in common."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

CONFIDENCE = 0.95


def estimate_mean(values: np.ndarray, test_ratio: float) -> tuple[float, float]:
    """Return the mean of values of splits, and its error by Nadeau and Bengio (2003).

    ``test_ratio`` is the number of test rows divided by that of training rows. The error of a
    single split is NaN.
    """
    n_splits = len(values)
    variance = values.var(ddof=1) if n_splits > 1 else np.nan
    return float(values.mean()), float(np.sqrt(variance * (1 / n_splits + test_ratio)))


def t_quantile(n_splits: int) -> float:
    """Return half of the confidence interval of a mean over splits, in standard errors."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n_splits - 1))


def compare_pairs(scores: pd.DataFrame, test_ratio: float) -> pd.DataFrame:
    """Return a row for each pair of models, of scores with a row a split and a column a model."""
    columns = ["model_1", "model_2", "difference", "stderr", "ci_low", "ci_high", "t", "p_value"]
    n_splits, rows = len(scores), []
    for first, second in combinations(scores, 2):
        mean, stderr = estimate_mean((scores[first] - scores[second]).to_numpy(), test_ratio)
        margin = t_quantile(n_splits) * stderr
        # the same difference on every split has no error
        t = mean / stderr if stderr != 0 else np.copysign(np.inf, mean) if mean else 0.0
        p_value = 2 * stats.t.sf(abs(t), n_splits - 1)
        rows.append((first, second, mean, stderr, mean - margin, mean + margin, t, p_value))
    pairs = pd.DataFrame(rows, columns=columns)
    return pairs.assign(p_value_holm=_correct_by_holm(pairs["p_value"].to_numpy(dtype=float)))


def _correct_by_holm(p_values: np.ndarray) -> np.ndarray:
    """Return the p-values of several tests by Holm's method; NaN is not the value of a test."""
    order = np.argsort(p_values)  # NaN last
    factors = np.isfinite(p_values).sum() - np.arange(len(p_values))
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected
