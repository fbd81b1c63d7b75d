"""Power transforms to normal distributions."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import boxcox
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils.validation import FLOAT_DTYPES, validate_data

from skfleet._sklearn_private import is_constant_column, set_power_scaler
from skfleet.blocks import Block
from skfleet.engine import NamedCall, Passes, Reduction, join_reductions
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    blockwise,
    learned_attributes,
    stock_estimator,
)
from skfleet.estimators._column_statistics import Moments, combine_moments, moments_of_columns
from skfleet.estimators.preprocessing._scalers import ColumnMoments, StandardScaler
from skfleet.quantiles import ColumnsOf, ColumnSummary, summary_reduction

# Rows of the sample that the search of lambda begins with, and bisections on it.
START_ROWS, BISECTIONS = 2000, 40
# Limit of the passes of a search, and the distance of two estimates at which it ends.
MAX_PASSES, TOLERANCE = 37, 1e-7


@blockwise
class PowerTransformer(BlockwiseTransformer, preprocessing.PowerTransformer):
    """On Dask rows ``fit`` finds the maximum of each column's likelihood, to about 1e-8 in lambda.

    All columns share the passes, which are about five and at most 40: one draws a sample, where the
    search begins, a few evaluate derivatives at three lambdas of each column, and the last one
    takes the moments of the transformed rows. One pass suffices for rows that the sample holds.
    """

    _is_iterative = True

    def _columns(self, block: Block) -> tuple[Any, None]:
        X = validate_data(self, block.X, dtype=FLOAT_DTYPES, ensure_all_finite="allow-nan")
        if self.method == "box-cox" and (X <= 0).any():  # scikit-learn's own error
            preprocessing.PowerTransformer(method="box-cox").fit([[0.0]])
        return X, None

    def _fit_passes(self, meta: Any) -> Passes:
        name, columns_of = f"fit-{type(self).__name__}", clone(self)._columns
        fitted = stock_estimator(self)
        summary, column_moments = yield join_reductions(
            [
                summary_reduction(name, columns_of),
                Reduction(NamedCall(name, moments_of_columns, columns_of), combine_moments),
            ],
            name,
        )
        if len(summary.sample.keys) == summary.n_rows:
            vars(self).update(learned_attributes(fitted.fit(summary.sample.rows)))
            return
        lambdas, active = _known_lambdas(self.method, summary, column_moments)
        yield from _search(name, columns_of, self.method, summary, lambdas, active)
        fitted.n_features_in_ = len(lambdas)
        fitted.lambdas_ = lambdas.astype(summary.low.dtype)
        if self.standardize:
            scaler = StandardScaler(copy=False)
            args = (columns_of, self.method, fitted.lambdas_, scaler)
            per_block = NamedCall(name, _transformed_moments, *args)
            scaler._set_statistics((yield Reduction(per_block, scaler._combine)))
            scaler.n_features_in_ = fitted.n_features_in_
            set_power_scaler(fitted, scaler)
        vars(self).update(learned_attributes(fitted))


def _transformed_moments(
    columns_of: ColumnsOf, method: str, lambdas: np.ndarray, scaler: StandardScaler, block: Block
) -> ColumnMoments:
    X, transform = columns_of(block)[0], boxcox if method == "box-cox" else stats.yeojohnson
    with np.errstate(invalid="ignore"):
        powers = [transform(x, power) for x, power in zip(X.T, lambdas, strict=True)]
        return scaler._reduce_block(Block(np.stack(powers, axis=1)))


def _known_lambdas(
    method: str, summary: ColumnSummary, column_moments: Moments
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lambdas that need no search, and the columns of which one is needed."""
    if (summary.n_values == 0).any():  # scikit-learn's own error
        preprocessing.PowerTransformer(method=method).fit([[np.nan], [np.nan]])
    n_rows, mean, squares = column_moments
    lambdas = np.ones(len(summary.n_values))
    is_constant = is_constant_column(squares / n_rows, mean, summary.n_rows)
    is_constant &= summary.n_missing == 0
    is_one_value = summary.low == summary.high
    for j in np.flatnonzero(is_one_value & ((method == "box-cox") | ~is_constant)):
        values = np.full(2, summary.low[j])
        if method == "box-cox":
            stats.boxcox(values)  # raises
        lambdas[j] = stats.yeojohnson_normmax(values)
    done = is_one_value if method == "box-cox" else is_one_value | is_constant
    return lambdas, np.flatnonzero(~done)


# -- the search for the root of the derivative of the log-likelihood, which decreases -----------


class Slopes(NamedTuple):
    """Of each column and lambda: moments of the transformed values and of their derivatives.

    `log` sums the logarithms whose multiple the likelihood has; `squares` and `products` are about
    the means.
    """

    n: np.ndarray
    log: np.ndarray
    mean: np.ndarray
    mean_slope: np.ndarray
    squares: np.ndarray
    products: np.ndarray


def _search(
    name: str,
    columns_of: ColumnsOf,
    method: str,
    summary: ColumnSummary,
    lambdas: np.ndarray,
    active: np.ndarray,
) -> Passes:
    """Set the lambdas of active columns to the maxima of their likelihoods."""
    low, high = _bounds(method, summary)
    middle, width = _start(method, summary, active, low, high)
    for _ in range(MAX_PASSES):
        if not active.size:
            return
        a, b = low[active], high[active]
        # Three lambdas for each column, whose slopes cost one pass together.
        probes = np.clip(
            np.stack([middle - width, middle, middle + width], axis=1), a[:, None], b[:, None]
        )
        per_block = NamedCall(name, _slopes, columns_of, method, active, probes)
        slope = _slope((yield Reduction(per_block, _combine_slopes)))
        root, error = _interpolated_root(probes, slope)
        too_low, too_high = slope[:, 2] > 0, slope[:, 0] < 0
        at_bound = (too_low & (probes[:, 2] >= b)) | (too_high & (probes[:, 0] <= a))
        # A root outside the probes: go on at the nearest one, with a much wider bracket.
        root = np.where(too_low, probes[:, 2], np.where(too_high, probes[:, 0], root))
        lambdas[active] = root
        is_outside, tolerance = too_low | too_high, TOLERANCE * np.maximum(1.0, np.abs(root))
        is_done = at_bound | (~is_outside & (error <= tolerance))
        width = np.where(is_outside, 8 * width, np.maximum(error, tolerance / 4))
        active, middle, width = active[~is_done], root[~is_done], width[~is_done]
    warnings.warn(
        f"The search of lambda stopped after {MAX_PASSES} passes.", RuntimeWarning, stacklevel=2
    )


def _bounds(method: str, summary: ColumnSummary) -> tuple[np.ndarray, np.ndarray]:
    """Return SciPy's bounds of lambda, within which the squares neither overflow nor vanish."""
    info = np.finfo(summary.low.dtype)
    low, high = summary.low.astype(np.float64), summary.high.astype(np.float64)
    tiny = (np.log(info.tiny) - np.log(info.eps)) / 2
    large = (np.log(info.max) + np.log(info.eps)) / 2
    if method == "box-cox":
        size = np.maximum(np.abs(np.log(low)), np.abs(np.log(high)))
        return tiny / np.maximum(size, 1e-300), large / np.maximum(size, 1e-300)
    size = np.log1p(20 * np.maximum(np.abs(low), np.abs(high)))
    a, b = tiny / np.maximum(size, 1e-300), large / np.maximum(size, 1e-300)
    lower = np.where(high < 0, 2 - b, np.where(low < 0, np.maximum(2 - b, a), a))
    upper = np.where(high < 0, 2 - a, np.where(low < 0, np.minimum(2 - a, b), b))
    return lower, upper


def _start(
    method: str, summary: ColumnSummary, active: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lambdas of the sample, and four of their standard errors."""
    chosen = np.argsort(summary.sample.keys)[:START_ROWS]
    block = Block(summary.sample.rows[chosen])
    a, b = low[active], high[active]

    def slope_at(points: np.ndarray) -> np.ndarray:
        return _slope(_slopes(_as_they_are, method, active, points, block))

    # By the sign of the slope, which needs no point to start from.
    for _ in range(BISECTIONS):
        middle = (a + b) / 2
        is_below = slope_at(middle[:, None])[:, 0] > 0
        a, b = np.where(is_below, middle, a), np.where(is_below, b, middle)
    middle = (a + b) / 2
    # The curvature gives the standard error: so far off the maximum of all rows may be.
    step = np.minimum(0.01, (high[active] - low[active]) / 100)
    slope = slope_at(np.stack([middle - step, middle + step], axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        curvature = (slope[:, 0] - slope[:, 1]) / (2 * step) * block.n_rows
        width = 4 / np.sqrt(curvature)
    width = np.where(np.isfinite(width), width, 1.0)
    # a sample of equal values has no maximum
    is_off = (middle - low[active] < step) | (high[active] - middle < step)
    middle, width = np.where(is_off, 1.0, middle), np.where(is_off, 1.0, width)
    return np.clip(middle, low[active], high[active]), np.clip(width, 1e-4, 1.0)


def _interpolated_root(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the root of the parabola through three points, and its error: the secant's."""
    is_right = y[:, 1] > 0
    rows = np.arange(len(x))
    left = np.where(is_right, 1, 0)
    x0, x1, y0, y1 = x[rows, left], x[rows, left + 1], y[rows, left], y[rows, left + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        secant = x0 - y0 * (x1 - x0) / (y1 - y0)
        # inverse quadratic interpolation
        a, b, c = y.T
        root = x[:, 0] * b * c / ((a - b) * (a - c)) + x[:, 1] * a * c / ((b - a) * (b - c))
        root += x[:, 2] * a * b / ((c - a) * (c - b))
    # a secant that no parabola confirms only narrows the bracket
    is_inside = np.isfinite(root) & (root >= x0) & (root <= x1)
    error = np.where(is_inside, np.abs(root - secant), (x1 - x0) / 4)
    secant = np.where(np.isfinite(secant), secant, (x0 + x1) / 2)
    return np.where(is_inside, root, secant), np.where(np.isfinite(error), error, x1 - x0)


def _slope(slopes: Slopes) -> np.ndarray:
    """Return the derivatives of the log-likelihoods, per value."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return slopes.log / slopes.n - slopes.products / slopes.squares


def _slopes(
    columns_of: ColumnsOf, method: str, active: np.ndarray, probes: np.ndarray, block: Block
) -> Slopes:
    X, _ = columns_of(block)
    result = Slopes(*(np.zeros(probes.shape) for _ in Slopes._fields))
    for i, j in enumerate(active):
        x = X[:, j].astype(np.float64)
        x = x[~np.isnan(x)]
        if not x.size:
            continue
        is_negative = np.zeros(len(x), dtype=bool) if method == "box-cox" else x < 0
        u = np.log(x) if method == "box-cox" else np.log1p(np.abs(x))
        sign = np.where(is_negative, -1.0, 1.0)
        for k, value in enumerate(probes[i]):
            power = np.where(is_negative, 2 - value, value)
            y, slope = _box_cox(power, u)
            y = sign * y
            y_mean, slope_mean = y.mean(), slope.mean()
            # About the block's own means, as squares about zero lose digits.
            y, slope = y - y_mean, slope - slope_mean
            parts = (len(x), sign @ u, y_mean, slope_mean, y @ y, y @ slope)
            for field, part in zip(result, parts, strict=True):
                field[i, k] = part
    return result


def _box_cox(power: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(exp(power * u) - 1) / power`` and its derivative by the power."""
    t = power * u
    # For small t the differences below cancel; there a series keeps all digits.
    is_small = np.abs(t) < 0.1
    divisor = np.where(is_small, 1.0, power)
    exponential = np.expm1(t)
    y = exponential / divisor
    slope = (u * (exponential + 1) - y) / divisor
    if is_small.any():
        s, v = t[is_small], u[is_small]
        y[is_small] = v * _series(s, 1)
        slope[is_small] = v * v * _series(s, 2)
    return y, slope


def _series(t: np.ndarray, order: int) -> np.ndarray:
    """Return ``(exp(t) - 1) / t`` for order 1, and its derivative for order 2, of small t."""
    total, factorial = np.zeros_like(t), 1.0
    for k in range(10):
        factorial *= max(k, 1)
        divisor = factorial * (k + 1 if order == 1 else k + 2)
        total += t**k / divisor
    return total


def _as_they_are(block: Block) -> tuple[Any, None]:
    return block.X, None


def _combine_slopes(a: Slopes, b: Slopes) -> Slopes:
    n = a.n + b.n
    fraction = np.divide(b.n, n, out=np.zeros_like(n), where=n > 0)
    y, slope = b.mean - a.mean, b.mean_slope - a.mean_slope
    both = a.n * fraction
    return Slopes(
        n,
        a.log + b.log,
        a.mean + fraction * y,
        a.mean_slope + fraction * slope,
        a.squares + b.squares + both * y * y,
        a.products + b.products + both * y * slope,
    )
