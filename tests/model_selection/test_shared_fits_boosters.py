"""XGBoost and LightGBM: fits of fewer rounds come out of that of the most."""

import numpy as np
import pytest
import sklearn.model_selection as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier, LGBMRegressor
from reference_search import compare, grid_search
from sklearn.datasets import make_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier, XGBRegressor

from random_examples import n_examples
from skfleet.estimators import boosting
from skfleet.model_selection._dispatch import _scheduler
from skfleet.model_selection._dispatch._routes import _on_workers

X, y = make_classification(120, 5, n_informative=5, n_redundant=0, n_classes=3, random_state=0)
target = X[:, 0] * X[:, 1] + X[:, 2]


class OwnRegressor(boosting.XGBRegressor):
    """A subclass outside of the package."""


MODELS = {
    "xgb": (XGBClassifier(n_jobs=1), y),
    "xgb, binary": (XGBClassifier(n_jobs=1, objective="binary:logistic"), y > 0),
    "xgb, regression": (XGBRegressor(n_jobs=1), target),
    "lgbm": (LGBMClassifier(n_jobs=1), y),
    "lgbm, names": (LGBMClassifier(n_jobs=1), np.array(["a", "b", "c"])[y]),
    "lgbm, regression": (LGBMRegressor(n_jobs=1), target),
    "lgbm, silent": (LGBMClassifier(n_jobs=1, verbose=-1), y),
    "our xgb, names": (boosting.XGBClassifier(n_jobs=1), np.array(["a", "b", "c"])[y]),
    "our xgb, binary": (boosting.XGBClassifier(n_jobs=1), y > 0),
    "our xgb, regression": (boosting.XGBRegressor(n_jobs=1, timeout=60), target),
    "our lgbm, names": (boosting.LGBMClassifier(n_jobs=1), np.array(["a", "b", "c"])[y]),
    "our lgbm, regression": (boosting.LGBMRegressor(n_jobs=1, max_retries=1), target),
}


@pytest.fixture(scope="module", autouse=True)
def _long_batches(one_thread):
    with pytest.MonkeyPatch.context() as patch:
        # What a slow machine shares out anew may be made twice, and fits are counted here; nor is
        # what takes long to be parted.
        patch.setattr(_on_workers, "SLOW_BATCH_SECONDS", 60.0)
        patch.setattr(_scheduler, "_FIRST_BATCH_SECONDS", 60.0)
        patch.setattr(_scheduler, "_MIN_BATCH_SECONDS", 60.0)
        patch.setattr(_scheduler, "_MAX_BATCH_SECONDS", 60.0)
        yield


def use_of(model, grid, targets, **params):
    """Return how a search used the one shared fit, once its scores are scikit-learn's."""
    (use,) = compare(model, grid, X, targets, cv=2, **params).shared_fits_
    return use


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_separate_fits(name):
    model, targets = MODELS[name]
    scoring = "neg_mean_squared_error" if "regression" in name else "neg_log_loss"
    use = use_of(model, {"n_estimators": [2, 9, 5]}, targets, scoring=scoring)
    assert (use.n_fits, use.n_saved, use.refused) == (6, 4, None)


@settings(max_examples=n_examples(6, 15), deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4, unique=True),
    share=st.sampled_from([1.0, 0.6]),
    depth=st.sampled_from([1, 3]),
    seed=st.sampled_from([None, 0, 7]),
    in_pipeline=st.booleans(),
)
def test_rounds_at_random(name, sizes, share, depth, seed, in_pipeline):
    model, targets = MODELS[name]
    own = {"subsample_freq": 1, "min_child_samples": 2} if name.startswith("lgbm") else {}
    model = type(model)(n_jobs=1, subsample=share, max_depth=depth, random_state=seed, **own)
    grid = {"n_estimators": sizes}
    if in_pipeline:
        model = make_pipeline(StandardScaler(), model)
        grid = {f"{model.steps[-1][0]}__n_estimators": sizes}
    use = use_of(model, grid, targets)
    assert use.n_saved == 2 * (len(sizes) - 1)


@pytest.mark.parametrize(
    "name",
    [
        *("xgb", "lgbm", "lgbm, names", "xgb, regression"),
        *("our xgb, names", "our xgb, regression", "our lgbm, names"),
    ],
)
def test_fitted_models_are_as_if_alone(name):
    model, targets = MODELS[name]
    seen = {}

    def look(fitted, rows, targets):
        seen.setdefault(fitted.n_estimators, fitted)
        return 0.0

    grid_search(
        model, {"n_estimators": [3, 6]}, X, targets, cv=2, scoring=look, return_train_score=False
    )
    for size, fitted in seen.items():
        alone = type(model)(**{**model.get_params(), "n_estimators": size})
        train, _ = next(
            reference.check_cv(2, targets, classifier="reg" not in name).split(X, targets)
        )
        alone.fit(X[train], targets[train])
        np.testing.assert_array_equal(fitted.predict(X), alone.predict(X))
        assert fitted.n_features_in_ == 5
        if hasattr(alone, "predict_proba"):
            np.testing.assert_array_equal(fitted.classes_, alone.classes_)
            np.testing.assert_array_equal(fitted.predict_proba(X), alone.predict_proba(X))


@pytest.mark.parametrize(
    ("name", "quiet"),
    [
        ("lgbm", {"verbose": -1}),
        ("lgbm", {"verbosity": -1, "force_col_wise": True}),
        ("lgbm, regression", {"verbose": 0, "force_row_wise": True}),
        ("xgb", {"verbosity": 0}),
    ],
)
def test_what_is_printed_is_no_reason_against(name, quiet):
    model, targets = MODELS[name]
    use = use_of(type(model)(n_jobs=1, **quiet), {"n_estimators": [2, 9, 5]}, targets)
    assert (use.n_fits, use.n_saved, use.refused) == (6, 4, None)


@pytest.mark.parametrize("kind", [boosting.XGBClassifier, boosting.LGBMClassifier])
def test_checkpoints_are_refused_with_the_reason(kind):
    model = kind(n_jobs=1, checkpoint="fit")
    with pytest.raises(ValueError, match="checkpoint must be None for rows of this process"):
        grid_search(model, {"n_estimators": [2, 4]}, X, y, cv=2)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (XGBClassifier(booster="dart"), "booster must be 'gbtree'"),
        (XGBClassifier(booster="gblinear"), "booster must be 'gbtree'"),
        (XGBClassifier(max_leafs=3), "Got max_leafs besides"),
        (LGBMClassifier(boosting_type="dart"), "boosting_type must be 'gbdt'"),
        (LGBMClassifier(boosting_type="rf", subsample=0.5, subsample_freq=1), "must be 'gbdt'"),
        (LGBMClassifier(extra_trees=True), "Got extra_trees besides"),
        (LGBMClassifier(random_state=np.random.RandomState(0)), "random_state must be an integer"),
        (boosting.XGBClassifier(booster="dart"), "booster must be 'gbtree'"),
        (boosting.XGBClassifier(max_leafs=3), "Got max_leafs besides"),
        (OwnRegressor(), "must be a XGBRegressor itself. Got a subclass"),
    ],
)
def test_what_might_differ_is_fitted_by_itself(model, word):
    use = grid_search(
        model.set_params(n_jobs=1), {"n_estimators": [2, 4]}, X, y, cv=2
    ).shared_fits_[0]
    assert word in use.refused
    assert use.n_saved == 0
