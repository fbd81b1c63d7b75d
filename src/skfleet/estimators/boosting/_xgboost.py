"""XGBoost's estimators on rows in any container: `XGBClassifier`, `XGBRegressor`, `XGBRanker`."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from skfleet.blocks import compute_together, is_lazy
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators.boosting._fit_inputs import FitInputs, with_validation_set
from skfleet.estimators.boosting._row_survey import StoredRows
from skfleet.estimators.boosting._xgboost_base import XGBoostEstimator, without_none


@document
class XGBClassifier(XGBoostEstimator, xgboost.XGBClassifier):
    """XGBoost's classifier, on rows in any container.

    Labels are of any kind.

    Parameters
    ----------
    {boosting_parameters}
    **kwargs : dict
        XGBoost's parameters.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    feature_importances_, best_iteration, best_score, n_features_in_, feature_names_in_
        XGBoost's.

    {boosting_errors}

    Notes
    -----
    {boosting_passes} XGBoost reads a block four times from the worker's disk, and trains as on
    several machines (`Chen and Guestrin, 2016, XGBoost: a scalable tree boosting system
    <https://doi.org/10.1145/2939672.2939785>`_, section 4).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_wine
    >>> from skfleet.estimators import XGBClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> labels = load_wine().target_names[y]
    >>> Xd, yd = da.from_array(X, chunks=(50, -1)), da.from_array(labels, chunks=50)
    >>> model = XGBClassifier(n_estimators=10).fit(Xd, yd)
    >>> model.classes_.tolist(), model.score(Xd, yd) > 0.95
    (['class_0', 'class_1', 'class_2'], True)
    """

    _has_labels = True

    def _labels_of(self, y: Any) -> np.ndarray | None:
        y = y if hasattr(y, "shape") else np.asarray(y)
        if len(y.shape) == 2 and y.shape[1] > 1:
            return None  # several labels for each row
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return np.unique(y)

    def _encode(self, y: Any, labels: np.ndarray | None, name: str) -> Any:
        if labels is None:
            return y
        y = column_or_1d(y)
        unknown = np.setdiff1d(y, labels)
        if len(unknown):
            raise ValueError(
                f"y of {name} must have labels of the training rows. Got {unknown[0]!r} instead, "
                "which no training row has."
            )
        return np.searchsorted(labels, y)

    def _booster_params(self, labels: np.ndarray | None) -> tuple[dict[str, Any], Any]:
        params, objective = super()._booster_params(labels)
        if objective is not None:
            params["objective"] = "binary:logistic"
        if labels is not None and len(labels) > 2:
            if params.get("objective") != "multi:softmax":
                params["objective"] = "multi:softprob"
            params["num_class"] = len(labels)
        return params, objective

    def set_params(self, **params: Any) -> XGBClassifier:
        """Set parameters, of a fitted booster too.

        Parameters
        ----------
        **params : dict
            Names and values.

        Returns
        -------
        self : XGBClassifier
            The estimator.
        """
        super().set_params(**params)
        if params and self._labels is not None:
            self.get_booster().set_param(self._fitted_params())
        return self

    def to_sklearn(self) -> Any:
        """Return a fitted estimator of the library's own class.

        Returns
        -------
        estimator : estimator
            With the same parameters and the same booster.
        """
        plain = super().to_sklearn()
        if self._labels is not None and not callable(self.objective):
            plain.objective = self._fitted_params()["objective"]
        return plain

    def _fitted_params(self) -> dict[str, Any]:
        """Return the parameters of the fitted booster that depend on the labels.

        XGBoost's own ``fit`` changes `objective` for several classes, which is a user's parameter.
        """
        params, _ = self._booster_params(self._labels)
        return {name: params[name] for name in ("objective", "num_class") if name in params}

    @property
    def classes_(self) -> np.ndarray:
        """The labels, sorted."""
        labels = self._labels
        return np.arange(self.n_classes_) if labels is None else labels

    def _decode(self, predictions: Any, output_margin: bool) -> Any:
        if self._labels is None or output_margin:
            return predictions
        return self._labels[np.asarray(predictions, dtype=np.intp)]

    def predict_proba(
        self,
        X: Any,
        validate_features: bool = True,
        base_margin: Any = None,
        iteration_range: Any = None,
    ) -> Any:
        """Predict the probability of every class for every row.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows.
        validate_features, base_margin, iteration_range
            As for ``predict``.

        Returns
        -------
        probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            In the container of X; lazy for Dask rows.
        """
        options = {
            "validate_features": validate_features,
            "base_margin": base_margin,
            "iteration_range": iteration_range,
        }
        if is_lazy(X):
            return self._map(X, "predict_proba", **options)
        return self.to_sklearn().predict_proba(X, **options)


@document
class XGBRegressor(XGBoostEstimator, xgboost.XGBRegressor):
    """XGBoost's regressor, on rows in any container.

    Parameters
    ----------
    {boosting_parameters}
    **kwargs : dict
        XGBoost's parameters.

    Attributes
    ----------
    feature_importances_, best_iteration, best_score, n_features_in_, feature_names_in_
        XGBoost's.

    {boosting_errors}

    Notes
    -----
    {boosting_passes} XGBoost reads a block four times from the worker's disk, and trains as on
    several machines (`Chen and Guestrin, 2016, XGBoost: a scalable tree boosting system
    <https://doi.org/10.1145/2939672.2939785>`_, section 4).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_diabetes
    >>> from skfleet.estimators import XGBRegressor
    >>> X, y = (da.from_array(v, chunks=100) for v in load_diabetes(return_X_y=True))
    >>> XGBRegressor(n_estimators=20).fit(X, y).score(X, y) > 0.7
    True
    """


@document
class XGBRanker(XGBoostEstimator, xgboost.XGBRanker):
    """XGBoost's ranker, on rows in any container, sorted by their query.

    Parameters
    ----------
    {boosting_parameters}
    **kwargs : dict
        XGBoost's parameters.

    Attributes
    ----------
    feature_importances_, best_iteration, best_score, n_features_in_, feature_names_in_
        XGBoost's.

    {boosting_errors}

    Notes
    -----
    {boosting_passes} XGBoost reads a block four times from the worker's disk, and trains as on
    several machines (`Chen and Guestrin, 2016, XGBoost: a scalable tree boosting system
    <https://doi.org/10.1145/2939672.2939785>`_, section 4).

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import XGBRanker
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((200, 3)), rng.integers(3, size=200)
    >>> Xd, yd = da.from_array(X, chunks=(60, 3)), da.from_array(y, chunks=60)
    >>> model = XGBRanker(n_estimators=5).fit(Xd, yd, qid=np.repeat(np.arange(20), 10))
    >>> model.predict(Xd).shape
    (200,)
    """

    _is_ranker = True

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        group: Any = None,
        qid: Any = None,
        sample_weight: Any = None,
        base_margin: Any = None,
        eval_set: Any = None,
        eval_group: Any = None,
        eval_qid: Any = None,
        verbose: bool | int | None = False,
        xgb_model: Any = None,
        sample_weight_eval_set: Any = None,
        base_margin_eval_set: Any = None,
        feature_weights: Any = None,
        X_val: Any = None,
        y_val: Any = None,
    ) -> XGBRanker:
        """Train the booster.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Training rows, sorted by their query; of a frame, a column ``qid`` may name it.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Relevance.
        group : array-like of shape (n_queries,), default=None
            Number of rows of each query.
        qid : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Query of each row, in the place of `group`. Blocks may cut queries.
        sample_weight : array-like of shape (n_queries,), default=None
            Weight of each query.
        base_margin : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Margin of each row to start from.
        eval_set : list of (X, y), default=None
            Rows in any container whose metrics are computed after every round.
        eval_group, eval_qid : list, default=None
            Queries of each evaluation set.
        verbose : bool or int, default=False
            Print the metrics, of every so many rounds.
        {xgb_model}
        sample_weight_eval_set, base_margin_eval_set : list, default=None
            Weights of queries, and margins, for each evaluation set.
        {feature_weights}
        X_val, y_val : rows in any container, default=None
            A single evaluation set, in the place of `eval_set`. X_val has a column ``qid``.

        Returns
        -------
        self : XGBRanker
            Fitted estimator.
        """
        eval_set = with_validation_set(eval_set, X_val, y_val)
        values = {
            "sample_weight": sample_weight,
            "base_margin": base_margin,
            "group": group,
            "qid": qid,
        }
        eval_values = {
            "sample_weight": sample_weight_eval_set,
            "base_margin": base_margin_eval_set,
            "group": eval_group,
            "qid": eval_qid,
        }
        options = {"xgb_model": xgb_model, "feature_weights": feature_weights}
        options = {"verbose": verbose, **without_none(options)}
        return self._fit(self._all_inputs(X, y, values, eval_set, eval_values, options))

    def _inputs_of(self, X: Any, y: Any, values: dict[str, Any]) -> FitInputs:
        X, qid = _rows_and_queries(X, values.get("group"), values.get("qid"))
        per_sample = {"qid": qid, "base_margin": values.get("base_margin")}
        return FitInputs(X, y, None, per_sample, query_weights=values.get("sample_weight"))

    def _set_query_weights(
        self, stored: StoredRows, evals: list[StoredRows | None], inputs: FitInputs
    ) -> None:
        parts = zip([stored, *evals], [inputs, *(inputs.eval_parts or ())], strict=True)
        for rows, part in parts:
            if rows is not None and part is not None and part.query_weights is not None:
                (weights,) = compute_together(part.query_weights)
                starts = rows.query_starts
                if starts is not None and len(weights) != len(starts):
                    raise ValueError(
                        "sample_weight must have a weight for each query. Got "
                        f"{len(weights)} of {len(starts)} instead."
                    )
                rows.query_weights = np.asarray(weights, dtype=np.float64)

    def score(self, X: Any, y: Any) -> float:
        """Return the first metric of the model, for rows of this process.

        Parameters
        ----------
        X : frame of shape (n_samples, n_features + 1)
            Rows, with a column ``qid``.
        y : array-like of shape (n_samples,)
            Relevance.

        Returns
        -------
        score : float
            The higher the better.
        """
        if is_lazy(X) or is_lazy(y):
            X, y = compute_together(X, y)
        return self.to_sklearn().score(X, y)


def _rows_and_queries(X: Any, group: Any, qid: Any) -> tuple[Any, Any]:
    """Return the rows and the query of each, of any of the ways to name them."""
    if hasattr(X, "columns") and "qid" in X.columns:
        if qid is not None:
            raise ValueError(
                "qid must be given once. Got a column 'qid' of X and the argument instead."
            )
        X, qid = X.drop(columns="qid"), X["qid"]
    if group is not None:
        if qid is not None:
            raise ValueError("group and qid must not come together. Got both instead.")
        (sizes,) = compute_together(group)
        qid = np.repeat(np.arange(len(sizes)), np.asarray(sizes))
    if qid is None:
        raise ValueError("Either `group` or `qid` is required for ranking task")
    return X, qid
