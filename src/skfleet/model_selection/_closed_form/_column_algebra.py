"""Preparation of rows as algebra: columns that are linear in columns known before the splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, sparse
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from skfleet._sklearn_private import scale_from_variance
from skfleet.glm import CrossProducts
from skfleet.model_selection._closed_form._base_columns import Label, LabelledProducts

# Relative rounding errors of sums of products grow by the size of the terms of a linear combination
# next to its own.
MAX_AMPLIFICATION = 1e4
# A variance within this factor of the rounding errors is neither one nor the other.
CONSTANT_MARGIN = 1e3
# A fit on the rows itself loses digits where means are larger than so many standard deviations;
# columns are constant where they are larger than so many.
MAX_MEAN, MAX_CONSTANT_MEAN = 1e5, 1e12
# The covariances that scikit-learn's PCA decomposes are those about zero less those of the means.
MAX_SQUARED_MEAN = 1e4
# Relative to the largest variance of a principal component.
MIN_RELATIVE_GAP = 1e-5


@dataclass(frozen=True)
class BaseSums:
    """Sums of base columns over a training set.

    `low` and `high` are the smallest and largest values. `test` are the sums over the test set.
    Some steps may be fitted with weights.
    """

    labels: tuple[Label, ...]
    pivot: np.ndarray  # that was taken off each base column
    products: CrossProducts
    low: np.ndarray
    high: np.ndarray
    weighted: CrossProducts | None
    test: LabelledProducts
    weighted_steps: tuple[Any, ...] = ()

    def fitted_by(self, step: Any) -> CrossProducts:
        """Return the cross products that a step is fitted to."""
        is_weighted = any(step is other for other in self.weighted_steps)
        return self.weighted if is_weighted and self.weighted is not None else self.products

    @property
    def largest_deviations(self) -> np.ndarray:
        """Largest deviations from the training set's means, in both sets."""
        low, high = np.minimum(self.low, self.test.low), np.maximum(self.high, self.test.high)
        incomplete = {j for kind, j, _ in self.labels if kind == "gap"}
        for i, (kind, j, _) in enumerate(self.labels):
            if kind in ("gap", "category") or j in incomplete:
                low[i], high[i] = min(low[i], 0.0), max(high[i], kind != "number")
        return np.maximum(abs(high - self.products.x_mean), abs(low - self.products.x_mean))

    def check_means(self, index: np.ndarray) -> None:
        """Raise for columns whose deviations are small next to their means."""
        deviation = np.sqrt(np.diag(self.products.gram)[index] / self.products.weight)
        check_spread(abs(self.products.x_mean + self.pivot)[index], deviation)


def check_spread(mean: np.ndarray, deviation: np.ndarray) -> None:
    """Raise for columns that vary little next to their means, but are not constant."""
    if ((mean > MAX_MEAN * deviation) & (mean < MAX_CONSTANT_MEAN * deviation)).any():
        raise NotImplementedError("columns must vary more, next to their means")


@dataclass(frozen=True)
class LinearColumns:
    """Columns ``base @ matrix.T + offset`` of a training set, with their ranges.

    `low` and `high` are NaN where they are unknown. `missing` are the positions of the base columns
    that are 1 where a column has a gap, -1 for columns without. `is_sparse` is true for columns
    that scikit-learn has in a sparse matrix.
    """

    sums: BaseSums
    matrix: Any  # SciPy's CSR, or an array
    offset: np.ndarray
    low: np.ndarray
    high: np.ndarray
    missing: np.ndarray
    is_sparse: bool = False

    @property
    def weight(self) -> float:
        return float(self.sums.products.weight)

    @property
    def dense_matrix(self) -> np.ndarray:
        """The matrix as an array."""
        return self.matrix.toarray() if sparse.issparse(self.matrix) else self.matrix

    @property
    def mean(self) -> np.ndarray:
        """The means of the columns."""
        return self.mean_of(self.sums.products)

    @property
    def variance(self) -> np.ndarray:
        """The variances of the columns."""
        return self.variance_of(self.sums.products)

    def mean_of(self, base: CrossProducts) -> np.ndarray:
        """Return the means of the columns from the cross products of the base columns."""
        mean: np.ndarray = self.matrix @ base.x_mean + self.offset
        return mean

    def variance_of(self, base: CrossProducts) -> np.ndarray:
        """Return the variances of the columns from the cross products of the base columns."""
        products = self.matrix @ base.gram
        multiplied = self.matrix.multiply(products) if sparse.issparse(self.matrix) else None
        summed = (self.matrix * products) if multiplied is None else multiplied
        return np.asarray(summed.sum(axis=1)).ravel() / base.weight

    @property
    def amplification(self) -> float:
        """Relative rounding errors of sums of products, as multiples of those of base columns."""
        variance, terms = self.variance * self.weight, self._terms(self.sums.products)
        return float((terms[variance > 0] / variance[variance > 0]).max(initial=1.0))

    def _terms(self, base: CrossProducts) -> np.ndarray:
        """Return bounds of the sums of squares of the terms that make up each column."""
        bounds: np.ndarray = (abs(self.matrix) @ np.sqrt(np.diag(base.gram))) ** 2
        return bounds

    def scaled(self, factor: np.ndarray, shift: np.ndarray) -> LinearColumns:
        """Return ``(columns - shift) * factor``."""
        ends = (self.low - shift) * factor, (self.high - shift) * factor
        return replace(
            self,
            matrix=sparse.diags(factor) @ self.matrix,
            offset=(self.offset - shift) * factor,
            low=np.minimum(*ends),
            high=np.maximum(*ends),
        )

    def check_complete(self) -> None:
        """Raise where a column may have gaps."""
        if (self.missing >= 0).any():
            raise NotImplementedError("rows with gaps must be imputed by the first step")

    def products_of(self, base: CrossProducts) -> CrossProducts:
        """Return the cross products of these columns from those of the base columns of any rows."""
        matrix = self.matrix
        gram = matrix @ (matrix @ base.gram).T
        if (self._terms(base) > MAX_AMPLIFICATION * np.diag(gram)).any():
            raise NotImplementedError("prepared columns must not be lost in rounding")
        return base._replace(
            x_mean=matrix @ base.x_mean + self.offset,
            gram=(gram + gram.T) / 2,
            xy=matrix @ base.xy,
        )


def numeric_columns(sums: BaseSums, positions: Sequence[int]) -> LinearColumns:
    """Return columns of numbers as they are in the rows."""
    places = {label: i for i, label in enumerate(sums.labels)}
    index = np.array([places["number", j, None] for j in positions], dtype=int)
    missing = np.array([places.get(("gap", j, None), -1) for j in positions], dtype=int)
    sums.check_means(index)
    matrix = selection(index, len(places))
    pivot = sums.pivot[index]
    return LinearColumns(
        sums, matrix, pivot, sums.low[index] + pivot, sums.high[index] + pivot, missing
    )


def selection(index: Sequence[int] | np.ndarray, n_base: int) -> Any:
    """Return the sparse matrix that selects base columns."""
    n = len(index)
    return sparse.csr_matrix((np.ones(n), (np.arange(n), index)), shape=(n, n_base))


def join_columns(parts: Sequence[LinearColumns], sparse_threshold: float) -> LinearColumns:
    """Return the columns of the parts of a ColumnTransformer, one after the other."""
    # Of encoded columns, the fraction of ones is the mean.
    n_nonzero = sum(p.mean.sum() if p.is_sparse else len(p.offset) for p in parts)
    density = n_nonzero / sum(len(part.offset) for part in parts)
    matrices = [sparse.csr_matrix(part.matrix) for part in parts]
    return LinearColumns(
        parts[0].sums,
        sparse.vstack(matrices, format="csr"),
        offset=np.concatenate([part.offset for part in parts]),
        low=np.concatenate([part.low for part in parts]),
        high=np.concatenate([part.high for part in parts]),
        missing=np.concatenate([part.missing for part in parts]),
        is_sparse=any(part.is_sparse for part in parts) and density < sparse_threshold,
    )


def standardize(step: StandardScaler, columns: LinearColumns) -> LinearColumns:
    """Apply a StandardScaler that is fitted on the training set."""
    columns.check_complete()
    if columns.is_sparse and step.with_mean:
        raise NotImplementedError("rows must be dense to take off their means")
    base = columns.sums.fitted_by(step)
    n, mean, variance = base.weight, columns.mean_of(base), columns.variance_of(base)
    scale = np.ones_like(mean)
    if step.with_std:
        eps = np.finfo(float).eps
        rounding = n * eps * variance + (n * mean * eps) ** 2
        near = (variance < CONSTANT_MARGIN * rounding) & (CONSTANT_MARGIN * variance > rounding)
        if (near & (variance > 0)).any():
            raise NotImplementedError("columns must be constant, or clearly not")
        scale = scale_from_variance(mean, np.maximum(variance, 0.0), n)
    shift = mean if step.with_mean else np.zeros_like(mean)
    return columns.scaled(1 / scale, shift)


def scale_to_range(step: MinMaxScaler, columns: LinearColumns) -> LinearColumns:
    """Apply a MinMaxScaler that is fitted on the training set."""
    if step.clip or columns.is_sparse:
        raise NotImplementedError("rows must be dense, and clip False")
    low, width = _known_range(columns)
    first, last = step.feature_range
    factor = (last - first) / _nonzero_widths(width)
    return columns.scaled(factor, low - first / factor)


def scale_by_largest(step: MaxAbsScaler, columns: LinearColumns) -> LinearColumns:
    """Apply a MaxAbsScaler that is fitted on the training set."""
    if getattr(step, "clip", False):
        raise NotImplementedError("clip must be False. Got True instead")
    low, width = _known_range(columns)
    largest = np.maximum(abs(low), abs(low + width))
    return columns.scaled(1 / _nonzero_widths(largest), np.zeros_like(low))


def _known_range(columns: LinearColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest value of each column, and the width of its range."""
    columns.check_complete()
    if not np.isfinite(columns.low).all():
        raise NotImplementedError("columns must be scaled to a range before they are combined")
    return columns.low, columns.high - columns.low


def _nonzero_widths(width: np.ndarray) -> np.ndarray:
    """Return the divisors of columns: 1 for constant ones, as scikit-learn has it."""
    tiny = 10 * np.finfo(float).eps
    if ((width > 0) & (width < CONSTANT_MARGIN * tiny)).any():
        raise NotImplementedError("columns must be constant, or clearly not")
    return np.where(width < tiny, 1.0, width)


def impute(step: SimpleImputer, columns: LinearColumns) -> LinearColumns:
    """Apply a SimpleImputer of means or a constant that is fitted on the training set."""
    check_imputer(step, "mean", "constant")
    has_gaps = columns.missing >= 0
    if not has_gaps.any():
        return replace(columns, missing=np.full(len(columns.offset), -1))
    weight, base_mean = columns.weight, columns.sums.products.x_mean
    # Gaps are zeros of the base columns, and so add the offset to the means.
    fraction = np.where(has_gaps, base_mean[columns.missing], 0.0)
    if (fraction * weight > weight - 0.5).any():
        raise NotImplementedError("columns must have a value in every training set")
    if step.strategy == "mean":
        fill = (columns.matrix @ base_mean) / (1 - fraction) + columns.offset
    else:
        fill = np.full(len(fraction), 0.0 if step.fill_value is None else float(step.fill_value))
    positions = np.flatnonzero(has_gaps)
    filled = sparse.csr_matrix(
        ((fill - columns.offset)[positions], (positions, columns.missing[positions])),
        shape=columns.matrix.shape,
    )
    is_filled = has_gaps & (fraction > 0)
    return replace(
        columns,
        matrix=sparse.csr_matrix(columns.matrix + filled),
        low=np.where(is_filled, np.minimum(columns.low, fill), columns.low),
        high=np.where(is_filled, np.maximum(columns.high, fill), columns.high),
        missing=np.full(len(fraction), -1),
    )


def check_imputer(step: SimpleImputer, *strategies: str) -> None:
    """Raise for an imputer of other values, or with columns that indicate them."""
    if step.strategy not in strategies:
        allowed = " or ".join(map(repr, strategies))
        raise NotImplementedError(f"strategy must be {allowed}. Got {step.strategy!r} instead")
    if step.add_indicator or not _is_nan(step.missing_values):
        raise NotImplementedError("gaps must be NaN, without columns that indicate them")


def decompose(step: PCA, columns: LinearColumns) -> LinearColumns:
    """Apply a PCA that is fitted on the training set; signs of components may differ."""
    columns.check_complete()
    if columns.is_sparse:
        raise NotImplementedError("rows must be dense")
    # Only where scikit-learn decomposes exactly, by a known number of components.
    n = step.n_components
    if step.svd_solver not in ("auto", "full", "covariance_eigh"):
        raise NotImplementedError("svd_solver must be 'auto', 'full' or 'covariance_eigh'")
    n_columns = len(columns.offset)
    n = min(n_columns, int(columns.weight)) if n is None else n
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or not 0 < n <= n_columns:
        raise NotImplementedError("n_components must be a number of columns")
    n = int(n)
    # The rule by which "auto" chooses a randomized solver, which would give other numbers.
    shape = columns.weight, n_columns
    has_few = n_columns > 1000 or columns.weight < 10 * n_columns
    if step.svd_solver == "auto" and has_few and max(shape) > 500 and n < 0.8 * min(shape):
        raise NotImplementedError("svd_solver must draw no numbers, as 'auto' does for these rows")
    if (columns.mean**2 > MAX_SQUARED_MEAN * columns.variance).any():
        raise NotImplementedError("columns must be centred before PCA, which takes squares of them")
    # Principal axes are eigenvectors of the covariance, the largest first.
    products = columns.products_of(columns.sums.products)
    values, vectors = linalg.eigh(products.gram / (columns.weight - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    # Of equal variances any rotation is principal components too.
    gaps = values[:n] - np.append(values[1:], 0.0)[:n]
    if gaps.min() < MIN_RELATIVE_GAP * values[0]:
        raise NotImplementedError("variances of principal components must differ")
    # Components are linear in the columns, and so in the base columns.
    components = vectors[:, :n].T
    if step.whiten:
        components = components / np.sqrt(values[:n])[:, None]
    # The extremes of a combination do not follow from those of its terms.
    unknown = np.full(n, np.nan)
    matrix = components @ columns.dense_matrix
    offset = components @ (columns.offset - columns.mean)
    return replace(
        columns,
        matrix=matrix,
        offset=offset,
        low=unknown,
        high=unknown,
        missing=np.full(n, -1),
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and np.isnan(value)
