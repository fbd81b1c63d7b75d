"""Fits of small Dask rows in one task: wrappers, bins, spectra, and what learns by blocks."""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import linear_model, preprocessing
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline

from clusters import persist_in_turn
from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import (
    BlockwiseVotingRegressor,
    Incremental,
    IncrementalPCA,
    KBinsDiscretizer,
    KNeighborsRegressor,
    LinearRegression,
    QuantileTransformer,
    Ridge,
    RobustScaler,
    SpectralClustering,
    StandardScaler,
    TransformedTargetRegressor,
)
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.usefixtures("single_task")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] + RNG.normal(size=120) > 0).astype(int)
T = 3 * X[:, 0] + RNG.normal(size=120)
W = RNG.uniform(0.5, 2, size=120)
# The fit, and a task of each of the two workers, which passes on the rows that it has.
PERSISTED_IN_ONE_TASK = 3


def on_blocks(values, n_rows=25):
    return da.from_array(values, chunks=(n_rows, *values.shape[1:]))


@pytest.fixture
def persisted(current_client):
    """Return X, Y, T and W in the memory of the workers."""
    return persist_in_turn(current_client, map(on_blocks, (X, Y, T, W)))


# -- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"regressor": Ridge(), "transformer": preprocessing.StandardScaler()},
        {"regressor": make_pipeline(StandardScaler(), Ridge())},
        {"func": np.sinh, "inverse_func": np.arcsinh},
    ],
    ids=lambda params: " ".join(params) or "defaults",
)
def test_transformed_targets(params, persisted):
    rows, _, targets, _ = persisted
    model = TransformedTargetRegressor(**params)
    with counting() as counts:
        model.fit(rows, targets)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    with config_context(single_task_below=0):
        want = TransformedTargetRegressor(**params).fit(rows, targets)
    assert type(model.regressor_) is type(want.regressor_)
    assert type(model.transformer_) is type(want.transformer_)
    assert isinstance(model.predict(rows), da.Array)
    np.testing.assert_allclose(model.predict(rows), want.predict(X), rtol=1e-9)


def test_targets_of_this_process(persisted):
    rows = persisted[0]
    want = TransformedTargetRegressor().fit(X, T)
    for y in (T, T.tolist(), pd.Series(T)):
        model = TransformedTargetRegressor().fit(rows, y)
        assert isinstance(model.regressor_, linear_model.LinearRegression)
        np.testing.assert_allclose(model.predict(X), want.predict(X), rtol=1e-9)


def test_targets_of_frames(current_client):
    frame = dd.from_pandas(pd.DataFrame(X, columns=[*"abcd"]).assign(t=T), npartitions=4)
    with counting() as counts:
        model = TransformedTargetRegressor(transformer=StandardScaler())
        model.fit(frame[[*"abcd"]], frame["t"])
    assert counts.tasks == 1
    assert isinstance(model.regressor_, LinearRegression)
    assert [*model.feature_names_in_] == [*"abcd"]
    want = TransformedTargetRegressor(transformer=StandardScaler()).fit(X, T)
    np.testing.assert_allclose(model.predict(frame[[*"abcd"]]), want.predict(X), rtol=1e-9)


@pytest.mark.parametrize(
    "regressor",
    [
        KNeighborsRegressor(),
        GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2),
        BlockwiseVotingRegressor(linear_model.Ridge()),
        linear_model.Ridge(),
        make_pipeline(StandardScaler(), linear_model.Ridge()),
    ],
    ids=lambda regressor: type(regressor).__name__,
)
def test_regressors_that_are_fitted_elsewhere_stay_there(regressor, persisted):
    rows, _, targets, _ = persisted
    model = TransformedTargetRegressor(regressor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows come here for scikit-learn's
        model.fit(rows, targets)
        with config_context(single_task_below=0):
            want = TransformedTargetRegressor(regressor).fit(rows, targets)
    assert vars(model.regressor_).keys() == vars(want.regressor_).keys()
    np.testing.assert_allclose(model.predict(X[:5]), want.predict(X[:5]), rtol=1e-9)


# -- bins and quantiles ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["uniform", "quantile", "kmeans"])
def test_bins(strategy, persisted):
    rows, *_, weights = persisted
    params = {"strategy": strategy, "quantile_method": "averaged_inverted_cdf", "random_state": 0}
    weight = {} if strategy == "uniform" else {"sample_weight": weights}
    with counting() as counts:
        bins = KBinsDiscretizer(3, **params).fit(rows, **weight)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    with config_context(single_task_below=0):
        want = KBinsDiscretizer(3, **params).fit(rows, **weight)
    np.testing.assert_allclose(np.stack(bins.bin_edges_), np.stack(want.bin_edges_), rtol=1e-9)
    assert isinstance(bins.transform(rows), da.Array)


@pytest.mark.parametrize("transformer", [RobustScaler(), QuantileTransformer(n_quantiles=20)])
def test_transformers_by_quantiles(transformer, persisted):
    rows = persisted[0]
    with counting() as counts:
        transformer.fit(rows)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    with config_context(single_task_below=0):
        want = clone(transformer).fit(rows)
    for name, value in vars(want).items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            np.testing.assert_allclose(getattr(transformer, name), value, rtol=1e-9)
    scikit_learns = getattr(preprocessing, type(transformer).__name__)(**transformer.get_params())
    transformed = transformer.transform(rows)
    assert isinstance(transformed, da.Array)
    np.testing.assert_allclose(transformed, scikit_learns.fit_transform(X), rtol=1e-9)


def test_a_users_bins_see_dask_rows(persisted):
    seen = []

    class Mine(KBinsDiscretizer):
        def fit(self, X, y=None):
            seen.append(type(X))
            return super().fit(X, y)

    Mine(3, quantile_method="averaged_inverted_cdf").fit(persisted[0])
    assert seen == [da.Array]


# -- spectra ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("assign_labels", ["kmeans", "discretize", "cluster_qr"])
@pytest.mark.parametrize("n_landmarks", [500, 40])
def test_labels_of_spectra_are_lazy(n_landmarks, assign_labels, current_client):
    centers = 4 * RNG.normal(size=(3, 4))
    rows = on_blocks(centers[np.arange(120) % 3] + RNG.normal(size=(120, 4)) / 4)
    model = SpectralClustering(
        3, gamma=0.1, n_landmarks=n_landmarks, assign_labels=assign_labels, random_state=0
    )
    with counting() as counts:
        model.fit(rows)
    assert counts.tasks <= 2  # one may send the model of the labels
    with config_context(single_task_below=0):
        want = clone(model).fit(rows)
    assert isinstance(model.labels_, da.Array)
    assert model.labels_.chunks == want.labels_.chunks
    np.testing.assert_array_equal(model.labels_, want.labels_)
    assert vars(model).keys() == vars(want).keys()
    frame = dd.from_dask_array(rows, columns=[*"abcd"])
    np.testing.assert_array_equal(clone(model).fit(frame).labels_, want.labels_)


# -- block by block --------------------------------------------------------------------------------


def learner(**params):
    return Incremental(SGDClassifier(random_state=0), random_state=0, **params)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"shuffle": False, "epochs": 3},
        {"shuffle": "rows", "buffer_blocks": 2},
        {"batch_size": 10, "epochs": 2},
        {"early_stopping": True, "epochs": 4, "validation_fraction": 0.3},
    ],
    ids=lambda params: " ".join(params) or "defaults",
)
def test_blocks_are_batches(params, persisted):
    rows, labels, _, weights = persisted
    with counting() as counts:
        model = learner(**params).fit(rows, labels, sample_weight=weights)
    assert counts.tasks == PERSISTED_IN_ONE_TASK
    with config_context(single_task_below=0):
        want = learner(**params).fit(rows, labels, sample_weight=weights)
    np.testing.assert_array_equal(model.estimator_.coef_, want.estimator_.coef_)
    assert model.n_samples_seen_ == want.n_samples_seen_
    assert model.estimator_.t_ == want.estimator_.t_
    names = ["epoch", "n_samples_seen", "score"]
    pd.testing.assert_frame_equal(model.history_[names], want.history_[names])


def test_blocks_of_unknown_lengths_are_batches(current_client):
    frame = dd.from_pandas(pd.DataFrame(X, columns=[*"abcd"]).assign(y=Y), npartitions=4)
    frame = frame[frame["a"] > 0]
    rows, labels = frame[[*"abcd"]], frame["y"]
    with counting() as counts:
        model = learner().fit(rows, labels)
    assert counts.tasks == 1
    with config_context(single_task_below=0):
        want = learner().fit(rows, labels)
    np.testing.assert_array_equal(model.estimator_.coef_, want.estimator_.coef_)


def test_batches_do_not_depend_on_the_blocks(persisted):
    model = IncrementalPCA(2, batch_size=30).fit(persisted[0])
    want = IncrementalPCA(2, batch_size=30).fit(X)
    np.testing.assert_allclose(model.components_, want.components_)
    assert IncrementalPCA(2).fit(persisted[0]).batch_size_ > IncrementalPCA(2).fit(X).batch_size_


def test_random_numbers_are_drawn_once(persisted):
    rows, _, targets, _ = persisted
    models, numbers = [], []
    for limit in ("auto", 0):
        generator = np.random.RandomState(3)
        with config_context(single_task_below=limit):
            model = Incremental(SGDRegressor(random_state=0), random_state=generator)
            models.append(model.fit(rows, targets))
        numbers.append(generator.randint(10**9))
    np.testing.assert_array_equal(models[0].estimator_.coef_, models[1].estimator_.coef_)
    assert numbers[0] == numbers[1]


def test_long_fits_stay_on_blocks(persisted, monkeypatch, caplog):
    caplog.set_level("INFO", logger="skfleet")
    monkeypatch.setattr("skfleet.estimators.meta._epochs.SINGLE_TASK_BYTES", 5 * X.nbytes)
    rows, labels, *_ = persisted
    with counting() as counts:
        learner(epochs=6).fit(rows, labels)
    assert counts.tasks > 1
    assert "in one task" not in caplog.text


class _FailsOnce(SGDClassifier):
    is_broken = True

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        if type(self).is_broken and getattr(self, "t_", 0) > 60:
            raise RuntimeError("no more")
        return super().partial_fit(X, y, classes, sample_weight)


def test_a_fit_that_failed_goes_on_from_its_block(persisted):
    rows, labels, *_ = persisted
    model = Incremental(_FailsOnce(random_state=0), shuffle=False)
    with pytest.raises(RuntimeError, match="no more") as failure:
        model.fit(rows, labels)
    assert failure.value.__notes__ == ["While learning from block 3."]
    assert model.n_samples_seen_ == 75
    _FailsOnce.is_broken = False
    model.fit(rows, labels, resume=True)
    assert model.n_samples_seen_ == 120
    want = Incremental(SGDClassifier(random_state=0), shuffle=False).fit(rows, labels)
    np.testing.assert_array_equal(model.estimator_.coef_, want.estimator_.coef_)
