"""Pipelines whose scores follow from sums over the rows: equal to scikit-learn's, or refused."""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_search import compare, grid_search
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, Ridge
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVR

from random_examples import n_examples
from skfleet import estimators
from skfleet.engine import counting
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.usefixtures("one_thread")

ALPHAS = {"ridge__alpha": [0.01, 1.0, 100.0]}


def rows_of(n=400, seed=0):
    """Return rows of numbers, categories and gaps, and their targets."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(50, 3, n),
            "time": rng.exponential(3, n),
            "count": rng.integers(0, 9, n),
            "kind": rng.choice(["oak", "ash", "elm"], n),
            "site": pd.Series(rng.choice(list("ABCDEF"), n)).astype("category"),
        }
    )
    y = frame["size"] - frame["time"] + (frame["kind"] == "elm") * 3 + rng.normal(size=n)
    return frame, y.to_numpy()


def with_gaps(frame, names=("size", "time"), share=0.1, seed=1):
    rng = np.random.default_rng(seed)
    return frame.assign(
        **{name: frame[name].mask(rng.random(len(frame)) < share) for name in names}
    )


FRAME, y = rows_of()
NUMBERS = FRAME[["size", "time", "count"]]
GAPS = with_gaps(NUMBERS)
MIXED = with_gaps(FRAME)
# categories that are only in the last rows
MANY = np.random.default_rng(1).normal(size=(len(NUMBERS), 70))  # 2,485 products
RARE = FRAME[["site"]].astype(str)
RARE[-3:] = "rare"
dense = {"sparse_output": False}
dense_encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
NO_KIND = with_gaps(FRAME, ["kind", "site"], seed=2)
most_frequent = SimpleImputer(strategy="most_frequent")
filled = make_column_transformer((make_pipeline(most_frequent, dense_encoder), ["kind", "site"]))
imputed = make_pipeline(SimpleImputer(), StandardScaler())
mixed = make_column_transformer((imputed, ["size", "time"]), (dense_encoder, ["kind", "site"]))
by_dtype = make_column_transformer(
    (SimpleImputer(), make_column_selector(dtype_include=np.number)),
    (OneHotEncoder(drop="first", sparse_output=False), make_column_selector(pattern="kind|site")),
)
crossed = make_column_transformer(
    (make_pipeline(StandardScaler(), PolynomialFeatures(4)), ["time", "count"]),
    (imputed, ["size"]),
    (dense_encoder, ["kind"]),
)
remainder_scaled = make_column_transformer((StandardScaler(), [0]), remainder=MinMaxScaler())


def repr_of(value):
    """Return the name of a case: its steps."""
    return " ".join(type(v).__name__ for v in value) if isinstance(value, list) else None


def is_scored(search):
    """Return whether all scores are from sums: there was no fit to be timed."""
    return search.timeline_.empty


def reason_of(search):
    """Return why a pipeline's fits were made."""
    (use,) = [use for use in search.shared_fits_ if use.estimator == "Pipeline"]
    assert use.n_saved == 0
    return use.refused


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ([StandardScaler()], NUMBERS),
        ([StandardScaler(with_mean=False)], NUMBERS.to_numpy()),
        ([StandardScaler(with_std=False), "passthrough", MaxAbsScaler()], NUMBERS),
        ([MinMaxScaler((-1, 3)), StandardScaler()], NUMBERS + 1e4),
        ([MaxAbsScaler()], -NUMBERS),
        ([SimpleImputer(), StandardScaler()], GAPS),
        ([SimpleImputer(strategy="constant", fill_value=-1)], GAPS),
        ([SimpleImputer(), MinMaxScaler()], GAPS.to_numpy()),
        ([StandardScaler(), PCA(2)], NUMBERS),
        ([SimpleImputer(), PCA(whiten=True)], GAPS),
        ([dense_encoder], FRAME[["kind", "site"]]),
        ([OneHotEncoder(drop="if_binary", sparse_output=False)], FRAME[["kind"]].to_numpy()),
        ([OneHotEncoder(max_categories=3, **dense)], FRAME[["site", "kind"]]),
        ([OneHotEncoder(min_frequency=0.17, drop="first", **dense)], FRAME[["site"]]),
        ([OneHotEncoder(min_frequency=50, handle_unknown="infrequent_if_exist", **dense)], RARE),
        ([OneHotEncoder(max_categories=4, handle_unknown="ignore", **dense)], RARE),
        ([OneHotEncoder(drop=["oak", "C"], **dense)], FRAME[["kind", "site"]]),
        (
            [
                OneHotEncoder(
                    categories=[["elm", "oak"], list("FEDC")], handle_unknown="ignore", **dense
                )
            ],
            FRAME[["kind", "site"]],
        ),
        ([OneHotEncoder(categories=[range(12)], **dense)], FRAME[["count"]].to_numpy()),
        ([filled], NO_KIND),
        (
            [SimpleImputer(strategy="most_frequent"), dense_encoder],
            with_gaps(FRAME[["count"]], ["count"]),
        ),
        ([SimpleImputer(strategy="constant", fill_value="oak"), dense_encoder], NO_KIND[["kind"]]),
        (
            [SimpleImputer(strategy="constant", fill_value="?"), dense_encoder],
            NO_KIND[["kind", "site"]],
        ),
        ([mixed], MIXED),
        ([mixed], MIXED.assign(size=MIXED["size"] + 1e5)),
        ([by_dtype, StandardScaler()], MIXED),
        ([make_column_transformer((MinMaxScaler(), [1]), remainder="passthrough")], NUMBERS),
        ([make_column_transformer(("drop", ["count"]), remainder=MaxAbsScaler())], NUMBERS),
        ([estimators.StandardScaler(), estimators.PCA(2)], NUMBERS),
        ([PolynomialFeatures()], NUMBERS.to_numpy()),
        ([StandardScaler(), PolynomialFeatures(3, include_bias=False)], NUMBERS + 1e3),
        ([MinMaxScaler(), PolynomialFeatures((2, 3), interaction_only=True)], NUMBERS),
        ([StandardScaler(), PCA(2), PolynomialFeatures(3), StandardScaler()], NUMBERS),
        ([PolynomialFeatures(2, interaction_only=True), PolynomialFeatures(2)], NUMBERS / 50),
        ([crossed, StandardScaler()], with_gaps(FRAME, ["size"])),
        ([remainder_scaled, PolynomialFeatures()], NUMBERS),
        ([estimators.StandardScaler(), estimators.PolynomialFeatures()], NUMBERS),
    ],
    ids=repr_of,
)
def test_scores_are_those_of_the_fits(steps, rows):
    pipeline = Pipeline([*((f"step{i}", step) for i, step in enumerate(steps)), ("ridge", Ridge())])
    search = compare(pipeline, ALPHAS, rows, y, rtol=1e-9, cv=4, return_train_score=True)
    assert is_scored(search)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("last", "grid"),
    [
        (LinearRegression(), {"fit_intercept": [True, False]}),
        (Lasso(tol=1e-10), {"alpha": [0.01, 0.1]}),
        (ElasticNet(tol=1e-10), {"alpha": [0.01, 0.1], "l1_ratio": [0.2, 0.8]}),
        (estimators.Ridge(), {"alpha": [0.1, 1.0]}),
    ],
    ids=["ols", "lasso", "elastic net", "own ridge"],
)
@pytest.mark.parametrize("scoring", ["r2", ["neg_mean_absolute_error", "neg_max_error"]])
def test_models_and_scores(last, grid, scoring):
    pipeline = Pipeline([("scale", by_dtype), ("again", StandardScaler()), ("model", last)])
    grid = {f"model__{name}": values for name, values in grid.items()}
    options = {"scoring": scoring, "refit": False, "cv": 3}
    search = compare(pipeline, grid, MIXED, y, rtol=1e-7, **options)
    assert is_scored(search)
    with counting() as counts:
        grid_search(pipeline, grid, MIXED, y, return_train_score=False, **options)
    assert counts.passes == (1 if scoring == "r2" else 2)


def test_parameters_of_steps_are_searched_over():
    pipeline = Pipeline([("columns", by_dtype), ("scale", StandardScaler()), ("ridge", Ridge())])
    grid = ALPHAS | {
        "scale__with_mean": [True, False],
        "columns__onehotencoder__drop": [None, "first"],
        "columns__simpleimputer__strategy": ["mean", "constant"],
    }
    with counting() as counts:
        search = compare(pipeline, grid, MIXED, y, rtol=1e-9, cv=3)
    assert is_scored(search)
    assert counts.passes == 1


@pytest.mark.parametrize(
    "grid",
    [
        {"scale__with_mean": [True, False], "scale__with_std": [True, False]},
        {"pca__n_components": [1, 2, 3]},
        {"pca": [PolynomialFeatures()], "pca__degree": [1, 2, 3]},
        {"scale": [StandardScaler(), MinMaxScaler(), "passthrough"], "ridge__alpha": [0.1, 10.0]},
        {"ridge": [Ridge(), Lasso(alpha=0.01, tol=1e-10), LinearRegression()]},
        [
            {"ridge": [Lasso(tol=1e-10)], "ridge__alpha": [0.01, 0.1], "pca": [None]},
            {"scale": [MaxAbsScaler()], "ridge__alpha": [1.0]},
            {"steps": [[("scale", StandardScaler()), ("ols", LinearRegression())]]},
        ],
        {
            "scale": [
                StandardScaler(),
                make_column_transformer((dense_encoder, [2]), (MinMaxScaler(), [1])),
            ]
        },
    ],
    ids=["parameters", "components", "degrees", "scalers", "models", "grids", "columns"],
)
def test_grids_over_steps(grid):
    pipeline = Pipeline([("scale", StandardScaler()), ("pca", PCA(2)), ("ridge", Ridge())])
    with counting() as counts:
        search = compare(pipeline, grid, NUMBERS, y, rtol=1e-8, cv=3)
    assert is_scored(search)
    assert counts.passes == 1
    (use,) = search.shared_fits_
    n_candidates = len(search.cv_results_["params"])
    assert use[2:] == (3 * n_candidates, 3 * n_candidates - 3, None)


def test_candidates_that_are_no_algebra_are_fitted_next_to_others():
    pipeline = Pipeline([("scale", StandardScaler()), ("ridge", Ridge())])
    grid = {
        "scale": [StandardScaler(), FunctionTransformer(np.log1p)],
        "ridge": [Ridge(), Lasso(), SVR(), Ridge(solver="svd")],
    }
    search = compare(pipeline, grid, abs(NUMBERS), y, rtol=1e-8, cv=3)
    uses = [use for use in search.shared_fits_ if use.estimator == "Pipeline"]
    assert [use.n_fits for use in uses if use.refused is None] == [6]
    assert len(search.timeline_) == 18
    reasons = " ".join(use.refused for use in uses if use.refused)
    for word in ("Got FunctionTransformer", "Got SVR", "Got 'svd'"):
        assert word in reasons


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"scoring": "neg_median_absolute_error"}, "scoring must be of"),
        ({"fit_params": {"ridge__sample_weight": 2.0}}, "sample_weight"),
    ],
    ids=["scoring", "weights"],
)
def test_searches_that_need_more_than_sums(params, reason):
    pipeline = make_pipeline(StandardScaler(), Ridge())
    search = compare(pipeline, ALPHAS, NUMBERS, y, rtol=1e-9, **params)
    assert reason in reason_of(search)
    ridge = [use for use in search.shared_fits_ if use.estimator == "Ridge"]
    assert [(use.n_fits, use.n_saved, use.refused) for use in ridge] == [(9, 6, None)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("steps", "rows", "reason"),
    [
        ([SimpleImputer(strategy="median")], GAPS, "strategy must be"),
        ([SimpleImputer(add_indicator=True)], GAPS, "indicate"),
        ([MinMaxScaler(clip=True)], NUMBERS, "clip"),
        ([PCA(2), MinMaxScaler()], NUMBERS, "before they are combined"),
        ([OneHotEncoder()], FRAME[["kind", "site"]], "rows must be dense"),
        ([dense_encoder], NO_KIND[["kind"]], "must not be missing"),
        ([make_column_transformer((StandardScaler(), lambda X: ["size"]))], NUMBERS, "by name"),
        ([SimpleImputer(), dense_encoder], GAPS[["size"]], "strategy must be"),
        (
            [dense_encoder],
            NO_KIND[["kind"]].astype(object).where(NO_KIND[["kind"]].notna(), None),
            "must be NaN",
        ),
        ([OneHotEncoder(handle_unknown="warn", sparse_output=False)], RARE, "in the training set"),
        ([StandardScaler()], NUMBERS.astype(np.float32), "float64"),
        ([PCA(0.9)], NUMBERS, "n_components"),
        ([PCA(2, whiten=True), PCA(2)], NUMBERS, "must differ"),
        ([SimpleImputer(), PolynomialFeatures()], GAPS, "numbers without gaps"),
        ([dense_encoder, PolynomialFeatures()], FRAME[["kind"]], "numbers without gaps"),
        ([PolynomialFeatures()], MANY, "products must be at most 2000"),
        ([PolynomialFeatures(2), MinMaxScaler()], NUMBERS, "before they are combined"),
        ([StandardScaler()], NUMBERS + 1e7, "vary more"),
    ],
    ids=repr_of,
)
def test_refused(steps, rows, reason):
    pipeline = Pipeline([*((f"step{i}", step) for i, step in enumerate(steps)), ("ridge", Ridge())])
    search = compare(pipeline, ALPHAS, rows, y, rtol=1e-9, cv=3)
    assert not is_scored(search)
    assert reason in reason_of(search)


def test_sparse_rows_of_another_solver_are_refused():
    rows = FRAME[["kind", "site"]]
    early = make_pipeline(OneHotEncoder(), Ridge(tol=1e-12, max_iter=1))
    assert not is_scored(compare(early, ALPHAS, rows, y, rtol=1e-9, cv=3))
    # scikit-learn has no intercept of sparse rows there
    search = GridSearchCV(early.set_params(ridge__solver="cholesky"), ALPHAS, cv=3, refit=False)
    with pytest.raises(ValueError, match="fits failed"):
        search.fit(rows, y)


def test_steps_that_are_no_algebra_are_fitted():
    pipeline = Pipeline([("log", FunctionTransformer(np.log1p)), ("ridge", Ridge())])
    search = compare(pipeline, ALPHAS, abs(NUMBERS), y, rtol=1e-9, cv=3)
    assert not is_scored(search)
    assert "Got FunctionTransformer" in reason_of(search)


def test_too_many_categories():
    rows = pd.DataFrame({"site": np.arange(2100) % 2050})
    pipeline = make_pipeline(dense_encoder, Ridge())
    search = compare(pipeline, ALPHAS, rows, rows["site"] % 7, rtol=1e-9, cv=2)
    assert "at most 2000" in reason_of(search)


def test_a_category_that_is_only_tested():
    rows = pd.DataFrame({"kind": ["a", "b"] * 30 + ["c"] * 30})
    pipeline = make_pipeline(dense_encoder, Ridge())
    assert is_scored(compare(pipeline, ALPHAS, rows, y[:90], rtol=1e-9, cv=KFold(3)))
    strict = pipeline.set_params(onehotencoder__handle_unknown="error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(strict, ALPHAS, cv=KFold(3), refit=False).fit(rows, y[:90])
    assert "categories to test on" in reason_of(search)
    assert np.isnan(search.cv_results_["split2_test_score"]).all()


def test_a_column_that_is_missing_in_a_training_set():
    rows = NUMBERS[:90].to_numpy(dtype=float, copy=True)
    rows[:60, 0] = np.nan
    pipeline = make_pipeline(SimpleImputer(), Ridge())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cv = [(np.arange(60), np.arange(60, 90)), (np.arange(30, 90), np.arange(30))]
        search = compare(pipeline, ALPHAS, rows, y[:90], rtol=1e-9, cv=cv)
    assert not is_scored(search)
    assert "a value in every training set" in reason_of(search)


def test_dask_rows_in_one_pass(cluster_client):
    frame = pd.concat([MIXED] * 5, ignore_index=True)
    target = np.tile(y, 5) + np.arange(len(frame)) / 100
    pipeline = make_pipeline(mixed, Ridge())
    expected = reference.GridSearchCV(pipeline, ALPHAS, cv=4).fit(frame, target)
    lazy = dd.from_pandas(frame.assign(target=target), npartitions=8)
    with cluster_client.as_current(), counting() as counts:
        search = GridSearchCV(pipeline, ALPHAS, cv=4, refit=False)
        search.fit(lazy[list(frame)], lazy["target"])
    difference = search.cv_results_["mean_test_score"] - expected.cv_results_["mean_test_score"]
    assert np.abs(difference).max() < 1e-10
    assert counts.passes == 1


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ([SimpleImputer(), StandardScaler()], GAPS.to_numpy() + 1e4),
        ([StandardScaler(), PolynomialFeatures()], NUMBERS.to_numpy() + 1e3),
    ],
    ids=repr_of,
)
def test_dask_arrays_far_off_zero(cluster_client, steps, rows):
    pipeline = make_pipeline(*steps, Ridge())
    expected = reference.GridSearchCV(pipeline, ALPHAS, cv=4).fit(rows, y)
    ours = make_pipeline(
        *(getattr(estimators, type(step).__name__)() for step in steps), estimators.Ridge()
    )
    lazy = da.from_array(rows, chunks=((0, 150, 1, 0, 249), 3)), da.from_array(y, chunks=100)
    with cluster_client.as_current(), counting() as counts:
        search = GridSearchCV(ours, ALPHAS, cv=4, refit=False).fit(*lazy)
    difference = search.cv_results_["mean_test_score"] - expected.cv_results_["mean_test_score"]
    assert np.abs(difference).max() < 1e-10
    assert is_scored(search)
    assert counts.passes == 1


numeric_steps = st.lists(
    st.one_of(
        st.builds(StandardScaler, with_mean=st.booleans(), with_std=st.booleans()),
        st.builds(MinMaxScaler, feature_range=st.sampled_from([(0, 1), (-2, 5)])),
        st.builds(MaxAbsScaler),
        st.builds(PCA, n_components=st.sampled_from([1, 2, 3, None]), whiten=st.booleans()),
        st.builds(
            PolynomialFeatures,
            degree=st.sampled_from([1, 2, 3, (0, 2), (2, 3)]),
            interaction_only=st.booleans(),
            include_bias=st.booleans(),
        ),
    ),
    max_size=3,
).filter(lambda steps: sum(isinstance(step, PolynomialFeatures) for step in steps) < 2)
encoders = st.builds(
    OneHotEncoder,
    drop=st.sampled_from([None, "first", "if_binary", ["elm"]]),
    min_frequency=st.sampled_from([None, 2, 0.3, 0.35]),
    max_categories=st.sampled_from([None, 1, 2, 3]),
    handle_unknown=st.sampled_from(["ignore", "error", "infrequent_if_exist"]),
    sparse_output=st.booleans(),
)
models = st.sampled_from(
    [
        (Ridge(), {"alpha": [0.01, 10.0]}, 1e-10),
        (Ridge(tol=1e-13), {"alpha": [0.1, 10.0]}, 1e-10),
        (LinearRegression(), {"fit_intercept": [True, False]}, 1e-9),
        (Lasso(tol=1e-12, max_iter=10_000), {"alpha": [0.01, 0.3]}, 1e-7),
        (ElasticNet(tol=1e-12, max_iter=10_000), {"alpha": [0.01, 0.3]}, 1e-7),
    ]
)


@pytest.mark.slow
@settings(max_examples=n_examples(15, 300), deadline=None)
@given(
    numeric=numeric_steps,
    encoder=st.none() | encoders,
    model=models,
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shift=st.sampled_from([0.0, 1.0, 100.0, 1e4]),
    share=st.sampled_from([0.0, 0.05, 0.4]),
    cv=st.sampled_from([KFold(3), ShuffleSplit(2, random_state=0), KFold(4, shuffle=True)]),
    seed=st.integers(0, 1000),
)
def test_pipelines_at_random(numeric, encoder, model, scale, shift, share, cv, seed):
    last, grid, tolerance = model
    frame, target = rows_of(120 + seed % 100, seed)
    frame[["size", "time"]] = (frame[["size", "time"]] - 50) * scale + shift
    frame = with_gaps(frame, share=share, seed=seed)
    if share and encoder is not None:
        frame = with_gaps(frame, ["kind"], share=share, seed=seed + 1)
        encoder = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)
    steps = make_pipeline(*([SimpleImputer()] if share else []), *numeric, "passthrough")
    if encoder is None:
        pipeline = Pipeline([("numeric", steps), ("model", last)])
        frame = frame[["size", "time", "count"]]
        if cv is not None and isinstance(steps, Pipeline):
            pipeline = Pipeline([*steps.steps, ("model", last)])
    else:
        columns = make_column_transformer((steps, [0, 1, 2]), (encoder, ["kind"]))
        pipeline = Pipeline([("columns", columns), ("model", last)])
    grid = {f"model__{name}": values for name, values in grid.items()}
    if getattr(cv, "shuffle", False):
        cv = KFold(4, shuffle=True, random_state=seed)
    options = {"cv": cv, "refit": False, "scoring": "neg_mean_squared_error"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(pipeline, grid, **options)
        try:
            expected = reference.GridSearchCV(pipeline, grid, **options).fit(frame, target)
        except ValueError:  # all fits fail, as those of a PCA of sparse rows
            with pytest.raises(ValueError, match="fits failed"):
                search.fit(frame, target)
            return
        search.fit(frame, target)
    if not is_scored(search):  # fits may differ too, as of components with equal variances
        assert reason_of(search)
        return
    left, right = (s.cv_results_["mean_test_score"] for s in (search, expected))
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=1e-12)


def test_a_column_transformer_is_prepared_without_tasks(one_thread):
    frame, y = rows_of()
    columns = make_column_transformer((OneHotEncoder(), ["kind"]), (StandardScaler(), ["size"]))
    search = GridSearchCV(make_pipeline(columns, Ridge()), ALPHAS, refit=False)
    n_before = n_tasks(one_thread)
    search.fit(frame, y)
    assert sum(use.n_saved for use in search.shared_fits_) == 10
    assert n_tasks(one_thread) == n_before


def n_tasks(client):
    """Number of tasks that the scheduler has ended so far."""

    def count(dask_scheduler):
        return sum(entry[2] == "memory" for entry in dask_scheduler.transition_log)

    return client.run_on_scheduler(count)
