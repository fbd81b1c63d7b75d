"""Interface of samplers that choose each candidate by the scores so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class CandidateSource(ABC):
    """Ask-and-tell interface of samplers that choose each candidate by the scores so far.

    The schedule decides which candidates are trained: one whose score was reported may be trained
    further and reported again, after more calls. Candidates are numbered from 0. An order is a
    tuple ``(candidate, n_calls, bracket, rung)``: train that candidate until it has had `n_calls`
    calls of ``partial_fit``. Any object with these two methods will do.

    Examples
    --------
    >>> from skfleet.model_selection import CandidateSource
    >>> class Countdown(CandidateSource):
    ...     def ask(self, order, pending):
    ...         return {"alpha": 10.0 ** -order.candidate}
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> from skfleet.model_selection import SuccessiveHalvingSearchCV
    >>> search = SuccessiveHalvingSearchCV(
    ...     SGDClassifier(random_state=0), {}, sampler=Countdown(), n_jobs=1
    ... )
    >>> len(search.fit(*load_iris(return_X_y=True)).cv_results_["params"])
    10
    """

    @abstractmethod
    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the parameters of a new candidate.

        Parameters
        ----------
        order : tuple
            The candidate's first order.
        pending : mapping of int to mapping
            The parameters of the candidates that are being trained, by number.

        Returns
        -------
        params : mapping of str to object
            Parameters for the estimator's ``set_params``.
        """

    def tell(  # noqa: B027
        self, order: Any, params: Mapping[str, Any], score: float
    ) -> None:
        """Record a score; the default ignores it.

        Parameters
        ----------
        order : tuple
            The order that was executed.
        params : mapping of str to object
            The parameters of its candidate.
        score : float
            The score that `refit` names, the higher the better; NaN where the candidate failed.
        """


class FixedCandidates(CandidateSource):
    """A list of candidates, fixed before the search."""

    def __init__(self, candidates: Sequence[dict[str, Any]]) -> None:
        self.candidates = candidates

    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the parameters of the next candidate."""
        return self.candidates[order.candidate]
