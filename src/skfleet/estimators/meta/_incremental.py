"""Training on blocks one after the other, with any estimator that learns by ``partial_fit``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter

from skfleet._captured_output import output_replayer, process_token
from skfleet._config import get_config
from skfleet._linalg import is_sparse
from skfleet._partial_fit import check_steps, clone_learner, learner_of
from skfleet._typing import Estimator, RandomState, Rows, Table, Values, Weights
from skfleet._validation import (
    check_bool,
    check_has_partial_fit,
    check_seed,
    check_target_type,
    check_verbose,
)
from skfleet.blocks import (
    RowBlocks,
    as_sized,
    check_rows,
    is_lazy,
    n_rows_of,
    row_blocks,
    split_per_sample,
    warn_of_trip,
)
from skfleet.engine import (
    Engine,
    device_cache,
    draw_holdout,
    fold,
    training_engine,
    with_row_offsets,
)
from skfleet.estimators._early_stopping import (
    Patience,
    training_rows,
    validation_rows,
    validation_score,
)
from skfleet.estimators._metadata_routing import given, routed, router
from skfleet.estimators.meta._epochs import (
    Learned,
    history_of,
    learn_block,
    lessons_of,
    loss_of,
    print_epoch,
)
from skfleet.estimators.meta._parallel_post_fit import ROUTED, ParallelPostFit
from skfleet.metrics import check_scoring
from skfleet.metrics._reductions import classes_for_partial_fit
from skfleet.metrics._scorers import response_scorer


@dataclass
class Progress:
    """How far a fit has come: all that it takes to go on after a failure."""

    seeds: np.ndarray  # one for the order of each epoch
    told: dict[str, Any]  # what partial_fit is told besides the rows
    epoch: int = 0
    n_learned: int = 0  # lessons of this epoch
    patience: Patience | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class Incremental(ParallelPostFit):
    """Train any estimator that has ``partial_fit`` on rows that do not fit, block by block.

    One model goes from block to block, in every epoch in a new order, and learns each block with
    ``partial_fit``. It stays on the workers until it has seen them all.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``
        It is never changed: a clone learns. It need not have ``fit`` or ``score``. Of a pipeline
        the last step learns; the others must be fitted, or have nothing to learn, and stay so.
    epochs : int, default=1
        How many times ``fit`` goes over all rows, at most.
    shuffle : {"blocks", "rows", False}, default="blocks"
        Learn the blocks in a random order, drawn anew in every epoch; mix also the rows of
        `buffer_blocks` blocks at a time; or keep the order that rows and blocks have. With
        "blocks", rows within a block keep their order; many estimators (``SGDClassifier``) shuffle
        these themselves.
    buffer_blocks : int, default=10
        How many blocks a worker holds at once to mix their rows, with ``shuffle="rows"``.
    random_state : int, RandomState instance or None, default=None
        Draws orders and validation rows. An int gives the same ones in every call.
    batch_size : int, default=None
        Learn at most so many rows with one call of ``partial_fit``. By default a block of a Dask
        collection is learned in one call; rows in this process are cut into blocks of 10,000.
    scoring : str, default=None
        Name of the metric that validation rows and ``score`` use on Dask collections, one of
        `skfleet.metrics.get_scorer_names`. By default accuracy for classifiers and r2 for
        regressors.
    early_stopping : bool, default=False
        Set a share of the rows aside, score on these after every epoch, and stop when that gains
        nothing any more.
    validation_fraction : float, default=0.1
        The share of rows set aside, if `early_stopping`; for a classifier the same of each label.
    n_iter_no_change : int, default=5
        Stop after so many epochs in a row without a gain, if `early_stopping`.
    tol : float, default=1e-3
        A score that is not higher by so much is no gain, if `early_stopping`.
    verbose : int, default=0
        Above 0, print a line after every epoch of ``fit``: its rows, rows a second, and loss and
        score where there are any.
    predict_meta, predict_proba_meta, transform_meta : array, sparse matrix or frame, default=None
        As in `ParallelPostFit`.

    Attributes
    ----------
    estimator_ : estimator
        The trained clone.
    n_samples_seen_ : int
        How many rows it has learned from, counting a row once per epoch.
    n_iter_ : int
        How many epochs ``fit`` went through.
    history_ : pandas.DataFrame
        A row per epoch of ``fit``: ``epoch``, ``n_samples_seen``, ``loss`` (the estimator's
        ``loss_`` or ``inertia_``), ``score`` on the validation rows, and ``seconds`` since the
        fit began; NaN where there is none.
    classes_, n_features_in_, coef_, ...
        Those of the trained estimator, where it has them: all that end in an underscore.

    Raises
    ------
    TypeError
        When the estimator has no ``partial_fit``, or cannot be pickled once it has learned.
    ValueError
        When a parameter has none of the values above.

    See Also
    --------
    ParallelPostFit : Predict on rows that do not fit; Incremental predicts in the same way.

    Notes
    -----
    ``epochs`` passes over the rows, and for a classifier one more over y alone to find the classes,
    unless they are given; early stopping adds one pass that takes the validation rows out, which
    then stay in memory, and for a classifier another one over y. Blocks are learned in sequence: a
    fleet adds memory, not speed, but the next blocks are loaded while one is learned. At most two
    tasks a block.

    The model is copied before each block, so a block that was lost with its worker is learned
    again from the model before it, and exactly once. The model comes home every 8 to 64 blocks;
    no more than these are learned again.

    When a block fails, what was learned before it is kept, the error names the block, and
    ``fit(X, y, resume=True)`` goes on from that block once its cause is gone.

    Cut rows as they are read: a chunk cut into several blocks is loaded again for each of them.

    Blocks are drawn, not rows: an answer depends on how the rows are cut. ``shuffle="rows"`` holds
    `buffer_blocks` blocks at a time, one drawn from each stretch of the rows, twice while it mixes
    them (`Bottou, 2012, Stochastic gradient descent tricks
    <https://doi.org/10.1007/978-3-642-35289-8_25>`_, section 2, on why order matters). Early
    stopping follows ``SGDClassifier``: the last model is kept, not the best one.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import SGDClassifier
    >>> from skfleet.estimators import Incremental
    >>> X, y = load_digits(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(200, 64)), da.from_array(y, chunks=200)
    >>> model = Incremental(SGDClassifier(random_state=0), epochs=5, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.n_samples_seen_
    8985
    """

    # The wrapped estimator's to ask for, or nobody's.
    __metadata_request__fit = {"sample_weight": UNUSED, "resume": UNUSED}
    __metadata_request__partial_fit = {"sample_weight": UNUSED}

    def __init__(
        self,
        estimator: Estimator,
        *,
        epochs: int = 1,
        shuffle: str | bool = "blocks",
        buffer_blocks: int = 10,
        random_state: RandomState = None,
        batch_size: int | None = None,
        scoring: str | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        tol: float = 1e-3,
        verbose: int = 0,
        predict_meta: Table | None = None,
        predict_proba_meta: Table | None = None,
        transform_meta: Table | None = None,
    ) -> None:
        super().__init__(
            estimator,
            scoring=scoring,
            predict_meta=predict_meta,
            predict_proba_meta=predict_proba_meta,
            transform_meta=transform_meta,
        )
        self.epochs = epochs
        self.shuffle = shuffle
        self.buffer_blocks = buffer_blocks
        self.random_state = random_state
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.verbose = verbose

    def fit(
        self,
        X: Rows,
        y: Values | None = None,
        *,
        classes: Values | None = None,
        sample_weight: Weights | None = None,
        resume: bool = False,
        **params: Any,
    ) -> Incremental:
        """Train a new clone for `epochs` passes over the rows.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows; frames reach the estimator as frames.
        y : values of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or targets, however they are cut.
        classes : array-like of shape (n_classes,), default=None
            All labels there are. By default they are looked up in y.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows, handed to ``partial_fit``.
        resume : bool, default=False
            Go on with a fit that failed, from the block that failed. The rows must be cut as they
            were.
        **params : dict
            Handed on to ``partial_fit``: values per row (as many as there are rows, or Dask
            collections) cut along with them, all others as they are. With metadata routing
            enabled, these and `sample_weight` are what ``partial_fit`` requests.

        Returns
        -------
        self : Incremental
            Trained.
        """
        self._check_parameters()
        if resume:
            progress = getattr(self, "_progress", None)
            if progress is None:
                raise ValueError("resume must be False: no fit of this estimator was interrupted.")
            rows, _ = self._cut("fit", X, y, given(params, sample_weight=sample_weight))
            return self._learn(self.estimator_, rows, y, progress)
        model = clone_learner(self.estimator)
        rows, told = self._cut("fit", X, y, given(params, sample_weight=sample_weight))
        told |= classes_for_partial_fit(learner_of(model), y, classes)
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.epochs + 1)
        patience = Patience(self.n_iter_no_change, self.tol) if self.early_stopping else None
        return self._learn(model, rows, y, Progress(seeds, told, patience=patience))

    def partial_fit(
        self,
        X: Rows,
        y: Values | None = None,
        *,
        classes: Values | None = None,
        sample_weight: Weights | None = None,
        **params: Any,
    ) -> Incremental:
        """Go on training with one pass over more rows.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or targets.
        classes : array-like of shape (n_classes,), default=None
            All labels there will ever be; needed in the first call if these rows lack some.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.
        **params : dict
            As for ``fit``.

        Returns
        -------
        self : Incremental
            Trained further.
        """
        self._check_parameters()
        model = getattr(self, "estimator_", None)
        seen = self.n_samples_seen_ if model is not None else 0
        if model is None:
            model = clone_learner(self.estimator)
        rows, told = self._cut("partial_fit", X, y, given(params, sample_weight=sample_weight))
        told |= classes_for_partial_fit(learner_of(model), y, classes)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        progress = Progress(np.array([seed]), told)
        with training_engine(rows, model) as (engine, there), output_replayer() as replay:
            self._one_epoch(engine, there, Learned(model, seen), progress, replay)
        return self

    def get_metadata_routing(self) -> MetadataRouter:
        """Say which metadata the wrapped estimator's methods get.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            What ``fit`` and ``partial_fit`` hand on is what the estimator's ``partial_fit``
            requests; `classes` is for this one.
        """
        methods = {method: method for method in ROUTED}
        return router(self, {"fit": "partial_fit", "partial_fit": "partial_fit"} | methods)

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        check_has_partial_fit(
            "estimator", learner_of(self.estimator), "train it with ParallelPostFit on a sample"
        )
        check_steps(self.estimator)
        if self.shuffle not in ("blocks", "rows", False):
            raise ValueError(
                f"shuffle must be 'blocks', 'rows' or False. Got {self.shuffle!r} instead."
            )
        for name in ("epochs", "batch_size", "buffer_blocks", "n_iter_no_change"):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive whole number. Got {value!r} instead.")
        fraction = self.validation_fraction
        if not isinstance(fraction, Real) or not 0 < fraction < 1:
            raise ValueError(
                f"validation_fraction must be between 0 and 1. Got {fraction!r} instead."
            )
        check_verbose("verbose", self.verbose)
        check_bool("early_stopping", self.early_stopping)
        check_seed("random_state", self.random_state)
        if not isinstance(self.tol, Real):
            raise ValueError(f"tol must be a number. Got {self.tol!r} instead.")
        if self.early_stopping:
            response_scorer(self.estimator, self.scoring)
        elif self.scoring is not None:
            check_scoring(self, self.scoring)

    def _learn(self, model: Any, rows: RowBlocks, y: Any, progress: Progress) -> Incremental:
        """Train a model for what is left of its epochs."""
        with (
            training_engine(rows, model) as (engine, there),
            device_cache(engine, model) as copies,
            output_replayer() as replay,
        ):
            return self._learn_epochs(engine, model, there, y, progress, copies, replay)

    def _learn_epochs(
        self,
        engine: Engine,
        model: Any,
        rows: RowBlocks,
        y: Any,
        progress: Progress,
        copies: Any,
        replay: Callable[[Any], None],
    ) -> Incremental:
        """Train a model, the blocks' copies on devices being kept from one epoch to the next."""
        seed = int(progress.seeds[-1])
        scorer = validation = prepare = None
        began = time.monotonic() - progress.seconds
        if progress.patience is not None:
            rows = with_row_offsets(engine, rows)
            scorer = response_scorer(self.estimator, self.scoring)
            labels = y if is_classifier(model) else None
            holdout = draw_holdout(engine, rows, self.validation_fraction, seed, labels)
            validation = validation_rows(engine, rows, holdout)
            prepare = partial(training_rows, holdout=holdout)
        seen = self.n_samples_seen_ if progress.epoch or progress.n_learned else 0
        while progress.epoch < self.epochs:
            try:
                how = Learned(model, seen), progress, replay, prepare, copies
                model, seen, _ = self._one_epoch(engine, rows, *how)
            except BaseException:
                if progress.n_learned or progress.epoch:
                    progress.seconds = time.monotonic() - began
                    self._progress = progress
                    self._tell(progress)
                raise
            progress.epoch, progress.n_learned = progress.epoch + 1, 0
            score = np.nan
            if scorer is not None and validation is not None:
                score = validation_score(engine, validation, model, scorer)
            progress.history.append(
                {
                    "epoch": progress.epoch,
                    "n_samples_seen": seen,
                    "loss": loss_of(model),
                    "score": score,
                    "seconds": time.monotonic() - began,
                }
            )
            if self.verbose:
                print_epoch(progress.history)
            if progress.patience is not None and progress.patience.is_out(score):
                break
        self._progress = None
        self._tell(progress)
        return self

    def _tell(self, progress: Progress) -> None:
        """Set what is known of the epochs."""
        self.history_ = history_of(progress.history)
        self.n_iter_ = progress.epoch

    def _one_epoch(
        self,
        engine: Engine,
        rows: RowBlocks,
        state: Learned,
        progress: Progress,
        replay: Callable[[Any], None],
        prepare: Any = None,
        copies: Any = None,
    ) -> Learned:
        """Learn what is left of an epoch; what was learned is kept."""
        done, n_replayed = progress.n_learned, 0

        def keep(state: Learned, n: int) -> None:
            nonlocal n_replayed
            self.estimator_, self.n_samples_seen_, notes = state
            progress.n_learned = done + n
            replay(notes[n_replayed:])
            n_replayed = len(notes)

        seed = int(progress.seeds[progress.epoch])
        lessons = lessons_of(rows, self.shuffle, self.buffer_blocks, seed)[done:]
        learned: Learned = fold(
            engine,
            learn_block,
            state,
            rows,
            progress.told,
            self.batch_size or self._batch(rows),
            None if self.shuffle == "rows" else copies,
            get_config().device,
            process_token(),
            batches=lessons,
            prepare=prepare,
            on_checkpoint=keep,
        )
        return learned

    def _batch(self, rows: RowBlocks) -> int | None:
        """Return how many mixed rows to learn at once: as many as a block has."""
        if self.shuffle != "rows" or rows.n_rows is None:
            return None
        return max(1, rows.n_rows // max(1, len(rows.blocks)))

    def _cut(
        self, method: str, X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[RowBlocks, dict[str, Any]]:
        """Cut the rows, and what else has a value per row; also return what has not.

        Frames, text and lists stay what they are.
        """
        check_rows(X=X, y=y, sample_weight=params.get("sample_weight"))
        if y is None and self.early_stopping:
            raise ValueError("y must be given to stop early by a score. Got None instead.")
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"This {type(self.estimator).__name__} estimator requires y to be passed, but the "
                "target y is None. Pass y."
            )
        if y is not None:
            check_target_type(y, numeric=is_regressor(self.estimator))
        params = routed(self, method, "partial_fit", params)
        weight = params.pop("sample_weight", None)
        if is_lazy(X):
            per_row, told = split_per_sample(params, X)
            return row_blocks(X, y, weight, more=per_row, dtype=None), told
        X = X.tocsr() if is_sparse(X) else as_sized("X", X)
        warn_of_trip(X, y, weight)
        n_rows = n_rows_of(X)
        if n_rows == 0:
            raise ValueError(
                "X must have at least one row. Got 0 sample(s) while a minimum of 1 is required."
            )
        size = self.batch_size or 10_000
        cuts = [min(size, n_rows - low) for low in range(0, n_rows, size)]
        per_row, told = split_per_sample(params, X)
        return row_blocks(X, y, weight, more=per_row, dtype=None, cuts=cuts), told
