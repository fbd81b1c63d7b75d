"""What a member of a voting committee learns from its block, and what the committee answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags

from skfleet._captured_output import OutputEvent, capture_output
from skfleet._config import config_context
from skfleet._typing import Rows
from skfleet._validation import without_name_warnings
from skfleet.blocks import Block, n_rows_of, open_block
from skfleet.metrics._reductions import host_values


def fit_member(origin: str, *args: Any) -> tuple[tuple[Any, int] | None, list[OutputEvent]]:
    """Train a clone on one block; also return what it printed and warned of."""
    with capture_output(origin) as notes:
        return _fit_member(*args), notes


def _fit_member(
    estimator: Any, told: dict[str, Any], device: str, classes: np.ndarray | None, handle: Block
) -> tuple[Any, int] | None:
    """Train a clone on one block, which may leave the device open; one without rows has none."""
    block = open_block(handle)
    if not block.n_rows:
        return None
    params = told | (block.more or {})
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
            if len(labels) == 1:
                return _Constant(labels).fit(block.X), block.n_rows
        with config_context(device=device):
            return clone(estimator).fit(block.X, block.y, **params), block.n_rows
    except Exception as error:
        error.add_note(f"While fitting block {block.number}.")
        raise


class _Constant(BaseEstimator):
    """Answers the one label there was."""

    def __init__(self, classes: np.ndarray) -> None:
        self.classes_ = self.classes = classes

    def fit(self, X: Rows) -> _Constant:
        """Remember how wide the rows are."""
        self.n_features_in_ = int(X.shape[1])
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        return self

    def predict(self, X: Rows) -> np.ndarray:
        """Return the label for every row."""
        return np.full(n_rows_of(X), self.classes_[0])

    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return certainty for every row."""
        return np.ones((n_rows_of(X), 1))


@without_name_warnings()
def predict_proba(committee: Any, X: Any) -> np.ndarray:
    """Average the members' probabilities."""
    members, shares, classes, _ = committee
    total = np.zeros((n_rows_of(X), len(classes)))
    for member, share in zip(members, shares, strict=True):
        total[:, np.searchsorted(classes, member.classes_)] += share * member.predict_proba(X)
    return total


@without_name_warnings()
def predict_label(committee: Any, X: Any) -> np.ndarray:
    """Return the labels that the members vote for; of equal votes the smaller label's count."""
    members, shares, classes, soft = committee
    if soft:
        return classes[np.argmax(predict_proba(committee, X), axis=1)]
    votes = np.zeros((n_rows_of(X), len(classes)))
    rows = np.arange(len(votes))
    for member, share in zip(members, shares, strict=True):
        votes[rows, np.searchsorted(classes, host_values(member.predict(X)))] += share
    return classes[np.argmax(votes, axis=1)]


@without_name_warnings()
def predict_mean(committee: Any, X: Any) -> np.ndarray:
    """Average the members' predictions."""
    members, shares = committee
    return sum(
        share * np.asarray(host_values(member.predict(X)), dtype=np.float64)
        for member, share in zip(members, shares, strict=True)
    )
