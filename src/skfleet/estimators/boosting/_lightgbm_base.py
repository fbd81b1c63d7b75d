"""Base of LightGBM's estimators: their fit, here or on ranks, and predictions."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import lightgbm
import numpy as np

from skfleet._validation import check_target_type
from skfleet.blocks import artificial_rows, is_frame, is_lazy, meta_of, target_column
from skfleet.estimators.boosting._boosted_estimator import BoostedEstimator
from skfleet.estimators.boosting._fit_inputs import (
    FitInputs,
    check_eval_set,
    check_labels,
    with_validation_set,
)
from skfleet.estimators.boosting._lightgbm_model import first_rounds, with_parameters
from skfleet.estimators.boosting._lightgbm_private import (
    MetricAdapter,
    aliases_of,
    choose_parameter,
    class_weight_of,
    number_by_label,
    parameter_names,
    set_booster,
    set_labels,
    training_parameters,
)
from skfleet.estimators.boosting._lightgbm_rank import LightGBMJob, LightGBMRank, sizes_of_runs
from skfleet.estimators.boosting._lightgbm_training import (
    LightGBMMonitor,
    LightGBMTraining,
    Rounds,
    parameter,
)
from skfleet.estimators.boosting._row_survey import StoredRows

# Parameters of LightGBM's network, which are set here.
_NETWORK = ("machines", "num_machines", "local_listen_port", "machine_list_filename")
# Objectives of several classes, which are names of their metrics too; and other such metrics.
_MULTICLASS = {"multiclass", "softmax", "multiclassova", "multiclass_ova", "ova", "ovr"}
_MULTICLASS_METRICS = {*_MULTICLASS, "auc_mu", "multi_error", "multi_logloss"}
# Values of a model of one machine, in the place of those of a rank.
_LOCAL_VALUES = {
    "tree_learner": "serial",
    "num_machines": "1",
    "machines": "",
    "local_listen_port": "12400",
    "pre_partition": "0",
}
_EVAL_LISTS = {
    "sample_weight": "eval_sample_weight",
    "init_score": "eval_init_score",
    "group": "eval_group",
    "qid": "eval_qid",
}
# Memory of a process that has loaded LightGBM.
PROCESS_BYTES = 150_000_000
# Rows of the trial round that checks parameters.
N_TRIAL_ROWS = 40


class LightGBMEstimator(BoostedEstimator):
    """Base of LightGBM's estimators."""

    _library = "lightgbm"
    _has_labels = False
    _is_ranker = False

    def _start_fit(self, arguments: dict[str, Any]) -> Any:
        """Fit with the arguments of a ``fit``, by name."""
        named = {
            k: v for k, v in arguments.items() if v is not None and k not in ("self", "__class__")
        }
        X, y = named.pop("X"), named.pop("y", None)
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        eval_set = with_validation_set(
            _eval_pairs(named), named.pop("X_val", None), named.pop("y_val", None)
        )
        lists = {name: named.pop(key, None) for name, key in _EVAL_LISTS.items()}
        values = {name: named.pop(name, None) for name in _EVAL_LISTS}
        check_eval_set(eval_set, X, {})
        inputs = self._inputs_of(X, y, values)
        inputs.options = named
        if eval_set is not None:
            inputs.eval_parts = []
            for i, (X_eval, y_eval) in enumerate(eval_set):
                if X_eval is X and y_eval is y:
                    inputs.eval_parts.append(None)
                    continue
                own = {name: _entry(values, i, _EVAL_LISTS[name]) for name, values in lists.items()}
                inputs.eval_parts.append(self._inputs_of(X_eval, y_eval, own))
        return self._fit(inputs)

    def _inputs_of(self, X: Any, y: Any, values: dict[str, Any]) -> FitInputs:
        return FitInputs(X, y, values["sample_weight"], {"init_score": values["init_score"]})

    def _fit_plain(self, inputs: FitInputs, n_threads: int | None = None) -> None:
        plain = self._plain()
        if n_threads is not None:
            plain.set_params(n_jobs=n_threads)
        arguments: dict[str, Any] = dict(inputs.options)
        arguments |= _columns_of(inputs)
        if inputs.eval_parts is not None:
            pairs, lists = [], {}
            for i, part in enumerate(inputs.eval_parts):
                part = inputs if part is None else part
                pairs.append((part.X, part.y))
                for name, value in _columns_of(part).items():
                    key = _EVAL_LISTS[name]
                    lists.setdefault(key, [None] * len(inputs.eval_parts))[i] = value
            arguments |= {"eval_set": pairs, **lists}
        with warnings.catch_warnings():
            # LightGBM's other way to name evaluation sets does not encode labels.
            warnings.filterwarnings("ignore", "The argument 'eval_set' is deprecated")
            plain.fit(inputs.X, inputs.y, **arguments)
        self._take(self._learned(plain))

    def _fit_on_one_worker(self, engine: Any, rows: Any, inputs: FitInputs) -> bool:
        # Callbacks that change objects of this process must run here.
        known = (
            type(lightgbm.early_stopping(1, verbose=False)),
            type(lightgbm.log_evaluation()),
            type(lightgbm.reset_parameter()),
        )
        if any(not isinstance(c, known) for c in inputs.options.get("callbacks", ())):
            return False
        return super()._fit_on_one_worker(engine, rows, inputs)

    # 1. Parameters that LightGBM does not know, or only one machine can train with.
    # 2. A round on a few artificial rows: LightGBM itself checks the parameters' values.
    def _check_inputs(self, inputs: FitInputs) -> None:
        params = self._plain().get_params()
        own = set(self._library_class()().get_params())
        unknown = sorted(set(params) - own - parameter_names())
        if unknown:
            raise TypeError(
                f"{type(self).__name__} must have parameters that LightGBM knows. Got "
                f"{unknown[0]!r} instead. Look for its name in LightGBM's list of parameters."
            )
        # What several machines cannot train with, or would do on one of them alone.
        refused = [
            ("tree_learner", ("serial", "data", "data_parallel", "voting", "voting_parallel")),
            ("device_type", ("cpu",)),
            ("linear_tree", (False,)),
            # LightGBM's learners of several machines crash with it (its issue 5680)
            ("interaction_constraints", (None, "")),
        ]
        for name, allowed in refused:
            value = parameter(params, name, allowed[0])
            if value not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, allowed))} for Dask rows. Got "
                    f"{value!r} instead, which trains on one machine. Compute the rows, or leave "
                    f"{name} out."
                )
        if self.min_child_samples == 0:
            # ranks estimate the numbers of rows, so that a leaf may seem to have none
            raise ValueError(
                "min_child_samples must be 1 or more for Dask rows. Got 0 instead. Set it to 1."
            )
        # The ranks find one another: a network of the user's would be another one.
        for name in _NETWORK:
            if aliases_of(name) & set(params):
                raise ValueError(
                    f"{name} must be left out for Dask rows. Got it instead. The workers of the "
                    "cluster are the machines."
                )
        if not self._has_labels and self.class_weight is not None:
            raise ValueError(
                f"class_weight must be None for Dask rows in {type(self).__name__}. Got "
                f"{self.class_weight!r} instead. Give sample_weight."
            )
        for r in inputs.sets:
            r.y = target_column(r.y)
            check_target_type(r.y, numeric=not self._has_labels)
        self._check_by_library(inputs)

    def _check_by_library(self, inputs: FitInputs) -> None:
        """Raise what LightGBM raises for a round on a few rows."""
        trial = copy.copy(self)
        trial.class_weight = trial._class_weight = None
        trial.random_state = copy.deepcopy(self.random_state)  # a trial draws nothing of it
        n_labels = 2  # or several, where parameters are for that
        labels = np.arange(n_labels) if self._has_labels else None
        _, params, _, objective = trial._configure(labels, inputs.options)
        if labels is not None and {params["objective"], *params["metric"]} & _MULTICLASS_METRICS:
            n_labels = 3
            _, params, _, objective = trial._configure(np.arange(n_labels), inputs.options)
        if objective is not None:
            params["objective"] = "binary" if self._has_labels else "regression"
        if is_frame(meta := meta_of(inputs.X)):
            names = [n for n, d in meta.dtypes.items() if str(d) not in ("category",)]
            bad = [n for n in names if meta.dtypes[n].kind not in "biuf"]
            if bad:
                artificial = artificial_rows(meta)
                lightgbm.Dataset(artificial, np.zeros(len(artificial))).construct()
        X = np.random.default_rng(0).normal(size=(N_TRIAL_ROWS, meta.shape[1]))
        y = np.arange(N_TRIAL_ROWS) % n_labels
        group = [N_TRIAL_ROWS] if self._is_ranker else None
        for name in aliases_of("verbosity"):
            params.pop(name, None)
        params |= {"verbosity": -1, "num_threads": 1}
        dataset = lightgbm.Dataset(X, y, group=group, params=dict(params))
        lightgbm.Booster(params, dataset).update()

    def _configure(
        self, labels: np.ndarray | None, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any], list[Any], Any]:
        """Return a plain estimator, parameters, metrics and the objective, as LightGBM's fit does.

        Metrics and the objective are users' functions.
        """
        plain = self._plain()
        if labels is not None:
            set_labels(plain, labels)
        eval_at = options.get("eval_at", (1, 2, 3, 4, 5)) if self._is_ranker else None
        params = training_parameters(plain, eval_at)
        named = options.get("eval_metric", [])
        named = list(named) if isinstance(named, list) else [named]
        is_multiclass = labels is not None and (
            len(labels) > 2 or params["objective"] in _MULTICLASS
        )
        metrics = [MetricAdapter(f) for f in named if callable(f)]
        names = [_metric_name(m, is_multiclass) if labels is not None else m for m in named]
        known = params["metric"]
        known = [known] if isinstance(known, str | None) else list(known)
        params["metric"] = [n for n in names if isinstance(n, str) and n not in known] + [
            n for n in known if n is not None
        ]
        params = choose_parameter("objective", copy.deepcopy(params), None)
        objective = None
        if callable(params["objective"]):
            objective, params["objective"] = params["objective"], "none"
        params = choose_parameter("num_iterations", params, self.n_estimators)
        params = choose_parameter("early_stopping_round", params, None)
        if params["early_stopping_round"] is None:
            del params["early_stopping_round"]
        if params["num_iterations"] <= 0:
            raise ValueError(
                "n_estimators must be a positive number of rounds. Got "
                f"{params['num_iterations']} instead."
            )
        return plain, params, metrics, objective

    def _binned_bytes(self, n_rows: int, n_features: int, n_outputs: int, density: float) -> float:
        # a byte for each bin; beside them a label, a weight, and of each output a score in double
        # precision, a gradient, a Hessian and the position of the row
        n_sampled = min(self.subsample_for_bin, n_rows)
        sample = n_sampled * n_features * 8
        return PROCESS_BYTES + 2 * sample + n_rows * (n_features + 8 + 24 * n_outputs)

    @staticmethod
    def _rank_class() -> Any:
        return LightGBMRank

    def _train(
        self,
        launcher: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        inputs: FitInputs,
        n_ranks: int,
        fits_in_memory: bool,
    ) -> None:
        # LightGBM has no way to hold binned rows on a disk.
        if not fits_in_memory:
            raise ValueError(
                "the binned rows of a rank must fit into the memory of a worker. Got "
                f"{stored.n_rows} rows for {n_ranks} ranks instead, which do not. Start more "
                "workers, give them more memory, or take XGBoost, which can hold them on the disk."
            )
        options = inputs.options
        labels = stored.labels if self._has_labels else None
        check_labels(labels)
        # Parameters as a fit of LightGBM resolves them, from the labels that the survey found.
        plain, params, metrics, objective = self._configure(labels, options)
        n_rounds, callbacks = params["num_iterations"], list(options.get("callbacks", ()))
        # What training goes on from, and is measured on.
        model = _as_booster(options.get("init_model"))
        names = _eval_names(evals, options.get("eval_names"))
        class_weights = options.get("eval_class_weight")
        # What every rank gets. Each evaluation set lies whole on one rank, where its metrics are
        # those of a single machine.
        job = LightGBMJob(
            params=_rank_params(params, n_ranks),
            n_rounds=n_rounds,
            n_ranks=n_ranks,
            timeout=self.timeout,
            dataset=_dataset_options(options, meta_of(inputs.X)),
            eval_ranks=[None if e is None else i % n_ranks for i, e in enumerate(evals)],
            eval_class_weights=[
                self._numbered(_entry(class_weights, i, "eval_class_weight"), plain)
                for i in range(len(evals))
            ]
            if class_weights is not None
            else [],
            objective=objective,
            metrics=metrics,
            callbacks=[c for c in callbacks if getattr(c, "before_iteration", False)],
            is_local=launcher.engine.is_local,
            has_scores="init_score" in inputs.per_sample,
            model=None if model is None else model.model_to_string(num_iteration=-1),
            n_rounds_before=0 if model is None else model.current_iteration(),
        )
        # The other callbacks see metrics of all ranks, which only the driver has.
        monitor = LightGBMMonitor(
            [c for c in callbacks if not getattr(c, "before_iteration", False)],
            params,
            Rounds(n_rounds, job.n_rounds_before),
            next((n for n, e in zip(names, evals, strict=True) if e is None), "training"),
        )
        class_weight = class_weight_of(plain)
        library = LightGBMTraining(job, stored, class_weight, names)
        trained = self._run(launcher, library, stored, evals, n_rounds, monitor, n_ranks)
        # The booster without the network of the ranks, which a user's process could not join.
        text = with_parameters(trained.decode(), _LOCAL_VALUES)
        if monitor.best_iteration:  # LightGBM keeps the rounds until then
            text = first_rounds(text, monitor.best_iteration)
        booster = lightgbm.Booster(model_str=text)
        booster.params = params
        booster.best_iteration, booster.best_score = monitor.best_iteration, monitor.best_score
        # A plain estimator around the booster decides what is learned, as after its own fit.
        meta = meta_of(inputs.X)
        set_booster(
            plain,
            booster,
            meta.shape[1],
            has_names=is_frame(meta) or isinstance(options.get("feature_name"), list),
            class_weight=class_weight,
            scores=monitor.evals_result,
        )
        self._take(self._learned(plain))

    @staticmethod
    def _numbered(class_weight: Any, plain: Any) -> Any:
        """Return weights of labels as those of their numbers."""
        numbers = number_by_label(plain)
        if not isinstance(class_weight, dict) or numbers is None:
            return class_weight
        return {numbers[label]: weight for label, weight in class_weight.items()}

    def _answer(self, method: str, X: Any, options: dict[str, Any]) -> Any:
        """Return what a method of LightGBM's estimator answers."""
        if is_lazy(X):
            return self._map(X, method, **options)
        return getattr(self.to_sklearn(), method)(X, **options)

    def predict(
        self,
        X: Any,
        raw_score: bool = False,
        start_iteration: int = 0,
        num_iteration: int | None = None,
        pred_leaf: bool = False,
        pred_contrib: bool = False,
        validate_features: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Predict for every row, by the rounds up to the best one after early stopping.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows.
        raw_score : bool, default=False
            Return margins in place of values or labels.
        start_iteration : int, default=0
            First round to predict by.
        num_iteration : int, default=None
            Number of rounds to predict by.
        pred_leaf : bool, default=False
            Return the leaf of every tree.
        pred_contrib : bool, default=False
            Return the features' contributions, SHAP values.
        validate_features : bool, default=False
            Check the names of a frame's columns.
        **kwargs
            Other parameters of LightGBM's prediction.

        Returns
        -------
        predictions : ndarray or Dask collection of shape (n_samples,)
            In the container of X; lazy for Dask rows.
        """
        options = {
            "raw_score": raw_score,
            "start_iteration": start_iteration,
            "num_iteration": num_iteration,
            "pred_leaf": pred_leaf,
            "pred_contrib": pred_contrib,
            "validate_features": validate_features,
            **kwargs,
        }
        return self._answer("predict", X, options)


def _dataset_options(options: dict[str, Any], meta: Any) -> dict[str, Any]:
    """Return the names of features, and the numbers of categorical ones."""
    chosen = {k: options[k] for k in ("feature_name", "categorical_feature") if k in options}
    names = chosen.get("feature_name")
    if not isinstance(names, list):
        names = list(meta.columns) if is_frame(meta) else []
    if isinstance(chosen.get("categorical_feature"), list | tuple):
        chosen["categorical_feature"] = [
            names.index(name) if name in names else name for name in chosen["categorical_feature"]
        ]
    return chosen


def _eval_pairs(named: dict[str, Any]) -> Any:
    """Return the evaluation sets of either of LightGBM's ways to name them."""
    eval_set, X, y = (named.pop(name, None) for name in ("eval_set", "eval_X", "eval_y"))
    if X is None and y is None:
        return [eval_set] if isinstance(eval_set, tuple) else eval_set
    if eval_set is not None:
        raise ValueError("Specify either 'eval_set' or 'eval_X' and 'eval_y', but not both.")
    if X is None or y is None:
        raise ValueError("You must specify eval_X and eval_y, not just one of them.")
    if not isinstance(X, tuple) and not isinstance(y, tuple):
        return [(X, y)]
    if not isinstance(X, tuple) or not isinstance(y, tuple) or len(X) != len(y):
        raise ValueError("eval_X and eval_y must be tuples of as many entries. Got others instead.")
    return list(zip(X, y, strict=True))


def _entry(values: Any, i: int, name: str) -> Any:
    """Return the value of an evaluation set, of a list, which may be short, or a dict."""
    if values is None:
        return None
    if isinstance(values, dict):
        return values.get(i)
    if isinstance(values, list):
        return values[i] if i < len(values) else None
    raise TypeError(f"{name} should be dict or list")


def _columns_of(inputs: FitInputs) -> dict[str, Any]:
    """Return values per row as arguments of LightGBM's fit: sizes of groups in place of qid."""
    columns = {"sample_weight": inputs.sample_weight, **inputs.per_sample}
    qid = columns.pop("qid", None)
    if qid is not None:
        columns["group"] = sizes_of_runs(np.asarray(qid))
    return {name: value for name, value in columns.items() if value is not None}


def _metric_name(metric: Any, is_multiclass: bool) -> Any:
    """Return LightGBM's name of a classifier's metric."""
    prefix = "multi" if is_multiclass else "binary"
    for suffix in ("logloss", "error"):
        if metric in (suffix, f"binary_{suffix}", f"multi_{suffix}"):
            return f"{prefix}_{suffix}"
    return metric


def _rank_params(params: dict[str, Any], n_ranks: int) -> dict[str, Any]:
    """Return the parameters of each rank.

    Histograms are summed by columns where the user does not say: LightGBM would time both ways,
    and last bits would differ from fit to fit.
    """
    params = choose_parameter("tree_learner", params, "data")
    if n_ranks == 1:
        params["tree_learner"] = "serial"
    elif params["tree_learner"] == "serial":
        params["tree_learner"] = "data"
    for name in ("feature_pre_filter", "pre_partition"):
        for alias in aliases_of(name):
            params.pop(alias, None)
    params |= {"feature_pre_filter": False, "pre_partition": n_ranks > 1, "num_machines": n_ranks}
    if not parameter(params, "force_row_wise", False):
        params = choose_parameter("force_col_wise", params, True)
    return choose_parameter("num_threads", params, 0)


def _eval_names(evals: list[Any], names: Any) -> list[str]:
    """Return the names of evaluation sets, LightGBM's own where not named."""
    names = [names] if isinstance(names, str) else list(names or ())
    return [
        names[i] if i < len(names) else "training" if part is None else f"valid_{i}"
        for i, part in enumerate(evals)
    ]


def _as_booster(model: Any) -> Any:
    """Return the booster that training goes on from, of any of the forms that LightGBM takes."""
    if model is None or isinstance(model, lightgbm.Booster):
        return model
    if isinstance(model, lightgbm.LGBMModel):
        return model.booster_
    return lightgbm.Booster(model_file=model)
