"""Targets of the outputs of stochastic gradient descent: numbers, or a class against the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skfleet._array import FLOAT64, asarray_like, astype, is_not_numpy, namespace, to_host
from skfleet.blocks import Block
from skfleet.glm import SGDTargets, encode_labels


@dataclass(frozen=True)
class OutputCoding:
    """Targets of the outputs: numbers, or one class against the rest."""

    classes: np.ndarray | None = None
    side_weights: np.ndarray | None = None  # (2, k): weights of the positive class, of the rest

    def targets(self, block: Block, active: np.ndarray) -> SGDTargets:
        """Return the targets of a block for the active outputs."""
        y, weight = block.y, block.sample_weight
        if len(y.shape) != 1:
            raise ValueError(
                f"y should be a 1d array, got one of {len(y.shape)} dimensions instead. "
                "Take its column, y[:, 0] say."
            )
        if self.classes is None:
            return SGDTargets(astype(y, FLOAT64), weight)
        codes = known_codes(y, self.classes)
        positive = np.flatnonzero(active) if len(self.classes) > 2 else np.array([1])
        sides = None if self.side_weights is None else self.side_weights[:, active]
        return SGDTargets(codes, weight, positive, sides)


def known_codes(y: Any, classes: np.ndarray) -> Any:
    """Return the codes of labels, on their device; raise for labels not in classes."""
    xp = namespace(y)
    # The search gives unknown labels a code as well; the label of that code is another one.
    codes = xp.clip(encode_labels(y, classes), 0, len(classes) - 1)
    device_classes = asarray_like(classes, y, dtype=y.dtype) if is_not_numpy(y) else classes
    unknown = xp.take(device_classes, codes) != y
    if bool(xp.any(unknown)):
        raise ValueError(
            f"y must hold labels in classes. Got {to_host(y)[to_host(unknown)][0]!r} instead. Name "
            "all labels in the first call of partial_fit."
        )
    return codes
