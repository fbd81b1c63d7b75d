"""Tasks of blockwise ensembles: the fit of a member, combined predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags

from skfleet._captured_output import OutputEvent, capture_output
from skfleet._config import config_context
from skfleet._typing import Rows
from skfleet._validation import without_name_warnings
from skfleet.blocks import BlockRef, n_rows_of, open_block
from skfleet.engine import check_picklable
from skfleet.metrics import host_values


def fit_member(origin: str, *args: Any) -> tuple[tuple[Any, int] | None, list[OutputEvent]]:
    """Train a clone on one block; also return its captured output."""
    with capture_output(origin) as notes:
        member = _fit_member(*args)
    check_picklable(member and member[0])
    return member, notes


def _fit_member(
    estimator: Any,
    fit_params: dict[str, Any],
    device: str,
    classes: np.ndarray | None,
    block_ref: BlockRef,
) -> tuple[Any, int] | None:
    """Train a clone on one block; return None for a block without rows.

    `device` is that of estimators with ``device="auto"``.
    """
    block = open_block(block_ref)
    if not block.n_rows:
        return None
    params = fit_params | (block.per_sample or {})
    if block.sample_weight is not None:
        params["sample_weight"] = block.sample_weight
    try:
        if get_tags(estimator).estimator_type == "classifier":
            labels = np.unique(host_values(block.y))
            if classes is not None and not np.isin(labels, classes).all():
                raise ValueError(
                    f"y must hold labels in classes. Got {labels[~np.isin(labels, classes)][0]!r} "
                    "instead. Name all labels, or leave classes out."
                )
            # Most classifiers refuse a single class, which blocks of sorted rows often have.
            if len(labels) == 1:
                return _ConstantClassifier(labels).fit(block.X), block.n_rows
        with config_context(device=device):
            return clone(estimator).fit(block.X, block.y, **params), block.n_rows
    except Exception as error:
        error.add_note(f"While fitting block {block.number}.")
        raise


class _ConstantClassifier(BaseEstimator):
    """A classifier that always predicts one label."""

    def __init__(self, classes: np.ndarray) -> None:
        self.classes_ = self.classes = classes

    def fit(self, X: Rows) -> _ConstantClassifier:
        """Record the columns of X."""
        self.n_features_in_ = int(X.shape[1])
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        return self

    def predict(self, X: Rows) -> np.ndarray:
        return np.full(n_rows_of(X), self.classes_[0])

    def predict_proba(self, X: Rows) -> np.ndarray:
        return np.ones((n_rows_of(X), 1))


@without_name_warnings()
def predict_proba(ensemble: Any, X: Any) -> np.ndarray:
    members, vote_weights, classes, _ = ensemble
    total = np.zeros((n_rows_of(X), len(classes)))
    for member, vote_weight in zip(members, vote_weights, strict=True):
        # A member has no columns for labels that its block lacks.
        total[:, np.searchsorted(classes, member.classes_)] += vote_weight * member.predict_proba(X)
    return total


@without_name_warnings()
def predict_label(ensemble: Any, X: Any) -> np.ndarray:
    """Return the labels with the most votes; the smaller label wins a tie."""
    members, vote_weights, classes, soft = ensemble
    if soft:
        return classes[np.argmax(predict_proba(ensemble, X), axis=1)]
    votes = np.zeros((n_rows_of(X), len(classes)))
    rows = np.arange(len(votes))
    for member, vote_weight in zip(members, vote_weights, strict=True):
        votes[rows, np.searchsorted(classes, host_values(member.predict(X)))] += vote_weight
    return classes[np.argmax(votes, axis=1)]


@without_name_warnings()
def predict_mean(ensemble: Any, X: Any) -> np.ndarray:
    """Average the members' predictions."""
    members, vote_weights = ensemble
    return sum(
        vote_weight * np.asarray(host_values(member.predict(X)), dtype=np.float64)
        for member, vote_weight in zip(members, vote_weights, strict=True)
    )
