"""The libraries' public behaviour: ours next to their own class, wherever a fit runs."""

import copy
import pickle
from contextlib import ExitStack

import dask.array as da
import dask.dataframe as dd
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.base import clone

from skfleet.estimators import boosting

pytestmark = pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")

PLACES = ["this process", "one worker", "one rank", "two ranks"]
LIBRARIES = {"XGBClassifier": xgboost, "LGBMClassifier": lightgbm}
# LightGBM's ranks estimate the numbers of rows: limits on them would refuse other splits.
FEW_ROUNDS = {
    "XGBClassifier": {"n_estimators": 6, "n_jobs": 1},
    "LGBMClassifier": {
        "n_estimators": 6,
        "n_jobs": 1,
        "min_child_samples": 1,
        "min_child_weight": 3,
        "verbosity": -1,
    },
}
STOPPED = {
    "XGBClassifier": {
        "enable_categorical": True,
        "early_stopping_rounds": 3,
        "eval_metric": "merror",
    },
    "LGBMClassifier": {"class_weight": {"low": 2.0}, "early_stopping_round": 3},
}
MANY_ROUNDS = {"n_estimators": 60, "learning_rate": 0.6}

BEHAVIOUR = {
    "predictions": lambda model, X: model.predict(X),
    "probabilities": lambda model, X: model.predict_proba(X),
    "classes_": lambda model, X: model.classes_,
    "n_classes_": lambda model, X: model.n_classes_,
    "n_features_in_": lambda model, X: model.n_features_in_,
    "feature_names_in_": lambda model, X: model.feature_names_in_,
    "feature_importances_": lambda model, X: model.feature_importances_,
    "pickle": lambda model, X: pickle.loads(pickle.dumps(model)).predict_proba(X),
    "set_params": lambda model, X: (
        copy.deepcopy(model).set_params(n_estimators=2, learning_rate=0.9).predict_proba(X)
    ),
}
BEHAVIOUR_XGBOOST = {
    "best_iteration": lambda model, X: model.best_iteration,
    "best_score": lambda model, X: model.best_score,
    "evals_result": lambda model, X: model.evals_result(),
    "rounds": lambda model, X: model.get_booster().num_boosted_rounds(),
    "margins": lambda model, X: model.predict(X, output_margin=True),
    "all rounds": lambda model, X: model.predict_proba(
        X, iteration_range=(0, model.get_booster().num_boosted_rounds())
    ),
    "base_margin": lambda model, X: model.predict_proba(X, base_margin=np.ones((len(X), 3)) / 9),
    "leaves": lambda model, X: model.apply(X),
    "contributions": lambda model, X: model.get_booster().predict(
        xgboost.DMatrix(X, enable_categorical=True), pred_contribs=True
    ),
    "gains": lambda model, X: model.get_booster().get_score(importance_type="total_gain"),
    "loaded model": lambda model, X: reloaded(model).predict_proba(X),
    "loaded best_iteration": lambda model, X: reloaded(model).best_iteration,
}
BEHAVIOUR_LIGHTGBM = {
    "best_iteration_": lambda model, X: model.best_iteration_,
    "best_score_": lambda model, X: model.best_score_,
    "evals_result_": lambda model, X: model.evals_result_,
    "n_estimators_": lambda model, X: model.n_estimators_,
    "objective_": lambda model, X: model.objective_,
    "feature_name_": lambda model, X: model.feature_name_,
    "rounds": lambda model, X: model.booster_.current_iteration(),
    "margins": lambda model, X: model.predict(X, raw_score=True),
    "all rounds": lambda model, X: model.predict_proba(X, num_iteration=-1),
    "leaves": lambda model, X: model.predict(X, pred_leaf=True),
    "contributions": lambda model, X: model.predict(X, pred_contrib=True),
    "gains": lambda model, X: model.booster_.feature_importance("gain"),
    "loaded model": lambda model, X: lightgbm.Booster(
        model_str=model.booster_.model_to_string()
    ).predict(X),
}
# SHAP values depend on the rows of each leaf, which LightGBM's ranks estimate.
DIFFERENT = {("LGBMClassifier", "two ranks"): ["contributions"]}


def reloaded(model):
    content = model.get_booster().save_raw("json")
    loaded = type(model)()
    loaded.load_model(content)
    return loaded


def fit(cls, place, X, y, weight):
    """Fit on rows in this process or on Dask."""
    options = {"verbose": False} if cls.__name__ == "XGBClassifier" else {}
    evals = [(X[:200], y[:200][::-1]), (X[200:300], y[200:300])]
    if place != "this process":
        X, y = dd.from_pandas(X, npartitions=5), dd.from_pandas(pd.Series(y), npartitions=5)
        weight = dd.from_pandas(pd.Series(weight), npartitions=5)
    model = cls(**FEW_ROUNDS[cls.__name__] | MANY_ROUNDS | STOPPED[cls.__name__])
    return model.fit(X, y, sample_weight=weight, eval_set=evals, **options)


@pytest.fixture(scope="module")
def frame(rows):
    kinds = pd.Categorical(np.array(["u", "v", "w"])[np.arange(len(rows["X"])) % 3])
    return pd.DataFrame(rows["X"], columns=list("abcdef")).assign(kind=kinds)


@pytest.fixture(scope="module", params=LIBRARIES)
def plain(request, frame, rows):
    """The library's own class, fitted; XGBoost's takes numbers of labels."""
    labels, library = rows["labels"], LIBRARIES[request.param]
    if library is xgboost:
        labels = np.unique(labels, return_inverse=True)[1]
    return fit(getattr(library, request.param), "this process", frame, labels, rows["weight"])


def is_alike(ours, theirs):
    """Return whether values are equal, numbers to the rounding of float32."""
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(is_alike(ours[k], theirs[k]) for k in theirs)
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if theirs.dtype.kind != "f" or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return ours.tolist() == theirs.tolist()
    return np.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", PLACES)
def test_behaviour_is_the_librarys(plain, place, frame, rows, cluster_client, request):
    name = type(plain).__name__
    with ExitStack() as stack:
        if place.endswith(("rank", "ranks")):
            request.getfixturevalue("on_ranks")
        if place in ("one worker", "two ranks"):
            stack.enter_context(cluster_client.as_current())
        ours = fit(getattr(boosting, name), place, frame, rows["labels"], rows["weight"])
    of_library = BEHAVIOUR_XGBOOST if LIBRARIES[name] is xgboost else BEHAVIOUR_LIGHTGBM
    different = []
    for behaviour, answer in {**BEHAVIOUR, **of_library}.items():
        expected = answer(plain, frame)
        if behaviour in ("predictions", "classes_") and LIBRARIES[name] is xgboost:
            expected = np.unique(rows["labels"])[expected]
        if not is_alike(answer(ours, frame), expected):
            different.append(behaviour)
    assert different == DIFFERENT.get((name, place), [])
    assert ours.classes_.tolist() == ["low", "mid", "top"]
    assert ours.get_params()["learning_rate"] == 0.6


STARTS = {
    "XGBClassifier": {"model": "xgb_model", "margins": "base_margin"},
    "LGBMClassifier": {"model": "init_model", "margins": "init_score"},
}


def lazy(values):
    return da.from_array(values, chunks=(300, *values.shape[1:]))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("start", ["model", "margins"])
def test_starts_of_several_classes(on_ranks, rows, name, start):
    X, labels, ours = rows["X"], rows["labels"], getattr(boosting, name)(**FEW_ROUNDS[name])
    if start == "model":
        first = ours.fit(lazy(X), lazy(labels))
        plain_start, our_start = first.to_sklearn(), first
    else:
        plain_start = np.random.default_rng(0).normal(size=(len(X), 3))
        our_start = lazy(plain_start)
    argument = STARTS[name][start]
    codes = np.unique(labels, return_inverse=True)[1]
    plain = ours._plain().fit(X, codes, **{argument: plain_start})
    fitted = clone(ours).fit(lazy(X), lazy(labels), **{argument: our_start})
    np.testing.assert_allclose(fitted.predict_proba(X), plain.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("name", LIBRARIES)
def test_decimals_are_no_labels(on_ranks, rows, name):
    model = getattr(boosting, name)(**FEW_ROUNDS[name])
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        model.fit(lazy(rows["X"]), lazy(rows["y"]))
    assert not model.__sklearn_is_fitted__()


def test_early_stopping_by_a_callback(on_ranks, rows):
    X, y, noise = rows["X"], rows["y"], rows["noise"]
    evals = [(X[:300], noise[:300]), (X[300:400], y[300:400])]
    params = {"n_estimators": 60, "n_jobs": 1, "eval_metric": ["mae", "rmse"]}
    fits = []
    for cls, wrap in ((xgboost.XGBRegressor, np.asarray), (boosting.XGBRegressor, _lazy)):
        options = {"metric_name": "mae", "data_name": "validation_0", "min_delta": 0.1}
        stop = xgboost.callback.EarlyStopping(rounds=3, **options)
        model = cls(**params, callbacks=[stop])
        fits.append(model.fit(wrap(X), wrap(y), eval_set=evals, verbose=False))
    plain, ours = fits
    assert ours.best_iteration == plain.best_iteration < 50
    assert ours.best_score == plain.best_score
    assert is_alike(ours.predict(X), plain.predict(X))


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "multiclass"},
        {"objective": "multiclassova"},
        {"metric": "auc_mu"},
        {"metric": ["multi_error", "softmax"]},
    ],
    ids=str,
)
def test_parameters_of_several_classes(on_ranks, rows, options):
    X, labels = rows["X"], rows["labels"]
    ours = boosting.LGBMClassifier(**FEW_ROUNDS["LGBMClassifier"], **options)
    evals = [(X[:300], labels[:300])]
    plain = ours._plain().fit(X, labels, eval_set=evals)
    ours.fit(lazy(X), lazy(labels), eval_set=evals)
    assert is_alike(ours.evals_result_, plain.evals_result_)
    assert is_alike(ours.predict_proba(X), plain.predict_proba(X))


@pytest.mark.parametrize("container", ["array", "frame"])
def test_names_of_categorical_columns(on_ranks, rows, frame, container):
    X, options = frame.fillna(dict.fromkeys("abcdef", 0)), {"categorical_feature": ["a", "kind"]}
    if container == "array":
        X = X[list("abcdef")].to_numpy()
        options = {"feature_name": list("uvwxyz"), "categorical_feature": ["u", 2]}
    Xd = lazy(X) if container == "array" else dd.from_pandas(X, npartitions=4)
    ours = boosting.LGBMRegressor(**FEW_ROUNDS["LGBMClassifier"])
    plain = ours._plain().fit(X, rows["y"], **options)
    ours.fit(Xd, lazy(rows["y"]), **options)
    assert ours.feature_name_ == plain.feature_name_
    assert is_alike(ours.booster_.predict(X), plain.booster_.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_draws_of_columns_are_the_same(cluster, on_ranks, rows, name):
    X, labels = rows["X"], np.unique(rows["labels"], return_inverse=True)[1]
    ours = getattr(boosting, name)(**FEW_ROUNDS[name], colsample_bytree=0.5, random_state=7)
    plain = ours._plain().fit(X, labels)
    ours.fit(lazy(X), lazy(labels))
    assert is_alike(ours.predict_proba(X), plain.predict_proba(X))


def _lazy(values):
    return da.from_array(values, chunks=(300, *values.shape[1:]))


def test_early_stopping_that_saves_the_best(on_ranks, rows):
    X, y, evals = rows["X"], rows["y"], [(rows["X"][:300], rows["noise"][:300])]
    fits = []
    for cls, wrap in ((xgboost.XGBRegressor, np.asarray), (boosting.XGBRegressor, _lazy)):
        stop = xgboost.callback.EarlyStopping(rounds=3, save_best=True)
        model = cls(n_estimators=60, n_jobs=1, callbacks=[stop])
        fits.append(model.fit(wrap(X), wrap(y), eval_set=evals, verbose=False))
    plain, ours = fits
    assert ours.get_booster().num_boosted_rounds() == plain.get_booster().num_boosted_rounds() < 57
    assert ours.best_iteration == plain.best_iteration
    np.testing.assert_allclose(ours.predict(X), plain.predict(X), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
@pytest.mark.parametrize("objective", ["cross_entropy", "cross_entropy_lambda"])
def test_starts_of_cross_entropy_on_sorted_rows(cluster, on_ranks, rows, objective, kind):
    order = np.argsort(rows["labels"] == "top", kind="stable")
    X, y = rows["X"][order], (rows["labels"] == "top")[order].astype(int)
    params = {"n_estimators": 6, "n_jobs": 1, "min_child_samples": 1, "min_child_weight": 3}
    params |= {"verbosity": -1, "objective": objective}
    plain = getattr(lightgbm, f"LGBM{kind}")(**params).fit(X, y)
    ours = getattr(boosting, f"LGBM{kind}")(**params).fit(_lazy(X), _lazy(y))
    expected = plain.predict(X, raw_score=True)
    np.testing.assert_allclose(ours.predict(X, raw_score=True), expected, atol=1e-5)


def test_small_rows_with_evaluation_rows_of_this_process(cluster, rows, caplog):
    X, y = (da.from_array(rows[k], chunks=(100, *rows[k].shape[1:])) for k in ("X", "y"))
    with caplog.at_level("INFO", "skfleet.estimators"):
        boosting.XGBRegressor(n_estimators=2, n_jobs=1).fit(
            X, y, eval_set=[(rows["X"][:50], rows["y"][:50])], verbose=False
        )
    assert "fitted on one worker" in caplog.text


@pytest.mark.parametrize("name", ["XGBRegressor", "LGBMRegressor"])
def test_a_checkpoint_of_rows_of_this_process(rows, tmp_path, name):
    model = getattr(boosting, name)(checkpoint=tmp_path)
    with pytest.raises(ValueError, match="checkpoint must be None for rows of this process"):
        model.fit(rows["X"], rows["y"])
