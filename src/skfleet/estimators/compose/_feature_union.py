"""Transformers of the same columns, side by side, fitted in shared passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from sklearn import pipeline
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_union as make_in_scikit_learn

from skfleet._warnings import without_warnings
from skfleet.engine import Passes, identity
from skfleet.estimators._blockwise import blockwise
from skfleet.estimators.compose._composition import Composition, Part, finish_fit, fit_parts
from skfleet.estimators.pipeline._fit import copy_configuration
from skfleet.estimators.pipeline._task_models import is_estimator


@blockwise
class FeatureUnion(Composition, pipeline.FeatureUnion):
    """On Dask rows all transformers are fitted in the same passes: one, two if any of them needs
    quantiles, and for a Pipeline one per step. They are those that
    :class:`skfleet.estimators.compose.ColumnTransformer` takes. As scikit-learn's, ``fit`` fits
    the given transformers themselves, but for those that others replace.
    """

    _takes_matrix = False

    def _replace_parts(self, replace: Callable[[Any], Any]) -> Any:
        model = copy.copy(self)
        model.transformer_list = [
            (name, replace(part) if is_estimator(part) else part)
            for name, part in self.transformer_list
        ]
        return model

    def _fit_passes(
        self, meta: Any, weighted: Collection[str] = (), cross_fit: bool = False
    ) -> Passes:
        parts = {
            name: Part(part, meta, with_weight=name in weighted)
            for name, part in self.transformer_list
            if is_estimator(part)
        }
        fitted, head = yield from fit_parts(
            self,
            parts,
            [name for name, part in self.transformer_list if part != "drop"],
            cross_fit,
        )

        originals = dict(self.transformer_list)
        training_model = yield from finish_fit(self, fitted, head, meta)
        self.transformer_list = [
            (name, _copy_state(part, originals[name])) for name, part in self.transformer_list
        ]
        return training_model

    def _set_parts(
        self, fitted: dict[str, Any], rows: Any, replace: Callable[[Any], Any] = identity
    ) -> Any:
        """Set the attributes of scikit-learn's fit, by one on a few rows that fits no part anew.

        Return these rows transformed, by replacements of the fitted parts.
        """
        params = self.get_params(deep=False) | {"verbose": False, "n_jobs": 1}
        params["transformer_list"] = [
            (name, FrozenEstimator(replace(fitted[name])) if name in fitted else part)
            for name, part in self.transformer_list
        ]
        own = pipeline.FeatureUnion(**params)
        copy_configuration(self, own)
        with without_warnings():  # of the rows, which tasks transform again
            output = own.fit_transform(rows)
        parts = [(name, fitted.get(name, part)) for name, part in own.transformer_list]
        vars(self).update(vars(own) | self.get_params(deep=False), transformer_list=parts)
        return output


@wraps(make_in_scikit_learn)
def make_union(*transformers: Any, **params: Any) -> FeatureUnion:
    return FeatureUnion(**make_in_scikit_learn(*transformers, **params).get_params(deep=False))


def _copy_state(fitted: Any, transformer: Any) -> Any:
    """Copy the state of a fitted clone to its original, and return the original.

    A clone of another class than the original's is returned as it is.
    """
    is_same = transformer is fitted or not is_estimator(transformer)
    if is_same or type(transformer) is not type(fitted):
        return fitted
    params = transformer.get_params(deep=False)
    for parts in {"steps", "transformer_list"} & params.keys():  # parameters that are fitted
        pairs = zip(getattr(fitted, parts), params[parts], strict=True)
        params[parts] = [(name, _copy_state(part, before)) for (name, part), (_, before) in pairs]
    state = vars(fitted) | params
    vars(transformer).clear()
    vars(transformer).update(state)
    return transformer
