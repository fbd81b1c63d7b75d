"""Public entries that take rows, each with what must hold of its answer for y = a - 2b."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
from sklearn import decomposition
from sklearn.cluster import KMeans as ReferenceKMeans
from sklearn.compose import ColumnTransformer as ReferenceColumns
from sklearn.dummy import DummyRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression as ReferenceRegression
from sklearn.linear_model import Ridge as ReferenceRidge
from sklearn.linear_model import SGDRegressor as ReferenceSGD
from sklearn.mixture import GaussianMixture as ReferenceMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, RobustScaler, StandardScaler

from skfleet import metrics
from skfleet.estimators import (
    PCA,
    BlockwiseVotingRegressor,
    ColumnTransformer,
    ElasticNet,
    ExtraTreesRegressor,
    GaussianMixture,
    Incremental,
    IncrementalPCA,
    KMeans,
    KNeighborsRegressor,
    LogisticRegression,
    MiniBatchKMeans,
    ParallelPostFit,
    Ridge,
    RidgeCV,
    SGDRegressor,
    SpectralClustering,
    TruncatedSVD,
)
from skfleet.model_selection import GridSearchCV, IncrementalSearchCV, train_test_split

CENTERS = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, 1.0]])


def least_squares(X, y, weight):
    """Coefficients, the score, and predictions with the index of the rows."""
    model = Ridge(alpha=1e-10).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, [1, -2], atol=1e-6)
    assert model.score(X, y, sample_weight=weight) > 1 - 1e-9
    predicted, *columns = dask.compute(model.predict(X), X)
    if columns and hasattr(columns[0], "index"):
        assert predicted.index.equals(columns[0].index)
    np.testing.assert_allclose(predicted, np.asarray(columns[0], float) @ [1, -2], atol=1e-6)


def penalised(X, y, weight):
    """Paths and folds over blocks; a penalty of next to nothing."""
    model = ElasticNet(alpha=1e-9, tol=1e-10, max_iter=10_000).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, [1, -2], atol=1e-5)
    assert RidgeCV(alphas=[1e-10, 1e3]).fit(X, y).alpha_ == 1e-10


def classification(X, y, weight):
    """Labels made of the targets, as a user's script makes them."""
    model = LogisticRegression(C=1e3).fit(X, y > 0, sample_weight=weight)
    assert model.score(X, y > 0) > 0.97


def clustering(X, y, weight):
    """Lloyd's algorithm from given centres."""
    model = KMeans(3, init=CENTERS, n_init=1, tol=0).fit(X)
    reference = ReferenceKMeans(3, init=CENTERS, n_init=1, tol=0).fit(_values(X))
    np.testing.assert_allclose(model.inertia_, reference.inertia_, rtol=1e-6)
    assert MiniBatchKMeans(3, random_state=0, max_iter=2).fit(X).n_features_in_ == 2
    spectral = SpectralClustering(2, n_landmarks=20, random_state=0).fit(X)
    assert len(spectral.labels_.compute()) == len(_values(X))


def densities(X, y, weight):
    """EM from given components."""
    start = {"weights_init": np.full(3, 1 / 3), "means_init": CENTERS, "tol": 0.1}
    start |= {"covariance_type": "tied", "precisions_init": np.eye(2)}
    model, reference = GaussianMixture(3, **start).fit(X), ReferenceMixture(3, **start)
    reference.fit(_values(X))
    np.testing.assert_allclose(model.covariances_, reference.covariances_, rtol=1e-6)
    np.testing.assert_allclose(model.score(X), reference.score(_values(X)), rtol=1e-6)


def components(X, y, weight):
    """One pass over the columns that were chosen."""
    reference = decomposition.PCA(2).fit(_values(X))
    for model in (PCA(2), IncrementalPCA(2, batch_size=10_000)):
        variances = model.fit(X).explained_variance_
        np.testing.assert_allclose(variances, reference.explained_variance_, rtol=1e-6)
    assert TruncatedSVD(1, algorithm="arpack").fit(X).components_.shape == (1, 2)


def neighbors(X, y, weight):
    """Each row is its own neighbour, with its own target."""
    model = KNeighborsRegressor(1).fit(X, y)
    targets, predicted = dask.compute(y, model.predict(X))
    assert model.n_samples_fit_ == len(targets)
    # the rows of another computation of a shuffle may be in another order
    np.testing.assert_allclose(np.sort(predicted), np.sort(targets), atol=1e-9)


def forest(X, y, weight):
    """Trees of all rows know the target of each."""
    model = ExtraTreesRegressor(2, random_state=0).fit(X, y, sample_weight=weight)
    targets, predicted = y.compute(), model.predict(X).compute()
    # the rows of another computation of a shuffle may be in another order
    np.testing.assert_allclose(np.sort(predicted), np.sort(targets), atol=1e-6)


def in_parts(X, y, weight):
    """Means and variances of all rows, however they are cut, and nothing but X's columns."""
    model = Incremental(StandardScaler()).fit(X, y).estimator_
    reference = StandardScaler().fit(_values(X))
    assert model.n_samples_seen_ == reference.n_samples_seen_
    np.testing.assert_allclose(model.mean_, reference.mean_, atol=1e-12)
    np.testing.assert_allclose(model.var_, reference.var_)
    if hasattr(X, "columns"):
        assert list(model.feature_names_in_) == ["a", "b"]


def gradient_descent(X, y, weight):
    """Steps that need the right pairs."""
    model = SGDRegressor(
        random_state=0, max_iter=40, tol=None, batch_size=8, learning_rate="constant", eta0=0.1
    ).fit(X, y)
    np.testing.assert_allclose(model.coef_, [1, -2], atol=0.1)


def scores(X, y, weight):
    """Metrics of values that come from one frame."""
    predicted = X["a"] - 2 * X["b"] if hasattr(X, "columns") else X[:, 0] - 2 * X[:, 1]
    assert metrics.r2_score(y, predicted, sample_weight=weight) > 1 - 1e-9
    labels = (y > 0).astype(int)
    assert metrics.accuracy_score(1 - labels, labels) == 0
    assert metrics.accuracy_score(labels, labels, sample_weight=weight) == 1
    assert metrics.roc_auc_score(labels, predicted) > 1 - 1e-12


def wrapped(X, y, weight):
    """A fitted model of scikit-learn's on rows that are not here."""
    values = np.random.default_rng(0).normal(size=(20, 2))
    rows = pd.DataFrame(values, columns=["a", "b"]) if hasattr(X, "columns") else values
    fitted = ReferenceRegression().fit(rows, values @ [1, -2])
    model = ParallelPostFit(fitted)
    predicted, target = model.predict(X).compute(), y.compute()
    np.testing.assert_allclose(np.sort(predicted), np.sort(target), atol=1e-9)
    assert model.score(X, y) > 1 - 1e-9


def search_of_ours(X, y, weight):
    """Folds cut where the rows are."""
    search = GridSearchCV(Ridge(), {"alpha": [1e-10, 1e3]}, cv=2).fit(X, y)
    np.testing.assert_allclose(search.best_estimator_.coef_, [1, -2], atol=1e-6)
    assert search.best_score_ > 1 - 1e-9


def search_of_others(X, y, weight):
    """Rows that come to this process."""
    search = GridSearchCV(ReferenceRidge(), {"alpha": [1e-10, 1e3]}, cv=2).fit(X, y)
    np.testing.assert_allclose(search.best_estimator_.coef_, [1, -2], atol=1e-6)
    assert search.best_score_ > 1 - 1e-9


def adaptive_search(X, y, weight):
    """Candidates trained in parts."""
    candidates = {"alpha": [1e-5, 1e-4]}
    search = IncrementalSearchCV(
        ReferenceSGD(learning_rate="constant", eta0=0.05),
        candidates,
        n_initial_parameters=2,
        max_iter=10,
        random_state=0,
    ).fit(X, y)
    assert search.best_estimator_.n_features_in_ == 2
    assert search.best_score_ > 0.3  # of wrong pairs it is none


def voting(X, y, weight):
    """One model a block, as many answers as rows."""
    model = BlockwiseVotingRegressor(DummyRegressor()).fit(X, y)
    answers = dask.compute(model.predict(X))[0]
    assert len(answers) == len(_values(X))


def preparation(X, y, weight):
    """Numbers scaled, filled and binned, and one-hot columns of whole numbers, before a model."""
    is_frame = hasattr(X, "columns")
    rows = X.map_partitions(_with_bins) if is_frame else _join(X, X[:, :1] // 1)
    numbers, categories = (["a", "b"], ["c"]) if is_frame else ([0, 1], [2])
    steps = [
        ("scaled", make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        ("binned", RobustScaler(), numbers[:1]),
        ("one-hot", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), categories),
    ]
    prepared, reference = ColumnTransformer(steps), ReferenceColumns(steps)
    model = make_pipeline(prepared, Ridge(alpha=1e-10)).fit(rows, y)
    assert model.score(rows, y) > 1 - 1e-9
    expected, got = reference.fit_transform(rows.compute()), prepared.transform(rows).compute()
    np.testing.assert_allclose(np.sort(got, axis=0), np.sort(expected, axis=0), atol=1e-9)
    for name in ("scaled", "binned", "one-hot"):
        parts = [columns.named_transformers_[name] for columns in (prepared, reference)]
        assert list(parts[0].get_feature_names_out()) == list(parts[1].get_feature_names_out())


def splits(X, y, weight):
    """Parts that are disjoint and aligned, and together all rows."""
    values = _values(X)
    n_rows = len(values)
    parts = train_test_split(X, y, weight, test_size=5, random_state=0)
    *rows, y_train, y_test, _, weight_test = dask.compute(*parts)
    assert [len(part) for part in rows] == [n_rows - 5, 5]
    for part, target in zip(rows, (y_train, y_test), strict=True):
        np.testing.assert_allclose(target, np.asarray(part, float) @ [1, -2], atol=1e-9)
    assert len(weight_test) == 5
    # A sample of shuffled rows has others in each computation, but no row is in both parts.
    stacked = np.vstack([np.asarray(part, float) for part in rows])
    n_distinct = len(np.unique(values, axis=0))
    assert n_distinct < n_rows or len(np.unique(stacked, axis=0)) == n_rows
    model = Ridge(alpha=1e-10).fit(parts[0], parts[2], sample_weight=parts[4])
    np.testing.assert_allclose(model.coef_, [1, -2], atol=1e-6)


def _with_bins(part):
    return part.assign(c=(part["a"] // 1).astype(str))


def _join(*arrays):
    return da.concatenate(arrays, axis=1, allow_unknown_chunksizes=True)


def _values(X):
    """Return the rows on the host, as numbers."""
    return np.asarray(X.compute(), dtype=float)


ENTRIES = [
    least_squares,
    penalised,
    classification,
    clustering,
    densities,
    components,
    in_parts,
    gradient_descent,
    scores,
    preparation,
    wrapped,
    search_of_ours,
    search_of_others,
    adaptive_search,
    voting,
    splits,
    neighbors,
    forest,
]
