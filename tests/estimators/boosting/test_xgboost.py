"""XGBoost's estimators on ranks: the model is the plain library's on all rows."""

import logging
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xgboost
from sklearn.base import clone

from clusters import local_client
from skfleet import Fleet
from skfleet.engine import ObjectLostError, counting
from skfleet.estimators.boosting import XGBClassifier, XGBRanker, XGBRegressor
from skfleet.estimators.boosting._xgboost_rank import XGBoostJob, XGBoostRank
from skfleet.exceptions import FleetError, PlacementError
from skfleet.model_selection import GridSearchCV

ROUNDS = {"n_estimators": 12}


def chunked(values, size=250):
    return da.from_array(values, chunks=(size, *values.shape[1:]))


def frame_of(rows):
    X = pd.DataFrame(rows["X"], columns=list("abcdef"))
    X["kind"] = pd.Series(np.array(["u", "v", "w"])[np.arange(len(X)) % 3]).astype("category")
    return X.assign(y=rows["y"])


@pytest.fixture(params=["one rank", "two ranks"])
def fleet(request, on_ranks):
    """No client, which trains in this process; or two workers of a cluster in this process."""
    if request.param == "two ranks":
        request.getfixturevalue("cluster")
    return request.param


# Ranks of a cluster take seconds to start: what is hardly another thing there is slow.
slow_on_two_ranks = pytest.mark.parametrize(
    "fleet", ["one rank", pytest.param("two ranks", marks=pytest.mark.slow)], indirect=True
)


def test_regression_with_weights_and_margins(fleet, rows):
    X, y, weight, margin = (rows[name] for name in ("X", "y", "weight", "margin"))
    given = {"sample_weight": weight, "base_margin": margin}
    plain = xgboost.XGBRegressor(**ROUNDS).fit(X, y, **given)
    ours = XGBRegressor(**ROUNDS).fit(
        chunked(X), chunked(y, 170), sample_weight=chunked(weight), base_margin=margin
    )
    answer = ours.predict(chunked(X, 400))
    assert isinstance(answer, da.Array)
    assert np.abs(answer.compute() - plain.predict(X)).max() < 1e-5
    assert np.array_equal(ours.to_sklearn().predict(X), ours.predict(X))
    assert type(ours.to_sklearn()) is xgboost.XGBRegressor
    assert np.array_equal(ours.apply(chunked(X)).compute(), ours.apply(X))


@slow_on_two_ranks
def test_labels_of_any_kind_in_blocks_of_one_class(fleet, rows):
    order = np.argsort(rows["labels"], kind="stable")
    X, labels = rows["X"][order], rows["labels"][order]
    codes = np.unique(labels, return_inverse=True)[1]
    plain = xgboost.XGBClassifier(**ROUNDS).fit(X, codes)
    ours = XGBClassifier(**ROUNDS).fit(chunked(X, 100), chunked(labels, 100))
    assert np.abs(ours.predict_proba(X) - plain.predict_proba(X)).max() < 1e-6
    assert list(ours.classes_) == ["low", "mid", "top"]
    assert np.array_equal(ours.predict(chunked(X)).compute(), ours.classes_[plain.predict(X)])
    assert ours.score(chunked(X), chunked(labels)) == np.mean(ours.predict(X) == labels)
    again = pickle.loads(pickle.dumps(ours))
    assert np.array_equal(again.predict(X), ours.predict(X))


def test_frames_with_categories_filtered_and_of_unknown_length(fleet, rows):
    frame = frame_of(rows)
    lazy = dd.from_pandas(frame, npartitions=4)
    lazy = lazy.assign(kind=lazy["kind"].astype(str).astype("category"))  # of unknown categories
    lazy, frame = lazy[lazy["a"] < 40], frame[frame["a"] < 40]
    X, X_lazy = frame.drop(columns="y"), lazy.drop(columns="y")
    options = {**ROUNDS, "enable_categorical": True}
    plain = xgboost.XGBRegressor(**options).fit(X, frame["y"])
    ours = XGBRegressor(**options).fit(X_lazy, lazy["y"])
    assert list(ours.feature_names_in_) == list(X.columns)
    answer = ours.predict(X_lazy)
    np.testing.assert_allclose(answer.compute().to_numpy(), plain.predict(X), rtol=1e-5)
    assert list(answer.compute().index) == list(X.index)


@slow_on_two_ranks
def test_sparse_chunks(fleet, rows):
    X = sp.csr_matrix(np.nan_to_num(rows["X"]))
    lazy = chunked(X.toarray()).map_blocks(sp.csr_matrix)
    plain = xgboost.XGBRegressor(**ROUNDS).fit(X, rows["y"])
    ours = XGBRegressor(**ROUNDS).fit(lazy, chunked(rows["y"]))
    assert np.abs(ours.predict(lazy).compute() - plain.predict(X)).max() < 1e-5


@slow_on_two_ranks
def test_fewer_blocks_than_workers(fleet, rows):
    X, y = rows["X"], rows["y"]
    ours = XGBRegressor(**ROUNDS).fit(chunked(X, len(X)), chunked(y, len(y)))
    plain = xgboost.XGBRegressor(**ROUNDS).fit(X, y)
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-5


def test_queries_that_blocks_cut(fleet, rows):
    X, y, qid = rows["X"], rows["relevance"], rows["qid"]
    sizes = np.unique(qid, return_counts=True)[1]
    n_val = int(sizes[:20].sum())
    validation = {"eval_set": [(X[:n_val], y[:n_val])], "verbose": False}
    plain = xgboost.XGBRanker(**ROUNDS).fit(X, y, qid=qid, eval_qid=[qid[:n_val]], **validation)
    ours = XGBRanker(**ROUNDS).fit(
        chunked(X, 97), chunked(y), qid=chunked(qid, 300), eval_group=[sizes[:20]], **validation
    )
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-5
    assert ours.evals_result_ == plain.evals_result_


@slow_on_two_ranks
def test_queries_by_their_sizes(fleet, rows):
    X, y, qid = rows["X"], rows["relevance"], rows["qid"]
    sizes = np.unique(qid, return_counts=True)[1]
    plain = xgboost.XGBRanker(**ROUNDS).fit(X, y, qid=qid)
    ours = XGBRanker(**ROUNDS).fit(chunked(X), chunked(y), group=sizes)
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-5


@pytest.mark.parametrize("where", ["here", "one worker"])
def test_weights_of_queries_where_the_library_fits(cluster, rows, where):
    X, y, qid = rows["X"], rows["relevance"], rows["qid"]
    weights = np.random.default_rng(0).random(len(np.unique(qid))) + 0.1
    given = {"sample_weight": weights, "sample_weight_eval_set": [weights], "verbose": None}
    plain = xgboost.XGBRanker(**ROUNDS).fit(
        X, y, qid=qid, eval_set=[(X[::-1], y[::-1])], eval_qid=[qid], **given
    )
    ours = XGBRanker(**ROUNDS)
    evals = {"eval_set": [(X[::-1], y[::-1])], "eval_qid": [qid]}
    if where == "here":
        ours.fit(X, y, qid=qid, **evals, **given)
    else:
        ours.fit(chunked(X), chunked(y), qid=chunked(qid), **evals, **given)
    assert np.array_equal(ours.predict(X), plain.predict(X))
    assert ours.evals_result_ == plain.evals_result_


@slow_on_two_ranks
def test_early_stopping_of_a_continued_model(fleet, rows):
    X, y, noise = rows["X"], rows["y"], rows["noise"]
    start = xgboost.XGBRegressor(n_estimators=4).fit(X, y)
    options = {"n_estimators": 200, "early_stopping_rounds": 3, "eval_metric": "mae"}
    given = {"eval_set": [(X[:300], noise[:300])], "xgb_model": start, "verbose": False}
    plain = xgboost.XGBRegressor(**options).fit(X, y, **given)
    ours = XGBRegressor(**options).fit(chunked(X), chunked(y), **given)
    assert ours.best_iteration == plain.best_iteration
    assert ours.get_booster().num_boosted_rounds() == plain.get_booster().num_boosted_rounds()
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-4


@slow_on_two_ranks
def test_parameters_of_an_objective(fleet, rows):
    X, y = rows["X"], np.abs(rows["y"])
    options = {**ROUNDS, "objective": "reg:tweedie", "tweedie_variance_power": 1.3}
    plain = xgboost.XGBRegressor(**options).fit(X, y)
    ours = XGBRegressor(**options).fit(chunked(X), chunked(y))
    np.testing.assert_allclose(ours.predict(X), plain.predict(X), rtol=1e-4)


class UsersRegressor(XGBRegressor):
    """A subclass outside of the package."""


@slow_on_two_ranks
def test_subclasses_and_loaded_models(fleet, rows, tmp_path):
    X, y, labels = rows["X"], rows["y"], rows["labels"]
    expected = xgboost.XGBRegressor(**ROUNDS).fit(X, y).predict(X)
    assert np.array_equal(UsersRegressor(**ROUNDS).fit(X, y).predict(X), expected)
    lazy = UsersRegressor(**ROUNDS).fit(chunked(X), chunked(y))
    assert np.abs(lazy.predict(X) - expected).max() < 1e-5
    model = XGBClassifier(**ROUNDS).fit(chunked(X), chunked(labels))
    model.save_model(tmp_path / "model.ubj")
    loaded = XGBClassifier()
    loaded.load_model(tmp_path / "model.ubj")
    assert np.array_equal(loaded.predict_proba(chunked(X)).compute(), model.predict_proba(X))
    assert np.array_equal(model.classes_[loaded.predict(X)], model.predict(X))
    assert np.array_equal(loaded.fit(X, labels).classes_, np.unique(labels))


def test_ranks_in_threads_of_the_workers(cluster, on_ranks, rows, monkeypatch):
    """Those of GPU workers, which take arrays on their device as they are."""
    monkeypatch.setattr(XGBClassifier, "_has_gpu", lambda self: True)
    X, labels = rows["X"], rows["labels"]
    plain = xgboost.XGBClassifier(**ROUNDS).fit(X, np.unique(labels, return_inverse=True)[1])
    for _ in range(2):
        ours = XGBClassifier(**ROUNDS).fit(chunked(X), chunked(labels))
        assert np.abs(ours.predict_proba(X) - plain.predict_proba(X)).max() < 1e-6


def test_a_device_that_is_not_there(on_ranks, rows):
    X, y = chunked(rows["X"]), chunked(rows["y"])
    model = XGBRegressor(n_estimators=2, device="cuda")
    with (
        local_client(1, threads_per_worker=1, processes=False, resources={"GPU": 1}),
        pytest.raises(PlacementError, match="trained on 'cpu'"),
    ):
        model.fit(X, y)


def test_early_stopping_on_rows_in_other_containers(fleet, rows, capsys):
    X, y = rows["X"], rows["y"]
    options = {"n_estimators": 200, "early_stopping_rounds": 3, "eval_metric": ["mae", "rmse"]}
    evals = [(X[:300], rows["noise"][:300])]
    plain = xgboost.XGBRegressor(**options).fit(X, y, eval_set=[(X, y), *evals], verbose=5)
    printed = capsys.readouterr().out
    Xd, yd = chunked(X), chunked(y)
    ours = XGBRegressor(**options).fit(Xd, yd, eval_set=[(Xd, yd), *evals], verbose=5)
    assert ours.best_iteration == plain.best_iteration < 190
    assert ours.best_score == plain.best_score
    assert ours.get_booster().num_boosted_rounds() == plain.get_booster().num_boosted_rounds()
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-5
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in shown] == [
        p.split("\t")[0] for p in printed.splitlines()
    ]
    assert ours.evals_result_["validation_1"] == plain.evals_result_["validation_1"]


@slow_on_two_ranks
def test_a_lazy_evaluation_set(fleet, rows):
    X, y, noise = rows["X"], rows["y"], rows["noise"]
    options = {"n_estimators": 200, "early_stopping_rounds": 3, "eval_metric": "rmse"}
    plain = xgboost.XGBRegressor(**options).fit(X, y, eval_set=[(X[:300], noise[:300])], verbose=0)
    ours = XGBRegressor(**options).fit(
        chunked(X), chunked(y), X_val=chunked(X[:300], 90), y_val=noise[:300], verbose=0
    )
    assert ours.best_iteration == plain.best_iteration < 190
    assert ours.evals_result_ == plain.evals_result_


def squared_error(y_true, y_pred):
    return y_pred - y_true, np.ones_like(y_true)


def mean_absolute(y_true, y_pred):
    return float(np.abs(y_true - y_pred).mean())


def test_users_objective_metric_callbacks_and_continued_training(fleet, rows):
    X, y = rows["X"], rows["y"]
    rates = xgboost.callback.LearningRateScheduler([0.3] * 6 + [0.1] * 6)
    options = {**ROUNDS, "objective": squared_error, "eval_metric": mean_absolute}
    options["callbacks"] = [rates]
    start = xgboost.XGBRegressor(n_estimators=3).fit(X, y)
    Xd, yd = chunked(X), chunked(y)
    given = {"verbose": False, "xgb_model": start}
    plain = xgboost.XGBRegressor(**options).fit(X, y, eval_set=[(X, y), (X[:50], y[:50])], **given)
    ours = XGBRegressor(**options).fit(Xd, yd, eval_set=[(Xd, yd), (X[:50], y[:50])], **given)
    assert ours.get_booster().num_boosted_rounds() == 15
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-4
    for name in ("validation_0", "validation_1"):
        for metric, scores in plain.evals_result_[name].items():
            np.testing.assert_allclose(ours.evals_result_[name][metric], scores, rtol=1e-5)


def test_small_rows_are_fitted_on_one_worker(cluster, rows, caplog):
    X, labels = rows["X"], rows["labels"]
    codes = np.unique(labels, return_inverse=True)[1]
    evals = [(X[:100], labels[:100])]
    with caplog.at_level(logging.INFO, "skfleet.estimators"):
        ours = XGBClassifier(**ROUNDS).fit(
            chunked(X), chunked(labels), eval_set=evals, verbose=False
        )
    plain = xgboost.XGBClassifier(**ROUNDS).fit(X, codes)
    assert "fitted on one worker" in caplog.text
    assert np.array_equal(ours.predict_proba(X), plain.predict_proba(X))
    assert list(ours.evals_result_) == ["validation_0"]


def test_fits_at_once(cluster, on_ranks, rows):
    models = [XGBRegressor(n_estimators=5, max_depth=depth) for depth in (2, 3)]
    Xd, yd = chunked(rows["X"]), chunked(rows["y"])
    with ThreadPoolExecutor(len(models)) as pool:
        fits = [pool.submit(copy_context().run, model.fit, Xd, yd) for model in models]
        for fit in fits:
            fit.result(120)
    for model in models:
        plain = clone(model).fit(rows["X"], rows["y"])
        assert np.abs(model.predict(rows["X"]) - plain.predict(rows["X"])).max() < 1e-5


def test_a_search_over_rows_on_the_fleet(cluster, rows):
    search = GridSearchCV(XGBRegressor(n_estimators=3), {"max_depth": [2, 3]}, cv=2)
    plain = clone(search).fit(rows["X"], rows["y"])
    lazy = clone(search).fit(chunked(rows["X"]), chunked(rows["y"]))
    for name in ("mean_test_score", "split0_test_score"):
        np.testing.assert_allclose(lazy.cv_results_[name], plain.cv_results_[name], rtol=1e-5)


INVALID = {
    "foo": ({"foo": 1}, {}, TypeError),
    "greater equal to 0": ({"max_depth": -3}, {}, ValueError),
    "tree_method must be": ({"tree_method": "exact"}, {}, ValueError),
    "booster must be": ({"booster": "gblinear"}, {}, ValueError),
    "at least 1 validation": ({"early_stopping_rounds": 2}, {}, ValueError),
    "timeout must be": ({"timeout": 0}, {}, ValueError),
    "max_retries must be": ({"max_retries": -1}, {}, ValueError),
    "checkpoint_interval must be": ({"checkpoint_interval": 0}, {}, ValueError),
    "must have the columns": ({}, {"eval_set": [(np.ones((3, 2)), np.ones(3))]}, ValueError),
    "must come together": ({}, {"X_val": np.ones((3, 6))}, ValueError),
    "an entry for each": ({}, {"sample_weight_eval_set": [np.ones(3)]}, ValueError),
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_arguments_raise_before_any_task(cluster, rows, message):
    params, given, error = INVALID[message]
    with counting() as counts, pytest.raises(error, match=message):
        XGBRegressor(**params).fit(chunked(rows["X"]), chunked(rows["y"]), **given)
    assert counts.tasks == 0


def test_targets_and_labels_that_cannot_be_learned(fleet, rows):
    X, y, labels = chunked(rows["X"]), chunked(rows["y"]), chunked(rows["labels"])
    with pytest.raises(ValueError, match="y must have a finite value"):
        XGBRegressor().fit(X, da.where(y > 30, np.nan, y))
    with pytest.raises(ValueError, match="y must be numeric"):
        XGBRegressor().fit(X, labels)
    with pytest.raises(ValueError, match="labels of the training rows"):
        XGBClassifier().fit(X, labels, eval_set=[(rows["X"][:3], np.array(["low", "mid", "zzz"]))])
    with pytest.raises(ValueError, match="qid must be sorted"):
        XGBRanker().fit(X, chunked(rows["relevance"]), qid=chunked(rows["qid"][::-1].copy()))


def failing_metric(y_true, y_pred):
    raise ZeroDivisionError("of the user")


def test_an_error_of_the_user_is_raised_once(cluster, on_ranks, rows):
    X, y = chunked(rows["X"]), chunked(rows["y"])
    model = XGBRegressor(eval_metric=failing_metric, n_estimators=3)
    with pytest.raises(ZeroDivisionError, match="of the user"):
        model.fit(X, y, eval_set=[(X, y)], verbose=False)
    assert not hasattr(model, "_Booster")


class Sleep(xgboost.callback.TrainingCallback):
    """Rank 1 sleeps after its second round."""

    def after_iteration(self, model, epoch, evals_log):
        if epoch == 1 and xgboost.collective.get_rank() == 1:
            threading.Event().wait(60)
        return False


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_wait(cluster, on_ranks, rows):
    model = XGBRegressor(callbacks=[Sleep()], timeout=4, max_retries=0)
    with pytest.raises(FleetError, match="1 losses after round 0"):
        model.fit(chunked(rows["X"]), chunked(rows["y"]))


class Stop(xgboost.callback.TrainingCallback):
    """End training with an error after some rounds."""

    def after_iteration(self, model, epoch, evals_log):
        if epoch == 7:
            raise KeyError("the client died, say")
        return False


# On two ranks: test_client_kills.py.
def test_a_checkpoint_is_gone_on_from(on_ranks, rows, tmp_path):
    X, y = chunked(rows["X"]), chunked(rows["y"])
    options = {"n_estimators": 12, "checkpoint_interval": 3, "eval_metric": "mae"}
    evals = {"eval_set": [(rows["X"][:50], rows["y"][:50])], "verbose": False}
    undisturbed = XGBRegressor(**options).fit(X, y, **evals)
    options["checkpoint"] = str(tmp_path / "fit")
    with pytest.raises(KeyError, match="the client died"):
        XGBRegressor(callbacks=[Stop()], **options).fit(X, y, **evals)
    resumed = XGBRegressor(**options).fit(X, y, **evals)
    assert np.array_equal(resumed.predict(rows["X"]), undisturbed.predict(rows["X"]))
    assert resumed.evals_result_ == undisturbed.evals_result_
    with pytest.raises(ValueError, match="another rows"):
        XGBRegressor(**options).fit(X[:1000], y[:1000], **evals)
    with pytest.raises(ValueError, match="another rows"):
        XGBRegressor(**options).fit(X + 1, y, **evals)
    with pytest.raises(ValueError, match="another parameters"):
        XGBRegressor(max_depth=2, **options).fit(X, y, **evals)


@slow_on_two_ranks
def test_rows_that_do_not_fit_are_binned_on_the_disk(fleet, rows, monkeypatch, caplog):
    monkeypatch.setattr("skfleet.estimators.boosting._boosted_estimator.MEMORY_FRACTION", 1e-9)
    X, y = rows["X"], rows["y"]
    ours = XGBRegressor(**ROUNDS).fit(chunked(X), chunked(y))
    assert "do not fit into the memory" in caplog.text
    plain = xgboost.XGBRegressor(**ROUNDS).fit(X, y)
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-5


def test_fits_of_a_search_share_the_binned_rows(rows, monkeypatch):
    built = []
    build = xgboost.QuantileDMatrix.__init__

    def count(matrix, *args, **kwargs):
        built.append(kwargs.get("ref"))
        build(matrix, *args, **kwargs)

    monkeypatch.setattr(xgboost.QuantileDMatrix, "__init__", count)
    grid = {"max_depth": [2, 3, 4], "learning_rate": [0.1, 0.3]}
    with Fleet(n_workers=1, threads_per_worker=1, processes=False):
        searches = [
            GridSearchCV(cls(n_estimators=4), grid, cv=3, refit=False).fit(rows["X"], rows["y"])
            for cls in (XGBRegressor, xgboost.XGBRegressor)
        ]
    assert len(built) == 3 + 18
    scores = [search.cv_results_["mean_test_score"] for search in searches]
    assert np.array_equal(*scores)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*socket")
def test_a_rank_that_cannot_join_the_others_is_lost(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    tracker = {"dmlc_tracker_uri": "127.0.0.1", "dmlc_tracker_port": port}
    job = XGBoostJob({}, n_ranks=2, timeout=1, matrix={})
    with pytest.raises(ObjectLostError, match="XGBoost's network failed"):
        XGBoostRank(0).build(job, tracker, None, [], None, 0, None)
