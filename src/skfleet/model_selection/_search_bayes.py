"""Search over candidates that a model of the scores so far chooses, with its fits on a fleet."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn import model_selection
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import ParameterGrid
from sklearn.utils import check_random_state

from skfleet._typing import Estimator, RandomState, Scoring, Splitter
from skfleet._validation import check_positive_int
from skfleet._warnings import warn
from skfleet.model_selection._adaptive._params import check_seed, metric_names
from skfleet.model_selection._adaptive._schedules import TrainInstruction
from skfleet.model_selection._backends import planning_backend
from skfleet.model_selection._dispatch._search_context import current_context
from skfleet.model_selection._fleet_search import FleetSearchMixin, is_approximate
from skfleet.model_selection._init_params import init_params
from skfleet.model_selection._plot import draw_history, metric_of, pyplot_for, timeline_of
from skfleet.model_selection._records._evaluations import CandidateResults, LaterIteration
from skfleet.model_selection._samplers._candidate_source import CandidateSource, FixedCandidates
from skfleet.model_selection._samplers._choice import (
    check_sampler,
    choose_sampler,
    has_model,
    past_scores,
)
from skfleet.model_selection._samplers._draws import DRAWS, candidates_of
from skfleet.model_selection._samplers._importances import draw_importances, draw_note
from skfleet.model_selection._samplers._optuna_source import OptunaSource
from skfleet.model_selection._search_docstrings import search_docstring

if TYPE_CHECKING:
    from skfleet.model_selection._dispatch._path_candidates import PathCandidates, Trial

_MEAN = "mean_test_"
_NON_FINITE = "One or more of the .* scores are non-finite"


class _Proposal(NamedTuple):
    """A candidate that a source was asked for, and its path."""

    order: TrainInstruction
    params: dict[str, Any]
    path: Sequence[Trial]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Parameters of the candidate and of its path."""
        return [self.params, *(trial.candidate for trial in self.path)]


class _BatchSearch(model_selection.RandomizedSearchCV):
    """scikit-learn's randomized search, whose candidates a source chooses, batch by batch."""

    sampler: Any
    batch_size: int | None
    path_size: int
    points_to_evaluate: Any
    past_results: Any
    share_fits: bool | str
    n_splits_: int
    _n_left = 0  # candidates after those of the batch

    def _run_search(
        self, evaluate_candidates: Callable[..., dict[str, Any]], *, callback_ctx: Any = None
    ) -> None:
        """Evaluate batches of candidates, each chosen by the scores of those before."""
        source, n_candidates = self._source()
        paths = self._path_candidates()
        sizes = self._batch_sizes(source, n_candidates)
        current_context().has_batches = len(sizes) > 1
        search_ctx = callback_ctx.subcontext(
            task_name="search", max_subtasks=len(sizes)
        ).call_on_fit_task_begin(estimator=self)
        begin = 0
        for number, n_batch in enumerate(sizes):
            self._record_batch(number, n_batch)
            batch = self._ask(source, paths, range(begin, begin + n_batch))
            candidates = [params for proposal in batch for params in proposal.candidates]
            begin += n_batch
            self._n_left = (n_candidates - begin) * len(candidates) // n_batch
            batch_ctx = search_ctx.subcontext(
                task_name="batch",
                max_subtasks=len(candidates) * self.n_splits_,
                sequential_subtasks=False,
            ).call_on_fit_task_begin(estimator=self)
            with warnings.catch_warnings():
                if self._n_left:  # the last batch tells of all scores
                    warnings.filterwarnings("ignore", _NON_FINITE, UserWarning)
                results = evaluate_candidates(candidates, callback_ctx=batch_ctx)
            batch_ctx.call_on_fit_task_end(estimator=self)
            _warn_failures(current_context().evaluations[-1].hidden_errors, self.error_score)
            self._tell(source, batch, results)
            has_more = not (isinstance(source, OptunaSource) and source.is_exhausted)
            if current_context().stop_reason is not None or not has_more:
                break
        _check_failures(current_context().evaluations)
        search_ctx.call_on_fit_task_end(estimator=self)

    def _ask(
        self, source: CandidateSource, paths: PathCandidates | None, numbers: range
    ) -> list[_Proposal]:
        """Return the candidates of a batch, with their paths."""
        orders = [TrainInstruction(number, self.n_splits_) for number in numbers]
        batch: dict[int, dict[str, Any]] = {}
        for order in orders:
            batch[order.candidate] = dict(source.ask(order, batch))
        members: list[list[Trial]] = [[] for _ in orders]
        if paths is not None:
            known: list[Any] = [None] * len(batch)
            if isinstance(source, OptunaSource):
                known = list(map(source.trial_params_of, batch))
            members = paths.of_batch(list(batch.values()), known)
        return list(map(_Proposal, orders, batch.values(), members))

    def _tell(
        self, source: CandidateSource, batch: Sequence[_Proposal], results: Mapping[str, Any]
    ) -> None:
        """Report the scores of a batch, and after how many splits a candidate was dropped."""
        n_all = results.get("n_folds", np.full(len(results["params"]), self.n_splits_))
        scores = results[f"{_MEAN}{self._metric(results)}"]
        whole = np.where(n_all == self.n_splits_, scores, np.nan)
        row = len(scores) - sum(len(proposal.candidates) for proposal in batch)
        for proposal in batch:
            path = slice(row + 1, row + len(proposal.candidates))
            order = proposal.order._replace(n_calls=int(n_all[row]))
            source.tell(order, proposal.params, float(scores[row]))
            if proposal.path and isinstance(source, OptunaSource):
                trials = [trial.params for trial in proposal.path]
                results_of_path = zip(trials, whole[path].tolist(), strict=True)
                source.tell_path(results_of_path, order, float(whole[row]))
            row = path.stop

    def _path_candidates(self) -> PathCandidates | None:
        """Return what chooses the paths of candidates, or None without paths."""
        if self.path_size == 1:
            return None
        from skfleet.model_selection._dispatch._path_candidates import PathCandidates

        return PathCandidates(
            self.estimator,
            self.param_distributions,
            self.path_size,
            is_approximate=is_approximate(self.share_fits),
            scores_training_rows=self.return_train_score,
        )

    def _source(self) -> tuple[CandidateSource, int]:
        """Return the source of candidates, and their number."""
        sampler, points = choose_sampler(self.sampler), self.points_to_evaluate
        if isinstance(sampler, str) and sampler in DRAWS:
            drawn = candidates_of(
                self.param_distributions, self.n_iter, sampler, points, self.random_state
            )
            return drawn, len(drawn.candidates)
        if not has_model(sampler):
            return sampler, self.n_iter
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        past = past_scores(self.past_results, self._metric({}), self.n_splits_)
        source = OptunaSource(
            self.param_distributions,
            sampler,
            int(seed),
            points=points or (),
            past=past,
            n_splits=self.n_splits_,
        )
        size = source.space.size
        if size < self.n_iter:
            warn(
                f"The total space of parameters {size} is smaller than n_iter={self.n_iter}. "
                f"Running {size} iterations. For exhaustive searches, use GridSearchCV.",
                UserWarning,
            )
        if size <= self.n_iter and not points:  # there is nothing to choose
            return FixedCandidates(list(ParameterGrid(self.param_distributions))), int(size)
        return source, int(min(self.n_iter, size))

    def _batch_sizes(self, source: CandidateSource, n_candidates: int) -> list[int]:
        """Return the numbers of candidates that are chosen at once, those of the checkpoint first.

        A sampler that is asked for as many at a time chooses the same candidates again.
        """
        if isinstance(source, FixedCandidates):
            return [n_candidates]
        records, backend = current_context().records, planning_backend(self.n_jobs)
        n_slots = 1 if backend is None else backend.count_slots(self.n_jobs)
        sizes: list[int] = []
        planned = chain(
            [] if records is None else records.batches, repeat(self.batch_size or max(1, n_slots))
        )
        while (n_left := n_candidates - sum(sizes)) > 0:
            size = next(planned)
            sizes.append(min(size, n_left))
        return sizes

    def _record_batch(self, number: int, size: int) -> None:
        """Record the size of a batch, before its fits."""
        records = current_context().records
        if records is not None and number >= len(records.batches):
            records.add_batch(size)

    def _metric(self, results: Mapping[str, Any]) -> str:
        """Return the metric by which candidates are chosen: that of `refit`, or the first."""
        names = [key.removeprefix(_MEAN) for key in results if key.startswith(_MEAN)]
        names = names or metric_names(self.scoring)
        is_name = isinstance(self.refit, str) and self.refit in names
        return self.refit if is_name else (names or ["score"])[0]


def _warn_failures(errors: Sequence[str], error_score: Any) -> None:
    """Warn of a batch whose fits all failed, for which scikit-learn would end the search."""
    if errors:
        warn(
            f"All the {len(errors)} fits of a batch of candidates failed. Their score is "
            f"{error_score}. The first error:\n{errors[0]}",
            FitFailedWarning,
        )


def _check_failures(evaluations: Sequence[CandidateResults]) -> None:
    """Raise where all fits of all batches failed."""
    if all(evaluation.hidden_errors for evaluation in evaluations):
        errors = [error for evaluation in evaluations for error in evaluation.hidden_errors]
        raise ValueError(
            f"All the {len(errors)} fits failed. Set error_score='raise' to see where. The first "
            f"error:\n{errors[0]}"
        )


@search_docstring
class BayesSearchCV(FleetSearchMixin, _BatchSearch):
    r"""Search over candidates that a model of the scores so far chooses, with its fits on a fleet.

    Like :class:`RandomizedSearchCV`, it tries ``n_iter`` candidates, and chooses

    .. math:: \hat\theta = \arg\max_{\theta_i} \frac{1}{K} \sum_{k=1}^{K}
              s(f_{\theta_i}^{(-k)}, D_k),

    but each batch of candidates depends on the scores of those before. By default the model is
    Optuna's tree of Parzen estimators, which proposes the parameters that maximise the ratio of the
    density of good candidates to that of the others (Bergstra, Bardenet, Bengio and Kégl,
    *Algorithms for Hyper-Parameter Optimization*, NIPS 2011, section 4). Needs Optuna: ``pip
    install 'scikit-fleet[optuna]'``.

    Parameters
    ----------
    {estimator}
    param_distributions : dict or list of dict
        Parameter names, with a list of values or a distribution with ``ppf`` for each, such as
        those of SciPy. Candidates are of one of several dicts.
    n_iter : int, default=10
        Number of candidates.
    sampler : str, sampler of Optuna or CandidateSource, default="tpe"
        Where candidates come from: "tpe", Optuna's tree of Parzen estimators, or any sampler of
        Optuna; "random", "sobol" or "halton", which do not depend on scores; "auto", which is "tpe"
        where Optuna is installed, else "random". An object with ``ask`` and ``tell`` is asked for
        each candidate.
    batch_size : int, default=None
        Number of candidates that are chosen, and fitted, at once; by default the number of fits
        that the fleet makes at once. With 1 each candidate depends on all before.
    path_size : int, default=1
        Number of candidates that one fit on each split serves: the chosen one, and others on its
        path, which differ from it only in ``alpha`` of :class:`~sklearn.linear_model.Ridge`,
        ``n_neighbors``, ``n_estimators`` and the like. The model learns of the best of them, and
        ``n_iter`` does not count them.
    points_to_evaluate : sequence of dict, default=None
        Parameters of the first candidates. Parameters that a point does not have are chosen.
    past_results : dict or sequence of dict, default=None
        The ``cv_results_`` of earlier searches over such parameters, from which the model learns.
    {dispatch_parameters}
    random_state : int, RandomState instance or None, default=None
        Seed of the sampler. One of Optuna's objects has its own.
    {search_parameters}

    Attributes
    ----------
    cv_results_ : dict of str -> ndarray of shape (n_candidates,)
        Parameters, scores, ranks and times of all candidates, in the order in which they were
        chosen, each followed by the others on its path.
    {search_attributes}

    Raises
    ------
    ImportError
        Without Optuna, where the sampler needs it.
    {search_errors}

    See Also
    --------
    RandomizedSearchCV : Draws all candidates beforehand, and needs no batches.
    HyperbandSearchCV : Trains most candidates only a little; takes the same samplers.

    Notes
    -----
    The model sees a number in [0, 1] for each distribution, the quantile of its value, and an index
    for each list. So a ``loguniform`` distribution is searched on a logarithmic scale. One by one,
    its candidates are those of Optuna's own loop with the same seed. Of several metrics, the model
    learns from the one that `refit` names, else from the first.

    A batch waits for its last fit, so slots may be idle at its end; its candidates are chosen in a
    few milliseconds each. Equal first steps of a pipeline are fitted once on a split by each worker
    process, whatever the batch, as far as a quarter of the memory that is left has room for them.

    With a checkpoint, a further search with a larger ``n_iter`` goes on where this one ended.

    {fit_notes}

    What fits share, and how it is timed, is as for :class:`GridSearchCV`.

    Examples
    --------
    >>> from distributed import Client
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> from skfleet.model_selection import BayesSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
    ...     search = BayesSearchCV(
    ...         SVC(), {"C": loguniform(0.01, 100)}, n_iter=15, random_state=0
    ...     ).fit(X, y)
    >>> len(search.cv_results_["params"])
    15
    """

    _in_batches = True

    def __init__(
        self,
        estimator: Estimator,
        param_distributions: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_iter: int = 10,
        sampler: str | object = "tpe",
        batch_size: int | None = None,
        path_size: int = 1,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        past_results: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        scoring: Scoring = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., Any] = True,
        cv: Splitter | None = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        random_state: RandomState = None,
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        share_fits: bool | str = True,
        checkpoint: str | PathLike[str] | None = None,
        time_budget: float | None = None,
        racing: str | None = None,
        early_stopping: float | str | None = None,
    ) -> None:
        params = init_params(locals())
        for name in ("sampler", "batch_size", "path_size", "points_to_evaluate", "past_results"):
            setattr(self, name, params.pop(name))
        super().__init__(**params)

    def _check_candidates(self) -> None:
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)
        # an object of Optuna has a seed of its own, and the user's needs none
        if self.checkpoint is not None and isinstance(self.sampler, str):
            check_seed(self.random_state)
        check_sampler(self, self.param_distributions)
        check_positive_int("path_size", self.path_size)
        paths = self._path_candidates()
        if paths is None:
            return
        if not self.share_fits or self.early_stopping is not None:
            name = "early_stopping" if self.share_fits else "share_fits"
            raise ValueError(
                f"path_size must be 1 with {name}={getattr(self, name)!r}, with which no fits are "
                f"shared. Got {self.path_size} instead. Leave one of them out."
            )
        paths.check()

    def _later_iterations(
        self, n_candidates: int, more_results: Mapping[str, Any]
    ) -> list[LaterIteration]:
        return [LaterIteration(self._n_left, 1.0, 1.0)] if self._n_left else []

    def plot(self, scoring: str | None = None) -> np.ndarray:
        """Draw the scores over time with the best so far, and the importance of the parameters.

        Needs matplotlib, and Optuna for the importance. The importance of a parameter is the share
        of the variance of the mean scores that it alone explains, by Optuna's functional analysis
        of variance of a random forest (Hutter, Hoos and Leyton-Brown, *An Efficient Approach for
        Assessing Hyperparameter Importance*, ICML 2014). With few candidates it is a rough guess.
        The shares add up to 1, and those of a list of dicts do so in each dict: its candidates
        alone have its parameters.

        Parameters
        ----------
        scoring : str, default=None
            Name of the metric; by default the one that ``refit`` names, or the first.

        Returns
        -------
        axes : ndarray of matplotlib.axes.Axes of shape (2,)
            Scores, and importance. The scores are over the seconds at which the last fit of a
            candidate ended, or over the candidates where ``timeline_`` lacks some of them.

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            When there is no such score.
        """
        pyplot, metric = pyplot_for(self), metric_of(self, scoring)
        _, (history, importances) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
        results, scores = self.cv_results_, self.cv_results_[f"{_MEAN}{metric}"]
        timeline = getattr(self, "timeline_", timeline_of(()))
        ends = timeline.groupby("candidate")["end"].max().reindex(range(len(scores))).to_numpy()
        has_times = not np.isnan(ends[np.isfinite(scores)]).any()
        n_splits = results.get("n_folds", np.ones(len(scores)))
        is_raced = n_splits < n_splits.max()
        labels = np.where(is_raced, "dropped candidates", "candidates")
        x = ends if has_times else np.arange(len(scores))
        draw_history(history, x, scores, labels, ~is_raced)
        history.set_xlabel("seconds since the search began" if has_times else "candidate")
        if has_times:
            history.set_xlim(left=0)
        history.set_ylabel("score" if metric == "score" else metric)
        history.set_title("Mean score of each candidate, and the best so far")
        try:
            draw_importances(importances, self.param_distributions, results, metric)
        except ImportError as error:
            draw_note(importances, str(error))
        return np.array([history, importances])
