"""Committees: one member a block, votes weighted by rows, labels that blocks lack."""

import pickle
from itertools import pairwise

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_regression
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.engine import counting
from skfleet.estimators import BlockwiseVotingClassifier, BlockwiseVotingRegressor
from skfleet.estimators import LogisticRegression as FleetLogisticRegression

CUTS = (40, 0, 60, 50)


@parametrize_with_checks(
    [
        BlockwiseVotingClassifier(DecisionTreeClassifier(random_state=0)),
        BlockwiseVotingClassifier(LogisticRegression(), voting="soft"),
        BlockwiseVotingRegressor(Ridge()),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    return X[order], np.array(["s", "v", "w"])[y[order]]


@pytest.mark.parametrize("voting", ["hard", "soft"])
def test_votes_are_weighted_by_rows(voting, iris, world):
    if world.on_device:
        pytest.skip("the wrapped estimator takes no such arrays without a setting")
    X, y = iris
    estimator = LogisticRegression(C=0.1)
    lazy = world.name.startswith(("dask", "cluster"))
    model = BlockwiseVotingClassifier(estimator, voting=voting, n_blocks=3)
    model.fit(world.X(X), world.column(y))
    assert model.n_rows_.sum() == 150
    assert len(model.estimators_) >= (2 if lazy else 3)
    edges = np.concatenate([[0], np.cumsum(model.n_rows_)])
    members = [clone(estimator).fit(X[a:b], y[a:b]) for a, b in pairwise(edges)]
    shares = model.n_rows_ / 150
    if voting == "soft":
        want = sum(s * m.predict_proba(X) for s, m in zip(shares, members, strict=True))
        np.testing.assert_allclose(world.host(model.predict_proba(world.X(X))), want, atol=1e-12)
    else:
        want = sum(
            s * (m.predict(X)[:, None] == model.classes_)
            for s, m in zip(shares, members, strict=True)
        )
        assert not hasattr(model, "predict_proba")
    got = world.host(model.predict(world.X(X)))
    np.testing.assert_array_equal(got, model.classes_[np.argmax(want, axis=1)])


@pytest.mark.parametrize("voting", ["hard", "soft"])
def test_blocks_may_lack_labels(voting, iris):
    X, y = iris
    order = np.argsort(y, kind="stable")  # each block of 50 has one label
    X, y = X[order], y[order]
    rows = da.from_array(X, chunks=((50, 30, 70), 4))
    model = BlockwiseVotingClassifier(LogisticRegression(), voting=voting).fit(rows, y)
    np.testing.assert_array_equal(model.classes_, ["s", "v", "w"])
    assert [len(m.classes_) for m in model.estimators_] == [1, 1, 2]
    assert model.predict(rows).compute().shape == (150,)


def test_mixed_blocks_learn(iris):
    X, y = load_digits(return_X_y=True)
    rows, labels = da.from_array(X, chunks=(300, 64)), da.from_array(y, chunks=500)
    with counting() as counts:
        model = BlockwiseVotingClassifier(LinearSVC(random_state=0)).fit(rows, labels)
    assert counts.passes == 2
    assert model.score(rows, labels) > 0.9
    assert pickle.loads(pickle.dumps(model)).score(X, y) == model.score(X, y)


def test_regressor_averages(world):
    if world.on_device:
        pytest.skip("the wrapped estimator takes no such arrays without a setting")
    X, y = make_regression(150, 4, noise=5.0, random_state=0)
    weight = np.random.default_rng(0).uniform(size=150)
    model = BlockwiseVotingRegressor(Ridge(), n_blocks=3)
    model.fit(world.X(X), world.column(y), sample_weight=world.column(weight))
    edges = np.concatenate([[0], np.cumsum(model.n_rows_)])
    want = sum(
        (b - a) / 150 * Ridge().fit(X[a:b], y[a:b], weight[a:b]).predict(X)
        for a, b in pairwise(edges)
    )
    np.testing.assert_allclose(world.host(model.predict(world.X(X))), want, rtol=1e-9)


def test_several_outputs():
    X, y = make_regression(150, 4, n_targets=2, random_state=0)
    rows = da.from_array(X, chunks=(CUTS, 4))
    model = BlockwiseVotingRegressor(Ridge()).fit(rows, y)
    answer = model.predict(rows)
    assert answer.shape == (150, 2)
    np.testing.assert_allclose(answer.compute(), model.predict(X), rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        (BlockwiseVotingClassifier(Ridge(), voting="no"), ValueError, "voting must be one of"),
        (BlockwiseVotingClassifier(LinearSVC(), voting="soft"), TypeError, "predict_proba"),
        (BlockwiseVotingClassifier(LinearSVC(), n_blocks=0), ValueError, "n_blocks must be"),
    ],
    ids=str,
)
def test_bad_parameters_raise_before_any_task(model, error, match, iris):
    X, y = iris
    with counting() as counts, pytest.raises(error, match=match):
        model.fit(da.from_array(X, chunks=(50, 4)), y)
    assert counts.tasks == 0


def test_the_error_names_the_block(iris):
    X, y = iris
    holed = X.copy()
    holed[120] = np.nan
    with pytest.raises(ValueError, match="NaN") as caught:
        BlockwiseVotingClassifier(LogisticRegression()).fit(
            da.from_array(holed, chunks=(CUTS, 4)), y
        )
    assert "While fitting block 3." in caught.value.__notes__


def test_probabilities_of_frames_are_named_by_the_classes():
    frame = pd.DataFrame(np.arange(40.0).reshape(20, 2), columns=["a", "b"])
    labels = pd.Series(["no", "yes"] * 10)
    rows, of = dd.from_pandas(frame, npartitions=3), dd.from_pandas(labels, npartitions=3)
    for model in (
        BlockwiseVotingClassifier(GaussianNB(), voting="soft"),
        FleetLogisticRegression(),
    ):
        answer = model.fit(rows, of).predict_proba(rows)
        assert list(answer.columns) == list(answer.compute().columns) == ["no", "yes"]


def test_labels_that_are_given_are_not_looked_up():
    X = np.random.default_rng(0).normal(size=(80, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    rows = da.from_array(X, chunks=(20, 3)), da.from_array(y, chunks=20)
    tree = DecisionTreeClassifier(random_state=0)
    for classes in (["yes", "no", "perhaps"], da.from_array(["no", "perhaps", "yes"], chunks=2)):
        model = BlockwiseVotingClassifier(tree, voting="soft", classes=classes)
        with counting() as counts:
            model.fit(*rows)
        assert counts.passes == 1
        np.testing.assert_array_equal(model.classes_, ["no", "perhaps", "yes"])
        np.testing.assert_array_equal(model.predict(rows[0]).compute(), model.predict(X))
        assert (model.predict_proba(X)[:, 1] == 0).all()
    with pytest.raises(ValueError, match=r"y must hold labels in classes. Got .*'yes'.* instead"):
        BlockwiseVotingClassifier(tree, classes=["no"]).fit(*rows)
