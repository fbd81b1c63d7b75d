"""LightGBM's estimators against the library's own, on rows of a cluster and of this process."""

import pickle
from functools import cache

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from kills import Death, Deaths, LightGBMCallback
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

lightgbm = pytest.importorskip("lightgbm")

from skfleet.estimators.boosting import LGBMClassifier, LGBMRanker, LGBMRegressor  # noqa: E402
from skfleet.estimators.boosting._lightgbm_model import join_models, with_start  # noqa: E402
from skfleet.estimators.boosting._lightgbm_rank import sampled_rows  # noqa: E402

N, WIDTH = 1500, 5
# LightGBM's ranks estimate the rows of a leaf by its second derivatives, and refuse splits by that
# number. With a limit on the derivatives that rarely happens on rows like these.
SHARED = {"min_child_samples": 1, "min_child_weight": 3, "n_estimators": 12, "verbosity": -1}


@pytest.fixture
def fleet(cluster, on_ranks):
    """Two workers of a cluster in this process."""


@pytest.fixture(
    scope="module",
    params=["integers", pytest.param("continuous", marks=pytest.mark.slow)],
)
def columns(request):
    rng = np.random.default_rng(0)
    if request.param == "integers":
        return rng.integers(0, 100, size=(N, WIDTH)).astype(np.float32)
    return rng.normal(size=(N, WIDTH))


# What bins of many values change nothing of.
on_integers = pytest.mark.parametrize("columns", ["integers"], indirect=True)


def _signal(X):
    rng = np.random.default_rng(1)
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    return z @ [1.0, -1.0, 0.5, 0.3, 0.0] + rng.normal(scale=0.5, size=len(X))


def _with_gaps(X):
    return np.where(np.random.default_rng(3).random(X.shape) < 0.1, np.nan, X)


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


# Other tests train on ranks with the others' objectives.
@pytest.mark.parametrize(
    "kind",
    [kind if kind == "counts" else pytest.param(kind, marks=pytest.mark.slow) for kind in TARGETS],
)
def test_predictions_are_the_librarys(fleet, columns, kind):
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


def test_queries(fleet, columns):
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
    assert not hasattr(ours, "score")
    with pytest.raises(ValueError, match="group"):
        LGBMRanker().fit(X_lazy, y_lazy)


@on_integers
@pytest.mark.slow
def test_queries_by_their_numbers(fleet, columns):
    y = np.digitize(_signal(columns), [-1, 1])
    qid = np.sort(np.random.default_rng(0).integers(0, 60, N))
    ours = LGBMRanker(**SHARED).fit(*_lazy(columns, y), qid=_lazy(qid)[0])
    theirs = ours._plain().fit(columns, y, group=np.unique(qid, return_counts=True)[1])
    _assert_equal(ours, theirs, columns)


@pytest.mark.parametrize(
    ("columns", "class_weight"),
    [
        ("integers", "balanced"),
        pytest.param("continuous", None, marks=pytest.mark.slow),
        pytest.param("continuous", {0: 0.5, 10: 1.0, 20: 2.0}, marks=pytest.mark.slow),
    ],
    indirect=["columns"],
)
def test_weights_and_missing_values_of_classes(fleet, columns, class_weight):
    X, weight = _with_gaps(columns), np.random.default_rng(3).random(N) + 0.5
    y = np.digitize(_signal(columns), [-1, 1]) * 10
    ours = LGBMClassifier(**SHARED, class_weight=class_weight)
    X_lazy, y_lazy, weight_lazy = _lazy(X, y, weight)
    ours.fit(X_lazy, y_lazy, sample_weight=weight_lazy)
    _assert_equal(ours, ours._plain().fit(X, y, sample_weight=weight), X)


@pytest.mark.slow
def test_weights_in_regression(fleet, columns):
    y, weight = _signal(columns) > 0.4, np.random.default_rng(3).random(N) + 0.5
    ours = LGBMRegressor(**SHARED | {"min_child_weight": 10})
    X_lazy, y_lazy, weight_lazy = _lazy(columns, y, weight)
    ours.fit(X_lazy, y_lazy, sample_weight=weight_lazy)
    _assert_equal(ours, ours._plain().fit(columns, y, sample_weight=weight), columns)


def test_categories(fleet):
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


@on_integers
@pytest.mark.parametrize("chunk", [N, pytest.param(300, marks=pytest.mark.slow)])
def test_few_blocks_and_blocks_of_one_class(fleet, columns, chunk):
    y = np.sort(np.where(_signal(columns) > 0.4, 1, 0))
    X_lazy, y_lazy = _lazy(columns, y, chunk=chunk)
    ours = LGBMClassifier(**SHARED).fit(X_lazy, y_lazy)
    _assert_equal(ours, ours._plain().fit(columns, y), columns)


def test_sparse_rows(fleet):
    X = sparse.random(N, 20, 0.2, format="csr", random_state=0)
    y = np.asarray(X[:, :3].sum(axis=1)).ravel()
    X_lazy = da.from_array(X.toarray(), chunks=(400, -1)).map_blocks(sparse.csr_matrix)
    ours = LGBMRegressor(**SHARED).fit(X_lazy, *_lazy(y))
    _assert_equal(ours, ours._plain().fit(X, y), X)


def test_early_stopping_is_the_librarys(fleet, columns):
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


@on_integers
def test_validation_set_own_functions_and_learning_rates(fleet, columns):
    z = _signal(columns)
    X_lazy, z_lazy = _lazy(columns, z)

    def squares(y, prediction):
        return prediction - y, np.ones(len(y))

    def distance(y, prediction):
        return "distance", float(np.mean(np.abs(y - prediction))), False

    given = {"eval_metric": distance}
    given["callbacks"] = [lightgbm.reset_parameter(learning_rate=lambda i: 0.2 * 0.9**i)]
    ours = LGBMRegressor(**SHARED | {"objective": squares}).fit(
        X_lazy, z_lazy, X_val=X_lazy[:300], y_val=z_lazy[:300], **given
    )
    theirs = ours._plain().fit(columns, z, eval_X=columns[:300], eval_y=z[:300], **given)
    _assert_equal(ours, theirs, columns)
    np.testing.assert_allclose(
        ours.evals_result_["valid_0"]["distance"], theirs.evals_result_["valid_0"]["distance"]
    )
    with pytest.raises(ValueError, match="X_val"):
        ours.fit(X_lazy, z_lazy, X_val=columns, y_val=z, eval_set=[(columns, z)])


def _death_at(number, directory):
    """Return a callback by which the first rank dies that reaches a round, once."""
    return LightGBMCallback(Deaths([Death(number, None, "rank")], directory))


def _fit_of(columns, kind, directory=None):
    """Return a fit of a kind of target; with a directory a rank dies in it."""
    factory, target, options = TARGETS.get(kind, TARGETS["mean"])
    z = _signal(columns)
    X_lazy, y = _lazy(_with_gaps(columns), target(z))
    given = {"init_score": _lazy(z / 3)[0]} if kind == "init_score" else {}
    options = SHARED | options | ({"objective": "l1"} if kind == "l1" else {})
    if directory is not None:
        given["callbacks"] = [_death_at(8, directory)]
    return factory(**options, checkpoint_interval=3).fit(X_lazy, y, **given)


@pytest.fixture(scope="module")
def undisturbed(cluster_client, small_rows_on_ranks, columns):
    """A function that returns the fit of a kind of target in which no rank dies."""

    @cache
    def undisturbed_fit(kind):
        with small_rows_on_ranks(), cluster_client.as_current():
            return _fit_of(columns, kind)

    return undisturbed_fit


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ("integers", "binary"),
        *(
            pytest.param("continuous", kind, marks=pytest.mark.slow)
            for kind in ("classes", "mean", "init_score", "l1")
        ),
    ],
    indirect=["columns"],
)
def test_a_lost_rank_changes_no_bit(fleet, columns, kind, undisturbed, tmp_path):
    expected, model = undisturbed(kind), _fit_of(columns, kind, tmp_path)
    assert list(tmp_path.glob("death-*"))
    assert model.booster_.model_to_string() == expected.booster_.model_to_string()
    assert model.n_estimators_ == expected.n_estimators_ == 12


@pytest.mark.slow
def test_a_lost_rank_with_categories_and_stopping(fleet, tmp_path):
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
        for killer in ([], [_death_at(5, tmp_path)])
    ]
    assert list(tmp_path.glob("death-*"))
    assert fits[0].best_iteration_ == fits[1].best_iteration_
    assert fits[0].evals_result_ == fits[1].evals_result_
    assert (fits[0].predict(frame) == fits[1].predict(frame)).all()


def test_training_goes_on_from_a_model(fleet, columns):
    z = _signal(columns)
    first = LGBMRegressor(**SHARED).fit(columns, z)
    ours = LGBMRegressor(**SHARED).fit(*_lazy(columns, z), init_model=first)
    theirs = ours._plain().fit(columns, z, init_model=first.to_sklearn())
    _assert_equal(ours, theirs, columns)
    assert ours.n_estimators_ == theirs.n_estimators_ == 24


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
@on_integers
@pytest.mark.slow
def test_random_draws_and_limits_on_rows_cost_nothing(fleet, columns, options):
    z = _signal(columns)
    y = np.where(z > 0.4, "yes", "no")
    ours = LGBMClassifier(**SHARED | options).fit(*_lazy(columns, y))
    theirs = ours._plain().fit(columns, y)
    aucs = [roc_auc_score(y, m.predict_proba(columns)[:, 1]) for m in (ours, theirs)]
    assert abs(aucs[0] - aucs[1]) < 0.02


def test_plain_estimators(fleet, columns, undisturbed):
    ours, X = undisturbed("binary"), _with_gaps(columns)
    y = TARGETS["binary"][1](_signal(columns))
    _assert_equal(ours, ours._plain().fit(X, y), X)
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
def test_errors_before_work(fleet, options, error, message):
    X, y = _lazy(np.ones((20, 2)), np.arange(20.0))
    with pytest.raises(error, match=message):
        LGBMRegressor(**{"verbosity": -1} | options).fit(X, y)


def test_errors_of_rows(fleet):
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
