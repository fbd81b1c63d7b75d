"""LightGBM's estimators: `LGBMClassifier`, `LGBMRegressor`, `LGBMRanker`."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np

from skfleet.blocks import compute_together
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators.boosting._fit_inputs import FitInputs
from skfleet.estimators.boosting._lightgbm_base import LightGBMEstimator


@document
class LGBMClassifier(LightGBMEstimator, lightgbm.LGBMClassifier):
    """LightGBM's classifier, on rows in any container.

    Parameters
    ----------
    {boosting_parameters}
    **kwargs : dict
        LightGBM's parameters.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    feature_importances_, best_iteration_, best_score_, evals_result_, booster_
        LightGBM's.

    {boosting_errors}

    Notes
    -----
    {boosting_passes} LightGBM's bins are found from the rows that a single process would draw, and
    trees are trained in its way for several machines (`Ke et al., 2017, LightGBM: a highly
    efficient gradient boosting decision tree
    <https://papers.nips.cc/paper/6907-lightgbm-a-highly-efficient-gradient-boosting-decision-tree>`_).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_wine
    >>> from skfleet.estimators import LGBMClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> labels = load_wine().target_names[y]
    >>> Xd, yd = da.from_array(X, chunks=(50, -1)), da.from_array(labels, chunks=50)
    >>> model = LGBMClassifier(n_estimators=10, verbose=-1).fit(Xd, yd)
    >>> model.classes_.tolist(), model.score(Xd, yd) > 0.95
    (['class_0', 'class_1', 'class_2'], True)
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
        {lightgbm_rows}
        {lightgbm_evals}
        eval_class_weight : list, default=None
            Weights of the classes in each evaluation set.
        {lightgbm_options}

        {returns_fitted}
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


@document
class LGBMRegressor(LightGBMEstimator, lightgbm.LGBMRegressor):
    """LightGBM's regressor, on rows in any container.

    Parameters
    ----------
    {boosting_parameters}
    **kwargs : dict
        LightGBM's parameters.

    Attributes
    ----------
    feature_importances_, best_iteration_, best_score_, evals_result_, booster_
        LightGBM's.

    {boosting_errors}

    Notes
    -----
    {boosting_passes} LightGBM's bins are found from the rows that a single process would draw, and
    trees are trained in its way for several machines (`Ke et al., 2017, LightGBM: a highly
    efficient gradient boosting decision tree
    <https://papers.nips.cc/paper/6907-lightgbm-a-highly-efficient-gradient-boosting-decision-tree>`_).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_diabetes
    >>> from skfleet.estimators import LGBMRegressor
    >>> X, y = (da.from_array(v, chunks=100) for v in load_diabetes(return_X_y=True))
    >>> LGBMRegressor(n_estimators=20, verbose=-1).fit(X, y).score(X, y) > 0.5
    True
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
        {lightgbm_rows}
        {lightgbm_evals}
        {lightgbm_options}

        {returns_fitted}
        """
        return self._start_fit(locals())


@document
class LGBMRanker(LightGBMEstimator, lightgbm.LGBMRanker):
    """LightGBM's ranker, on rows in any container, sorted by their query.

    Parameters
    ----------
    {boosting_parameters}
    **kwargs : dict
        LightGBM's parameters.

    Attributes
    ----------
    feature_importances_, best_iteration_, best_score_, evals_result_, booster_
        LightGBM's.

    {boosting_errors}

    Notes
    -----
    {boosting_passes} LightGBM's bins are found from the rows that a single process would draw, and
    trees are trained in its way for several machines (`Ke et al., 2017, LightGBM: a highly
    efficient gradient boosting decision tree
    <https://papers.nips.cc/paper/6907-lightgbm-a-highly-efficient-gradient-boosting-decision-tree>`_).

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import LGBMRanker
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((200, 3)), rng.integers(3, size=200)
    >>> Xd, yd = da.from_array(X, chunks=(60, 3)), da.from_array(y, chunks=60)
    >>> model = LGBMRanker(n_estimators=5, verbose=-1).fit(Xd, yd, group=[10] * 20)
    >>> model.predict(Xd).shape
    (200,)
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
        {lightgbm_rows}
        group : array-like of shape (n_queries,), default=None
            Number of rows of each query.
        {lightgbm_evals}
        eval_group : list, default=None
            Sizes of the queries of each evaluation set.
        eval_at : sequence of int, default=(1, 2, 3, 4, 5)
            Ranks at which metrics are computed.
        qid : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Query of each row, in the place of `group`. Blocks may cut queries.
        eval_qid : list, default=None
            Queries of each evaluation set, in the place of `eval_group`.
        {lightgbm_options}

        {returns_fitted}
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
