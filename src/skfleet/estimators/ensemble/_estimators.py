"""Random forests and extremely randomised trees."""

from __future__ import annotations

from sklearn import ensemble

from skfleet.estimators._blockwise import with_scikit_learns_docstring
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators.ensemble._forest_estimator import ForestClassifier, ForestEstimator


@with_scikit_learns_docstring
@document
class RandomForestClassifier(ForestClassifier, ensemble.RandomForestClassifier):
    r"""The mean :math:`\frac{1}{T} \sum_t p_t(c \mid x)` of trees on bootstrap samples of the rows.

    See Breiman (2001), Random forests, Machine Learning 45, definition 1.1.

    {forest_rows}

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_iris
    >>> from skfleet.estimators import RandomForestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(40, 4)), da.from_array(y, chunks=40)
    >>> model = RandomForestClassifier(10, random_state=0).fit(X, y)
    >>> model.predict([[5.0, 3.4, 1.5, 0.2]])
    array([0])
    """


@with_scikit_learns_docstring
@document
class RandomForestRegressor(ForestEstimator, ensemble.RandomForestRegressor):
    r"""The mean :math:`\frac{1}{T} \sum_t f_t(x)` of trees on bootstrap samples of the rows.

    See Breiman (2001), Random forests, Machine Learning 45, section 11.

    {forest_rows}

    Examples
    --------
    {diabetes}
    >>> model = RandomForestRegressor(10, random_state=0).fit(X, y)
    >>> round(model.score(X, y), 1)
    0.9
    """


@with_scikit_learns_docstring
@document
class ExtraTreesClassifier(ForestClassifier, ensemble.ExtraTreesClassifier):
    r"""The mean :math:`\frac{1}{T} \sum_t p_t(c \mid x)` of trees with thresholds drawn at random.

    See Geurts, Ernst and Wehenkel (2006), Extremely randomized trees, section 2.

    {forest_rows}

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_iris
    >>> from skfleet.estimators import ExtraTreesClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(40, 4)), da.from_array(y, chunks=40)
    >>> model = ExtraTreesClassifier(10, random_state=0).fit(X, y)
    >>> model.score(X, y)
    1.0
    """


@with_scikit_learns_docstring
@document
class ExtraTreesRegressor(ForestEstimator, ensemble.ExtraTreesRegressor):
    r"""The mean :math:`\frac{1}{T} \sum_t f_t(x)` of trees with thresholds drawn at random.

    See Geurts, Ernst and Wehenkel (2006), Extremely randomized trees, section 2.

    {forest_rows}

    Examples
    --------
    {diabetes}
    >>> model = ExtraTreesRegressor(10, random_state=0).fit(X, y)
    >>> round(model.score(X, y), 1)
    1.0
    """
