"""Fits that contain others: one boosting fit has all shorter ones in it, and is made once."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.pipeline import Pipeline

__all__ = [
    "SharedFit",
    "SharedFitLog",
    "SharedFitMember",
    "SharedFitUse",
    "last_step",
    "member_of",
    "register_shared_fit",
]


class SharedFit(ABC):
    """What is common to estimators whose fits contain others.

    A family stands for fits on the same rows with the same parameters, but for a few: those that
    one fit contains. It must give the scores that separate fits would, or refuse. Subclasses of an
    estimator, parameters that are not in `known`, and callbacks are refused without asking it.

    Attributes
    ----------
    parameters : tuple of str
        The parameters whose values one fit contains.
    known : frozenset of str
        All parameters, of any of its estimators, that the family knows the effect of.
    scorings : frozenset of str
        The scores that it knows without a fit: names of scikit-learn's scorers, and "score" for the
        estimator's own. None by default.
    is_divisible : bool
        Whether a fit for half of the values takes about half the time, so that idle workers are
        worth sharing it out to. False by default.
    is_approximate : bool
        Whether scores are within the tolerance of a solver, and not those of separate fits to
        rounding. Searches use such a family with ``share_fits="approximate"``. False by default.

    See Also
    --------
    register_shared_fit : Makes searches use a family.

    Examples
    --------
    The constant that a dummy predicts needs no fit of its own:

    >>> import copy
    >>> import numpy as np
    >>> from sklearn.dummy import DummyRegressor
    >>> from skfleet.model_selection import Family
    >>> class Constants(Family):
    ...     parameters = ("constant",)
    ...     known = frozenset({"constant", "quantile", "strategy"})
    ...
    ...     def refuses(self, params):
    ...         return None if params["strategy"] == "constant" else "strategy must be 'constant'"
    ...
    ...     def fit(self, estimator, candidates, X, y, **fit_params):
    ...         fitted, models = estimator.fit(X, y, **fit_params), []
    ...         for values in candidates:
    ...             model = copy.copy(fitted).set_params(**values)
    ...             model.constant_ = np.full_like(fitted.constant_, values["constant"])
    ...             models.append(model)
    ...         return models
    >>> Constants().refuses({"strategy": "mean"})
    "strategy must be 'constant'"
    """

    parameters: tuple[str, ...]
    known: frozenset[str]
    scorings: frozenset[str] = frozenset()
    is_divisible: bool = False
    is_approximate: bool = False

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why fits with these parameters cannot be had from one; None if they can."""
        return None

    @abstractmethod
    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Fit once, and give a fitted estimator for each candidate.

        Parameters
        ----------
        estimator : estimator object
            Unfitted, with the parameters of one of the candidates.
        candidates : sequence of mapping
            The values of `parameters` for each candidate.
        X, y : object
            Training rows, as scikit-learn cut them.
        **fit_params : object
            What ``fit`` is called with besides.

        Returns
        -------
        list of estimator
            Fitted, with the parameters of its candidate each; none is fitted again.

        Raises
        ------
        NotImplementedError
            With the reason, where only the rows show that each fit must be made by itself.
        """

    def fit_transform(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[tuple[Any, Any]]:
        """Fit a transformer once, and give what its ``fit_transform`` makes of the rows besides.

        For transformers that make something else of them than ``transform`` does after, if only in
        the last bits: votes of neighbours, and whatever else breaks ties, would show it.

        Parameters
        ----------
        estimator, candidates, X, y, **fit_params : object
            As for `fit`.

        Returns
        -------
        list of (estimator, object)
            What `fit` gives, and the transformed rows, or None for what ``transform`` makes of X.

        Raises
        ------
        NotImplementedError
            As for `fit`.
        """
        return [(one, None) for one in self.fit(estimator, candidates, X, y, **fit_params)]

    def prepare(self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int) -> Any:
        """Work out what the scores of all candidates depend on, in the process where the rows are.

        For families whose scores cost less than to send the rows to a worker. Called in a thread
        of its own while the candidates are still being counted.

        Parameters
        ----------
        X, y : object
            All rows.
        splits : sequence of (array, array)
            Row numbers to train and to test on.
        n_slots : int
            How many fits the fleet could make at once instead.

        Returns
        -------
        prepared : object
            For `score`.

        Raises
        ------
        NotImplementedError
            Where the fits are to be made by workers.
        """
        raise NotImplementedError("fits must be made to be scored")

    def score(
        self,
        prepared: Any,
        params: Sequence[Mapping[str, Any]],
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Score all candidates on all splits without a model.

        Parameters
        ----------
        prepared : object
            What `prepare` returned.
        params : sequence of mapping
            All parameters of each candidate.
        scorings : sequence of str
            Which of `scorings` are asked for.
        train_scores : bool
            Whether the scores on the rows to train on are.

        Returns
        -------
        scores : ndarray of shape (2, n_scorings, n_splits, n_candidates)
            On the rows to test on, and on those to train on if asked for.

        Raises
        ------
        NotImplementedError
            Where the fits are to be made by workers.
        """
        raise NotImplementedError("fits must be made to be scored")


class SharedFitMember(NamedTuple):
    """A candidate's place in a family, or why it has none.

    ``values`` tell it from the other members; ``common`` are the parameters, among those that are
    searched over, that they share.
    """

    kind: str
    family: SharedFit
    values: dict[str, Any]
    common: dict[str, Any]
    refused: str | None


class SharedFitUse(NamedTuple):
    """What a search had from a family of fits.

    Parameters
    ----------
    estimator : str
        Name of the estimator.
    parameters : tuple of str
        The parameters that one fit contains the values of.
    n_fits : int
        How many fits belonged to the family, candidates times splits.
    n_saved : int
        How many of them were had from another one.
    refused : str or None
        Why each was made by itself, if it was.

    Examples
    --------
    >>> from distributed import Client
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from skfleet.model_selection import GridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
    ...     search = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}).fit(X, y)
    >>> search.families_[0].n_fits, search.families_[0].n_saved
    (15, 10)
    """

    estimator: str
    parameters: tuple[str, ...]
    n_fits: int
    n_saved: int
    refused: str | None


class SharedFitLog:
    """Whether a search may share fits, and what came of it.

    Parameters
    ----------
    is_wanted : bool
        Whether fits that contain others stand for them.
    is_approximate : bool
        Whether they do too where scores agree within the tolerance of a solver.
    """

    def __init__(self, *, is_wanted: bool, is_approximate: bool) -> None:
        self.is_wanted = is_wanted
        self.is_approximate = is_approximate
        self._counts: dict[tuple[str, tuple[str, ...], str | None], list[int]] = {}
        self._groups: set[int] = set()
        self._shared: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, member: SharedFitMember, group: Hashable) -> None:
        """Count a fit of a family, which may be had from others of the same group."""
        self.count(member, fits=1)
        group = hash((member.kind, member.family.parameters, group))
        if group in self._groups:
            self._shared.add((member.kind, member.family.parameters))
        self._groups.add(group)

    def count(self, member: SharedFitMember, *, fits: int = 0, saved: int = 0) -> None:
        """Count fits of a family, and those that were had from others."""
        key = member.kind, member.family.parameters, member.refused
        counts = self._counts.setdefault(key, [0, 0])
        counts[0] += fits
        counts[1] += saved

    def uses(self) -> tuple[SharedFitUse, ...]:
        """Tell what came of it."""
        uses = []
        for (kind, parameters, refused), (n_fits, n_saved) in self._counts.items():
            if refused is None and (kind, parameters) not in self._shared:
                refused = f"other candidates must differ in {' or '.join(parameters)} alone"
            if n_fits:
                uses.append(SharedFitUse(kind, parameters, n_fits, n_saved, refused))
        return tuple(uses)


# Families of estimators, by type; and by name and public module for those that may not be imported
# yet.
_by_type: dict[type, SharedFit] = {}
_by_name: dict[str, dict[str, SharedFit]] = {}


def register_shared_fit(estimator: type | str, family: SharedFit) -> None:
    """Let searches have fits of an estimator from one.

    Parameters
    ----------
    estimator : type or str
        The class, or its public name such as ``"sklearn.svm.SVC"``, which imports nothing.
        Subclasses do not belong to it.
    family : Family
        What knows how. It takes the place of one that was registered before.

    Raises
    ------
    TypeError
        When ``family`` is not a `SharedFit`.

    Examples
    --------
    >>> from skfleet.model_selection import Family, register_shared_fit
    >>> class Stages(Family):
    ...     parameters = ("n_stages",)
    ...     known = frozenset({"n_stages", "random_state"})
    ...
    ...     def fit(self, estimator, candidates, X, y, **fit_params):
    ...         most = max(values["n_stages"] for values in candidates)
    ...         model = estimator.set_params(n_stages=most).fit(X, y, **fit_params)
    ...         return [model.first_stages(values["n_stages"]) for values in candidates]
    >>> register_shared_fit("my_package.StagedRegressor", Stages())
    """
    if not isinstance(family, SharedFit):
        raise TypeError(
            f"family must be a Family. Got {type(family).__name__} instead. Subclass "
            "skfleet.model_selection.SharedFit, and pass an instance."
        )
    if isinstance(estimator, str):
        module, _, name = estimator.rpartition(".")
        _by_name.setdefault(name, {})[module] = family
    else:
        _by_type[estimator] = family


def _family_of(kind: type) -> SharedFit | None:
    """Give the family of exactly this class."""
    if kind in _by_type:
        return _by_type[kind]
    for module, family in _by_name.get(kind.__name__, {}).items():
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            return family
    return None


def last_step(estimator: Any) -> Any:
    """Give the last step of a pipeline, and any other estimator itself."""
    is_pipeline = type(estimator) is Pipeline and estimator.steps
    return estimator.steps[-1][1] if is_pipeline else estimator


def member_of(
    estimator: Any,
    parameters: Mapping[str, Any] | None,
    *,
    step: int = -1,
    has_callbacks: bool = False,
    is_approximate: bool = False,
) -> SharedFitMember | None:
    """Tell which family a candidate, or an earlier step of it, belongs to.

    None where there is no family for it, and where none of the parameters that one fit contains is
    searched over. ``is_approximate`` tells whether scores within a solver's tolerance will do.
    """
    parameters = parameters or {}
    prefix, last, of_steps = "", estimator, True
    if type(estimator) is Pipeline and estimator.steps:
        name, last = estimator.steps[step]
        prefix = f"{name}__"
        names = {name for name, _ in estimator.steps}
        # No parameter of the pipeline itself, and no step.
        of_steps = all("__" in name and name.partition("__")[0] in names for name in parameters)
    kind = next((base for base in type(last).__mro__ if _family_of(base)), object)
    family = _family_of(kind)
    if family is None:
        return None
    contained = {f"{prefix}{name}" for name in family.parameters}
    if not contained & parameters.keys():
        return None
    own = {
        name.removeprefix(prefix): value
        for name, value in parameters.items()
        if name.startswith(prefix)
    }
    params = {**last.get_params(deep=False), **own}
    if not of_steps:
        refused: str | None = "the pipeline must be the same for all candidates, but for parameters"
    elif kind is not type(last):
        refused = f"it must be a {kind.__name__} itself. Got a subclass instead"
    else:
        refused = _reason_against(family, params, has_callbacks, is_approximate)
    return SharedFitMember(
        type(last).__name__,
        family,
        {name: params[name] for name in family.parameters if name in params},
        {name: value for name, value in parameters.items() if name not in contained},
        refused,
    )


def _reason_against(
    family: SharedFit, params: Mapping[str, Any], has_callbacks: bool, is_approximate: bool
) -> str | None:
    """Tell why a fit must be made by itself."""
    if has_callbacks:
        return "callbacks must not listen to the search or its estimator"
    # those of an estimator within the estimator are its own affair
    unknown = sorted(name for name in params if name not in family.known and "__" not in name)
    if unknown:
        return f"parameters must be known to the family. Got {', '.join(unknown)} besides"
    try:
        refused = family.refuses(params)
    except Exception as error:
        return f"the family must know. Got {type(error).__name__}: {error} instead"
    if refused is None and family.is_approximate and not is_approximate:
        return (
            "share_fits must be 'approximate', as scores are within the solver's tolerance only. "
            "Got True instead"
        )
    return refused
