"""Base of XGBoost's estimators: their fit, here or on ranks, and predictions."""

from __future__ import annotations

import logging
import pickle
import warnings
from typing import Any

import numpy as np
import xgboost
from xgboost.callback import EarlyStopping, EvaluationMonitor

from skfleet._validation import check_target_type
from skfleet.blocks import artificial_rows, is_lazy, meta_of, n_rows_of, target_column
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators.boosting._boosted_estimator import OWN_PARAMETERS, BoostedEstimator
from skfleet.estimators.boosting._fit_inputs import (
    FitInputs,
    check_eval_set,
    check_labels,
    with_validation_set,
)
from skfleet.estimators.boosting._row_survey import StoredRows
from skfleet.estimators.boosting._xgboost_matrix import shared_matrix
from skfleet.estimators.boosting._xgboost_private import fit_settings, wrap_objective
from skfleet.estimators.boosting._xgboost_rank import XGBoostJob, XGBoostRank, is_gpu
from skfleet.estimators.boosting._xgboost_training import XGBoostMonitor, XGBoostTraining

logger = logging.getLogger("skfleet.estimators")

# Memory of a process that has loaded XGBoost.
PROCESS_BYTES = 150_000_000
# The fraction of values from which on XGBoost stores a column as a dense one (`sparse_threshold`).
MIN_COLUMN_DENSITY = 0.2

TREE_METHODS, BOOSTERS = (None, "auto", "hist"), (None, "gbtree", "dart")


@document
class XGBoostEstimator(BoostedEstimator):
    """Base of XGBoost's estimators."""

    _own_attributes = ("_labels",)
    _library = "xgboost"
    _has_labels = False
    _is_ranker = False
    # The sorted labels of a classifier; None for numbers from 0 on.
    _labels: np.ndarray | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        base_margin: Any = None,
        eval_set: Any = None,
        verbose: bool | int | None = True,
        xgb_model: Any = None,
        sample_weight_eval_set: Any = None,
        base_margin_eval_set: Any = None,
        feature_weights: Any = None,
        X_val: Any = None,
        y_val: Any = None,
    ) -> Any:
        """Train the booster.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Training rows; NaN is a missing value. Of a frame, categorical columns with
            ``enable_categorical=True``.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Labels of any kind for a classifier, numbers for a regressor.
        sample_weight : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Weights.
        base_margin : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Margin of each row to start from.
        eval_set : list of (X, y), default=None
            Rows in any container whose metrics are computed after every round.
        verbose : bool or int, default=True
            Print the metrics, of every so many rounds.
        {xgb_model}
        sample_weight_eval_set, base_margin_eval_set : list, default=None
            Weights and margins for each evaluation set.
        {feature_weights}
        X_val, y_val : rows in any container, default=None
            A single evaluation set, in the place of `eval_set`.

        Returns
        -------
        self : estimator
            Fitted estimator.
        """
        eval_set = with_validation_set(eval_set, X_val, y_val)
        values = {"sample_weight": sample_weight, "base_margin": base_margin}
        eval_values = {
            "sample_weight": sample_weight_eval_set,
            "base_margin": base_margin_eval_set,
        }
        options = {"xgb_model": xgb_model, "feature_weights": feature_weights}
        options = {"verbose": verbose, **without_none(options)}
        return self._fit(self._all_inputs(X, y, values, eval_set, eval_values, options))

    def get_xgb_params(self) -> dict[str, Any]:
        """Return the parameters of XGBoost's booster.

        Returns
        -------
        params : dict
            Those of the constructor that are XGBoost's.
        """
        params = super().get_xgb_params()
        return {name: value for name, value in params.items() if name not in OWN_PARAMETERS}

    def _all_inputs(
        self,
        X: Any,
        y: Any,
        values: dict[str, Any],
        eval_set: Any,
        eval_values: dict[str, Any],
        options: dict[str, Any],
    ) -> FitInputs:
        """Return the inputs of a ``fit`` with values per row, and lists of these."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        lists = {f"{name}_eval_set": value for name, value in eval_values.items()}
        check_eval_set(eval_set, X, lists)
        parts: list[FitInputs | None] | None = None if eval_set is None else []
        for i, (X_eval, y_eval) in enumerate(eval_set or ()):
            own = {k: None if value is None else value[i] for k, value in eval_values.items()}
            is_training = X_eval is X and y_eval is y
            if is_training and all(own[name] is values.get(name) for name in own):
                parts.append(None)
                continue
            parts.append(self._inputs_of(X_eval, y_eval, own))
        inputs = self._inputs_of(X, y, values)
        inputs.eval_parts, inputs.options = parts, options
        return inputs

    def _inputs_of(self, X: Any, y: Any, values: dict[str, Any]) -> FitInputs:
        per_sample = {name: v for name, v in values.items() if name != "sample_weight"}
        return FitInputs(X, y, values.get("sample_weight"), per_sample)

    def _fit_plain(self, inputs: FitInputs, n_threads: int | None = None) -> None:
        plain, labels = self._plain(), self._labels_of(inputs.y)
        arguments: dict[str, Any] = dict(inputs.options)
        y = self._encode(inputs.y, labels, "y")
        arguments |= without_none(_columns_of(inputs))
        if inputs.eval_parts is not None:
            arguments["eval_set"] = []
            lists: dict[str, list[Any]] = {}
            for i, part in enumerate(inputs.eval_parts):
                part = inputs if part is None else part
                y_eval = y if part is inputs else self._encode(part.y, labels, f"eval_set[{i}]")
                arguments["eval_set"].append((part.X, y_eval))
                for name, value in _columns_of(part).items():
                    key = "eval_qid" if name == "qid" else f"{name}_eval_set"
                    lists.setdefault(key, [None] * len(inputs.eval_parts))[i] = value
            arguments |= {k: v for k, v in lists.items() if any(x is not None for x in v)}
        with shared_matrix(plain):
            plain.fit(inputs.X, y, **arguments)
        self._take(self._learned(plain) | {"_labels": labels})

    def _labels_of(self, y: Any) -> np.ndarray | None:
        """Return the sorted labels of a classifier's targets; None where there are none."""
        return None

    def _encode(self, y: Any, labels: np.ndarray | None, name: str) -> Any:
        """Return labels as their numbers."""
        return y

    # 1. Parameters that only one machine can train with.
    # 2. A round on a few artificial rows: XGBoost itself checks the parameters' values and columns.
    def _check_inputs(self, inputs: FitInputs) -> None:
        params = self.get_xgb_params()
        for name, allowed in (("tree_method", TREE_METHODS), ("booster", BOOSTERS)):
            if params.get(name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, allowed))} for Dask rows. Got "
                    f"{params[name]!r} instead, which trains on one machine. Compute the rows, or "
                    f"leave {name} out."
                )
        if self.early_stopping_rounds and not inputs.eval_parts:
            raise ValueError(
                "early_stopping_rounds must come with validation rows. Got no eval_set instead: "
                "Must have at least 1 validation dataset for early stopping."
            )
        for part in inputs.sets:
            part.y = target_column(part.y)
            check_target_type(part.y, numeric=not self._has_labels)
        self._check_by_library(inputs)

    def _check_by_library(self, inputs: FitInputs) -> None:
        """Raise what XGBoost raises for parameters and kinds of columns, and for unknown ones."""
        rows = artificial_rows(meta_of(inputs.X))
        y = np.arange(n_rows_of(rows)) % 2 if self._has_labels else np.ones(n_rows_of(rows))
        qid = np.zeros(len(y), dtype=int) if self._is_ranker else None
        params, _ = self._booster_params(np.arange(2) if self._has_labels else None)
        if str(params["objective"]).startswith("multi:"):
            params["num_class"] = 2
        _, _, params, _ = fit_settings(self, None, params, None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            matrix = xgboost.DMatrix(rows, y, qid=qid, enable_categorical=self.enable_categorical)
            booster = xgboost.Booster({**params, "verbosity": 1, "device": "cpu"}, [matrix])
            booster.update(matrix, 0)
        messages = " ".join(str(warning.message) for warning in caught)
        for name in getattr(self, "kwargs", None) or ():
            if f'"{name}"' in messages:
                raise TypeError(
                    f"{type(self).__name__} must have parameters that XGBoost knows. Got {name!r} "
                    "instead. Look for its name in XGBoost's list of parameters."
                )

    def _has_gpu(self) -> bool:
        return is_gpu(self.device)

    def _binned_bytes(self, n_rows: int, n_features: int, n_outputs: int, density: float) -> float:
        bin_bytes = 1 if (self.max_bin or 256) <= 256 else 2
        has_gaps = density < 1 or not (self.missing is None or np.isnan(self.missing))
        # On the host bins are kept twice, by row and by column. With gaps, those by row have four
        # bytes; columns with few values have also the number of each value's row.
        if self._has_gpu():
            of_row = n_features * bin_bytes
        elif not has_gaps:
            of_row = n_features * 2 * bin_bytes
        elif density >= MIN_COLUMN_DENSITY:
            of_row = n_features * (4 * density + bin_bytes) + 8
        else:
            of_row = n_features * density * (4 + bin_bytes + 8) + 8
        # beside the bins: a label, a weight, and of each output a gradient, a Hessian, a margin and
        # the position of the row
        return PROCESS_BYTES + n_rows * (of_row + 8 + 28 * n_outputs)

    @staticmethod
    def _rank_class() -> Any:
        return XGBoostRank

    def _train(
        self,
        launcher: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        inputs: FitInputs,
        n_ranks: int,
        fits_in_memory: bool,
    ) -> None:
        if not fits_in_memory:
            logger.warning(
                "the binned rows of a rank do not fit into the memory of a worker: XGBoost holds "
                "them on the disk, which is slower; more workers, or smaller max_bin, avoid that"
            )
        # Parameters as a fit of XGBoost resolves them, from the labels that the survey found.
        labels = stored.labels if self._has_labels else None
        check_labels(labels)
        params, objective = self._booster_params(labels)
        model, metric, params, feature_weights = fit_settings(
            self, inputs.options.get("xgb_model"), params, inputs.options.get("feature_weights")
        )
        self._set_query_weights(stored, evals, inputs)
        # What training goes on from; ranks get it as bytes.
        booster = _as_booster(model)
        # Callbacks that stop or print run in the driver: all ranks must stop after the same round.
        stops = (EarlyStopping, EvaluationMonitor)
        callbacks = list(self.callbacks or ())
        # What every rank gets. Each evaluation set lies whole on one rank, where its metrics are
        # those of a single machine.
        job = XGBoostJob(
            params=params,
            n_ranks=n_ranks,
            timeout=self.timeout,
            matrix={
                "max_bin": self.max_bin,
                "missing": self.missing,
                "enable_categorical": self.enable_categorical,
            },
            eval_names=[f"validation_{i}" for i in range(len(evals))],
            eval_ranks=[None if e is None else i % n_ranks for i, e in enumerate(evals)],
            objective=objective,
            metric=metric,
            callbacks=[c for c in callbacks if not isinstance(c, stops)],
            feature_weights=feature_weights,
            is_ranker=self._is_ranker,
            has_labels=self._has_labels,
            is_on_disk=not fits_in_memory,
            model=None if booster is None else bytes(booster.save_raw("ubj")),
        )
        monitor = XGBoostMonitor(
            [c for c in callbacks if isinstance(c, stops)],
            self.early_stopping_rounds,
            inputs.options["verbose"],
            0 if booster is None else booster.num_boosted_rounds(),
        )
        library = XGBoostTraining(job)
        n_rounds = self.get_num_boosting_rounds()
        # All rounds; where workers are lost meanwhile, from the last snapshot on.
        data = self._run(launcher, library, stored, evals, n_rounds, monitor, n_ranks)
        monitor.finish()
        # The attributes by which `predict` knows the best round, which slicing removes.
        trained = pickle.loads(data)
        trained.set_attr(**monitor.attributes)
        if monitor.save_best:
            attributes = monitor.attributes
            trained = trained[: int(attributes["best_iteration"]) + 1]
            trained.set_attr(**attributes)
        # A rank's number of threads is not that of the process that predicts.
        trained.set_param({"nthread": self.n_jobs or 0})
        # The fitted attributes, as XGBoost's estimators name them.
        state: dict[str, Any] = {"_Booster": trained, "_labels": labels}
        if labels is not None:
            state["n_classes_"] = len(labels)
        if monitor.evals_result:
            state["evals_result_"] = monitor.evals_result
        self._take(state)

    def _booster_params(self, labels: np.ndarray | None) -> tuple[dict[str, Any], Any]:
        """Return the booster's parameters for these labels, and the user's objective."""
        params = self.get_xgb_params()
        if not callable(self.objective):
            return params, None
        params["objective"] = "reg:squarederror"
        return params, wrap_objective(self.objective)

    def _set_query_weights(
        self, stored: StoredRows, evals: list[StoredRows | None], inputs: FitInputs
    ) -> None:
        """Set the weights of the rows' queries, which only rankers have."""

    def load_model(self, fname: Any) -> None:
        """Load a booster, which has no labels: a classifier's are numbers from 0 on then.

        Parameters
        ----------
        fname : str, path-like or bytearray
            File in any of XGBoost's formats, or its content.
        """
        super().load_model(fname)
        names = {*self._learned_names, "_Booster", "n_classes_"} & vars(self).keys()
        self._labels, self._learned_names = None, tuple(sorted(names))

    def apply(self, X: Any, iteration_range: Any = None) -> Any:
        """Return the leaf of every tree for every row.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows.
        iteration_range : (int, int), default=None
            Rounds, as in ``predict``.

        Returns
        -------
        leaves : ndarray or Dask collection of shape (n_samples, n_trees)
            Numbers of leaves; lazy for Dask rows.
        """
        if is_lazy(X):
            return self._map(X, "apply", iteration_range=iteration_range)
        return self.to_sklearn().apply(X, iteration_range)

    def predict(
        self,
        X: Any,
        *,
        output_margin: bool = False,
        validate_features: bool = True,
        base_margin: Any = None,
        iteration_range: Any = None,
    ) -> Any:
        """Predict for every row, by the rounds up to the best one after early stopping.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows.
        output_margin : bool, default=False
            Return margins in place of values.
        validate_features : bool, default=True
            Check the columns' names.
        base_margin : array-like of shape (n_samples,), default=None
            Margin to start from, for rows in this process.
        iteration_range : (int, int), default=None
            Rounds to predict by, the second one exclusive.

        Returns
        -------
        predictions : ndarray or Dask collection of shape (n_samples,)
            In the container of X; lazy for Dask rows.
        """
        options = {
            "output_margin": output_margin,
            "validate_features": validate_features,
            "base_margin": base_margin,
            "iteration_range": iteration_range,
        }
        if is_lazy(X):
            return self._map(X, "predict", **options)
        return self._decode(self.to_sklearn().predict(X, **options), output_margin)

    def _decode(self, predictions: Any, output_margin: bool) -> Any:
        """Return predicted numbers of labels as labels."""
        return predictions


def _columns_of(inputs: FitInputs) -> dict[str, Any]:
    """Return values per row, and weights of rows or queries, as arguments of XGBoost's fit."""
    weight = inputs.sample_weight if inputs.query_weights is None else inputs.query_weights
    return {"sample_weight": weight, **inputs.per_sample}


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments but for those that are None, as which they mean nothing."""
    return {name: value for name, value in options.items() if value is not None}


def _as_booster(model: Any) -> Any:
    """Return the booster that training goes on from, of any of the forms that XGBoost takes."""
    if model is None or isinstance(model, xgboost.Booster):
        return model
    return xgboost.Booster(model_file=model)
