"""LightGBM's estimators: `LGBMClassifier`, `LGBMRegressor`, `LGBMRanker`."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np

from skfleet.blocks import compute_together
from skfleet.estimators.boosting._fit_inputs import FitInputs
from skfleet.estimators.boosting._lightgbm_base import LightGBMEstimator


class LGBMClassifier(LightGBMEstimator, lightgbm.LGBMClassifier):
    """LightGBM's classifier on rows in any container.

    Rows in this process are fitted by LightGBM itself; rows on Dask on all workers.

    Parameters
    ----------
    checkpoint : str or path, default=None
        Directory of snapshots, from which a fit goes on after this process died.
    checkpoint_interval : int or 'auto', default='auto'
        Rounds between snapshots; 'auto' takes rounds worth 30 seconds, 10 at least.
    timeout : float, default=300
        Seconds to wait for a worker that makes no progress.
    max_retries : int, default=3
        Losses of workers in a row that a fit survives.
    **kwargs
        Parameters of ``lightgbm.LGBMClassifier``.
    """

    _has_labels = True

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        init_score: Any = None,
        eval_set: Any = None,
        eval_names: Any = None,
        eval_sample_weight: Any = None,
        eval_class_weight: Any = None,
        eval_init_score: Any = None,
        eval_metric: Any = None,
        feature_name: Any = None,
        categorical_feature: Any = None,
        callbacks: Any = None,
        init_model: Any = None,
        *,
        eval_X: Any = None,
        eval_y: Any = None,
        X_val: Any = None,
        y_val: Any = None,
    ) -> LGBMClassifier:
        """Train the booster.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Training rows; NaN is a missing value, columns of categories are categorical.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Targets.
        sample_weight, init_score : array-like, Dask array or Dask Series, default=None
            Weight, and score to start from, of each row.
        eval_set : list of (X, y), default=None
            Rows in any container whose metrics are computed after every round.
        X_val, y_val : rows in any container, default=None
            A single evaluation set, in the place of `eval_set`.
        **others
            As for LightGBM's own ``fit``.

        Returns
        -------
        self : estimator
            Fitted estimator.
        """
        return self._start_fit(locals())

    def predict_proba(
        self,
        X: Any,
        raw_score: bool = False,
        start_iteration: int = 0,
        num_iteration: int | None = None,
        pred_leaf: bool = False,
        pred_contrib: bool = False,
        validate_features: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Predict the probability of every class for every row.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows.
        raw_score, start_iteration, num_iteration, pred_leaf, pred_contrib, validate_features
            As for ``predict``.
        **kwargs
            Other parameters of LightGBM's prediction.

        Returns
        -------
        probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            In the container of X; lazy for Dask rows.
        """
        options = {
            "raw_score": raw_score,
            "start_iteration": start_iteration,
            "num_iteration": num_iteration,
            "pred_leaf": pred_leaf,
            "pred_contrib": pred_contrib,
            "validate_features": validate_features,
            **kwargs,
        }
        return self._answer("predict_proba", X, options)

    def decision_function(self, X: Any, **kwargs: Any) -> Any:
        """Return the margin of every row.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows.
        **kwargs
            Parameters of LightGBM's prediction.

        Returns
        -------
        margins : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_classes)
            In the container of X; lazy for Dask rows.
        """
        return self._answer("decision_function", X, kwargs)


class LGBMRegressor(LightGBMEstimator, lightgbm.LGBMRegressor):
    """LightGBM's regressor on rows in any container.

    Rows in this process are fitted by LightGBM itself; rows on Dask on all workers.

    Parameters
    ----------
    checkpoint, checkpoint_interval, timeout, max_retries
        As for ``LGBMClassifier``.
    **kwargs
        Parameters of ``lightgbm.LGBMRegressor``.
    """

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        init_score: Any = None,
        eval_set: Any = None,
        eval_names: Any = None,
        eval_sample_weight: Any = None,
        eval_init_score: Any = None,
        eval_metric: Any = None,
        feature_name: Any = None,
        categorical_feature: Any = None,
        callbacks: Any = None,
        init_model: Any = None,
        *,
        eval_X: Any = None,
        eval_y: Any = None,
        X_val: Any = None,
        y_val: Any = None,
    ) -> LGBMRegressor:
        """Train the booster.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Training rows; NaN is a missing value, columns of categories are categorical.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Targets.
        sample_weight, init_score : array-like, Dask array or Dask Series, default=None
            Weight, and score to start from, of each row.
        eval_set : list of (X, y), default=None
            Rows in any container whose metrics are computed after every round.
        X_val, y_val : rows in any container, default=None
            A single evaluation set, in the place of `eval_set`.
        **others
            As for LightGBM's own ``fit``.

        Returns
        -------
        self : estimator
            Fitted estimator.
        """
        return self._start_fit(locals())


class LGBMRanker(LightGBMEstimator, lightgbm.LGBMRanker):
    """LightGBM's ranker on rows in any container.

    Rows in this process are fitted by LightGBM itself; rows on Dask on all workers. Queries are
    never cut between workers.

    Parameters
    ----------
    checkpoint, checkpoint_interval, timeout, max_retries
        As for ``LGBMClassifier``.
    **kwargs
        Parameters of ``lightgbm.LGBMRanker``.
    """

    _is_ranker = True

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        init_score: Any = None,
        group: Any = None,
        eval_set: Any = None,
        eval_names: Any = None,
        eval_sample_weight: Any = None,
        eval_init_score: Any = None,
        eval_group: Any = None,
        eval_metric: Any = None,
        eval_at: Any = (1, 2, 3, 4, 5),
        feature_name: Any = None,
        categorical_feature: Any = None,
        callbacks: Any = None,
        init_model: Any = None,
        *,
        eval_X: Any = None,
        eval_y: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        qid: Any = None,
        eval_qid: Any = None,
    ) -> LGBMRanker:
        """Train the booster.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Training rows; NaN is a missing value, columns of categories are categorical.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Targets.
        sample_weight, init_score : array-like, Dask array or Dask Series, default=None
            Weight, and score to start from, of each row.
        eval_set : list of (X, y), default=None
            Rows in any container whose metrics are computed after every round.
        X_val, y_val : rows in any container, default=None
            A single evaluation set, in the place of `eval_set`.
        **others
            As for LightGBM's own ``fit``.

        Returns
        -------
        self : estimator
            Fitted estimator.
        """
        return self._start_fit(locals())

    def _inputs_of(self, X: Any, y: Any, values: dict[str, Any]) -> FitInputs:
        inputs = super()._inputs_of(X, y, values)
        inputs.per_sample["qid"] = _query_of_rows(values["group"], values["qid"])
        return inputs

    @property
    def score(self) -> Any:
        """Absent, as in LightGBM's ranker."""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'score'")


def _query_of_rows(group: Any, qid: Any) -> Any:
    """Return the query of each row, of either of the ways to name them."""
    if group is not None and qid is not None:
        raise ValueError("group and qid must not come together. Got both instead.")
    if group is not None:
        (sizes,) = compute_together(group)
        return np.repeat(np.arange(len(sizes)), np.asarray(sizes))
    if qid is None:
        raise ValueError("Should set group for ranking task")
    return qid
