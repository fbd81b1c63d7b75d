"""Searches next to scikit-learn's own."""

import warnings

import numpy as np
import sklearn.model_selection as reference

from skfleet.model_selection import GridSearchCV


def assert_same_split_scores(ours, theirs, rtol=0.0):
    """Check that the scores of each split are those of another search; return the first one."""
    for name, expected in theirs.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(ours.cv_results_[name], expected, rtol, rtol, err_msg=name)
    return ours


def grid_search(model, grid, X, y=None, *, kind=GridSearchCV, fit_params=None, **params):
    """Fit a search without its warnings."""
    params = {"cv": 3, "refit": False, "return_train_score": True, **params}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(model, grid, **params).fit(X, y, **(fit_params or {}))


def compare(model, grid, X, y=None, *, rtol=0.0, share_fits=True, **params):
    """Return our search, fitted, once its scores are equal to those of scikit-learn's."""
    ours = grid_search(model, grid, X, y, share_fits=share_fits, **params)
    theirs = grid_search(model, grid, X, y, kind=reference.GridSearchCV, **params)
    return assert_same_split_scores(ours, theirs, rtol)
