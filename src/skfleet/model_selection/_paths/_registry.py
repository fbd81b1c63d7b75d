"""Registry of shared fits: one fit, of a regularisation path say, that serves many candidates."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.pipeline import Pipeline

# the parameters of each candidate
ParamSets = Sequence[Mapping[str, Any]]


class SharedFit(ABC):
    """Base class for estimators of which one fit yields the models of many candidates.

    The candidates are fitted on the same rows and differ in a few parameters only, such as the
    penalty of a regularisation path or the number of boosting rounds. The scores must be those of
    separate fits; where they might not be, the shared fit must say that it does not support the
    parameters. Subclasses of an estimator, parameters that are not in `known`, and callbacks are
    never supported.

    Attributes
    ----------
    parameters : tuple of str
        Parameters in which the candidates of one fit may differ.
    known : frozenset of str
        All parameters of the estimators that the implementation takes into account.
    scorings : frozenset of str
        Scorers that `score` computes without fitted models: names of scikit-learn's scorers, and
        "score" for the estimator's own. Empty by default.
    is_divisible : bool
        Whether a fit for half of the candidates takes about half the time, so that it pays to
        divide it among idle workers. False by default.
    keeps_rows : bool
        Whether fitted models refer to the training rows, which a scorer may write into. False by
        default.
    is_approximate : bool
        Whether scores agree with those of separate fits within the tolerance of a solver only.
        Searches use such a shared fit with ``share_fits="approximate"``. False by default.

    See Also
    --------
    register_shared_fit : Makes searches use a shared fit.

    Examples
    --------
    The constant of a dummy regressor can be set after the fit:

    >>> import copy
    >>> import numpy as np
    >>> from sklearn.dummy import DummyRegressor
    >>> from skfleet.model_selection import SharedFit
    >>> class Constants(SharedFit):
    ...     parameters = ("constant",)
    ...     known = frozenset({"constant", "quantile", "strategy"})
    ...
    ...     def unsupported_reason(self, params):
    ...         return None if params["strategy"] == "constant" else "strategy must be 'constant'"
    ...
    ...     def fit(self, estimator, candidates, X, y, **fit_params):
    ...         fitted, models = estimator.fit(X, y, **fit_params), []
    ...         for values in candidates:
    ...             model = copy.copy(fitted).set_params(**values)
    ...             model.constant_ = np.full_like(fitted.constant_, values["constant"])
    ...             models.append(model)
    ...         return models
    >>> Constants().unsupported_reason({"strategy": "mean"})
    "strategy must be 'constant'"
    """

    parameters: tuple[str, ...]
    known: frozenset[str]
    scorings: frozenset[str] = frozenset()
    is_divisible: bool = False
    is_approximate: bool = False
    keeps_rows: bool = False

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Return why fits with these parameters cannot be shared, or None if they can."""
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
        """Fit once, and return a fitted estimator for each candidate.

        Parameters
        ----------
        estimator : estimator object
            Unfitted, with the parameters of one of the candidates.
        candidates : sequence of mapping
            Values of `parameters` for each candidate.
        X, y : object
            Training data of one split.
        **fit_params : object
            Further parameters of ``fit``.

        Returns
        -------
        list of estimator
            Fitted estimators with the parameters of their candidates. They are not fitted again.

        Raises
        ------
        NotImplementedError
            With the reason, if the data do not permit to share the fits.
        """

    def fit_transform(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[tuple[Any, Any]]:
        """Fit a transformer once, and return the results of ``fit_transform`` too.

        For transformers whose ``fit_transform`` differs from ``fit`` and ``transform``, if only in
        the last bits: the steps after it would break ties in another way.

        Parameters
        ----------
        estimator, candidates, X, y, **fit_params : object
            As for `fit`.

        Returns
        -------
        list of (estimator, object)
            Fitted transformer and transformed rows; None stands for the result of ``transform``.

        Raises
        ------
        NotImplementedError
            As for `fit`.
        """
        return [(model, None) for model in self.fit(estimator, candidates, X, y, **fit_params)]

    def summarize(self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int) -> Any:
        """Compute statistics from which all candidates can be scored, where the rows are.

        For shared fits whose scores cost less than to send the rows to a worker. Called in a
        separate thread while the candidates are still being read.

        Parameters
        ----------
        X, y : object
            All rows.
        splits : sequence of (array, array)
            Row numbers to train and to test on.
        n_slots : int
            Number of fits that the fleet could run at once instead.

        Returns
        -------
        summary : object
            Input of `score`.

        Raises
        ------
        NotImplementedError
            If workers must fit the candidates.
        """
        raise NotImplementedError("fits must be made to be scored")

    def score(
        self,
        summary: Any,
        params: Sequence[Mapping[str, Any]],
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Score all candidates on all splits without a model.

        Parameters
        ----------
        summary : object
            What `summarize` returned.
        params : sequence of mapping
            All parameters of each candidate.
        scorings : sequence of str
            Requested names of the attribute `scorings`.
        train_scores : bool
            Whether to compute the scores on the training rows too.

        Returns
        -------
        scores : ndarray of shape (2, n_scorings, n_splits, n_candidates)
            Scores on the test rows; and on the training rows, if requested.

        Raises
        ------
        NotImplementedError
            If workers must fit the candidates.
        """
        raise NotImplementedError("fits must be made to be scored")


class SharedFitMember(NamedTuple):
    """A candidate as a member of a shared fit, or the reason why it cannot be one.

    ``values`` are the parameters in which the members differ; ``common`` are the other parameters
    that are searched over.
    """

    kind: str
    shared_fit: SharedFit
    values: dict[str, Any]
    common: dict[str, Any]
    refused: str | None


class SharedFitUse(NamedTuple):
    """Number of fits that a search shared, or the reason why it did not.

    Parameters
    ----------
    estimator : str
        Name of the estimator; ``"Pipeline"`` for the scores of pipelines that follow from sums over
        the rows.
    parameters : tuple of str
        Parameters in which the candidates of one fit may differ.
    n_fits : int
        Number of fits that might be shared, candidates times splits.
    n_saved : int
        Number of fits that were saved.
    refused : str or None
        Reason why each candidate was fitted by itself, if it was; for ``"Pipeline"`` why it was
        fitted at all. The fits are then counted again by the name of the last step.

    Examples
    --------
    >>> from distributed import Client
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from skfleet.model_selection import GridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> one_thread = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    >>> with Client(**one_thread, dashboard_address=":0"):
    ...     search = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}).fit(X, y)
    >>> search.shared_fits_[0].n_fits, search.shared_fits_[0].n_saved
    (15, 10)
    """

    estimator: str
    parameters: tuple[str, ...]
    n_fits: int
    n_saved: int
    refused: str | None


class SharedFitLog:
    """Counts of the fits that a search shared, and whether it may share them, approximately too."""

    def __init__(self, *, is_enabled: bool, is_approximate: bool) -> None:
        self.is_enabled = is_enabled
        self.is_approximate = is_approximate
        self._counts: dict[tuple[str, tuple[str, ...], str | None], list[int]] = {}
        self._groups: set[int] = set()
        self._shared: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, member: SharedFitMember, group: Hashable) -> None:
        """Count a fit that may be shared with those of the same group."""
        self.count(member, fits=1)
        group = hash((member.kind, member.shared_fit.parameters, group))
        if group in self._groups:
            self._shared.add((member.kind, member.shared_fit.parameters))
        self._groups.add(group)

    def count(self, member: SharedFitMember, *, fits: int = 0, saved: int = 0) -> None:
        """Add to the counts of fits and of saved fits."""
        key = member.kind, member.shared_fit.parameters, member.refused
        counts = self._counts.setdefault(key, [0, 0])
        counts[0] += fits
        counts[1] += saved

    def count_scored(self, member: SharedFitMember, *, saved: int) -> None:
        """Add a fit that was scored from sums, which needs no other candidates."""
        self.count(member, fits=1, saved=saved)
        self._shared.add((member.kind, member.shared_fit.parameters))

    def uses(self) -> tuple[SharedFitUse, ...]:
        """Return the counts by estimator, parameters and reason."""
        uses = []
        for (kind, parameters, refused), (n_fits, n_saved) in self._counts.items():
            if refused is None and (kind, parameters) not in self._shared:
                refused = f"other candidates must differ in {' or '.join(parameters)} alone"
            if n_fits:
                uses.append(SharedFitUse(kind, parameters, n_fits, n_saved, refused))
        return tuple(uses)


# Shared fits by estimator class; and by class name and public module, as the module may not be
# imported yet.
_by_type: dict[type, SharedFit] = {}
_by_name: dict[str, dict[str, SharedFit]] = {}


def register_shared_fit(estimator: type | str, shared_fit: SharedFit) -> None:
    """Register how searches share the fits of an estimator.

    Parameters
    ----------
    estimator : type or str
        The class, or its public name such as ``"sklearn.svm.SVC"``, which imports nothing.
        Subclasses are not included.
    shared_fit : SharedFit
        Implementation. It replaces one that was registered before.

    Raises
    ------
    TypeError
        If ``shared_fit`` is not a `SharedFit`.

    Examples
    --------
    >>> from skfleet.model_selection import SharedFit, register_shared_fit
    >>> class Stages(SharedFit):
    ...     parameters = ("n_stages",)
    ...     known = frozenset({"n_stages", "random_state"})
    ...
    ...     def fit(self, estimator, candidates, X, y, **fit_params):
    ...         n_stages = max(values["n_stages"] for values in candidates)
    ...         model = estimator.set_params(n_stages=n_stages).fit(X, y, **fit_params)
    ...         return [model.first_stages(values["n_stages"]) for values in candidates]
    >>> register_shared_fit("my_package.StagedRegressor", Stages())
    """
    if not isinstance(shared_fit, SharedFit):
        raise TypeError(
            f"shared_fit must be a SharedFit. Got {type(shared_fit).__name__} instead. Subclass "
            "skfleet.model_selection.SharedFit, and pass an instance."
        )
    if isinstance(estimator, str):
        module, _, name = estimator.rpartition(".")
        _by_name.setdefault(name, {})[module] = shared_fit
    else:
        _by_type[estimator] = shared_fit


def register_default(name: str, shared_fit: SharedFit) -> None:
    """Register a shared fit of this package, unless the user has registered another one."""
    module, _, name = name.rpartition(".")
    _by_name.setdefault(name, {}).setdefault(module, shared_fit)


def _shared_fit_of(kind: type) -> SharedFit | None:
    """Return the shared fit that is registered for exactly this class."""
    if kind in _by_type:
        return _by_type[kind]
    for module, shared_fit in _by_name.get(kind.__name__, {}).items():
        # Only the class itself: another one may have its name.
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            return shared_fit
    return None


def member_of(
    estimator: Any,
    parameters: Mapping[str, Any] | None,
    *,
    step: int = -1,
    has_callbacks: bool = False,
    is_approximate: bool = False,
    scores_training_rows: bool = False,
    shows_training_rows: bool = False,
) -> SharedFitMember | None:
    """Return a candidate, or a step of it, as a member of a shared fit.

    None if no shared fit is registered for it, or if none of its parameters is searched over.
    ``is_approximate`` permits shared fits whose scores agree within a solver's tolerance only.
    With ``scores_training_rows`` no fit is shared that writes into its rows, with
    ``shows_training_rows`` none whose models refer to them: scorers may write into these.
    """
    parameters = parameters or {}
    prefix, last, has_fixed_steps = "", estimator, True
    if type(estimator) is Pipeline and estimator.steps:
        name, last = estimator.steps[step]
        prefix = f"{name}__"
        names = {name for name, _ in estimator.steps}
        # neither parameters of the pipeline itself nor its steps are searched over
        has_fixed_steps = all("__" in key and key.partition("__")[0] in names for key in parameters)
    shared_fit = inherited_shared_fit(last)
    if shared_fit is None:
        return None
    varying = {f"{prefix}{name}" for name in shared_fit.parameters}
    if not varying & parameters.keys():
        return None
    own = {k.removeprefix(prefix): v for k, v in parameters.items() if k.startswith(prefix)}
    params = last.get_params(deep=False) | own
    if not has_fixed_steps:
        refused: str | None = "the pipeline must be the same for all candidates, but for parameters"
    elif has_callbacks:
        refused = "callbacks must not listen to the search or its estimator"
    elif scores_training_rows and writes_into_rows(params):
        refused = "fits must write into no training rows that are scored"
    elif shows_training_rows and shared_fit.keeps_rows:
        refused = "scorers must be scikit-learn's where models refer to rows that are scored"
    else:
        refused = unsupported_reason(last, params, is_approximate=is_approximate)
    return SharedFitMember(
        type(last).__name__,
        shared_fit,
        {name: params[name] for name in shared_fit.parameters if name in params},
        {name: value for name, value in parameters.items() if name not in varying},
        refused,
    )


def writes_into_rows(params: Mapping[str, Any]) -> bool:
    """Return whether an estimator with these parameters may write into the rows that it gets."""
    names = ("copy", "copy_X")
    return any(name.rpartition("__")[2] in names and params[name] is False for name in params)


def inherited_shared_fit(estimator: Any) -> SharedFit | None:
    """Return the shared fit of an estimator's class, or of the one that it is a subclass of."""
    return next(filter(None, map(_shared_fit_of, type(estimator).__mro__)), None)


def unsupported_reason(
    estimator: Any, params: Mapping[str, Any], *, is_approximate: bool = False
) -> str | None:
    """Return why fits with these parameters cannot be shared, or None if they can."""
    shared_fit = _shared_fit_of(type(estimator))
    if shared_fit is None:
        kind = next(base for base in type(estimator).__mro__ if _shared_fit_of(base))
        return f"it must be a {kind.__name__} itself. Got a subclass instead"
    # parameters of a nested estimator belong to that estimator
    unknown = sorted(name for name in params if name not in shared_fit.known and "__" not in name)
    if unknown:
        return f"parameters must be known to the shared fit. Got {', '.join(unknown)} besides"
    try:
        refused = shared_fit.unsupported_reason(params)
    except Exception as error:
        return f"the shared fit must know. Got {type(error).__name__}: {error} instead"
    if refused is None and shared_fit.is_approximate and not is_approximate:
        return (
            "share_fits must be 'approximate', as scores are within the solver's tolerance only. "
            "Got True instead"
        )
    return refused
