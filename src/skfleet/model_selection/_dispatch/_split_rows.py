"""The rows of a split and their targets, each part of which is cut once for all fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import get_tags

from skfleet._array import is_not_numpy, is_uploadable
from skfleet._sklearn_private import take_rows
from skfleet.blocks import take_rows as take_device_rows
from skfleet.engine import DeviceArrayCache, takes_device_targets
from skfleet.model_selection._dispatch._pipeline_cache import PipelineCache
from skfleet.model_selection._dispatch._step_cache import CachedRows, SplitSteps


class SplitRows:
    """One split of the rows, for the fits that use it."""

    def __init__(
        self,
        number: int,
        X: Any,
        train: Any,
        test: Any,
        validation: Any = None,
        *,
        is_shared: bool,
        copies: DeviceArrayCache | None = None,
        earlier: SplitSteps | None = None,
    ) -> None:
        self.number, self.is_shared = number, is_shared
        # a copy: the parts of a view are known by their identity, and these rows may be the tested
        self.validation = None if validation is None else np.array(validation)
        self._X, self.is_on_device = X, is_not_numpy(X)
        self.parts = {"train": train, "test": test}
        self.steps = PipelineCache(earlier)
        self._target_views: dict[bool, SplitView] = {}
        self._copies = copies
        if is_shared:
            self.parts = {name: np.asarray(part) for name, part in self.parts.items()}
            self._all_parts = {**self.parts, "validation": self.validation}
            self._view = SplitView(X, self._all_parts, self.steps)

    @property
    def was_read_only(self) -> bool:
        """True if a fit may have failed because it wrote to shared rows."""
        if not self.is_shared:
            return False
        views = (self._view, *self._target_views.values())
        return self.steps.is_read_only or any(view.is_read_only for view in views)

    def rows_for(self, estimator: Any, *, is_written: bool) -> Any:
        """Return the rows for a fit: a view that caches the parts, or the rows themselves."""
        # scikit-learn copies read-only parts silently, and would score rows as before the fit
        if not self.is_shared or (is_written and not self.is_on_device):
            return self._X
        # scikit-learn checks the type of a precomputed kernel, and refuses a list
        if not hasattr(self._X, "shape") and get_tags(estimator).input_tags.pairwise:
            return self._X
        return self._view

    def targets_for(
        self, estimator: Any, params: Mapping[str, Any], y: Any, options: Mapping[str, Any]
    ) -> Any:
        """Return the targets for a fit; on a device as a view that caches the parts."""
        is_scored = "scorer" in options  # what predicts alone looks at all targets
        if not (is_scored and self.is_shared and self.is_on_device and is_uploadable(y)):
            return y
        # scorers that run on the host need those of the training rows there
        is_ours = takes_device_targets(estimator, params)
        to_device = is_ours and not options.get("return_train_score")
        if to_device not in self._target_views:
            copies = self._copies if to_device else None
            self._target_views[to_device] = TargetView(y, self._all_parts, copies)
        return self._target_views[to_device]


class SplitView:
    """Rows that scikit-learn is going to index by the parts of a split, each cut once.

    scikit-learn indexes it as an array, since it has a shape and no ``iloc``, whatever the rows
    are.
    """

    def __init__(
        self, X: Any, parts: Mapping[str, Any], steps: PipelineCache | None = None
    ) -> None:
        self._X, self._parts, self._steps = X, parts, steps
        self._cache: dict[str, CachedRows] = {}
        self.shape = getattr(X, "shape", None) or (len(X),)
        self.ndim = len(self.shape)

    @property
    def is_read_only(self) -> bool:
        """True if a part that was used is read-only."""
        return any(cached.is_read_only for cached in self._cache.values())

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._X, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        indices = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        for name, part in self._parts.items():
            if indices is part:
                if name not in self._cache:
                    self._cache[name] = CachedRows(self._cut(name, part))
                content = self._cache[name]
                rows = content.copy()
                if self._steps is not None:
                    self._steps.register(rows, name, 0, content)
                return rows
        return self._X[key]

    def _cut(self, name: str, part: Any) -> Any:
        """Return the rows of a part."""
        return (take_device_rows if is_not_numpy(self._X) else take_rows)(self._X, part)


class TargetView(SplitView):
    """Targets on the host; those to train on are cut from a copy on the device, if there are any.

    It is a copy of all targets, and stays with those of the rows.
    """

    def __init__(
        self, y: np.ndarray, parts: Mapping[str, Any], copies: DeviceArrayCache | None
    ) -> None:
        super().__init__(y, parts)
        self._copies = copies

    def _cut(self, name: str, part: Any) -> Any:
        if name == "train" and self._copies is not None:
            on_device = self._copies.get("targets", self._X)
            if is_not_numpy(on_device):
                return take_device_rows(on_device, part)
        return super()._cut(name, part)
