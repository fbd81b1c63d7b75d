"""Requests for fits, read from the calls that scikit-learn's model selection makes of joblib."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from skfleet._sklearn_private import has_callbacks, has_callbacks_set, scorers_of
from skfleet.engine import CandidateDevices, LocalReference, Pickled
from skfleet.model_selection._dispatch._fit_tasks import (
    FitCall,
    JobSpec,
    SharedStep,
    has_prefix_steps,
)
from skfleet.model_selection._dispatch._scheduler import PlannedFit
from skfleet.model_selection._dispatch._search_context import current_context
from skfleet.model_selection._dispatch._split_views import (
    as_indexable,
    collection_of,
    in_order,
    without_mask,
)
from skfleet.model_selection._early_stopping._validation_rows import ValidationRows
from skfleet.model_selection._paths._execution import OWN_FIT, FitOrigin
from skfleet.model_selection._paths._registry import SharedFit, SharedFitMember, member_of
from skfleet.model_selection._records._tokenize import content_key, unfitted
from skfleet.model_selection._scorer_names import takes_rows

# Keyword arguments of scikit-learn's function that differ between the fits of a search.
_PER_FIT_OPTIONS = ("parameters", "split_progress", "candidate_progress", "callback_ctx", "caller")

# The reason why fits with validation rows are not shared.
_STOPS_EARLY = "early_stopping must be None, since each fit stops at an iteration of its own"


@dataclass(eq=False, kw_only=True)
class FitRequest(PlannedFit):
    """A fit, its arguments, and the joblib callbacks that wait for its result."""

    call: FitCall
    callbacks: list[Any]
    place: Any  # FitPlace; None of a fit within a fit
    checkpoint_key: str | None
    may_be_scored: bool = False
    members: tuple[SharedFitMember, ...] = ()  # as which it was counted
    pipeline: SharedFit | None = None  # that may score it
    no_analytic_score: str | None = None  # the reason
    is_done: bool = False
    original: FitRequest | None = None  # in the place of which it is made
    first_steps: Any = None  # fitted, of the pipeline whose other steps it fits


@dataclass(eq=False)
class SearchJob:
    """Rows, splits, estimators and options that the fits of a call have in common."""

    X: Any
    y: Any
    function: Any
    options: dict[str, Any]
    pack: Callable[[Any], Pickled]
    validation_rows: ValidationRows | None = None
    estimators: list[Any] = field(default_factory=list)
    estimator_keys: dict[int, str] = field(default_factory=dict)
    devices: list[CandidateDevices] = field(default_factory=list)
    pickled_estimators: list[Pickled] = field(default_factory=list)
    folds: list[tuple[Any, ...]] = field(default_factory=list)
    fold_numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    _splits: list[tuple[Any, Any]] = field(default_factory=list)
    fold_keys: dict[int, str] = field(default_factory=dict)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _digests_of_steps: dict[int, list[bytes]] = field(default_factory=dict)  # by estimator
    _last_estimator: tuple[Any, int] | None = None
    _spec: tuple[int, Pickled] | None = None

    def __post_init__(self) -> None:
        self._scorer = LocalReference(self.options["scorer"])

    @property
    def shares_results(self) -> bool:
        """True if equal fits, or equal preprocessing steps of fits, may run once."""
        return not self.options.get("return_estimator")

    @property
    def shares_rows(self) -> bool:
        """True if fits may share the rows of a split: not where these may be on a device."""
        return not getattr(self.function, "config", {}).get("array_api_dispatch", False)

    @property
    def shows_training_rows(self) -> bool:
        """True if functions of the user's score the training rows, and may write into them."""
        scorers = scorers_of(self.options.get("scorer")).values()
        return bool(self.options.get("return_train_score")) and any(map(takes_rows, scorers))

    def spec(self) -> Pickled:
        """Return the part of a job that is sent with every batch; equal ones are sent once."""
        if self._spec is None or self._spec[0] < len(self.pickled_estimators):
            estimators = tuple(self.pickled_estimators)
            shares_steps = self.shares_rows and self.shares_results
            # as with joblib's threads, a scorer on a thread of this process is the caller's own
            options = {**self.options, "scorer": self._scorer}
            spec = JobSpec(self.function, estimators, options, self.shares_rows, shares_steps)
            self._spec = len(estimators), self.pack(spec)
        return self._spec[1]

    def estimator_number(self, estimator: Any) -> int:
        """Return the number of an estimator, the same for the same type and parameters."""
        if self._last_estimator is not None and _is_equal(self._last_estimator[0], estimator):
            return self._last_estimator[1]
        pickled = self.pack(estimator)
        number = self._numbers.setdefault(pickled.digest(), len(self.pickled_estimators))
        if number == len(self.pickled_estimators):
            self.pickled_estimators.append(pickled)
            self.estimators.append(estimator)
            self.devices.append(CandidateDevices(estimator))
        self._last_estimator = estimator, number
        return number

    def digests_of_steps(self, number: int, n_steps: int) -> list[bytes]:
        """Return a digest of the first step of a pipeline, of its first two, and so on."""
        digests = self._digests_of_steps.setdefault(number, [])
        for n in range(len(digests), n_steps):
            digests.append(self.pack(self.estimators[number].steps[: n + 1]).digest())
        return digests[:n_steps]

    def fold_number(self, train: Any, test: Any) -> int:
        """Return the number of a split, by the identity of its index arrays.

        With early stopping the fold of a split has validation rows too.
        """
        key = id(train), id(test)
        if key not in self.fold_numbers:
            rows = self.validation_rows
            self.fold_numbers[key] = len(self.folds)
            parts = without_mask(train, self.X), without_mask(test, self.X)
            self.folds.append(parts if rows is None else rows.split(*parts, self.y))
            self._splits.append((train, test))  # while they live no other object has their ids
        return self.fold_numbers[key]

    def parts(self, fold: int) -> tuple[Any, ...]:
        """Return the numbers of a split's rows in order: to train, test, and validate on."""
        n_rows = len(as_indexable(self.X))
        return tuple(in_order(part, n_rows) for part in self.folds[fold])


class _CandidateInfo(NamedTuple):
    """Properties that the fits of a candidate have in common."""

    candidate: Hashable
    has_callbacks: bool
    prefix_key: tuple[Hashable, ...]
    member: SharedFitMember | None
    shared_step: SharedStep | None
    checkpoint_key: str | None
    device: str
    may_be_scored: bool


class RequestReader:
    """Reader of the calls of one ``Parallel`` call, which merges equal fits."""

    def __init__(
        self, pack: Callable[[Any], Pickled], validation_rows: ValidationRows | None = None
    ) -> None:
        self._pack, self._validation_rows = pack, validation_rows
        self.context = current_context()
        self._sharing = self.context.sharing
        self.jobs: list[SearchJob] = []
        self._job_numbers: dict[tuple[Any, ...], int] = {}
        self._pending: dict[tuple[Any, ...], FitRequest] = {}
        self._last_candidate: tuple[Any, Any, _CandidateInfo] | None = None
        self._group_orders: dict[bytes, int] = {}

    def read(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], callback: Any
    ) -> FitRequest | None:
        """Return the fit that a call requests; None where an equal one is pending."""
        estimator, X, y = args
        own = {name: kwargs[name] for name in _PER_FIT_OPTIONS if name in kwargs}
        # Numbers stand for what many fits have in common, so that each is sent once.
        number = self._job_number(function, X, y, kwargs)
        job = self.jobs[number]
        fold = job.fold_number(kwargs["train"], kwargs["test"])
        estimator_number = job.estimator_number(estimator)
        parameters, has_context = own.get("parameters"), has_callbacks(own.get("callback_ctx"))
        info = self._candidate_info(number, estimator_number, estimator, parameters, has_context)
        if not info.has_callbacks:
            # nothing reads the place of the fit in the tree of tasks, nor its caller
            own |= {"callback_ctx": None, "caller": None}
        # A fit that equals a pending one is not made again: its result goes to both callbacks.
        key = (fold, info.candidate)
        may_merge = job.shares_results and own.get("callback_ctx") is None
        if may_merge and key in self._pending:
            self._pending[key].callbacks.append(callback)
            return None
        # Each shared fit is counted on each split, refused ones for the reason that users see.
        member, step = info.member, info.shared_step
        if member is not None:
            self._sharing.add(member, (number, fold, info.prefix_key))
            member = None if member.refused else member
        if step is not None:
            self._sharing.add(step.member, (number, fold, info.prefix_key[: step.depth + 1]))
            step = None if step.member.refused else step
        # What the scheduler sees of it comes first, then what runs and where its result goes.
        fit = FitRequest(
            number,
            fold,
            info.candidate,
            info.prefix_key,
            member is not None,
            member is not None and member.shared_fit.is_divisible,
            self._group_order(step),
            info.device,
            call=FitCall(estimator_number, fold, own, info.prefix_key, member, step),
            callbacks=[callback],
            place=getattr(callback, "place", None),
            checkpoint_key=self._checkpoint_key(job, fold, info),
            may_be_scored=info.may_be_scored,
            members=tuple(
                filter(None, (info.member, info.shared_step and info.shared_step.member))
            ),
        )
        if may_merge:
            self._pending[key] = fit
        return fit

    def clear(self) -> None:
        """Release the rows and everything else: a reference would keep them on the fleet."""
        self.jobs.clear()
        self._job_numbers.clear()
        self._pending.clear()
        self._last_candidate = self._validation_rows = None

    def replace(
        self,
        fit: FitRequest,
        estimator: Any,
        X: Any,
        y: Any,
        parts: tuple[Any, ...],
        **options: Any,
    ) -> list[FitRequest]:
        """Return the fits of another estimator, on other rows, that are made in the place of one.

        ``parts`` are the numbers of the rows to train on, to test on, and to validate on;
        ``options`` the other keyword arguments of scikit-learn's function that differ.
        """
        self.withdraw(fit)
        job, (train, test) = self.jobs[fit.job], parts[:2]
        options = {**job.options, **fit.call.options, **options, "train": train, "test": test}
        # with parts of their own
        self.jobs[self._job_number(job.function, X, y, options)].validation_rows = None
        fits = []
        for callback in fit.callbacks:
            new = self.read(job.function, (estimator, X, y), options, callback)
            if new is not None:  # the callback of one that is read already was added to it
                self.jobs[new.job].folds[new.fold] = parts
                self._pending.pop((new.fold, new.candidate), None)
                new.candidate, new.original = fit.candidate, fit  # which is known on all splits
                new.checkpoint_key, new.pipeline = fit.checkpoint_key, fit.pipeline
                new.no_analytic_score = fit.no_analytic_score
                fits.append(new)
        return fits

    def release_rows(self, number: int) -> None:
        """Release the rows of a job whose fits are done."""
        self._job_numbers = {key: n for key, n in self._job_numbers.items() if n != number}
        self.jobs[number].X = self.jobs[number].y = None

    def _checkpoint_key(self, job: SearchJob, fold: int, info: _CandidateInfo) -> str | None:
        """Return the key of a fit in checkpoints, by candidate and split, equal in any process."""
        if self.context.records is None or info.checkpoint_key is None:
            return None
        if fold not in job.fold_keys:
            job.fold_keys[fold] = content_key(*job.folds[fold])
        return f"{info.checkpoint_key}-{job.fold_keys[fold]}"

    def _candidate_info(
        self, number: int, estimator_number: int, estimator: Any, parameters: Any, has_context: bool
    ) -> _CandidateInfo:
        """Return the properties of a candidate, cached while its fits are read in a row."""
        # scikit-learn asks for all splits of a candidate in a row.
        key = number, estimator_number, has_context
        if self._last_candidate is not None:
            last_parameters, last_key, info = self._last_candidate
            if last_parameters is parameters and last_key == key:
                return info
        # Callbacks must see every fit, so nothing is shared then.
        job, pickled = self.jobs[number], self._pack(parameters)
        headers = job.pickled_estimators[estimator_number].header, pickled.header
        listens = has_context or any(map(has_callbacks_set, headers))
        digests: tuple[bytes, ...] = ()
        n_steps = 0
        member = step = None
        # What may be shared: a fit of the whole pipeline, one of a preprocessing step, equal steps.
        if job.shares_results:
            if self._sharing.is_enabled:
                options = {
                    "has_callbacks": listens,
                    "is_approximate": self._sharing.is_approximate,
                    "scores_training_rows": bool(job.options.get("return_train_score")),
                    "shows_training_rows": job.shows_training_rows,
                }
                member = member_of(estimator, parameters, **options)
                if member is not None and self._validation_rows is not None:
                    member = member._replace(refused=_STOPS_EARLY)
                step = _last_shared_step(estimator, parameters, **options)
            digests = prefix_digests(estimator, parameters, step)
            n_steps = len(digests)
            # Members of one shared fit have equal keys beyond their steps, and stay together.
            if member is not None and not member.refused:
                digests = *digests, Pickled.dumps(member.common).digest()
        # Estimators may have first steps in common, but no shared fit of the last one.
        steps = job.digests_of_steps(estimator_number, n_steps)
        prefix_key = tuple(zip((*steps, estimator_number), digests, strict=False))
        # By content, as a checkpoint outlives the process that numbered its estimators.
        checkpoint_key = None
        if self.context.records is not None and job.shares_results:
            if estimator_number not in job.estimator_keys:
                job.estimator_keys[estimator_number] = content_key(estimator)
            checkpoint_key = content_key(job.estimator_keys[estimator_number], unfitted(parameters))
        # Scores that follow from sums have no model: nothing may listen to the fit, or return it.
        candidate = number, estimator_number, pickled.digest()
        device = job.devices[estimator_number].of(parameters or {})
        may_be_scored = (
            self._sharing.is_enabled and job.shares_rows and job.shares_results and not listens
        )
        info = _CandidateInfo(
            candidate, listens, prefix_key, member, step, checkpoint_key, device, may_be_scored
        )
        self._last_candidate = parameters, key, info
        return info

    def _group_order(self, step: SharedStep | None) -> int:
        """Return the number of a shared step, in the order in which they were first read."""
        if step is None:
            return 0
        digest = Pickled.dumps(step.member.values).digest()
        return self._group_orders.setdefault(digest, len(self._group_orders))

    def finish(
        self, fit: FitRequest, origin: FitOrigin = OWN_FIT, prefix_origin: FitOrigin = OWN_FIT
    ) -> None:
        """Remove a fit that is done, and log whether its results came from another fit."""
        self._pending.pop((fit.fold, fit.candidate), None)
        if fit.is_done:
            return
        if fit.pipeline is not None and fit.no_analytic_score is not None:
            self._sharing.count(_pipeline_member(fit), fits=1)
        step = fit.call.shared_step
        origins = (fit.call.member, origin), (step and step.member, prefix_origin)
        for member, member_origin in origins:
            if member is None:
                continue
            if member_origin.was_saved:
                self._sharing.count(member, saved=1)
            elif member_origin.refused is not None:
                self._sharing.count(member, fits=-1)
                self._sharing.count(member._replace(refused=member_origin.refused), fits=1)

    def withdraw(self, fit: FitRequest) -> None:
        """Remove a fit that need not be made, and do not count it among those that are shared."""
        self._pending.pop((fit.fold, fit.candidate), None)
        for member in fit.members:
            self._sharing.count(member, fits=-1)

    def finish_scored(self, fit: FitRequest, *, was_saved: bool) -> None:
        """Remove a fit that was scored without a model, and log whether another one was before."""
        self._pending.pop((fit.fold, fit.candidate), None)
        if fit.pipeline is None:
            self._sharing.count(fit.members[0], saved=was_saved)
            return
        for member in fit.members:
            self._sharing.count(member, fits=-1)
        self._sharing.count_scored(_pipeline_member(fit), saved=was_saved)

    def _job_number(self, function: Any, X: Any, y: Any, kwargs: Mapping[str, Any]) -> int:
        """Return the number of the job of all calls with the same objects."""
        common = {k: v for k, v in kwargs.items() if k not in (*_PER_FIT_OPTIONS, "train", "test")}
        options = [(name, _identity(value)) for name, value in common.items()]
        key = (id(X), id(y), id(getattr(function, "config", None)), *options)
        if key not in self._job_numbers:
            self._job_numbers[key] = len(self.jobs)
            rows = collection_of(X), collection_of(y)
            job = SearchJob(*rows, function, common, self._pack, self._validation_rows)
            self.jobs.append(job)
        return self._job_numbers[key]


def _pipeline_member(fit: FitRequest) -> SharedFitMember:
    """Return a candidate as a pipeline that is scored from sums, or the reason why it is not."""
    assert fit.pipeline is not None
    return SharedFitMember("Pipeline", fit.pipeline, {}, {}, fit.no_analytic_score)


def _last_shared_step(estimator: Any, parameters: Any, **options: bool) -> SharedStep | None:
    """Return the last preprocessing step that has a shared fit, or None."""
    if not has_prefix_steps(estimator):
        return None
    for depth in reversed(range(len(estimator.steps) - 1)):
        member = member_of(estimator, parameters, step=depth, **options)
        if member is not None:
            return SharedStep(depth, member)
    return None


def prefix_digests(
    estimator: Any, parameters: Mapping[str, Any] | None, step: SharedStep | None = None
) -> tuple[bytes, ...]:
    """Return a digest of a candidate's parameters for each step of a pipeline but the last.

    Parameters that the fit of a shared step covers do not count.
    """
    if not (has_prefix_steps(estimator) or _has_unusable_memory(estimator)):
        return ()
    parameters = parameters or {}
    names = [name for name, _ in estimator.steps]
    covered: set[str] = set()
    if step is not None and not step.member.refused:
        covered = {f"{names[step.depth]}__{name}" for name in step.member.shared_fit.parameters}
    # A parameter of the pipeline itself: a memory of the user's, or other steps.
    if any(name.partition("__")[0] not in names for name in parameters):
        return ()
    counted = {key: value for key, value in parameters.items() if key not in covered}
    steps = [{k: v for k, v in counted.items() if k.partition("__")[0] == n} for n in names[:-1]]
    return tuple(Pickled.dumps(params).digest() for params in steps)


def _has_unusable_memory(estimator: Any) -> bool:
    """Return whether workers may drop the memory of a pipeline, for steps sent by value."""
    is_pipeline = type(estimator) is Pipeline and len(estimator.steps) > 1
    return is_pipeline and b"cloudpickle" in Pickled.dumps(estimator.steps[:-1]).header


def _identity(value: Any) -> Any:
    """Return a hashable key of an option: plain values compare by value, objects by identity."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, repr(value)
    return id(value)


def _is_equal(left: Any, right: Any) -> bool:
    """Return whether two estimators have equal parameters; False also where that is expensive."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, (bool, int, float, complex, str, bytes)):
        return bool(left == right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(_is_equal, left.values(), right.values()))
    if isinstance(left, BaseEstimator):
        return _is_equal(vars(left), vars(right))
    return False
