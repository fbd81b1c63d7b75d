"""Values at ranks of columns, exactly, in few passes over rows that no process can hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from skfleet._array import (
    INT64,
    asarray_like,
    astype,
    is_not_numpy,
    namespace,
    to_host,
    to_host_if_array,
)
from skfleet._linalg import is_sparse, reduce_down, sums_down, vstack
from skfleet.blocks import Block, row_uniform, take_rows
from skfleet.engine import NamedCall, Passes, Reduction
from skfleet.quantiles._knot_counts import (
    ColumnRequest,
    ColumnsOf,
    KnotCounts,
    KnotPlan,
    column_getter,
    combine_counts,
    count_at_knots,
    sorted_values,
)

# Rows of the sample, and bytes of it and of the values that a pass collects.
SAMPLE_ROWS, MAX_BYTES = 10_000, 24 * 2**20
# Probability that a pass has a bracket that misses, and values more on either side of a bracket.
MISS_PROBABILITY, MARGIN = 1e-3, 10.0


class KeyedSample(NamedTuple):
    """The rows with the smallest random keys, and their weights."""

    keys: np.ndarray
    rows: Any
    weight: np.ndarray | None


class ColumnSummary(NamedTuple):
    """Counts and extremes of the values of columns, and a sample of the rows.

    NaN are no values: `n_missing` counts them. Rows of weight 0 count in `n_rows` alone. `weight`
    is the sum of the weights of the values. `low` and `high` are the least and the greatest value,
    or None where no row has a weight. For sparse rows `below_zero` and `through_zero` are the
    numbers of values below 0, and up to 0. `sample` has the rows with the smallest random keys.
    """

    n_rows: int
    n_weighted_rows: int
    n_values: np.ndarray
    n_missing: np.ndarray
    weight: np.ndarray
    low: Any
    high: Any
    below_zero: np.ndarray | None
    through_zero: np.ndarray | None
    sample: KeyedSample


def summary_reduction(
    name: str, columns_of: ColumnsOf, *, implicit_zeros: bool = True
) -> Reduction:
    """Return the reduction to the `ColumnSummary` of the rows, for one pass.

    `name` is the name of its tasks on the dashboard. `columns_of` is called with each block, as in
    `column_quantiles`. `implicit_zeros` says whether the zeros that sparse rows do not store are
    values.
    """
    return Reduction(NamedCall(name, _summarize, columns_of, implicit_zeros), _combine_summaries)


def select_values(
    name: str,
    columns_of: ColumnsOf,
    summary: ColumnSummary,
    targets: np.ndarray,
    *,
    implicit_zeros: bool = True,
) -> Passes:
    """Return the smallest value of each column whose cumulative weight reaches each target.

    `targets` has a column for each of the rows' (without weights, rank + 1); NaN are left out.
    A pass counts the values below, and collects the values inside, a bracket of each target, whose
    ends are values of the sample. A bracket that misses, or brackets that hold more than
    `MAX_BYTES`, cost a further pass. A sample of all rows costs none.
    """
    values = np.zeros(targets.shape, dtype=np.asarray(summary.low).dtype)
    searches: dict[int, _ColumnSearch] = {}

    def resolve(j: int, search: _ColumnSearch) -> None:
        """Write the answers that are known, and keep the search for the others."""
        search.resolve(targets[:, j], values[:, j])
        if search.pending.size:
            searches[j] = search

    sample_columns = column_getter(summary.sample.rows)
    for j in range(targets.shape[1]):
        pending = np.flatnonzero(~np.isnan(targets[:, j]))
        if pending.size:
            resolve(j, _start_search(summary, sample_columns, j, implicit_zeros, pending))
    n_passes = 0
    while searches:
        n_passes += 1
        plan = _plan(searches, targets, seed=n_passes << 32)
        per_block = NamedCall(name, count_at_knots, columns_of, implicit_zeros, plan)
        counts = yield Reduction(per_block, combine_counts)
        for (j, request), column_counts in zip(plan.requests.items(), counts, strict=True):
            # one column after the other, whose values take the memory of the last one's
            resolve(j, searches.pop(j).after(request, column_counts, plan.fraction == 1.0))
    return values


# -- the first pass ----------------------------------------------------------------------------


def _summarize(columns_of: ColumnsOf, implicit_zeros: bool, block: Block) -> ColumnSummary:
    X, weight = columns_of(block)
    n_rows, n_columns = X.shape
    keys = row_uniform(block.number, 0, n_rows)
    if weight is not None:
        used = np.flatnonzero(weight > 0)
        X, weight, keys = X[used], weight[used].astype(np.float64), keys[used]
    sample = _smallest_keys(KeyedSample(keys, X, weight), n_columns)
    n_used = X.shape[0]
    none = np.zeros(n_columns, dtype=np.int64)
    if not n_used:
        return ColumnSummary(n_rows, 0, none, none, none, None, None, None, None, sample)
    if is_sparse(X):
        return _summarize_sparse(X.tocsc(), n_rows, sample, implicit_zeros)
    if is_not_numpy(X):
        n_missing, low, high = _extremes_on_device(X)
        n = n_used - n_missing
        return ColumnSummary(n_rows, n_used, n, n_missing, n, low, high, None, None, sample)
    low, high, n_missing = X.min(axis=0), X.max(axis=0), none
    total = none + (n_used if weight is None else weight.sum())
    if np.isnan(low).any():
        is_missing = np.isnan(X)
        n_missing = is_missing.sum(axis=0)
        low, high = np.fmin.reduce(X, axis=0), np.fmax.reduce(X, axis=0)
        total = n_used - n_missing if weight is None else weight @ ~is_missing
    n_values = n_used - n_missing
    return ColumnSummary(n_rows, n_used, n_values, n_missing, total, low, high, None, None, sample)


def _extremes_on_device(X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of NaN in each column, and the least and the greatest other value."""
    xp = namespace(X)
    is_missing = xp.isnan(X)
    low = reduce_down(xp.min, xp.where(is_missing, asarray_like(np.inf, X), X))
    high = reduce_down(xp.max, xp.where(is_missing, asarray_like(-np.inf, X), X))
    n_missing = to_host(sums_down(astype(is_missing, INT64), INT64))
    is_empty = n_missing == X.shape[0]
    low, high = (np.where(is_empty, np.float32(np.nan), to_host(part)) for part in (low, high))
    return n_missing, low, high


def _summarize_sparse(
    X: Any, n_rows: int, sample: KeyedSample, implicit_zeros: bool
) -> ColumnSummary:
    lengths = np.diff(X.indptr)
    filled = np.flatnonzero(lengths)
    starts = X.indptr[filled]

    def of_columns(ufunc: np.ufunc, data: np.ndarray, fill: float) -> np.ndarray:
        result = np.full(len(lengths), fill, dtype=data.dtype)
        if filled.size:
            result[filled] = ufunc.reduceat(data, starts)
        return result

    def count(mask: np.ndarray) -> np.ndarray:
        return of_columns(np.add, mask.astype(np.int64), 0)

    data = X.data if X.dtype.kind == "f" else X.data.astype(np.float64)
    low, high = of_columns(np.fmin, data, np.nan), of_columns(np.fmax, data, np.nan)
    n_missing, below, through = count(np.isnan(data)), count(data < 0), count(data <= 0)
    n_values = lengths - n_missing
    if implicit_zeros:
        n_zeros = X.shape[0] - lengths
        low, high = (
            np.where(n_zeros > 0, extreme(bound, 0), bound).astype(data.dtype)
            for extreme, bound in ((np.fmin, low), (np.fmax, high))
        )
        n_values, through = n_values + n_zeros, through + n_zeros
    return ColumnSummary(
        n_rows, X.shape[0], n_values, n_missing, n_values, low, high, below, through, sample
    )


def _smallest_keys(sample: KeyedSample, n_columns: int) -> KeyedSample:
    """Return the rows of the smallest keys, as many as the sample has."""
    n_bytes = 8 * min(n_columns, 1000 if is_sparse(sample.rows) else n_columns)
    n = min(SAMPLE_ROWS, max(1, MAX_BYTES // max(1, n_bytes)))
    rows = sample.rows.tocsr() if is_sparse(sample.rows) else sample.rows
    if len(sample.keys) <= n:
        return KeyedSample(sample.keys, to_host_if_array(rows), sample.weight)
    chosen = np.flatnonzero(sample.keys <= np.partition(sample.keys, n - 1)[n - 1])
    weight = None if sample.weight is None else sample.weight[chosen]
    return KeyedSample(sample.keys[chosen], to_host_if_array(take_rows(rows, chosen)), weight)


def _combine_summaries(a: ColumnSummary, b: ColumnSummary) -> ColumnSummary:
    def both(merge: Any, x: Any, z: Any) -> Any:
        return (x if z is None else z) if x is None or z is None else merge(x, z)

    keys = np.concatenate([a.sample.keys, b.sample.keys])
    rows = vstack([a.sample.rows, b.sample.rows])
    weight = both(lambda x, z: np.concatenate([x, z]), a.sample.weight, b.sample.weight)
    return ColumnSummary(
        a.n_rows + b.n_rows,
        a.n_weighted_rows + b.n_weighted_rows,
        a.n_values + b.n_values,
        a.n_missing + b.n_missing,
        a.weight + b.weight,
        both(np.fmin, a.low, b.low),
        both(np.fmax, a.high, b.high),
        both(np.add, a.below_zero, b.below_zero),
        both(np.add, a.through_zero, b.through_zero),
        _smallest_keys(KeyedSample(keys, rows, weight), rows.shape[1]),
    )


# -- the driver's search -----------------------------------------------------------------------


@dataclass
class _ColumnSearch:
    """The knowledge of a column: counts at knots, and a sample of the values in the gaps."""

    n_values: int
    weight: float
    low: Any
    high: Any
    knots: np.ndarray
    counts: KnotCounts
    values: np.ndarray  # ascending
    weights: np.ndarray | None
    is_complete: np.ndarray  # whether the sample has all values of a gap
    pending: np.ndarray  # the targets without an answer

    def __post_init__(self) -> None:
        if self.weights is not None:
            self.cumulative = np.concatenate([[0.0], np.cumsum(self.weights)])

    def _weight_of(self, n: np.ndarray) -> np.ndarray:
        """Return the weight of the first n values of the sample."""
        return n if self.weights is None else self.cumulative[n]

    def _place_of(self, weight: np.ndarray, side: Literal["left", "right"] = "left") -> np.ndarray:
        """Return the places of weights among those of the first 0, 1, ... values of the sample."""
        if self.weights is not None:
            return np.searchsorted(self.cumulative, weight, side)
        place = np.ceil(weight) if side == "left" else np.floor(weight) + 1
        return np.clip(place, 0, len(self.values) + 1).astype(np.intp)

    def _gaps(self, t: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the gap of each target, its first and last value in the sample, and its counts."""
        counts, knots = self.counts, self.knots
        gap = np.searchsorted(counts.weight_through, t)
        first = np.concatenate([[0], np.searchsorted(self.values, knots, "right")])[gap]
        end = np.concatenate([np.searchsorted(self.values, knots), [len(self.values)]])[gap]
        low = np.concatenate([[0], counts.weight_through])[gap]
        high = np.concatenate([counts.weight_below, [self.weight]])[gap]
        return gap, first, np.maximum(first, end), low, high

    def resolve(self, targets: np.ndarray, results: np.ndarray) -> None:
        """Write the answers that are known, and drop their targets."""
        t = targets[self.pending]
        gap, first, end, low, high = self._gaps(t)
        tiniest = 1 if self.weights is None else np.nextafter(0.0, 1.0)
        at_low, at_high = t <= tiniest, t >= self.weight
        at_knot = ~at_low & ~at_high & (t > high)
        is_complete = self.is_complete[gap] & ~at_low & ~at_high & ~at_knot
        place = self._place_of(self._weight_of(first) + (t - low)) - 1
        place = np.clip(place, first, np.maximum(first, end - 1))
        # a gap can be empty only by the rounding of weights
        is_empty = is_complete & (end == first)
        at_knot |= is_empty & (gap < len(self.knots))
        at_high |= is_empty & (gap == len(self.knots))
        results[self.pending[at_low]] = self.low
        results[self.pending[at_high]] = self.high
        results[self.pending[at_knot]] = self.knots[gap[at_knot]]
        is_complete &= ~is_empty
        results[self.pending[is_complete]] = self.values[place[is_complete]]
        self.pending = self.pending[~(at_low | at_high | at_knot | is_complete)]

    def request(self, targets: np.ndarray, deviations: float) -> ColumnRequest:
        """Return a bracket for each target that is pending.

        Its half width is some standard deviations of a rank in the sample.
        """
        # The rank of each target is known within its gap between knots. Of the gap's values the
        # sample has some, whose weight has a standard deviation about that fraction.
        t = targets[self.pending]
        gap, first, end, low, high = self._gaps(t)
        squares = total = self._weight_of(end) - self._weight_of(first)
        if self.weights is not None:
            squares = np.concatenate([[0.0], np.cumsum(self.weights**2)])
            squares = squares[end] - squares[first]
        # A gap without weight has no fraction: NaN becomes 0 below.
        with np.errstate(invalid="ignore", divide="ignore"):
            fraction = np.clip((t - low) / (high - low), 0.0, 1.0)
            spread = deviations * np.sqrt(fraction * (1 - fraction) * squares)
            spread += MARGIN * np.where(total > 0, squares / total, 0.0)
        # Ends one value further out than the spread; beyond the sample, the gap's own knots.
        middle = self._weight_of(first) + np.nan_to_num(fraction) * total
        left = self._place_of(middle - spread, "right") - 2
        right = self._place_of(middle + spread)
        # the ends of a bracket: values of the sample, or the knots about the gap
        left, right = np.where(left < first, -1, left), np.where(right >= end, -1, right)
        ends = np.concatenate(
            [
                self.values[left[left >= 0]],
                self.values[right[right >= 0]],
                self.knots[gap[gap > 0] - 1],
                self.knots[gap[gap < len(self.knots)]],
            ]
        )
        knots = np.unique(ends)
        # Numbers of the new knots at which brackets begin and end, -1 and `len(knots)` without one.
        before = np.full(len(t), -1)
        before[gap > 0] = np.searchsorted(knots, self.knots[gap[gap > 0] - 1])
        before[left >= 0] = np.searchsorted(knots, self.values[left[left >= 0]])
        after, inner = np.full(len(t), len(knots)), gap < len(self.knots)
        after[inner] = np.searchsorted(knots, self.knots[gap[inner]])
        after[right >= 0] = np.searchsorted(knots, self.values[right[right >= 0]])
        # Brackets overlap: a gap is collected once where any of them covers it.
        depth = np.zeros(len(knots) + 2, dtype=np.int64)
        np.add.at(depth, before + 1, 1)
        np.add.at(depth, after + 1, -1)
        is_collected = np.cumsum(depth)[:-1] > 0
        estimates = np.where(is_collected, self._estimate(knots), 0.0)
        return ColumnRequest(knots, is_collected, estimates)

    def _estimate(self, knots: np.ndarray) -> np.ndarray:
        """Return about how many values the gaps have between other knots, the old ones included."""
        gap = np.concatenate([[0], np.searchsorted(self.knots, knots, "right")])
        n_values = np.concatenate([self.counts.below, [self.n_values]])
        n_values = n_values - np.concatenate([[0], self.counts.through])
        n_sampled = self._n_sampled(self.knots)
        per_sampled = n_values / np.maximum(n_sampled, 1)
        inside = np.minimum(self._n_sampled(knots) + 1, np.maximum(n_sampled, 1)[gap])
        return inside * per_sampled[gap]

    def _n_sampled(self, knots: np.ndarray) -> np.ndarray:
        """Return the number of values of the sample in the gaps between other knots."""
        starts = np.concatenate([[0], np.searchsorted(self.values, knots, "right")])
        ends = np.concatenate([np.searchsorted(self.values, knots), [len(self.values)]])
        return ends - starts

    def refined(self, request: ColumnRequest, n_knots: int) -> ColumnRequest:
        """Return a request with more knots: values of the sample in the gaps that are collected."""
        gap = np.searchsorted(request.knots, self.values)
        more = self.values[request.is_collected[gap]]
        more = np.unique(more[:: max(1, -(-len(more) // n_knots))])
        knots = np.union1d(request.knots, more)
        # a gap between the new knots is collected as the gap was that it is a part of
        upper = np.concatenate([np.searchsorted(request.knots, knots), [len(request.knots)]])
        is_collected = request.is_collected[upper]
        return ColumnRequest(knots, is_collected, np.zeros(len(knots) + 1))

    def after(self, request: ColumnRequest, counts: KnotCounts, whole: bool) -> _ColumnSearch:
        """Return the search after a pass; `whole` is whether it collected all values of gaps."""
        gap = np.searchsorted(request.knots, self.values)
        at_knot = np.zeros(len(gap), dtype=bool)
        inner = gap < len(request.knots)
        at_knot[inner] = request.knots[gap[inner]] == self.values[inner]
        chosen = ~at_knot & ~request.is_collected[gap]
        values, weights = np.concatenate([self.values[chosen], *counts.values]), None
        if self.weights is None or counts.weights is None:
            values.sort()
        else:
            weights = np.concatenate([self.weights[chosen], *counts.weights])
            values, weights = sorted_values(values, weights)
        return replace(
            self,
            knots=request.knots,
            counts=counts,
            values=values,
            weights=weights,
            is_complete=request.is_collected & whole,
        )


def _start_search(
    summary: ColumnSummary, sample_columns: Any, j: int, implicit_zeros: bool, pending: np.ndarray
) -> _ColumnSearch:
    values, n_zeros = sample_columns(j)
    values, weights = sorted_values(values, summary.sample.weight)
    if n_zeros and implicit_zeros:
        values = np.insert(values, np.searchsorted(values, 0), np.zeros(n_zeros, values.dtype))
    knots, below, through = values[:0], np.zeros(0, np.int64), np.zeros(0, np.int64)
    if summary.below_zero is not None and summary.through_zero is not None:
        knots = np.zeros(1, values.dtype)
        below, through = summary.below_zero[j : j + 1], summary.through_zero[j : j + 1]
    is_complete = len(summary.sample.keys) == summary.n_weighted_rows
    return _ColumnSearch(
        n_values=summary.n_values[j],
        weight=summary.weight[j],
        low=summary.low[j],
        high=summary.high[j],
        knots=knots,
        counts=KnotCounts(below, through, below, through, (), None),
        values=values,
        weights=weights,
        is_complete=np.full(len(knots) + 1, is_complete),
        pending=pending,
    )


def _deviations(n_targets: int) -> float:
    """Return the half width of brackets, in standard deviations of a rank in the sample."""
    return float(stats.norm.isf(MISS_PROBABILITY / (2 * n_targets)))


def _plan(searches: dict[int, _ColumnSearch], targets: np.ndarray, seed: int) -> KnotPlan:
    """Return the requests of a pass: all values in the brackets, if these are not too many."""
    deviations = _deviations(sum(search.pending.size for search in searches.values()))
    requests = {j: search.request(targets[:, j], deviations) for j, search in searches.items()}
    itemsize = next(
        s.values.dtype.itemsize + (0 if s.weights is None else 8) for s in searches.values()
    )
    n_bytes = itemsize * sum(request.estimates.sum() for request in requests.values())
    if n_bytes <= MAX_BYTES:
        return KnotPlan(requests, 1.0, seed)
    n_knots = max(1, MAX_BYTES // (20 * len(requests)))
    requests = {j: searches[j].refined(request, n_knots) for j, request in requests.items()}
    return KnotPlan(requests, MAX_BYTES / n_bytes, seed)
