"""Containers of rows, pipelines, weights and metadata in adaptive searches."""

import math

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from adaptive_cases import SPACE, Counter, halving, numbered, sgd
from scipy import sparse
from scipy.stats import loguniform
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

pytestmark = pytest.mark.usefixtures("on_cluster")


def as_frame(X):
    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])


CONTAINERS = {
    "array": (lambda X: X, lambda y: y),
    "csr": (sparse.csr_array, lambda y: y),
    "frame": (as_frame, pd.Series),
    "dask array": (lambda X: da.from_array(X, chunks=(500, 64)), lambda y: da.from_array(y, 400)),
    "dask frame": (
        lambda X: dd.from_pandas(as_frame(X), npartitions=4),
        lambda y: dd.from_pandas(pd.Series(y), npartitions=4),
    ),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_rows_of_any_kind(container, digits):
    X, y = digits
    make_X, make_y = CONTAINERS[container]
    search = halving(n_initial_iter=4).fit(make_X(X), make_y(y))
    assert search.best_score_ > 0.85
    answer = search.predict(make_X(X))
    if "dask" in container:
        assert not isinstance(answer, np.ndarray)
        answer = np.asarray(answer)
        assert search.score(make_X(X), make_y(y)) == pytest.approx(accuracy_score(y, answer))
    assert accuracy_score(y, answer) > 0.85
    assert hasattr(search, "feature_names_in_") == ("frame" in container)


@pytest.mark.parametrize("lazy", [False, True])
def test_frames_stay_frames_in_a_pipeline(lazy):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=600),
            "kind": rng.choice(["a", "b", "c"], 600),
            "n": np.arange(600),
        }
    )
    y = ((frame["kind"] == "a") ^ (frame["size"] > 1)).astype(int)
    pipeline = make_pipeline(
        make_column_transformer(
            (StandardScaler(), ["size"]), (OneHotEncoder(handle_unknown="ignore"), ["kind"])
        ),
        sgd(),
    )
    parameters = {
        "sgdclassifier__alpha": loguniform(1e-5, 1e-2),
        "columntransformer__standardscaler__with_mean": [True, False],
    }
    rows, labels = (
        (frame, y)
        if not lazy
        else (dd.from_pandas(frame, npartitions=3), dd.from_pandas(y, npartitions=3))
    )
    search = halving(pipeline, parameters, n_initial_iter=5).fit(rows, labels)
    assert search.best_score_ > 0.8
    model = search.best_estimator_
    scaler = model[0].named_transformers_["standardscaler"]
    assert scaler.with_mean == search.best_params_["columntransformer__standardscaler__with_mean"]
    assert list(search.predict(frame.head())) == list(model.predict(frame.head()))


def test_steps_before_the_last_are_fitted_once_for_all_that_share_them(digits):
    pipeline = make_pipeline(StandardScaler(), sgd())
    parameters = {"sgdclassifier__alpha": SPACE["alpha"]}
    X, y = digits
    search = halving(pipeline, parameters).fit(X, y)
    assert search.best_score_ > 0.85
    # on all training rows, and only on these
    assert search.best_estimator_[0].n_samples_seen_ == len(X) - math.ceil(0.15 * len(X))


def test_text_in_a_list():
    words = [f"{'good fine' if i % 2 else 'bad poor'} w{i % 7}" for i in range(200)]
    y = [i % 2 for i in range(200)]
    search = halving(
        make_pipeline(TfidfVectorizer(), sgd()), {"sgdclassifier__alpha": SPACE["alpha"]}
    ).fit(words, y)
    assert search.best_score_ == 1.0
    assert search.predict(["good w1", "poor w2"]).tolist() == [1, 0]


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_go_with_their_rows(lazy):
    X, y = numbered(60)
    weight = X[:, 0] + 0.5
    rows = (X, y, weight)
    if lazy:
        rows = (da.from_array(X, (20, 2)), da.from_array(y, 20), da.from_array(weight, 15))
    search = halving(Counter(), {"quality": [0.2, 0.4]}, n_initial_parameters=2, batch_size=7)
    model = search.fit(rows[0], rows[1], sample_weight=rows[2]).best_estimator_
    for seen, weights in zip(model.seen_, model.weights_, strict=True):
        np.testing.assert_array_equal(weights, seen + 0.5)


def test_metadata_is_routed(digits):
    X, y = digits
    weight = np.where(y < 5, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = (
            sgd().set_partial_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        )
        search = halving(model, n_initial_iter=3).fit(X, y, sample_weight=weight)
        assert set(search.predict(X)) <= {0, 1, 2, 3, 4}  # the others weigh nothing
        assert search.best_score_ > 0.85  # nor do they in the score
        with pytest.raises(TypeError, match="unexpected"):
            halving(sgd()).fit(X, y, nonsense=weight)
