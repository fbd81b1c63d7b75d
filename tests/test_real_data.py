"""Real data sets, where they lie beside the checkout: the same answers as scikit-learn."""

from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import cluster, compose
from sklearn import linear_model as reference
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

from skfleet import estimators as ours_too
from skfleet.estimators import Incremental, KMeans, LogisticRegression, ParallelPostFit, Ridge

DATA = Path(__file__).parents[2] / "shared" / "data"

pytestmark = [
    pytest.mark.skipif(not DATA.exists(), reason="there is no folder of real data"),
    # models that were fitted to frames score arrays too
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
]


def _adult(name):
    columns = [
        "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
        "relationship", "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income",
    ]  # fmt: skip
    frame = pd.read_csv(DATA / f"adult-{name}.csv", names=columns, skipinitialspace=True)
    frame = frame[pd.to_numeric(frame["age"], errors="coerce").notna()]
    frame["age"] = frame["age"].astype(float)
    return frame.drop(columns="income"), frame["income"].str.strip(".").to_numpy(dtype=object)


@pytest.fixture(scope="module")
def adult():
    (X, y), (X_test, y_test) = _adult("train"), _adult("test")
    text = X.select_dtypes(exclude="number").columns
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
        remainder=StandardScaler(),
    ).fit(X)
    return encode.transform(X), y, encode.transform(X_test), y_test, X, encode


def test_census_income(adult):
    X, y, X_test, y_test, _, _ = adult
    theirs = reference.LogisticRegression(tol=1e-10, solver="newton-cholesky").fit(X, y)
    for rows, labels in _ways(X, y):
        ours = LogisticRegression(tol=1e-10).fit(rows, labels)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
        assert abs(ours.score(X_test, y_test) - theirs.score(X_test, y_test)) < 1e-6


def test_predictions_for_frames_with_text(adult):
    _, y, _, _, frame, encode = adult
    model = ParallelPostFit(make_pipeline(encode, reference.LogisticRegression(max_iter=200)))
    model.fit(frame, y)
    got = model.predict(dd.from_pandas(frame, npartitions=5)).compute()
    np.testing.assert_array_equal(got, model.estimator_.predict(frame))
    assert got.index.equals(frame.index)


def test_prices_of_diamonds():
    frame = pd.read_csv(DATA / "diamonds.csv")
    X, y = frame[["carat", "depth", "table", "x", "y", "z"]], frame["price"].astype(float)
    theirs = reference.Ridge(solver="cholesky").fit(X, y)
    lazy = dd.from_pandas(X, npartitions=6)
    for rows, target in ((X, y), (lazy, dd.from_pandas(y, npartitions=6))):
        ours = Ridge().fit(rows, target)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    assert abs(ours.score(lazy, dd.from_pandas(y, npartitions=6)) - theirs.score(X, y)) < 1e-9


def test_ham_and_spam():
    lines = (DATA / "sms.tsv").read_text(encoding="utf-8").splitlines()
    y, text = zip(*(line.split("\t", 1) for line in lines), strict=True)
    X, y = HashingVectorizer(n_features=2**16).fit_transform(text), np.array(y)
    cuts = [(low, min(low + 1000, len(y))) for low in range(0, len(y), 1000)]
    theirs = SGDClassifier(random_state=0)
    for low, high in cuts:
        theirs.partial_fit(X[low:high], y[low:high], classes=["ham", "spam"])
    ours = Incremental(SGDClassifier(random_state=0), shuffle=False, batch_size=1000).fit(X, y)
    np.testing.assert_array_equal(ours.estimator_.coef_, theirs.coef_)
    assert ours.score(X, y) > 0.97
    for shuffle in ("blocks", "rows"):
        ours = Incremental(SGDClassifier(random_state=0), shuffle=shuffle, random_state=0)
        assert (
            abs(ours.set_params(batch_size=1000).fit(X, y).score(X, y) - theirs.score(X, y))
            <= 0.002
        )


def _split(X, y):
    """The last fifth of the rows, in a drawn order, is for testing."""
    order = np.random.default_rng(0).permutation(len(y))
    cut = len(y) * 4 // 5
    X = X[order] if isinstance(X, np.ndarray) or sparse.issparse(X) else X.iloc[order]
    return X[:cut], y[order][:cut], X[cut:], y[order][cut:]


def _ways(X, y):
    """The same rows as NumPy, as a Dask array and as a Dask DataFrame."""
    yield X, y
    yield da.from_array(X, chunks=(2000, X.shape[1])), da.from_array(y, chunks=2000)
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    yield dd.from_pandas(frame, npartitions=5), dd.from_pandas(pd.Series(y), npartitions=5)


def _agree(name, X, y, X_test, y_test, *, tight=None, **settings):
    """Same coefficients and test scores as scikit-learn's to a tight tolerance."""
    theirs = getattr(reference, name)(**settings, **(tight or {})).fit(X, y)
    for rows, targets in _ways(X, y):
        known = {"tol": 1e-9} if "tol" in getattr(ours_too, name)().get_params() else {}
        ours = getattr(ours_too, name)(**settings | known).fit(rows, targets)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
        assert abs(ours.score(X_test, y_test) - theirs.score(X_test, y_test)) < 1e-6


TIGHT = {"tol": 1e-12, "max_iter": 10_000}


def test_linear_models_of_diamonds():
    frame = pd.read_csv(DATA / "diamonds.csv")
    frame = frame[(frame[["x", "y", "z"]] > 0).all(axis=1)]
    numbers = StandardScaler().fit_transform(frame[["carat", "depth", "table", "x", "y", "z"]])
    kinds = OneHotEncoder(drop="first", sparse_output=False).fit_transform(
        frame[["cut", "color", "clarity"]]
    )
    price = frame["price"].to_numpy(float) / 1000
    data = _split(np.hstack([numbers, kinds]), price)
    _agree("LinearRegression", *data)
    _agree("Ridge", *data, tight={"solver": "cholesky"})
    _agree("RidgeCV", *data, cv=5)
    _agree("Lasso", *data, alpha=0.01, tight=TIGHT)
    _agree("ElasticNet", *data, alpha=0.01, tight=TIGHT)
    # 1000 sweeps are too few, as for scikit-learn's
    _agree("ElasticNetCV", *data, alphas=20, max_iter=10_000, tight={"tol": 1e-12})
    _agree("GammaRegressor", *data, alpha=1e-3, tight=TIGHT | {"solver": "newton-cholesky"})


def test_rentals_of_bikes():
    frame = pd.read_csv(DATA / "bikeshare.csv", parse_dates=["datetime"])
    kinds = pd.DataFrame(
        {"hour": frame["datetime"].dt.hour, "season": frame["season"], "weather": frame["weather"]}
    )
    numbers = StandardScaler().fit_transform(frame[["temp", "atemp", "humidity", "windspeed"]])
    X = np.hstack([numbers, OneHotEncoder(drop="first", sparse_output=False).fit_transform(kinds)])
    count = frame["count"].to_numpy(float)
    newton = TIGHT | {"solver": "newton-cholesky"}
    for name, settings in (("PoissonRegressor", {}), ("TweedieRegressor", {"power": 1.5})):
        _agree(name, *_split(X, count), alpha=1e-3, tight=newton, **settings)


@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
def test_ham_and_spam_by_logistic_regression(l1_ratio):
    lines = (DATA / "sms.tsv").read_text(encoding="utf-8").splitlines()
    y, text = zip(*(line.split("\t", 1) for line in lines), strict=True)
    X = HashingVectorizer(n_features=2**14).fit_transform(text)
    X, y, X_test, y_test = _split(X, np.array(y))
    # liblinear penalises the intercept, and goes through the columns in a drawn order: with a
    # tolerance of 1e-6 some draws end 1e-4 from the optimum
    solver = {"solver": "liblinear", "fit_intercept": False, "random_state": 0}
    theirs = reference.LogisticRegression(l1_ratio=l1_ratio, tol=1e-8, max_iter=1000, **solver)
    theirs.fit(X, y)
    blocks = [dask.delayed(X[low : low + 1000]) for low in range(0, X.shape[0], 1000)]
    shapes = [(min(1000, X.shape[0] - low), X.shape[1]) for low in range(0, X.shape[0], 1000)]
    lazy = da.concatenate(
        [
            da.from_delayed(block, shape, meta=sparse.csr_matrix((0, 0)))
            for block, shape in zip(blocks, shapes, strict=True)
        ]
    )
    for rows in (X, lazy):
        ours = LogisticRegression(l1_ratio=l1_ratio, tol=1e-8, max_iter=1000, fit_intercept=False)
        ours.fit(rows, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        assert abs(ours.score(X_test, y_test) - theirs.score(X_test, y_test)) < 1e-6


@pytest.mark.slow
def test_census_income_with_columns_left_out(adult):
    X, y, X_test, y_test, _, _ = adult
    settings = {"C": 0.05, "l1_ratio": 1.0}
    theirs = reference.LogisticRegression(solver="saga", tol=1e-6, max_iter=2000, **settings)
    theirs.fit(X, y)
    for rows, labels in _ways(X, y):
        ours = LogisticRegression(**settings, tol=1e-8).fit(rows, labels)
        # a column for each sex: an L1 penalty does not mind which of them has how much
        here, there = (m.decision_function(X_test) for m in (ours, theirs))
        np.testing.assert_allclose(here, there, atol=2e-3)
        assert abs(ours.score(X_test, y_test) - theirs.score(X_test, y_test)) < 1e-4


def _averaged(seed=0):
    """A model whose accuracy is not that of its last step's noise."""
    return SGDClassifier(alpha=1e-3, average=True, random_state=seed)


def _in_100_blocks(X, y):
    size = -(-len(y) // 100)
    return da.from_array(X, chunks=(size, X.shape[1])), da.from_array(y, chunks=size)


@pytest.mark.slow
def test_census_income_learned_block_by_block(adult):
    X, y, X_test, y_test, _, _ = adult
    rows, labels = _in_100_blocks(X, y)
    theirs = _averaged()
    blocks = [
        (X_block.compute(), y_block.compute())
        for X_block, y_block in zip(rows.blocks, labels.blocks, strict=True)
    ]
    for X_block, y_block in blocks * 5:
        theirs.partial_fit(X_block, y_block, classes=np.unique(y))
    for shuffle in (False, "blocks", "rows"):
        ours = Incremental(_averaged(), epochs=5, shuffle=shuffle, random_state=0).fit(rows, labels)
        assert abs(ours.score(X_test, y_test) - theirs.score(X_test, y_test)) <= 0.002


def test_census_income_sorted_by_label(adult):
    X, y, X_test, y_test, _, _ = adult
    drawn = np.random.default_rng(0).permutation(len(y))
    mixed = Incremental(_averaged(), random_state=0).fit(*_in_100_blocks(X[drawn], y[drawn]))
    by_label = _in_100_blocks(*(v[np.argsort(y, kind="stable")] for v in (X, y)))
    scores = [
        Incremental(_averaged(), shuffle=shuffle, buffer_blocks=10, random_state=0)
        .fit(*by_label)
        .score(X_test, y_test)
        for shuffle in ("rows", False)
    ]
    full = mixed.score(X_test, y_test)
    assert abs(scores[0] - full) <= 0.01
    assert scores[1] < full - 0.05


@pytest.mark.slow
def test_trips_of_taxis():
    frame = pd.read_csv(DATA / "taxis.csv", parse_dates=["pickup", "dropoff"])
    frame["minutes"] = (frame["dropoff"] - frame["pickup"]).dt.total_seconds() / 60
    columns = ["distance", "fare", "tip", "tolls", "minutes"]
    X = StandardScaler().fit_transform(frame[columns].dropna())
    rows = da.from_array(X, chunks=(1000, 5))
    for init in ("k-means++", "k-means||"):
        ours, theirs = [], []
        for seed in range(8):
            ours.append(KMeans(20, init=init, random_state=seed).fit(rows).inertia_)
            theirs.append(cluster.KMeans(20, n_init=10, random_state=seed).fit(X).inertia_)
        assert np.mean(ours) <= 1.05 * np.mean(theirs)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask's, on pandas 3.1
def test_preparation_of_census_income(tmp_path):
    """Text with gaps, numbers with outliers, and a column of many categories, from Parquet."""
    X, y = _adult("train")
    X = X.replace("?", np.nan).assign(income=(y == ">50K").astype(int))
    for i in range(5):
        X.iloc[7000 * i : 7000 * (i + 1)].to_parquet(tmp_path / f"{i}.parquet", index=False)
    rows = dd.read_parquet(tmp_path)
    X = pd.read_parquet(tmp_path).astype(dict.fromkeys(X.select_dtypes(exclude="number"), "str"))

    def preparation(room):
        text = ["workclass", "education", "occupation"]
        folds = KFold(5, shuffle=True, random_state=0)
        return room.ColumnTransformer(
            [
                ("numbers", make_pipeline(SimpleImputer(), RobustScaler()), ["age", "hours"]),
                ("gains", QuantileTransformer(subsample=None, n_quantiles=50), ["capital_gain"]),
                ("text", OneHotEncoder(min_frequency=50, handle_unknown="ignore"), text),
                ("country", TargetEncoder(cv=folds, target_type="continuous"), ["country"]),
                ("ages", KBinsDiscretizer(7, quantile_method="linear"), ["age"]),
            ]
        )

    want = preparation(compose).fit_transform(X.drop(columns="income"), X["income"])
    model = preparation(ours_too)
    got = model.fit_transform(rows.drop(columns="income"), rows["income"])
    assert abs(got.compute() - want).max() < 1e-10
    assert list(model.get_feature_names_out()) == list(
        preparation(compose).fit(X.drop(columns="income"), X["income"]).get_feature_names_out()
    )
