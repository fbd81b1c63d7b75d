"""Pipelines scored from sums: each split's preparation is algebra on cross products of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfleet.blocks import is_lazy
from skfleet.engine import Pickled
from skfleet.model_selection._closed_form._from_gram import ScoredFromGram, ScoreOnly
from skfleet.model_selection._closed_form._preparation import no_algebra
from skfleet.model_selection._closed_form._prepared_rows import (
    BaseProducts,
    base_products,
    products_after,
)
from skfleet.model_selection._closed_form._weighted_steps import (
    NO_STEPS,
    WeightedSteps,
    weighted_steps,
    weights_in,
)
from skfleet.model_selection._paths._registry import (
    ParamSets,
    inherited_shared_fit,
    unsupported_reason,
    writes_into_rows,
)

if TYPE_CHECKING:
    from skfleet.estimators.pipeline import RefitFirstSteps


class PipelineVariant(NamedTuple):
    """A pipeline with the parameters of some candidates, but for those of its last step."""

    first: Pipeline  # all steps but the last
    last: Any
    refused: str | None
    weighted: WeightedSteps = NO_STEPS

    @classmethod
    def of(
        cls, pipeline: Pipeline, params: Mapping[str, Any], fit_params: Mapping[str, Any]
    ) -> PipelineVariant:
        """Return the pipeline with these parameters, or the reason why it is not scored."""
        try:
            pipeline = clone(pipeline).set_params(**clone(dict(params), safe=False))
        except Exception as error:
            return cls(Pipeline([]), None, str(error))
        first, last = pipeline[:-1], pipeline.steps[-1][1]
        refused = no_algebra([step for _, step in first.steps])
        if pipeline.memory is not None or pipeline.transform_input is not None:
            refused = "memory and transform_input must be None"
        if refused is not None:
            return cls(first, last, refused)
        try:
            return cls(first, last, None, weighted_steps(pipeline, fit_params))
        except Exception as error:
            return cls(first, last, str(error))

    @property
    def steps(self) -> list[Any]:
        """The first steps, without their names."""
        return [step for _, step in self.first.steps]

    @property
    def shared_fit(self) -> ScoredFromGram | None:
        """The scores of the last step."""
        return _scores_of(self.last)


class ScoredPipeline(ScoreOnly):
    """Pipelines whose preparation is algebra, in front of least squares scored from sums.

    The candidates may differ in all parameters, and in their steps.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        candidates: ParamSets,
        fit_params: Mapping[str, Any],
        refit: RefitFirstSteps | None = None,
    ) -> None:
        self._pipeline, self._fit_params, self._refit = pipeline, fit_params, refit
        self._variants: dict[bytes, PipelineVariant] = {}
        self.parameters = tuple(dict.fromkeys(name for params in candidates for name in params))
        self.scorings = frozenset()
        name, last = pipeline.steps[-1]
        lasts = [last, *(params[name] for params in candidates if name in params)]
        if any("steps" in params for params in candidates) or any(map(_scores_of, lasts)):
            variants = [self._variant(params)[1] for params in candidates]
            scored = [variant.shared_fit for variant in variants]
            self.scorings = frozenset().union(*(fit.scorings for fit in scored if fit))

    def unscored_reason(
        self, params: Mapping[str, Any], scorings: frozenset[str], *, train_scores: bool = False
    ) -> str | None:
        """Return why a candidate must be fitted, or None if it can be scored."""
        _, variant, own = self._variant(params)
        if variant.refused is not None:
            return variant.refused
        if train_scores and writes_into_rows(variant.first.get_params()):
            return "fits must write into no training rows that are scored"
        shared_fit = variant.shared_fit
        if shared_fit is None or not scorings <= shared_fit.scorings:
            kind = type(variant.last).__name__
            return (
                f"the last step must be least squares, with scores of its own. Got {kind} instead"
            )
        return unsupported_reason(variant.last, own) or shared_fit.unscored_reason(own)

    def summarize(
        self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int
    ) -> BaseProducts:
        """Compute the cross products of the base columns of each fold, in one pass.

        The pass begins the last fit too, where the rows are on Dask.
        """
        scored = [
            (v, v.shared_fit)
            for v in self._variants.values()
            if v.refused is None and v.shared_fit is not None
        ]
        shared_fits = dict.fromkeys(shared_fit for _, shared_fit in scored)
        pipelines, weights = [v.steps for v, _ in scored], weights_in(self._fit_params)
        rows, kinds = (X, y, splits), list(shared_fits)
        if self._refit is None or self._fit_params or not is_lazy(X):
            return base_products(*rows, pipelines, kinds, n_slots, weights)
        reductions = self._refit.start((v.first for v, _ in scored), X, y)
        summary = base_products(*rows, pipelines, kinds, n_slots, weights, reductions)
        self._refit.set_results(summary.results)
        return summary

    def score(
        self,
        summary: BaseProducts,
        params: ParamSets,
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Score each split and candidate; equal preparations are made once."""
        groups: dict[bytes, list[int]] = {}
        candidates = [self._variant(candidate) for candidate in params]
        for n, (digest, _, _) in enumerate(candidates):
            groups.setdefault(digest, []).append(n)
        scores = np.empty((2, len(scorings), len(summary.splits), len(params)))
        for group in groups.values():
            variant, last = candidates[group[0]][1], [candidates[n][2] for n in group]
            shared_fit = variant.shared_fit
            assert shared_fit is not None
            accepts_sparse = all(map(shared_fit.accepts_sparse, last))
            products = products_after(summary, variant.steps, accepts_sparse, variant.weighted)
            for numbers, part in products.parts():
                scores[np.ix_([0, 1], range(len(scorings)), numbers, group)] = shared_fit.score(
                    part, last, scorings, train_scores=train_scores
                )
        return scores

    def _variant(self, params: Mapping[str, Any]) -> tuple[bytes, PipelineVariant, dict[str, Any]]:
        """Return a candidate's variant, with its digest, and all parameters of its last step."""
        prefix = f"{self._pipeline.steps[-1][0]}__"
        # other steps may have other names
        names = () if "steps" in params else [name for name in params if name.startswith(prefix)]
        first = {name: value for name, value in params.items() if name not in names}
        digest = Pickled.dumps(first).digest()
        if digest not in self._variants:
            self._variants[digest] = PipelineVariant.of(self._pipeline, first, self._fit_params)
        variant = self._variants[digest]
        own = {name.removeprefix(prefix): params[name] for name in names}
        if variant.last is not None:
            own = variant.last.get_params(deep=False) | own
        return digest, variant, own


def _scores_of(last: Any) -> ScoredFromGram | None:
    """Return the scores of a last step, None if it is no least squares."""
    shared_fit = inherited_shared_fit(last)
    return shared_fit if isinstance(shared_fit, ScoredFromGram) else None
