"""LightGBM's estimators against the library's own, on rows of a cluster and of this process."""

import os
import pickle
import signal

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from skfleet.estimators.boosting import _base

lightgbm = pytest.importorskip("lightgbm")

from skfleet.estimators.boosting import LGBMClassifier, LGBMRanker, LGBMRegressor  # noqa: E402
from skfleet.estimators.boosting._lightgbm_model import join_models, with_start  # noqa: E402
from skfleet.estimators.boosting._lightgbm_rank import sampled_rows  # noqa: E402

N, WIDTH = 1500, 5
# LightGBM's ranks estimate the rows of a leaf by its second derivatives, and refuse splits by that
# number. With a limit on the derivatives that rarely happens on rows like these.
SHARED = {"min_child_samples": 1, "min_child_weight": 3, "n_estimators": 12, "verbosity": -1}


@pytest.fixture
def on_ranks(cluster_client, monkeypatch):
    monkeypatch.setattr(_base, "ONE_WORKER_BYTES", 0)
    monkeypatch.setattr(_base, "MAX_SMALL_BLOCKS", 0)
    with cluster_client.as_current():
        yield


@pytest.fixture(
    scope="module",
    params=["integers", pytest.param("continuous", marks=pytest.mark.slow)],
)
def columns(request):
    rng = np.random.default_rng(0)
    if request.param == "integers":
        return rng.integers(0, 100, size=(N, WIDTH)).astype(np.float32)
    return rng.normal(size=(N, WIDTH))


def _signal(X):
    rng = np.random.default_rng(1)
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    return z @ [1.0, -1.0, 0.5, 0.3, 0.0] + rng.normal(scale=0.5, size=len(X))


def _lazy(*values, chunk=400):
    return [da.from_array(v, chunks=(chunk, *v.shape[1:])) for v in values]


def _probabilities(model, X):
    return getattr(model, "predict_proba", model.predict)(X)


def _assert_equal(ours, theirs, X, tolerance=1e-5):
    np.testing.assert_allclose(
        _probabilities(ours, X), _probabilities(theirs, X), atol=tolerance, rtol=0
    )


TARGETS = {
    "binary": (LGBMClassifier, lambda z: np.where(z > 0.4, "yes", "no"), {}),
    "classes": (LGBMClassifier, lambda z: np.digitize(z, [-1, 1]) * 10, {}),
    "mean": (LGBMRegressor, lambda z: z + 5, {}),
    "counts": (
        LGBMRegressor,
        lambda z: np.random.default_rng(2).poisson(np.exp(z / 5)),
        {"objective": "poisson", "min_child_weight": 30},
    ),
    "root": (LGBMRegressor, lambda z: z + 5, {"reg_sqrt": True}),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_predictions_are_the_librarys(on_ranks, columns, kind):
    factory, target, options = TARGETS[kind]
    if columns.dtype == np.float64 and kind in ("classes", "counts"):
        # fewer bins have more rows each, whose number is estimated well enough
        options = {**options, "max_bin": 15}
    y = target(_signal(columns))
    ours = factory(**SHARED | options).fit(*_lazy(columns, y))
    theirs = ours._plain().fit(columns, y)
    _assert_equal(ours, theirs, columns)
    (X,) = _lazy(columns)
    assert (np.asarray(ours.predict(X)) == ours.predict(columns)).all()
    if factory is LGBMClassifier:
        assert ours.classes_.tolist() == theirs.classes_.tolist()
        assert ours.score(*_lazy(columns, y)) == ours.score(columns, y)


def test_queries(on_ranks, columns):
    y = np.digitize(_signal(columns), [-1, 1])
    sizes = np.random.default_rng(0).multinomial(N - 60, np.ones(60) / 60) + 1
    X_lazy, y_lazy = _lazy(columns, y)
    ours = LGBMRanker(**SHARED).fit(
        X_lazy, y_lazy, group=sizes, eval_set=[(columns[:90], y[:90])], eval_group=[[30, 60]]
    )
    theirs = ours._plain().fit(
        columns, y, group=sizes, eval_X=(columns[:90],), eval_y=(y[:90],), eval_group=[[30, 60]]
    )
    _assert_equal(ours, theirs, columns)
    np.testing.assert_allclose(
        ours.evals_result_["valid_0"]["ndcg@3"], theirs.evals_result_["valid_0"]["ndcg@3"]
    )
    qid = np.repeat(np.arange(len(sizes)), sizes)
    by_qid = LGBMRanker(**SHARED).fit(X_lazy, y_lazy, qid=_lazy(qid)[0])
    _assert_equal(by_qid, ours, columns, tolerance=0)
    assert not hasattr(ours, "score")
    with pytest.raises(ValueError, match="group"):
        LGBMRanker().fit(X_lazy, y_lazy)


def test_weights_and_missing_values(on_ranks, columns):
    rng = np.random.default_rng(3)
    X = np.where(rng.random(columns.shape) < 0.1, np.nan, columns)
    y, weight = np.where(_signal(columns) > 0.4, "yes", "no"), rng.random(N) + 0.5
    X_lazy, y_lazy, weight_lazy = _lazy(X, y, weight)
    for class_weight in (None, "balanced", {"yes": 2.0, "no": 0.5}):
        ours = LGBMClassifier(**SHARED, class_weight=class_weight)
        ours.fit(X_lazy, y_lazy, sample_weight=weight_lazy)
        _assert_equal(ours, ours._plain().fit(X, y, sample_weight=weight), X)
    options = SHARED | {"min_child_weight": 10}
    ours = LGBMRegressor(**options).fit(X_lazy, y_lazy == "yes", sample_weight=weight_lazy)
    _assert_equal(ours, ours._plain().fit(X, y == "yes", sample_weight=weight), X)


def test_categories(on_ranks):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "number": rng.normal(size=N),
            "place": pd.Categorical(rng.choice(["a", "b", "c", "d"], size=N)),
            "count": rng.integers(0, 9, size=N),
        }
    )
    effect = frame["place"].map({"a": 0, "b": 2, "c": -1, "d": 1}).astype(float)
    y = effect + frame["number"] + rng.normal(size=N)
    theirs = lightgbm.LGBMRegressor(**SHARED).fit(frame, y)
    # Blocks know the categories that they have.
    rows = dd.from_pandas(frame, npartitions=4).map_partitions(
        lambda part: part.assign(place=part["place"].astype(str).astype("category"))
    )
    ours = LGBMRegressor(**SHARED).fit(rows, dd.from_pandas(y, npartitions=4))
    _assert_equal(ours, theirs, frame)
    assert ours.feature_name_ == theirs.feature_name_
    assert ours.feature_names_in_.tolist() == list(frame)
    assert (ours.predict(rows).compute() == ours.predict(frame)).all()


def test_few_blocks_and_blocks_of_one_class(on_ranks, columns):
    y = np.sort(np.where(_signal(columns) > 0.4, 1, 0))
    for chunk in (N, 300):
        X_lazy, y_lazy = _lazy(columns, y, chunk=chunk)
        ours = LGBMClassifier(**SHARED).fit(X_lazy, y_lazy)
        _assert_equal(ours, ours._plain().fit(columns, y), columns)


def test_sparse_rows(on_ranks):
    X = sparse.random(N, 20, 0.2, format="csr", random_state=0)
    y = np.asarray(X[:, :3].sum(axis=1)).ravel()
    X_lazy = da.from_array(X.toarray(), chunks=(400, -1)).map_blocks(sparse.csr_matrix)
    ours = LGBMRegressor(**SHARED).fit(X_lazy, *_lazy(y))
    _assert_equal(ours, ours._plain().fit(X, y), X)


def test_early_stopping_is_the_librarys(on_ranks, columns):
    y = np.where(_signal(columns) > 0.4, "yes", "no")
    noise = np.random.default_rng(5).permutation(y)
    evals = [(columns, y), (columns[:200], noise[:200]), (columns[200:500], y[200:500])]
    options = SHARED | {"n_estimators": 60, "learning_rate": 0.3}
    X_lazy, y_lazy = _lazy(columns, y)
    lazy_evals = [(X_lazy, y_lazy), evals[1], (pd.DataFrame(evals[2][0]), pd.Series(evals[2][1]))]
    fits = []
    for model, X_fit, y_fit, sets in (
        (LGBMClassifier(**options), X_lazy, y_lazy, lazy_evals),
        (LGBMClassifier(**options), columns, y, [(columns, y), *evals[1:]]),
    ):
        recorded = {}
        callbacks = [lightgbm.early_stopping(3, verbose=False)]
        callbacks.append(lightgbm.record_evaluation(recorded))
        model.fit(X_fit, y_fit, eval_set=sets, eval_metric=["auc", "logloss"], callbacks=callbacks)
        assert recorded == model.evals_result_
        fits.append(model)
    ours, theirs = fits
    assert 0 < ours.best_iteration_ == theirs.best_iteration_ < 60
    assert ours.n_estimators_ == theirs.n_estimators_
    assert list(ours.evals_result_) == list(theirs.evals_result_)
    for name, metrics in theirs.evals_result_.items():
        for metric, values in metrics.items():
            # Areas under curves of training rows are means of the ranks'.
            tolerance = 2e-2 if (name, metric) == ("training", "auc") else 1e-9
            np.testing.assert_allclose(ours.evals_result_[name][metric], values, atol=tolerance)
    _assert_equal(ours, theirs, columns)


def test_validation_set_and_own_functions(on_ranks, columns):
    z = _signal(columns)
    X_lazy, z_lazy = _lazy(columns, z)

    def squares(y, prediction):
        return prediction - y, np.ones(len(y))

    def distance(y, prediction):
        return "distance", float(np.mean(np.abs(y - prediction))), False

    options = SHARED | {"objective": squares}
    ours = LGBMRegressor(**options).fit(
        X_lazy, z_lazy, X_val=X_lazy[:300], y_val=z_lazy[:300], eval_metric=distance
    )
    theirs = ours._plain().fit(
        columns, z, eval_X=columns[:300], eval_y=z[:300], eval_metric=distance
    )
    _assert_equal(ours, theirs, columns)
    np.testing.assert_allclose(
        ours.evals_result_["valid_0"]["distance"], theirs.evals_result_["valid_0"]["distance"]
    )
    with pytest.raises(ValueError, match="X_val"):
        ours.fit(X_lazy, z_lazy, X_val=columns, y_val=z, eval_set=[(columns, z)])


def _dies_once(path, iteration):
    """Return a callback that kills the first rank that reaches a round."""

    def die(env):
        if env.iteration == iteration:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    die.before_iteration = True
    return die


@pytest.mark.parametrize(
    "kind",
    [
        "binary",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("classes", "mean", "init_score", "l1")
        ),
    ],
)
def test_a_lost_rank_changes_no_bit(on_ranks, columns, kind, tmp_path):
    factory, target, options = TARGETS.get(kind, TARGETS["mean"])
    z = _signal(columns)
    X = np.where(np.random.default_rng(3).random(columns.shape) < 0.1, np.nan, columns)
    X_lazy, y = _lazy(X, target(z))
    given = {"init_score": _lazy(z / 3)[0]} if kind == "init_score" else {}
    options = SHARED | options | ({"objective": "l1"} if kind == "l1" else {})
    model = factory(**options, checkpoint_interval=3)
    undisturbed = clone(model).fit(X_lazy, y, **given)
    model.fit(X_lazy, y, **given, callbacks=[_dies_once(str(tmp_path / "dead"), 8)])
    assert (tmp_path / "dead").exists()
    assert (_probabilities(model, X) == _probabilities(undisturbed, X)).all()
    assert model.n_estimators_ == undisturbed.n_estimators_ == 12
    assert (model.feature_importances_ == undisturbed.feature_importances_).all()


@pytest.mark.slow
def test_a_lost_rank_with_categories_and_stopping(on_ranks, tmp_path):
    rng = np.random.default_rng(0)
    places = pd.Categorical(rng.integers(0, 40, size=N).astype(str))
    frame = pd.DataFrame({"number": rng.normal(size=N), "place": places})
    y = pd.Series(frame["number"] + places.codes % 7 + rng.normal(size=N))
    rows, target = dd.from_pandas(frame, npartitions=4), dd.from_pandas(y, npartitions=4)
    model = LGBMRegressor(**SHARED | {"n_estimators": 40, "learning_rate": 0.4})
    model.set_params(checkpoint_interval=2)
    stop = lightgbm.early_stopping(3, verbose=False)
    evals = [(frame[:300], y[:300])]
    fits = [
        clone(model).fit(rows, target, eval_set=evals, callbacks=[stop, *killer])
        for killer in ([], [_dies_once(str(tmp_path / "dead"), 5)])
    ]
    assert (tmp_path / "dead").exists()
    assert fits[0].best_iteration_ == fits[1].best_iteration_
    assert fits[0].evals_result_ == fits[1].evals_result_
    assert (fits[0].predict(frame) == fits[1].predict(frame)).all()


def test_training_goes_on_from_a_model(on_ranks, columns):
    z = _signal(columns)
    lazy = _lazy(columns, z)
    first = LGBMRegressor(**SHARED).fit(*lazy)
    ours = LGBMRegressor(**SHARED).fit(*lazy, init_model=first)
    theirs = ours._plain().fit(columns, z, init_model=first.to_sklearn())
    _assert_equal(ours, theirs, columns)
    assert ours.n_estimators_ == theirs.n_estimators_ == 24


def test_learning_rate_by_round(on_ranks, columns):
    z = _signal(columns)
    callbacks = [lightgbm.reset_parameter(learning_rate=lambda i: 0.2 * 0.9**i)]
    ours = LGBMRegressor(**SHARED).fit(*_lazy(columns, z), callbacks=callbacks)
    theirs = ours._plain().fit(columns, z, callbacks=callbacks)
    _assert_equal(ours, theirs, columns)


@pytest.mark.parametrize(
    "options",
    [
        {"subsample": 0.7, "subsample_freq": 1, "colsample_bytree": 0.8},
        {"boosting_type": "dart"},
        {"data_sample_strategy": "goss"},
        {"tree_learner": "voting"},
        {"min_child_samples": 20, "min_child_weight": 1e-3},
    ],
)
@pytest.mark.slow
def test_random_draws_and_limits_on_rows_cost_nothing(on_ranks, columns, options):
    z = _signal(columns)
    y = np.where(z > 0.4, "yes", "no")
    ours = LGBMClassifier(**SHARED | options).fit(*_lazy(columns, y))
    theirs = ours._plain().fit(columns, y)
    aucs = [roc_auc_score(y, m.predict_proba(columns)[:, 1]) for m in (ours, theirs)]
    assert abs(aucs[0] - aucs[1]) < 0.02


def test_plain_estimators(on_ranks, columns):
    y = np.where(_signal(columns) > 0.4, "yes", "no")
    ours = LGBMClassifier(**SHARED, random_state=3).fit(*_lazy(columns, y))
    plain = ours.to_sklearn()
    assert type(plain) is lightgbm.LGBMClassifier
    assert (plain.predict(columns) == ours.predict(columns)).all()
    assert "checkpoint" not in plain.get_params()
    again = pickle.loads(pickle.dumps(ours))
    _assert_equal(again, ours, columns, tolerance=0)
    assert clone(ours).get_params() == ours.get_params()
    assert "127.0.0.1" not in ours.booster_.model_to_string()
    leaves = ours.predict(_lazy(columns)[0], pred_leaf=True)
    assert (leaves.compute() == plain.predict(columns, pred_leaf=True)).all()
    margins = ours.decision_function(_lazy(columns)[0])
    assert (margins.compute() == plain.decision_function(columns)).all()


def test_rows_of_this_process_are_the_librarys(columns):
    y = np.where(_signal(columns) > 0.4, "yes", "no")
    ours = LGBMClassifier(n_estimators=5, verbosity=-1)
    ours.fit(columns, y, eval_set=[(columns, y)])
    theirs = lightgbm.LGBMClassifier(n_estimators=5, verbosity=-1).fit(columns, y)
    _assert_equal(ours, theirs, columns, tolerance=0)
    assert list(ours.evals_result_) == ["training"]


def test_small_rows_are_fitted_on_one_worker(cluster_client, columns):
    y = np.where(_signal(columns) > 0.4, "yes", "no")
    with cluster_client.as_current():
        ours = LGBMClassifier(n_estimators=5, verbosity=-1).fit(*_lazy(columns, y))
    theirs = ours._plain().fit(columns, y)
    _assert_equal(ours, theirs, columns, tolerance=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_leafs": 3}, TypeError, "n_leafs"),
        ({"tree_learner": "feature"}, ValueError, "tree_learner"),
        ({"tree": "feature"}, ValueError, "tree_learner"),
        ({"device": "cuda"}, ValueError, "device_type"),
        ({"linear_tree": True}, ValueError, "linear_tree"),
        ({"interaction_constraints": [[0], [1]]}, ValueError, "interaction_constraints"),
        ({"machines": "a:1,b:2"}, ValueError, "machines"),
        ({"num_leaves": 1}, lightgbm.basic.LightGBMError, "num_leaves"),
        ({"objective": "nothing"}, lightgbm.basic.LightGBMError, "nothing"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"n_estimators": 0}, ValueError, "n_estimators"),
    ],
)
def test_errors_before_work(on_ranks, options, error, message):
    X, y = _lazy(np.ones((20, 2)), np.arange(20.0))
    with pytest.raises(error, match=message):
        LGBMRegressor(**{"verbosity": -1} | options).fit(X, y)


def test_errors_of_rows(on_ranks):
    X, y = _lazy(np.ones((20, 2)), np.arange(20) % 2)
    with pytest.raises(ValueError, match="finite"):
        LGBMRegressor(verbosity=-1).fit(X, _lazy(np.full(20, np.nan))[0])
    with pytest.raises(ValueError, match="labels of the training rows"):
        LGBMClassifier(verbosity=-1).fit(X, y, eval_set=[(np.ones((2, 2)), np.array([0, 7]))])
    with pytest.raises(ValueError, match="columns of X"):
        LGBMClassifier(verbosity=-1).fit(X, y, eval_set=[(np.ones((2, 3)), np.array([0, 1]))])


def test_sampled_rows_are_those_that_bins_are_found_from():
    X = np.random.default_rng(0).normal(size=(3000, 2))
    params = {"bin_construct_sample_cnt": 500, "feature_pre_filter": False, "verbosity": -1}
    numbers = sampled_rows(len(X), params, 500)
    assert len(numbers) == 500
    assert (np.diff(numbers) > 0).all()
    label = X[:, 0]
    whole = lightgbm.train(params, lightgbm.Dataset(X, label, params=params), 3)
    reference = lightgbm.Dataset(X[numbers], label[numbers], params=params)
    rows = lightgbm.Dataset(X, label, reference=reference, params=params)
    assert (lightgbm.train(params, rows, 3).predict(X) == whole.predict(X)).all()


def test_joined_models():
    X = np.random.default_rng(0).normal(size=(200, 2))
    params = {"verbosity": -1, "min_data_in_leaf": 2}
    first, second = (lightgbm.train(params, lightgbm.Dataset(X, X[:, i]), 3) for i in range(2))
    text = join_models(first.model_to_string(), second.model_to_string())
    joined = lightgbm.Booster(model_str=text)
    assert joined.num_trees() == 6
    np.testing.assert_allclose(joined.predict(X), first.predict(X) + second.predict(X))
    moved = lightgbm.Booster(model_str=with_start(text, 2.5))
    np.testing.assert_allclose(moved.predict(X), joined.predict(X) + 2.5)
