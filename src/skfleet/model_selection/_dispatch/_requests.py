"""The fits of scikit-learn's model selection, read from the calls that joblib is given."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator

from skfleet._sklearn_private import has_callbacks, has_callbacks_set
from skfleet.engine import CandidateDevices
from skfleet.engine._dask._serialize import Pickled
from skfleet.model_selection._dispatch._context import current_run
from skfleet.model_selection._dispatch._scheduler import PlannedFit
from skfleet.model_selection._dispatch._worker import FirstStep, FitCall, Job, has_first_steps
from skfleet.model_selection._shared_fits._execution import OWN_FIT, FitOrigin
from skfleet.model_selection._shared_fits._registry import SharedFitMember, member_of
from skfleet.model_selection._tokenize import content_key, unfitted

__all__ = ["FitList", "FitRequest", "JobInputs"]

# What differs between the fits of a search.
_OF_ONE_FIT = (
    "parameters",
    "split_progress",
    "candidate_progress",
    "callback_ctx",
    "caller",
)


@dataclass(eq=False)
class FitRequest(PlannedFit):
    """A fit, what it is called with, and all who wait for its result."""

    call: FitCall = field(kw_only=True)
    waiting: list[Any] = field(kw_only=True, default_factory=list)
    record: str | None = field(kw_only=True, default=None)  # its name among records, if it has one
    refused: str | None = field(kw_only=True, default=None)  # why it was not scored from sums
    is_done: bool = field(kw_only=True, default=False)


@dataclass(eq=False)
class JobInputs:
    """What the fits of a job are made of: the rows, the splits, and all else they share."""

    X: Any
    y: Any
    function: Any
    options: dict[str, Any]
    pack: Callable[[Any], Pickled]
    estimators: list[Any] = field(default_factory=list)
    estimator_keys: dict[int, str] = field(default_factory=dict)
    placements: list[CandidateDevices] = field(default_factory=list)
    packed: list[Pickled] = field(default_factory=list)
    folds: list[tuple[Any, Any]] = field(default_factory=list)
    fold_numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    fold_keys: dict[int, str] = field(default_factory=dict)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _latest: tuple[Any, int] | None = None
    _job: tuple[int, Pickled] | None = None

    @property
    def shares_results(self) -> bool:
        """Tell whether equal fits, or their first steps, may be made once."""
        return not self.options.get("return_estimator")

    @property
    def shares_rows(self) -> bool:
        """Tell whether splits may be cut once: not where rows may be on a device."""
        return not getattr(self.function, "config", {}).get("array_api_dispatch", False)

    def job(self) -> Pickled:
        """Give what travels with every bundle."""
        if self._job is None or self._job[0] < len(self.packed):
            job = Job(
                self.function,
                tuple(self.packed),
                self.options,
                self.shares_rows,
                self.shares_rows and self.shares_results,
            )
            self._job = len(self.packed), self.pack(job)
        return self._job[1]

    def estimator_number(self, estimator: Any) -> int:
        """Give the number of an estimator, the same for the same type and parameters."""
        if self._latest is not None and _is_same(self._latest[0], estimator):
            return self._latest[1]
        packed = self.pack(estimator)
        number = self._numbers.setdefault(packed.digest(), len(self.packed))
        if number == len(self.packed):
            self.packed.append(packed)
            self.estimators.append(estimator)
            self.placements.append(CandidateDevices(estimator))
        self._latest = estimator, number
        return number

    def fold_number(self, train: Any, test: Any) -> int:
        """Give the number of a split, which is known by its objects."""
        key = id(train), id(test)
        if key not in self.fold_numbers:
            self.fold_numbers[key] = len(self.folds)
            self.folds.append((train, test))
        return self.fold_numbers[key]


class _Tried(NamedTuple):
    """A candidate: by what it is known, whether callbacks listen to it, and what it shares."""

    candidate: Hashable
    has_callbacks: bool
    block: tuple[Hashable, ...]
    member: SharedFitMember | None
    first: FirstStep | None
    record: str | None
    device: str


class FitList:
    """The fits of one ``Parallel`` call, and what they have in common.

    Parameters
    ----------
    pack : callable
        Makes a parcel of an estimator or of parameters.
    """

    def __init__(self, pack: Callable[[Any], Pickled]) -> None:
        self._pack = pack
        self.run = current_run()
        self._sharing = self.run.sharing
        self.jobs: list[JobInputs] = []
        self._job_numbers: dict[tuple[Any, ...], int] = {}
        self._pending: dict[tuple[Any, ...], FitRequest] = {}
        self._latest: tuple[Any, Any, _Tried] | None = None
        self._orders: dict[bytes, int] = {}

    def read(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        waiting: Any,
    ) -> FitRequest | None:
        """Give the fit that a call asks for; None where an equal one is on its way already."""
        estimator, X, y = args
        own = {name: kwargs[name] for name in _OF_ONE_FIT if name in kwargs}
        common = {
            name: value
            for name, value in kwargs.items()
            if name not in _OF_ONE_FIT and name not in ("train", "test")
        }
        number = self._job_number(function, X, y, common)
        job = self.jobs[number]
        fold = job.fold_number(kwargs["train"], kwargs["test"])
        estimator_number = job.estimator_number(estimator)
        listens = has_callbacks(own.get("callback_ctx"))
        tried = self._tried(number, estimator_number, estimator, own.get("parameters"), listens)
        if not tried.has_callbacks:
            # Nobody will ask for the place of the fit in the tree of tasks, nor whose fit it is.
            own |= {"callback_ctx": None, "caller": None}
        key = (fold, tried.candidate)
        may_merge = job.shares_results and own.get("callback_ctx") is None
        if may_merge and key in self._pending:
            self._pending[key].waiting.append(waiting)
            return None
        member, first = tried.member, tried.first
        if member is not None:
            self._sharing.add(member, (number, fold, tried.block))
            member = None if member.refused else member
        if first is not None:
            self._sharing.add(first.member, (number, fold, tried.block[: first.depth + 1]))
            first = None if first.member.refused else first
        fit = FitRequest(
            number,
            fold,
            tried.candidate,
            tried.block,
            member is not None,
            member is not None and member.shared_fit.is_divisible,
            self._order(first),
            tried.device,
            call=FitCall(estimator_number, fold, own, tried.block, member, first),
            waiting=[waiting],
            record=self._record(job, fold, tried),
        )
        if may_merge:
            self._pending[key] = fit
        return fit

    def _record(self, job: JobInputs, fold: int, tried: _Tried) -> str | None:
        """Name a fit for a record, by its candidate and its split, the same in any process."""
        if self.run.records is None or tried.record is None:
            return None
        if fold not in job.fold_keys:
            job.fold_keys[fold] = content_key(*job.folds[fold])
        return f"{tried.record}-{job.fold_keys[fold]}"

    def _tried(
        self, number: int, estimator_number: int, estimator: Any, parameters: Any, listens: bool
    ) -> _Tried:
        """Give what the fits of a candidate have in common; they come one after the other."""
        key = number, estimator_number, listens
        if self._latest is not None and self._latest[0] is parameters and self._latest[1] == key:
            return self._latest[2]
        job, identity = self.jobs[number], self._pack(parameters)
        listens = (
            listens
            or has_callbacks_set(job.packed[estimator_number].header)
            or has_callbacks_set(identity.header)
        )
        path: tuple[bytes, ...] = ()
        member = first = None
        if job.shares_results:
            if self._sharing.is_enabled:
                how = {
                    "has_callbacks": listens,
                    "is_approximate": self._sharing.is_approximate,
                }
                member = member_of(estimator, parameters, **how)
                first = _first_member(estimator, parameters, **how)
            path = first_steps(estimator, parameters, first)
            if member is not None and not member.refused:
                path = *path, Pickled.dumps(member.common).digest()
        block = tuple((estimator_number, step) for step in path)
        record = None
        if self.run.records is not None and job.shares_results:
            if estimator_number not in job.estimator_keys:
                job.estimator_keys[estimator_number] = content_key(estimator)
            record = content_key(job.estimator_keys[estimator_number], unfitted(parameters))
        candidate = number, estimator_number, identity.digest()
        device = job.placements[estimator_number].of(parameters or {})
        tried = _Tried(candidate, listens, block, member, first, record, device)
        self._latest = parameters, key, tried
        return tried

    def _order(self, first: FirstStep | None) -> int:
        """Give the number of a step of a family, in the order in which they were first read."""
        if first is None:
            return 0
        name = Pickled.dumps(first.member.values).digest()
        return self._orders.setdefault(name, len(self._orders))

    def forget(
        self, fit: FitRequest, came: FitOrigin = OWN_FIT, first_came: FitOrigin = OWN_FIT
    ) -> None:
        """Let go of a fit that is done, and count what came out of another, or could not."""
        self._pending.pop((fit.fold, fit.candidate), None)
        if fit.is_done:
            return
        first = fit.call.first
        for member, how in ((fit.call.member, came), (first and first.member, first_came)):
            if member is None:
                continue
            if how.was_saved:
                self._sharing.count(member, saved=1)
            elif how.refused is not None:
                self._sharing.count(member, fits=-1)
                self._sharing.count(member._replace(refused=how.refused), fits=1)

    def _job_number(self, function: Any, X: Any, y: Any, common: dict[str, Any]) -> int:
        """Give the number of the job of all calls with the same objects."""
        key = (
            id(X),
            id(y),
            id(getattr(function, "config", None)),
            *((name, _identity(value)) for name, value in common.items()),
        )
        if key not in self._job_numbers:
            self._job_numbers[key] = len(self.jobs)
            self.jobs.append(JobInputs(X, y, function, common, self._pack))
        return self._job_numbers[key]


def _first_member(estimator: Any, parameters: Any, **how: bool) -> FirstStep | None:
    """Give the family of a step before the last, of the latest that has one."""
    if not has_first_steps(estimator):
        return None
    for depth in reversed(range(len(estimator.steps) - 1)):
        member = member_of(estimator, parameters, step=depth, **how)
        if member is not None:
            return FirstStep(depth, member)
    return None


def first_steps(
    estimator: Any, parameters: Mapping[str, Any] | None, first: FirstStep | None = None
) -> tuple[bytes, ...]:
    """Tell by what a candidate's first steps differ from another's, for each step but the last.

    Not by what one fit of a family contains.
    """
    if not has_first_steps(estimator):
        return ()
    parameters = parameters or {}
    names = [name for name, _ in estimator.steps]
    contained: set[str] = set()
    if first is not None and not first.member.refused:
        contained = {f"{names[first.depth]}__{name}" for name in first.member.shared_fit.parameters}
    # A parameter of the pipeline itself: a memory of the user's, or other steps.
    if any(name.partition("__")[0] not in names for name in parameters):
        return ()
    return tuple(
        Pickled.dumps(
            {
                key: value
                for key, value in parameters.items()
                if key.partition("__")[0] == name and key not in contained
            }
        ).digest()
        for name in names[:-1]
    )


def _identity(value: Any) -> Any:
    """Give what equal values of a job have in common: themselves where they are plain."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, repr(value)
    return id(value)


def _is_same(one: Any, other: Any) -> bool:
    """Tell that two estimators are alike; False may mean that it takes too long to tell."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (bool, int, float, complex, str, bytes)):
        return bool(one == other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_is_same, one.values(), other.values()))
    if isinstance(one, BaseEstimator):
        return _is_same(vars(one), vars(other))
    return False
