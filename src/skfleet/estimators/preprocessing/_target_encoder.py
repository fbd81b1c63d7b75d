"""Encoder of categories by the targets of their rows."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context, get_config, preprocessing
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GroupKFold, KFold, check_cv
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.multiclass import type_of_target

from skfleet._sklearn_private import encode_targets, validate_params
from skfleet._validation import n_dims_of, warn_of_column
from skfleet.blocks import (
    Block,
    Folds,
    LabelCodes,
    as_collection,
    class_in_scikit_learn,
    compute_together,
    fix_partitions,
    is_frame,
    is_lazy,
    make_folds,
    meta_of,
    with_pandas_text,
)
from skfleet.engine import Passes, add
from skfleet.estimators._blockwise import blockwise, output_container_of
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.estimators.preprocessing._categories import (
    Parts,
    SortedValues,
    add_parts,
    join_parts,
)
from skfleet.estimators.preprocessing._category_index import CategoryIndex
from skfleet.estimators.preprocessing._encoders import (
    CategoryEncoder,
    add_predefined,
    categories_of,
)
from skfleet.estimators.preprocessing._target_moments import (
    CategoryTargets,
    TargetMoments,
    merge_targets,
    targets_of,
)
from skfleet.inference import map_partitions, name_columns

TARGET_TYPES = ("binary", "multiclass", "continuous")


class TargetStatistics(NamedTuple):
    """Rows and labels of each block, the dtype of the target, and the targets of each category.

    Behind the columns there is one of a single category, which has all rows.
    """

    n_rows: dict[int, int]
    labels: dict[int, LabelCodes]
    dtype: np.dtype
    columns: list[Parts]


class FoldPlan(NamedTuple):
    """Groups of all rows, in which a pass sums the targets of each category."""

    model: Any
    group_of_row: np.ndarray
    n_groups: int
    starts: dict[int, int]
    columns: list[CategoryTargets]


class SplitEncodings(NamedTuple):
    """Groups of the rows that a split encodes, by the targets of its training rows."""

    groups: tuple[int, ...]
    encodings: list[np.ndarray]
    target_mean: Any


@blockwise
class TargetEncoder(CategoryEncoder, preprocessing.TargetEncoder):
    """On Dask rows ``fit`` is one pass, of which the categories and their targets' moments come.

    ``fit_transform`` is two: the first one brings the numbers of rows too, and the labels where
    splits are stratified, and the second one sums targets by category and fold. Folds are those
    of scikit-learn's splitter for the global row numbers. The encoded rows are lazy.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pandas as pd
    >>> from skfleet.estimators.preprocessing import TargetEncoder
    >>> rows = pd.DataFrame({"animal": ["dog", "cat"] * 50, "age": [3.0, 5.0] * 50})
    >>> rows = dd.from_pandas(rows, npartitions=4)
    >>> encoder = TargetEncoder(target_type="continuous", smooth=0.0)
    >>> encoder = encoder.fit(rows[["animal"]], rows["age"])
    >>> encoder.encodings_
    [array([5., 3.])]
    >>> encoder.fit_transform(rows[["animal"]], rows["age"])
    dask.array<...shape=(100, 1), dtype=float64, chunksize=(25, 1), chunktype=numpy.ndarray>
    """

    target_type: str
    shuffle: Any
    random_state: Any
    smooth: Any
    cv: Any
    classes_: Any
    target_type_: str

    _local_params = ("cv",)

    def _check_takes_sparse(self, meta: Any) -> None:
        preprocessing.OrdinalEncoder().fit(type(meta)(np.ones((1, meta.shape[1]))))

    def _fit_on_blocks(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if y is None:
            type_of_target(y, input_name="y")
        super()._fit_on_blocks(X, y)
        self._warn_of_column(y)
        return self

    def _warn_of_column(self, y: Any) -> None:
        """Warn of labels of two dimensions; scikit-learn takes such numbers as they are."""
        if n_dims_of(y) == 2 and self.target_type_ != "continuous":
            warn_of_column()

    def _fit_passes(self, meta: Any) -> Passes:
        self._check_predefined(meta)
        self._set_statistics((yield self._reduction()))

    def _reduce_block(
        self, block: Block, brings_labels: bool = False, brings_numbers: bool = False
    ) -> TargetStatistics:
        y, labels, label_codes = self._target_of(block.y)
        encoder = clone(self)
        columns = categories_of(encoder, block.X, "ignore", with_counts=False)
        categories = [column.values for column in columns]
        encoder.categories_ = CategoryIndex(categories)
        all_codes = encoder._codes_of_targets(block)
        # The last column has one category for all rows, whose encoding is the mean of all targets.
        every = [*categories, np.zeros(1)]
        parts = [
            [targets_of(codes, values, y, labels, label_codes)]
            for codes, values in zip(all_codes, every, strict=True)
        ]
        # Splits that look at y need the targets of all rows, in their order.
        is_home = brings_labels and (labels is not None or brings_numbers)
        values = np.asarray(block.y).reshape(block.n_rows) if is_home else None
        homes = {} if values is None else {block.number: LabelCodes.encode(values)}
        dtype = np.dtype(np.float64) if y is None else y.dtype
        return TargetStatistics({block.number: block.n_rows}, homes, dtype, parts)

    def _codes_of_targets(self, block: Block) -> list[np.ndarray]:
        """Return the category of each row in each column, and in one of a single category.

        As in scikit-learn's fit, a category that is not predefined counts as the first one.
        """
        codes = [np.maximum(column, 0) for column in self._look_up(block.X)]
        return [*codes, np.zeros(block.n_rows, dtype=np.intp)]

    def _target_of(self, y: Any) -> tuple[Any, Any, Any]:
        """Return a block's targets as numbers, its labels, and their codes; None for what is not.

        Floats may turn out to be of either kind.
        """
        is_continuous = self.target_type == "continuous"
        if self.target_type == "auto":
            values = np.asarray(y)
            # twice, so that it does not warn of many labels for few rows
            kind = type_of_target(np.concatenate([values, values]), input_name="y")
            if kind not in TARGET_TYPES:  # scikit-learn's error
                preprocessing.TargetEncoder().fit(np.zeros((len(y), 1)), y)
            is_continuous = kind == "continuous"
        numbers = labels = codes = None
        if self.target_type == "continuous" or (
            self.target_type == "auto" and np.asarray(y).dtype.kind == "f"
        ):
            numbers = column_or_1d(check_array(y, ensure_2d=False, dtype="numeric", input_name="y"))
        if not is_continuous:
            encoder = preprocessing.LabelEncoder()
            codes, labels = encoder.fit_transform(np.asarray(y)), encoder.classes_
        return numbers, labels, codes

    def _combine(self, a: TargetStatistics, b: TargetStatistics) -> TargetStatistics:
        merge_all = [add_parts if self.categories == "auto" else add_predefined_targets]
        merge_all = [*merge_all * (len(a.columns) - 1), add_parts]
        columns = [
            merge(x, z, merge_targets)
            for merge, x, z in zip(merge_all, a.columns, b.columns, strict=True)
        ]
        dtype = np.result_type(a.dtype, b.dtype)
        return TargetStatistics(a.n_rows | b.n_rows, a.labels | b.labels, dtype, columns)

    def _set_statistics(self, statistics: TargetStatistics) -> None:
        columns = [join_parts(parts, merge_targets) for parts in statistics.columns]
        targets: list[CategoryTargets] = [column.statistics for column in columns]
        labels = targets[-1].labels
        # scikit-learn's own fit, for what is the same for all rows
        X = np.zeros((2, self.n_features_in_))
        fitted = preprocessing.TargetEncoder(target_type="continuous").fit(X, [0.0, 1.0])
        known = {*self.get_params(), "n_features_in_"}
        vars(self).update({k: v for k, v in vars(fitted).items() if k not in known})
        self.categories_ = [column.values for column in columns[:-1]]
        self.target_type_, self.classes_ = self.target_type, labels
        if self.target_type == "auto":
            # Each label several times, so that it does not warn of many labels for few rows.
            several = None if labels is None else np.repeat(labels, 4)
            self.target_type_ = "continuous" if labels is None else type_of_target(several)
        if self.target_type_ == "continuous":
            self.classes_ = None
        elif self.target_type_ == "multiclass" and len(labels) == 2:  # scikit-learn's error
            preprocessing.TargetEncoder(target_type="multiclass").fit(np.zeros((2, 1)), labels)
        moments = [self._moments(target) for target in targets]
        self.target_mean_ = self._target_mean(moments[-1], statistics.dtype)
        self.encodings_ = self._encodings(moments)

    def _moments(self, target: CategoryTargets) -> TargetMoments:
        """Return the moments of what is encoded, in each category."""
        if self.target_type_ == "continuous":
            assert target.moments is not None
            return target.moments
        assert target.counts is not None
        is_binary = self.target_type_ == "binary"
        return (TargetMoments.of_labels if is_binary else TargetMoments.of_classes)(target.counts)

    def _target_mean(self, y: TargetMoments, dtype: np.dtype) -> Any:
        """Return the mean of all targets, in the type that NumPy's mean has."""
        return y.mean[0].astype(np.mean(np.zeros(1, dtype=dtype)).dtype)

    def _encodings(self, moments: list[TargetMoments]) -> list[np.ndarray]:
        """Return the encodings of each column, and of each class in turn, by these moments."""
        encodings = [column.encode(moments[-1], self.smooth) for column in moments[:-1]]
        if self.target_type_ != "multiclass":
            return encodings
        return [np.ascontiguousarray(column) for part in encodings for column in part.T]

    # -- cross-fitting -------------------------------------------------------------------------

    def _fit_transform_on_blocks(self, X: Any, y: Any = None, **params: Any) -> Any:
        if y is None:
            type_of_target(y, input_name="y")
        container = output_container_of(self)
        with unchanged_on_failure(self):
            rows_of = as_collection(X)
            X, y = with_final_partitions(rows_of, y, container)
            meta = with_pandas_text(meta_of(X))
            folds = self._run(self._begin_cross_fit(meta, **params), X, y, None)
        self._warn_of_column(y)
        output = transform_by_fold(self, folds, X, rows_of)
        is_named = container == "default" or is_frame(folds.result)
        return output if is_named else name_columns(output, self.get_feature_names_out())

    def _begin_part_fit(self, meta: Any, cross_fit: bool, known: Any) -> Passes:
        return self._begin_cross_fit(meta) if cross_fit else self._begin_fit(meta)

    def _begin_cross_fit(self, meta: Any, **params: Any) -> Passes:
        """Return the passes of a fit, and of the encoding of its rows by fold."""
        validate_params(self)
        self._check_meta(meta, reset=True)
        groups, splits = yield from self._cross_fit_passes(meta, self._split_params(params))
        result: Any = np.empty((0, len(splits[0].encodings)))
        if output_container_of(self) == "pandas" and is_frame(meta):
            names = self.get_feature_names_out()
            result = type(meta)(result, columns=names, index=meta.index[:0])
        return FoldEncoder(self._task_model(), splits, groups, result)

    def _cross_fit_passes(self, meta: Any, params: dict[str, Any]) -> Passes:
        """Return the groups of the rows of each block, and the encodings of each split."""
        # The first pass: statistics over all rows, and what the splitter must know of y.
        self._check_predefined(meta)
        by_number = self._splits_by_number()
        statistics = yield self._reduction("_reduce_block", True, not by_number)
        fitted = copy.copy(self)
        fitted._set_statistics(statistics)
        # The splitter sees numbers of rows, for which the blocks are put in their order.
        numbers = sorted(statistics.n_rows)
        ends = np.cumsum([statistics.n_rows[i] for i in numbers])
        labels = None
        if len(statistics.labels) == len(numbers):
            labels = LabelCodes.concatenate([statistics.labels[i] for i in numbers])
        folds = fitted._make_folds(int(ends[-1]), labels, params)
        group_of_row, n_groups = _group_of_row(folds, int(ends[-1])), _n_groups(folds)
        # The second pass: sums by category and group of rows, of which each split has some.
        columns = [join_parts(parts, merge_targets).statistics for parts in statistics.columns]
        groups = dict(zip(numbers, np.split(group_of_row, ends[:-1]), strict=True))
        starts = dict(zip(numbers, [0, *ends[:-1].tolist()], strict=True))
        plan = FoldPlan(fitted._task_model(), group_of_row, n_groups, starts, columns)
        sums = yield self._reduction("_sum_groups", plan, combine=add)
        splits = []
        for train, test in folds.splits:
            moments = [
                fitted._moments_of_groups(column, target, train)
                for column, target in zip(sums, columns, strict=True)
            ]
            mean = fitted._target_mean(moments[-1], statistics.dtype)
            splits.append(SplitEncodings(test, fitted._encodings(moments), mean))
        vars(self).update(vars(fitted))
        return groups, splits

    def _sum_groups(self, block: Block, plan: FoldPlan) -> list[np.ndarray]:
        """Return, of each category and group, the counts of labels, or sums about the mean."""
        start, G = plan.starts[block.number], plan.n_groups
        groups = plan.group_of_row[start : start + block.n_rows].astype(np.intp)
        numbers, labels, label_codes = self._target_of(block.y)
        sums = []
        for codes, target in zip(plan.model._codes_of_targets(block), plan.columns, strict=True):
            # A number for each pair of category and group, so that one count makes the whole table.
            cells = codes * G + groups
            if plan.model.target_type_ == "continuous":
                # About the mean of the category: squares about zero would lose digits.
                shift = target.moments.mean
                y = numbers - shift[codes]
                k, weights = len(shift), (None, y, y**2)
                parts = [np.bincount(cells, w, minlength=k * G).reshape(k, G) for w in weights]
                sums.append(np.stack(parts, axis=-1))
            else:
                k, L = target.counts.shape
                of_block = CategoryIndex([target.labels]).codes(0, labels)
                cells = cells * L + of_block[label_codes]
                sums.append(np.bincount(cells, minlength=k * G * L).reshape(k, G, L))
        return sums

    def _moments_of_groups(
        self, sums: np.ndarray, target: CategoryTargets, groups: tuple[int, ...]
    ) -> TargetMoments:
        """Return the moments of the targets of some groups of rows."""
        total = sums[:, list(groups)].sum(axis=1)
        if self.target_type_ == "continuous":
            assert target.moments is not None
            return TargetMoments.of_shifted_sums(target.moments.mean, total)
        return self._moments(CategoryTargets(target.labels, total, None))

    def _splits_by_number(self) -> bool:
        """Return whether the splits of continuous targets are those of the number of rows."""
        by_number = (KFold, GroupKFold)
        return isinstance(self.cv, int | None) or class_in_scikit_learn(self.cv) in by_number

    def _split_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of the splitter, in this process; warn as scikit-learn does."""
        options = {"cv": KFold(2), "target_type": "continuous", "shuffle": self.shuffle}
        options["random_state"] = self.random_state if self.random_state == "deprecated" else 0
        example = preprocessing.TargetEncoder(**options)
        is_routed = get_config()["enable_metadata_routing"]
        with config_context(enable_metadata_routing=False):
            unrouted = {} if is_routed else params
            example.fit_transform(np.zeros((2, 1)), [0.0, 1.0], **unrouted)
        if not is_routed:
            return {}
        routed = process_routing(self, "fit_transform", **params).splitter.split
        return dict(zip(routed, compute_together(*routed.values()), strict=True))

    def _make_folds(self, n_rows: int, labels: Any, params: dict[str, Any]) -> Folds:
        """Return the folds of the rows by scikit-learn's splitter."""
        options = {"shuffle": True if self.shuffle == "deprecated" else self.shuffle}
        if self.random_state != "deprecated":
            options["random_state"] = self.random_state
        classifier = self.target_type_ != "continuous"
        splitter = check_cv(self.cv, labels, classifier=classifier, **options)
        if getattr(splitter, "n_splits", 0) > n_rows:  # scikit-learn's error
            next(iter(splitter.split(np.zeros((n_rows, 1)), labels, **params)))
        folds = make_folds(splitter, n_rows, y=labels, **params)
        tested = sorted(group for _, test in folds.splits for group in test)
        if tested != list(range(_n_groups(folds))):
            raise ValueError(
                "Validation indices from `cv` must cover each sample index exactly "
                "once with no overlap. Pass a splitter with non-overlapping "
                "validation folds as `cv` or refer to the docs for other options."
            )
        return folds


class FoldEncoder(BaseEstimator):
    """A cross-fitted encoder: it encodes each row by the split that tests it.

    `groups` are those of the rows, by the numbers of their blocks; `result` is that of no rows.
    """

    def __init__(self, encoder: Any, splits: Any, groups: Any, result: Any) -> None:
        self.encoder, self.splits, self.groups, self.result = encoder, splits, groups, result

    def fit(self, X: Any, y: Any = None) -> FoldEncoder:
        """Do nothing: the encoder is fitted."""
        return self

    def of_rows(self, groups: np.ndarray) -> FoldEncoder:
        """Return the encoder of rows of these groups alone."""
        return FoldEncoder(self.encoder, self.splits, groups, self.result)

    def transform(self, X: Any) -> Any:
        """Encode the rows of the groups."""
        if not len(self.groups):
            return self.result
        values = np.empty((len(self.groups), self.result.shape[1]))
        rows_of_splits = [
            np.flatnonzero(np.isin(self.groups, split.groups)) for split in self.splits
        ]
        encodings = [(split.encodings, split.target_mean) for split in self.splits]
        encode_targets(self.encoder, X, values, rows_of_splits, encodings)
        if is_frame(self.result):
            return type(self.result)(values, columns=self.result.columns, index=X.index)
        return values

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the encoder's columns."""
        return self.encoder.get_feature_names_out(input_features)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def transform_by_fold(owner: Any, folds: FoldEncoder, X: Any, rows_of: Any) -> Any:
    """Return the rows that an encoder was cross-fitted on, encoded lazily.

    X are those of `rows_of` in their final partitions.
    """
    n_partitions = X.npartitions if is_frame(meta_of(X)) else X.numblocks[0]
    none = np.zeros(0, dtype=np.int8)
    values = [folds.groups.get(i, none) for i in range(n_partitions)]
    return map_partitions(owner, _transform, folds.of_rows(none), X, values, folds.result, rows_of)


def _transform(folds: FoldEncoder, rows: Any, groups: np.ndarray) -> Any:
    return folds.of_rows(groups).transform(rows)


def with_final_partitions(X: Any, y: Any, container: str) -> tuple[Any, Any]:
    """Return collections whose partitions no optimization changes: those of X for a frame of it."""
    collections = [X, y] if is_lazy(y) else [X]
    (X, *targets), _, _ = fix_partitions(collections, [], is_tuned=container == "default")
    return X, *(targets or [y])


def _n_groups(folds: Folds) -> int:
    """Return the number of groups that rows are in."""
    return len({group for train, test in folds.splits for group in (*train, *test)})


def _group_of_row(folds: Folds, n_rows: int) -> np.ndarray:
    if folds.starts is None:
        assert folds.group_of_row is not None
        return folds.group_of_row
    lengths = np.diff(folds.starts, append=n_rows)
    dtype = np.min_scalar_type(len(lengths))
    return np.repeat(np.arange(len(lengths), dtype=dtype), lengths)


def add_predefined_targets(a: Parts, b: Parts, merge: Any) -> Parts:
    """Return predefined categories, which are the same in all blocks, with merged targets."""
    (values,) = add_predefined([SortedValues(a[0].values)], [SortedValues(b[0].values)], merge)
    every = np.arange(len(values.values))
    merged = merge(a[0].statistics, b[0].statistics, every, every, len(every))
    return [SortedValues(values.values, merged)]
