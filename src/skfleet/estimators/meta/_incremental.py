"""Out-of-core training of any estimator with ``partial_fit``, block after block."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter

from skfleet._captured_output import output_replayer, process_token
from skfleet._config import get_config
from skfleet._partial_fit import check_steps, classes_for_partial_fit, clone_learner
from skfleet._pipeline_steps import last_step
from skfleet._typing import Estimator, RandomState, Rows, Table, Values, Weights
from skfleet._validation import check_bool, check_has_partial_fit, check_seed, check_verbose
from skfleet.blocks import RowBlocks
from skfleet.engine import (
    Engine,
    FoldPace,
    SmallFitMixin,
    check_sent,
    device_cache,
    draw_holdout,
    fold,
    leave_if_small,
    training_engine,
    with_row_offsets,
)
from skfleet.estimators._early_stopping import (
    EarlyStopping,
    check_best_epoch,
    check_validation_arguments,
    check_validation_labels,
    training_rows,
    validation_rows,
    validation_score,
)
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._metadata_routing import drop_none, make_router
from skfleet.estimators.meta._epochs import (
    FitState,
    PartialFitState,
    epoch_batches,
    epoch_record,
    history_of,
    loss_of,
    mean_block_rows,
    partial_fit_block,
    print_epoch,
    single_task_bytes,
)
from skfleet.estimators.meta._incremental_rows import (
    loaded_validation_rows,
    training_blocks,
    validation_blocks,
)
from skfleet.estimators.meta._parallel_post_fit import ROUTED_METHODS, ParallelPostFit
from skfleet.metrics import check_scoring, response_scorer, unique_labels


@document
class Incremental(SmallFitMixin, ParallelPostFit):
    """Train any estimator with ``partial_fit`` out of core, block by block.

    One model goes from block to block, in every epoch in a new order, and learns each block with
    ``partial_fit``. It stays on the workers until it has seen them all.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``
        It is never changed: a clone learns. It need not have ``fit`` or ``score``. Of a pipeline
        the last step learns; the others must be fitted, or have nothing to learn, and stay so.
    epochs : int, default=1
        Maximum number of passes of ``fit`` over the training data.
    shuffle : {"blocks", "rows", False}, default="blocks"
        Shuffle the blocks in every epoch; shuffle also the rows of `buffer_blocks` blocks at a
        time; or keep the order of the data. With "blocks", rows within a block keep their order;
        many estimators (``SGDClassifier``) shuffle these themselves.
    buffer_blocks : int, default=10
        Number of blocks that are shuffled together in memory, with ``shuffle="rows"``.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of blocks and rows and of the validation split. An int gives the
        same results in every call.
    batch_size : int, default=None
        Maximum rows in a call of ``partial_fit``. By default a call takes a block of a Dask
        collection; data in this process is partitioned into blocks of 10,000 rows.
    scoring : str, default=None
        Name of the metric that validation rows and ``score`` use on Dask collections, one of
        `skfleet.metrics.get_scorer_names`. By default accuracy for classifiers and r2 for
        regressors.
    early_stopping : bool, default=False
        Hold out a fraction of the rows, or take the `X_val` of ``fit``, score on these after every
        epoch, and stop when the score does not improve.
    validation_fraction : float, default=0.1
        Fraction of rows held out, if `early_stopping` without `X_val`; stratified for a classifier.
    n_iter_no_change : int, default=5
        Number of epochs without improvement to stop after, if `early_stopping`.
    tol : float, default=1e-3
        Minimum improvement of the score, if `early_stopping`.
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
        Number of training samples seen; a sample counts once per epoch.
    n_iter_ : int
        Number of epochs that ``fit`` has run.
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
        If a parameter is invalid.

    See Also
    --------
    ParallelPostFit : Predict on rows that do not fit; Incremental predicts in the same way.

    Notes
    -----
    ``epochs`` passes over the rows, and for a classifier one more over y alone to find the classes,
    unless they are given; early stopping adds one pass that takes the validation rows out, which
    then stay in memory, and for a classifier another one over y. `X_val` is loaded once instead,
    and for a classifier `y_val` before. Blocks are learned in sequence: a
    fleet adds memory, not speed, but the next blocks are loaded while one is learned. At most two
    tasks a block; one task in all where the epochs read 32 MiB at most.

    The model is copied before each block, so a block that was lost with its worker is learned
    again from the model before it, and exactly once. The model is checkpointed in the client every
    8 to 64 blocks; no more than these are learned again.

    When a block fails, what was learned before it is kept, the error names the block, and
    ``fit(X, y, resume=True)`` goes on from that block once its cause is gone.

    Blocks should be the chunks that are read: a chunk in several blocks is loaded for each.

    Blocks are shuffled, not rows: the result depends on the chunks. ``shuffle="rows"`` holds
    `buffer_blocks` blocks at a time, one drawn from each stretch of the rows, twice while it mixes
    them (`Bottou, 2012, Stochastic gradient descent tricks
    <https://doi.org/10.1007/978-3-642-35289-8_25>`_, section 2, on why order matters). Early
    stopping follows ``SGDClassifier``: the last model is kept, not the best one. After a fit with
    `X_val`, ``restore_best_epoch`` returns to that.

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

    _fits_on_local_rows = False  # it takes them block by block
    _learns_from_blocks = True
    _is_resumable = True

    # Only the wrapped estimator requests sample_weight; nothing requests resume.
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
        X_val: Rows | None = None,
        y_val: Values | None = None,
        sample_weight_val: Weights | None = None,
        **params: Any,
    ) -> Incremental:
        """Train a new clone for `epochs` passes over the training data.

        Parameters
        ----------
        X : {X_type}
            Training data; dataframes reach the estimator as dataframes.
        y : array-like or Dask array of shape (n_samples,) or (n_samples, n_outputs), default=None
            Class labels or target values.
        classes : array-like of shape (n_classes,), default=None
            All labels there are. By default they are looked up in y.
        sample_weight : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Sample weights, handed to ``partial_fit``.
        resume : bool, default=False
            Resume a failed fit from the block that failed. The data must have the same chunks.
        {validation_rows}
        **params : dict
            Passed to ``partial_fit``. Values with one entry per sample, and Dask collections, are
            partitioned with the rows. With metadata routing enabled, these and `sample_weight` are
            what ``partial_fit`` requests.

        {returns_fitted}
        """
        self._check_parameters()
        check_validation_arguments(self.early_stopping, X, X_val, y_val, sample_weight_val)
        params = drop_none(params, sample_weight=sample_weight)
        if resume:
            fit_state = getattr(self, "_fit_state", None)
            if fit_state is None:
                raise ValueError("resume must be False: no fit of this estimator was interrupted.")
            if fit_state.has_validation_rows != (X_val is not None):
                raise ValueError(
                    "X_val must be as in the fit that was interrupted. Got "
                    f"{'none' if X_val is None else 'rows where it had none'} instead. Pass to "
                    "fit what was passed to it then."
                )
            rows, _ = training_blocks(self, "fit", X, y, params)
            validation = validation_blocks(self, X, X_val, y_val, sample_weight_val)
            return self._train(self.estimator_, rows, y, fit_state, validation)
        model = clone_learner(self.estimator)
        rows, fit_params = training_blocks(self, "fit", X, y, params)
        validation = validation_blocks(self, X, X_val, y_val, sample_weight_val)
        if rows.on_dask:
            leave_if_small()  # before numbers are drawn
        fit_params |= classes_for_partial_fit(last_step(model), y, classes)
        if validation is not None and "classes" in fit_params:
            check_validation_labels(unique_labels(y_val), fit_params["classes"])
        # All seeds ahead, so that a resumed fit shuffles as an uninterrupted one does.
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.epochs + 1)
        fit_state = FitState(seeds, fit_params, has_validation_rows=validation is not None)
        if self.early_stopping:
            fit_state.early_stopping = EarlyStopping(self.n_iter_no_change, self.tol)
        return self._train(model, rows, y, fit_state, validation)

    def partial_fit(
        self,
        X: Rows,
        y: Values | None = None,
        *,
        classes: Values | None = None,
        sample_weight: Weights | None = None,
        **params: Any,
    ) -> Incremental:
        """Train for one pass over more data.

        Parameters
        ----------
        {X_train}
        y : array-like or Dask array of shape (n_samples,) or (n_samples, n_outputs), default=None
            Class labels or target values.
        classes : array-like of shape (n_classes,), default=None
            All labels there will ever be; needed in the first call if these rows lack some.
        {sample_weight}
        **params : dict
            As for ``fit``.

        {returns_learned}
        """
        self._check_parameters()
        model = getattr(self, "estimator_", None)
        n_samples_seen = 0 if model is None else self.n_samples_seen_
        model = clone_learner(self.estimator) if model is None else model
        params = drop_none(params, sample_weight=sample_weight)
        rows, fit_params = training_blocks(self, "partial_fit", X, y, params)
        fit_params |= classes_for_partial_fit(last_step(model), y, classes)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        fit_state = FitState(np.array([seed]), fit_params)
        state = PartialFitState(model, n_samples_seen)
        with training_engine(rows, model) as (engine, placed_rows), output_replayer() as replay:
            self._one_epoch(engine, placed_rows, state, fit_state, replay)
        return self

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of the wrapped estimator's methods.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            What ``fit`` and ``partial_fit`` hand on is what the estimator's ``partial_fit``
            requests; `classes` is for this one.
        """
        methods = {method: method for method in ROUTED_METHODS}
        return make_router(self, {"fit": "partial_fit", "partial_fit": "partial_fit"} | methods)

    @property
    def _single_task_bytes(self) -> float:
        return single_task_bytes(self.epochs)

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        check_has_partial_fit(
            "estimator", last_step(self.estimator), "train it with ParallelPostFit on a sample"
        )
        check_steps(self.estimator)
        if self.shuffle not in ("blocks", "rows", False):
            raise ValueError(
                f"shuffle must be 'blocks', 'rows' or False. Got {self.shuffle!r} instead."
            )
        for name in ("epochs", "batch_size", "buffer_blocks", "n_iter_no_change"):
            value = getattr(self, name)
            value = 1 if name == "batch_size" and value is None else value
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

    def _train(
        self, model: Any, rows: RowBlocks, y: Any, fit_state: FitState, validation: RowBlocks | None
    ) -> Incremental:
        """Train a model for the remaining epochs."""
        with (
            training_engine(rows, model) as (engine, placed_rows),
            loaded_validation_rows(validation, model) as scored_rows,
            device_cache(engine, model) as device_arrays,
            output_replayer() as replay,
        ):
            args = (engine, model, placed_rows, y, scored_rows, fit_state, device_arrays, replay)
            return self._run_epochs(*args)

    def _run_epochs(
        self,
        engine: Engine,
        model: Any,
        rows: RowBlocks,
        y: Any,
        scored_rows: tuple[Engine, RowBlocks] | None,
        fit_state: FitState,
        device_arrays: Any,
        replay: Callable[[Any], None],
    ) -> Incremental:
        """Train a model for the remaining epochs, with a device cache of the blocks.

        Early stopping holds some of the rows out, unless there are others that are scored.
        """
        # Rows to score: given ones, or a holdout, drawn by a seed that a resumed fit has too.
        seed = int(fit_state.seeds[-1])
        scorer = select = None
        start_time = time.monotonic() - fit_state.seconds
        if fit_state.early_stopping is not None:
            scorer = response_scorer(self.estimator, self.scoring)
        if scorer is not None and scored_rows is None:
            rows = with_row_offsets(engine, rows)
            labels = y if is_classifier(model) else None
            holdout = draw_holdout(engine, rows, self.validation_fraction, seed, labels)
            scored_rows = engine, validation_rows(engine, rows, holdout)
            select = partial(training_rows, holdout=holdout)
        # Go on where a fit was interrupted, in the middle of an epoch too.
        n_samples_seen = self.n_samples_seen_ if fit_state.epoch or fit_state.n_batches_done else 0
        pace = FoldPace()
        while fit_state.epoch < self.epochs:
            state = PartialFitState(model, n_samples_seen)
            try:
                model, n_samples_seen, _ = self._one_epoch(
                    engine, rows, state, fit_state, replay, select, device_arrays, pace
                )
                score = np.nan
                if scorer is not None and scored_rows is not None:
                    score = validation_score(*scored_rows, model, scorer)
            # Interrupts too: ``resume=True`` continues after the last checkpoint.
            except BaseException:
                if fit_state.n_batches_done or fit_state.epoch:
                    fit_state.seconds = time.monotonic() - start_time
                    self._fit_state = fit_state
                    self._set_history(fit_state)
                raise
            # Only now: an epoch without its score is resumed, though no batch of it is left.
            fit_state.epoch, fit_state.n_batches_done = fit_state.epoch + 1, 0
            fit_state.record_score(model, n_samples_seen, score)
            # The record of the epoch, with the seconds of the fits that it resumes.
            seconds = time.monotonic() - start_time
            record = epoch_record(fit_state.epoch, n_samples_seen, loss_of(model), score, seconds)
            fit_state.history.append(record)
            if self.verbose:
                print_epoch(fit_state.history)
            stopping = fit_state.early_stopping
            if stopping is not None and stopping.update(score).all():
                break
        # There is nothing left to resume.
        self._fit_state, self._best_epoch = None, fit_state.best
        self._set_history(fit_state)
        return self

    def restore_best_epoch(self) -> Incremental:
        """Return to the model after the epoch with the best score of the validation rows.

        `n_iter_` is then the number of that epoch.

        Returns
        -------
        self : Incremental
            Fitted estimator.
        """
        best = getattr(self, "_best_epoch", None)
        check_best_epoch(best)
        self.n_iter_, self.estimator_, self.n_samples_seen_, _ = best
        return self

    def _set_history(self, fit_state: FitState) -> None:
        self.history_ = history_of(fit_state.history)
        self.n_iter_ = fit_state.epoch

    def _one_epoch(
        self,
        engine: Engine,
        rows: RowBlocks,
        state: PartialFitState,
        fit_state: FitState,
        replay: Callable[[Any], None],
        select: Any = None,
        device_arrays: Any = None,
        pace: FoldPace | None = None,
    ) -> PartialFitState:
        """Train for the rest of an epoch; checkpoints set the fitted attributes."""
        n_done, n_replayed = fit_state.n_batches_done, 0

        def checkpoint(state: PartialFitState, n: int) -> None:
            nonlocal n_replayed
            check_sent(state.model)
            self.estimator_, self.n_samples_seen_, notes = state
            # what was interrupted before was the fit of another model
            self._best_epoch = self._fit_state = None
            fit_state.n_batches_done = n_done + n
            replay(notes[n_replayed:])
            n_replayed = len(notes)

        seed, size = int(fit_state.seeds[fit_state.epoch]), self.batch_size
        if self.shuffle == "rows":
            # Buffers of shuffled rows are new in every epoch, so a cache of blocks does not serve.
            device_arrays = None
            size = size or mean_block_rows(rows)
        args = (fit_state.fit_params, size, device_arrays, get_config().device, process_token())
        batches = epoch_batches(rows, self.shuffle, self.buffer_blocks, seed)[n_done:]
        steps = {"batches": batches, "select": select, "on_checkpoint": checkpoint, "pace": pace}
        return fold(engine, partial_fit_block, state, rows, *args, **steps)
