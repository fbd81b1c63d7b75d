"""scikit-learn's estimators, fitted on the blocks of Dask rows and mapped over them."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from numbers import Real
from typing import Any, TypeVar

from sklearn.utils.validation import check_is_fitted

from skfleet._array import is_not_numpy
from skfleet._doc_link import DocumentationLink
from skfleet._linalg import is_sparse
from skfleet._sklearn_private import (
    calling_callbacks,
    clone_without_callbacks,
    output_container,
    validate_params,
)
from skfleet._validation import (
    dtypes_of,
    is_numeric,
    not_numeric,
    warn_of_names,
    without_name_warnings,
)
from skfleet._warnings import IgnoredWarnings, without_warnings
from skfleet.blocks import (
    Block,
    RowBlocks,
    artificial_rows,
    as_collection,
    check_rows,
    is_lazy,
    is_on_device,
    meta_of,
    row_blocks,
    with_pandas_text,
)
from skfleet.engine import (
    FitProgressMixin,
    NamedCall,
    Passes,
    Reduction,
    SmallFitMixin,
    add,
    engine_for,
    expect_passes,
    fit_progress,
    run_passes,
    with_placement,
)
from skfleet.estimators._array_api_blocks import (
    DeviceModel,
    array_api,
    check_takes_device,
    reduce_device_block,
    with_arrays_on_device,
)
from skfleet.estimators._fleet_estimator import check_columns, check_two_dims
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.inference import call_transform, constant_per_row, name_columns

T = TypeVar("T", bound=type)

# NumPy's warnings about columns in which a block has no value.

# Our class of each class of scikit-learn's.
BLOCKWISE_CLASSES: dict[type, type] = {}

# Methods that take rows.
METHODS = (
    "fit",
    "partial_fit",
    "transform",
    "inverse_transform",
    "fit_transform",
    "predict",
    "predict_proba",
    "predict_log_proba",
    "predict_joint_log_proba",
    "score",
)

FITS = ("fit", "partial_fit", "fit_transform")

# Those of NumPy's about columns of NaN alone, and divisions by zero.
_NUMERIC_WARNINGS = IgnoredWarnings(RuntimeWarning)


class BlockwiseEstimator(FitProgressMixin, DocumentationLink):
    """Base of estimators that are scikit-learn's own for rows in this process.

    On Dask rows ``fit`` is a generator of reductions, `_fit_passes`, that ends by setting the
    attributes of scikit-learn's ``fit``. By default it is one reduction, of `_reduce_block`,
    `_combine` and `_set_statistics`; an estimator that learns nothing has none of these.
    """

    # Whether X must be a matrix, and one of numbers.
    _takes_matrix, _takes_numbers = True, True
    # The methods that take Dask rows on a device.
    _device_methods: frozenset[str] = frozenset()
    # Private attributes that a fit on Dask rows sets, and one on rows in this process does not.
    _state_of_blocks: tuple[str, ...] = ()
    # Whether a fit takes several passes, for which rows are persisted in memory where they fit; and
    # whether it takes so many that they else go to the disk.
    _is_repeated = _is_iterative = False
    # Parameters that this process alone reads: an iterator is sent nowhere.
    _local_params: tuple[str, ...] = ()

    @staticmethod
    def _as_read(X: Any) -> Any:
        """Return rows in this process in the types that scikit-learn's methods take."""
        return with_pandas_text(X)

    def _reduce_block(self, block: Block) -> Any:
        """Return the statistics of a block; called on unfitted clones."""
        raise NotImplementedError

    def _combine(self, a: Any, b: Any) -> Any:
        """Return the statistics of two parts of the rows together."""
        return add(a, b)

    def _set_statistics(self, statistics: Any) -> None:
        """Set the fitted attributes."""
        raise NotImplementedError

    def _statistics(self) -> Any:
        """Return the statistics that the fitted attributes stand for, for ``partial_fit``."""
        raise NotImplementedError

    def _fit_passes(self, meta: Any) -> Passes:
        """Yield the reductions of a fit on rows like the empty `meta`, and set the attributes."""
        if type(self)._reduce_block is not BlockwiseEstimator._reduce_block:
            expect_passes(1)
            self._set_statistics((yield self._reduction()))

    def _reduction(
        self, method: str = "_reduce_block", *args: Any, combine: Any = None
    ) -> Reduction:
        """Return a reduction by ``method(block, *args)`` of an unfitted clone, and `_combine`."""
        unfitted = clone_without_callbacks(self._without_local_params())
        name = f"fit-{type(self).__name__}"
        per_block = NamedCall(name, _call_quietly, unfitted, method, args)
        return Reduction(per_block, combine or unfitted._combine)

    def _example_rows(self, rows: Any) -> Any:
        """Return valid rows, in the container of artificial ones, to transform; None if unknown."""
        return None

    def _example_result(self, method: str, rows: Any) -> Any:
        """Return the result of a method on a few rows like artificial ones; None if unknown."""
        example = self._example_rows(rows) if method == "transform" else None
        return None if example is None else getattr(self, method)(example)

    def _without_local_params(self) -> Any:
        """Return the estimator, or a copy without the parameters that this process alone reads."""
        if not self._local_params:
            return self
        return copy.copy(self).set_params(**dict.fromkeys(self._local_params))

    def _known_result(self, meta: Any) -> Any:
        """Return no transformed rows, as those like the empty `meta` become; None if unknown."""
        return None

    def _task_model(self) -> Any:
        """Return the model whose methods tasks call; they change no blocks in memory."""
        model = self._without_local_params()
        if getattr(model, "copy", True) is False:
            return copy.copy(model).set_params(copy=True)
        return model

    def _begin_fit(self, meta: Any, **options: Any) -> Passes:
        """Check the parameters and the empty `meta` of rows, and return the passes of a fit."""
        validate_params(self)
        self._check_meta(meta, reset=True)
        return self._fit_passes(meta, **options)

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        """Raise for rows, known by their metadata, that no block could be transformed of."""
        if self._takes_matrix:
            check_two_dims(meta)
            check_columns(self, meta, reset=reset)
        if is_sparse(meta):
            self._check_takes_sparse(meta)
        if not self._takes_numbers:
            return
        for name, dtype in dtypes_of(meta):
            # objects may be numbers, which only their values say
            if str(dtype) != "object" and not is_numeric(dtype):
                subject = "X" if name is None else f"Column {name!r} of X"
                error = not_numeric(subject, dtype, on_dask=False)
                raise ValueError(f"could not convert string to float: {error}")

    def _check_takes_sparse(self, meta: Any) -> None:
        """Raise what scikit-learn raises for sparse rows that it does not take."""
        try:
            with without_warnings():
                unfitted = clone_without_callbacks(self._without_local_params())
                unfitted.fit(artificial_rows(meta)[:1], [0])
        except (TypeError, ValueError) as error:
            if "parse" in str(error):
                raise

    def _fit_on_blocks(
        self, X: Any, y: Any = None, sample_weight: Any = None, **options: Any
    ) -> Any:
        """Fit on Dask rows; `options` are those of `_fit_passes`."""
        callbacks = calling_callbacks(self, X, y, sample_weight)
        with unchanged_on_failure(self), callbacks:
            X = as_collection(X)
            passes = self._begin_fit(with_pandas_text(meta_of(X)), **options)
            self._run(passes, X, y, sample_weight)
        return self

    def _partial_fit_on_blocks(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit on Dask rows and the rows before them."""
        is_first = not _is_fitted(self)
        if is_first:
            return self._fit_on_blocks(X, y, sample_weight)
        callbacks = calling_callbacks(self, X, y, sample_weight)
        with unchanged_on_failure(self), callbacks:
            validate_params(self)
            self._check_meta(with_pandas_text(meta_of(X)), reset=False)
            before = self._statistics()
            statistics = self._run(_one_pass(self._reduction()), X, y, sample_weight)
            self._set_statistics(self._combine(before, statistics))
        return self

    def _run(self, passes: Passes, X: Any, y: Any, sample_weight: Any) -> Any:
        """Make the passes of a fit over Dask rows."""
        check_rows(X=X, y=y, sample_weight=sample_weight)
        check_takes_device(self, X, "fit")
        if isinstance(sample_weight, Real):
            sample_weight = constant_per_row(float(sample_weight), X)
        rows = blocks_as_they_are(X, y, sample_weight)
        engine = engine_for(rows)
        persisted: Any = nullcontext(rows)
        if self._is_repeated or self._is_iterative:
            persisted = engine.persist(rows, to_disk=self._is_iterative)
        with persisted as rows:
            return run_passes(passes, engine, rows, answer=lambda request: request.run(X, y))


class BlockwiseTransformer(BlockwiseEstimator):
    """Base of transformers that are scikit-learn's own for rows in this process."""

    def _begin_part_fit(self, meta: Any, cross_fit: bool, known: Any) -> Passes:
        """Return the passes of a fit within a pipeline or a composition.

        They return what transforms the rows that it is fitted on, None where it does itself. With
        `cross_fit`, that does so as ``fit_transform`` does. `known` are the moments of the rows,
        None where they are not known.
        """
        return self._begin_fit(meta)

    def _replace_parts(self, replace: Callable[[Any], Any]) -> Any:
        """Return a copy with a replacement for each fitted part that is an estimator."""
        return self

    def _training_moments(self) -> Any:
        """Return the moments that the rows of the fit have when transformed; None if unknown."""
        return None

    def _transform_on_blocks(self, X: Any, copy: Any = None) -> Any:
        """Return transformed Dask rows, lazily."""
        return self._map(X, "transform")

    def _inverse_transform_on_blocks(self, X: Any, copy: Any = None) -> Any:
        """Return Dask rows transformed back, lazily."""
        return self._map(X, "inverse_transform")

    def _fit_transform_on_blocks(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit on Dask rows, and return them transformed, lazily."""
        return self.fit(X, y, **params).transform(X)

    def _map(self, X: Any, method: str, **params: Any) -> Any:
        """Return the result of a method on Dask rows in the container that ``set_output`` names."""
        check_rows(X=X)
        check_is_fitted(self)
        X, model, container = as_collection(X), self, "default"
        check_takes_device(self, X, method)
        if method == "transform":
            container = output_container_of(self)
            self._check_meta(with_pandas_text(meta_of(X)), reset=False)
        if container == "pandas":  # by the configuration of this process, which workers lack
            model = copy.deepcopy(model._without_local_params()).set_output(transform="pandas")
        if is_on_device(X):
            return self._map_on_device(model, X, method, container)
        meta = self._known_result(with_pandas_text(meta_of(X))) if method == "transform" else None
        example_of = partial(model._example_result, method)
        output = call_transform(self, model._task_model(), method, X, example_of, meta, **params)
        if container == "default" or hasattr(output, "columns"):
            return output
        return name_columns(output, self.get_feature_names_out())

    def _map_on_device(self, model: Any, X: Any, method: str, container: str) -> Any:
        """Return the result of a method on Dask rows on a device, lazily and on that device."""
        if container != "default":
            raise ValueError(
                f"set_output must be 'default' for Dask rows on a device. Got {container!r} "
                "instead. Leave it out."
            )
        # of rows on the host: the driver need not have a device
        with without_name_warnings():
            rows = artificial_rows(meta_of(X))
            example = model._example_result(method, rows)
            example = getattr(model, method)(rows) if example is None else example
        if method == "transform":
            warn_of_names(self, X)
        return call_transform(self, DeviceModel(model._task_model()), method, X, None, example)

    def _device_result(self, method: str, X: Any) -> Any:
        """Return the result of a method for a block on a device."""
        model = with_arrays_on_device(self, X)
        with array_api(X):
            return getattr(base_class(type(self)), method)(model, X)


def blockwise(cls: T) -> T:
    """Let an estimator of scikit-learn's take Dask rows too, and say so in its docstring."""
    base = base_class(cls)
    for name in METHODS:
        if hasattr(base, name):
            setattr(cls, name, _dispatch(getattr(base, name), f"_{name}_on_blocks"))
    if issubclass(cls, SmallFitMixin):
        cls.fit = with_placement(cls.fit)
    BLOCKWISE_CLASSES[base] = cls
    return with_scikit_learns_docstring(cls)


def base_class(cls: type) -> Any:
    """Return the class of scikit-learn's that a class is derived from."""
    return next(c for c in cls.__mro__ if c.__module__.startswith("sklearn."))


def stock_estimator(estimator: Any, **params: Any) -> Any:
    """Return an unfitted estimator of scikit-learn's own class, with a few other parameters."""
    return base_class(type(estimator))(**{**estimator.get_params(deep=False), **params})


def with_scikit_learns_docstring(cls: T) -> T:
    """Put the docstring of a class into that of scikit-learn's, after the first line.

    Examples of its own come in the place of scikit-learn's.
    """
    base = base_class(cls)
    summary, _, text = inspect.cleandoc(base.__doc__ or "").partition("\n\n")
    own, section, examples = (inspect.getdoc(cls) or "").partition("Examples\n--------\n")
    if section:
        text = text.partition(section)[0] + section + examples
    room, name = cls.__module__.rpartition(".")[0], base.__name__
    text = re.sub(rf"from sklearn[\w.]* import {name}\b", f"from {room} import {name}", text)
    cls.__doc__ = f"{summary}\n\n{own.strip()}\n\n{text}"
    return cls


def _dispatch(method: Callable[..., Any], name_on_blocks: str) -> Callable[..., Any]:
    """Return a method that calls scikit-learn's for rows in this process, and ours for Dask's."""
    signature = inspect.signature(method)
    rows_name = list(signature.parameters)[1]

    @wraps(method)
    def on_any_rows(self: Any, *args: Any, **kwargs: Any) -> Any:
        X = args[0] if args else kwargs.get(rows_name)
        if not is_lazy(X):
            rows = self._as_read(X)
            if args:
                args = rows, *args[1:]
            elif rows_name in kwargs:
                kwargs[rows_name] = rows
            if method.__name__ in FITS:
                for name in self._state_of_blocks:
                    vars(self).pop(name, None)
            return method(self, *args, **kwargs)
        signature.bind(self, *args, **kwargs)  # raises for arguments that it does not take
        on_blocks = getattr(self, name_on_blocks)
        is_fit = method.__name__ in ("fit", "fit_transform")
        with fit_progress(self) if is_fit else nullcontext():
            return on_blocks(*(args or (kwargs.pop(rows_name),)), **kwargs)

    return on_any_rows


def learned_attributes(fitted: Any) -> dict[str, Any]:
    """Return what ``fit`` of an estimator of scikit-learn's has set, but for its columns."""
    known = {*fitted.get_params(deep=False), "n_features_in_", "feature_names_in_"}
    return {name: value for name, value in vars(fitted).items() if name not in known}


def blocks_as_they_are(X: Any, y: Any = None, sample_weight: Any = None) -> RowBlocks:
    """Return blocks in the containers of the rows, whose values scikit-learn checks."""
    return replace(row_blocks(X, y, sample_weight, dtype=None), checked=True)


def output_container_of(transformer: Any) -> str:
    """Return the container that a transformer's output of Dask rows has, or raise."""
    container = output_container(transformer)
    if container not in ("default", "pandas"):
        raise ValueError(
            f"set_output must be 'default' or 'pandas' for Dask rows. Got {container!r} instead. "
            "Choose 'pandas' for a Dask DataFrame, or compute X."
        )
    return container


def _is_fitted(estimator: Any) -> bool:
    return any(name.endswith("_") and not name.startswith("_") for name in vars(estimator))


def _one_pass(reduction: Reduction) -> Passes:
    return (yield reduction)


def _call_quietly(estimator: Any, method: str, args: tuple[Any, ...], block: Block) -> Any:
    """Call a method on a block, without the warnings of NumPy's, which the driver may raise."""
    call = getattr(estimator, method)
    with _NUMERIC_WARNINGS:
        if is_not_numpy(block.X):
            return reduce_device_block(call, block, *args)
        return call(block, *args)
