"""Compositions of transformers: like scikit-learn's in every partition, in shared passes."""

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
from joblib._parallel_backends import ThreadingBackend
from row_partitions import PARTITIONS, as_dask, check_like_reference
from sklearn import compose as reference
from sklearn import config_context, decomposition, impute, linear_model, pipeline, preprocessing
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold

from skfleet.engine import counting
from skfleet.estimators import PCA, Ridge, compose
from skfleet.estimators import preprocessing as ours


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 4)), columns=list("abcd"), index=range(100, 160))
    frame.loc[frame["a"] > 1, "a"] = np.nan
    return frame


def parts(names=True):
    chosen = (["a", "b"], ["c"], slice("a", "b")) if names else ([0, 1], [2], slice(0, 2))
    return [
        ("standard", preprocessing.StandardScaler(), chosen[0]),
        ("steps", pipeline.make_pipeline(ours.MaxAbsScaler(), ours.MinMaxScaler()), chosen[1]),
        ("nothing", "drop", chosen[1]),
        ("as they are", "passthrough", chosen[2]),
        ("none", ours.MinMaxScaler(), []),
    ]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("container", ["array", "frame"])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_partition(partition, container, frame):
    X = frame if container == "frame" else frame.to_numpy()
    remainder = preprocessing.MinMaxScaler()
    transformers = parts(container == "frame")
    check_like_reference(
        compose.ColumnTransformer(transformers, remainder=remainder),
        reference.ColumnTransformer(transformers, remainder=remainder),
        X,
        partition=partition,
        container=container,
        atol=1e-10,
    )


@pytest.mark.parametrize("partition", ["one block", "empty first", "unknown lengths"])
def test_union(partition, frame):
    transformers = [part[:2] for part in parts() if part[2]]
    got, *_ = check_like_reference(
        compose.FeatureUnion(transformers, transformer_weights={"steps": 2.0}),
        pipeline.FeatureUnion(transformers, transformer_weights={"steps": 2.0}),
        frame.to_numpy(),
        partition=partition,
        atol=1e-10,
    )
    assert got.n_features_in_ == 4


def test_nothing_is_sent_to_a_backend_of_joblib(frame):
    class Refusing(ThreadingBackend):
        def start_call(self):
            raise AssertionError("the driver has a few rows only")

    joblib.register_parallel_backend("refusing", Refusing)
    columns = compose.ColumnTransformer([part for part in parts() if part[2]])
    union = compose.FeatureUnion([("a", ours.MaxAbsScaler()), ("b", ours.MinMaxScaler())])
    lazy = as_dask(frame, "empty first")
    with joblib.parallel_config("refusing", n_jobs=2):
        for model in (columns, union):
            model.fit(lazy).transform(lazy)
            assert model.n_jobs is None


def test_transformers_of_scikit_learn_are_replaced_and_the_users_unchanged(frame):
    scaler = preprocessing.StandardScaler(with_mean=False)
    model = compose.ColumnTransformer([("s", scaler, ["a"])]).fit(as_dask(frame, "empty first"))
    assert type(model.named_transformers_["s"]) is ours.StandardScaler
    assert not model.named_transformers_["s"].with_mean
    assert model.transformers == [("s", scaler, ["a"])]
    assert not hasattr(scaler, "scale_")


def test_one_pass_for_any_width_and_one_per_step(frame):
    rows = as_dask(frame, "empty middle")
    scalers = [ours.StandardScaler, ours.MinMaxScaler, ours.MaxAbsScaler]
    wide = [(f"{i}", scalers[i % 3](), [name]) for i, name in enumerate("abcdabcdab")]
    with counting() as counts:
        compose.ColumnTransformer(wide).fit(rows)
    assert counts.passes == 1
    with counting() as counts:
        compose.FeatureUnion([("columns", compose.ColumnTransformer(wide)), *parts()[:1]])
        compose.ColumnTransformer([*wide, *parts()]).fit(rows)
    assert counts.passes == 2
    with counting() as counts:
        compose.ColumnTransformer([("n", ours.Binarizer(), ["b"])]).fit(rows)
    assert counts.passes == 0


def test_nested_compositions(frame):
    def nested(room, union):
        inner = room.ColumnTransformer(parts()[:2])
        return room.ColumnTransformer(
            [("inner", inner, ["a", "b", "c"]), ("u", union([("s", ours.MinMaxScaler())]), ["d"])]
        )

    check_like_reference(
        nested(compose, compose.FeatureUnion),
        nested(reference, pipeline.FeatureUnion),
        frame,
        partition="empty first",
        container="frame",
        atol=1e-10,
        skip=["transformers_"],
    )


def test_estimators_that_make_passes_of_their_own(frame):
    frame = frame.fillna(0)

    def composed(room, cls):
        steps = pipeline.make_pipeline(preprocessing.StandardScaler(), cls(1))
        return room.ColumnTransformer([("steps", steps, ["a", "b"]), ("pca", cls(1), ["c", "d"])])

    want = composed(reference, decomposition.PCA).fit_transform(frame)
    rows = as_dask(frame, "empty middle")
    got = composed(compose, PCA).fit_transform(rows)
    np.testing.assert_allclose(np.abs(got.compute()), np.abs(want), atol=1e-10)
    by_position = compose.ColumnTransformer([("pca", PCA(1), [True, False, True, False])])
    array = da.from_array(frame.to_numpy(), chunks=(20, 4))
    want = decomposition.PCA(1).fit_transform(frame[["a", "c"]])
    np.testing.assert_allclose(np.abs(by_position.fit_transform(array)), np.abs(want), atol=1e-10)


def test_others_are_fitted_before(frame):
    rows = as_dask(frame, "empty middle")
    imputer = impute.KNNImputer()
    with pytest.raises(TypeError, match="Got KNNImputer instead"):
        compose.ColumnTransformer([("i", imputer, ["a", "b"])]).fit(rows)
    fitted = FrozenEstimator(imputer.fit(frame[["a", "b"]]))
    got = compose.ColumnTransformer([("i", fitted, ["a", "b"])]).fit_transform(rows)
    np.testing.assert_allclose(got.compute(), imputer.transform(frame[["a", "b"]]))


class Ratio(TransformerMixin, BaseEstimator):
    """Learns nothing, but does not say so; its fit may note that it was called."""

    def __init__(self, check=None, is_noted=True):
        self.check = check
        self.is_noted = is_noted

    def fit(self, X, y=None):
        if self.check is not None:
            self.check(X)
        if self.is_noted:
            self.fitted_ = True
        return self

    def transform(self, X):
        return np.asarray(X)[:, :1] / (np.asarray(X)[:, 1:] + 10)


class Counter(Ratio):
    """Learns the number of rows."""

    def fit(self, X, y=None):
        self.n_rows_ = self.check(X)
        return super().fit(X)


def count_of_real_rows(X):
    """Return the number of rows, and raise for those that were made up."""
    if X["c"].nunique() == 1 < len(X):
        raise ValueError("made up")
    return len(X)


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("partition", ["one block", "empty first"])
def test_transformers_of_others_that_learn_nothing(partition, is_noted, frame):
    rows, ratio = as_dask(frame, partition), Ratio(is_noted=is_noted)
    steps = pipeline.make_pipeline(ours.MinMaxScaler(), ratio, preprocessing.StandardScaler())
    model = compose.ColumnTransformer(
        [("r", ratio, ["b", "c"]), ("s", steps, ["c", "d"]), ("m", ours.MaxAbsScaler(), ["d"])]
    )
    with counting() as counts:
        model.fit(rows)
    assert counts.passes == 3  # as many as steps
    like = reference.ColumnTransformer(model.transformers).fit(frame)
    np.testing.assert_allclose(model.transform(rows).compute(), like.transform(frame), atol=1e-10)
    assert type(model.named_transformers_["r"]) is Ratio
    assert hasattr(model.named_transformers_["r"], "fitted_") == is_noted
    union = compose.FeatureUnion([("r", ratio)]).fit(rows[["b", "d"]])
    got = union.transform(rows[["b", "d"]]).compute()
    np.testing.assert_allclose(got, Ratio().transform(frame[["b", "d"]]))


def test_transformers_of_others_are_checked_on_every_block(frame):
    rows = as_dask(frame, "one block").repartition(npartitions=4)

    def composed(transformer):
        return compose.ColumnTransformer([("t", transformer, ["c", "d"])])

    def check(X):
        assert 159 not in X.index, "the last row is wrong"

    with pytest.raises(AssertionError, match="the last row is wrong"):
        composed(Ratio(check)).fit(rows)
    with counting() as counts:
        with pytest.raises(TypeError, match="Got Counter instead"):
            composed(Counter(len)).fit(rows)
        with pytest.raises(TypeError, match="Got LinearDiscriminantAnalysis instead"):
            composed(LinearDiscriminantAnalysis()).fit(rows, rows["b"] > 0)
    assert counts.tasks == 0
    model = composed(Counter(count_of_real_rows))
    with pytest.raises(TypeError, match="Got Counter instead"):  # of 15 rows in each block
        model.fit(rows)
    assert not hasattr(model, "transformers_")


def test_a_union_fits_the_transformers_that_it_was_given(frame):
    rows = as_dask(frame[["b", "c"]], "empty middle")
    scaler, stock, pca = ours.StandardScaler(), preprocessing.StandardScaler(), PCA(1)
    inner = compose.FeatureUnion([("scaler", scaler), ("none", "passthrough")])
    steps = pipeline.make_pipeline("passthrough", ours.MinMaxScaler(), pca)
    union = compose.FeatureUnion([("inner", inner), ("steps", steps), ("stock", stock)])
    with pytest.raises(ValueError, match="could not convert"):
        union.fit(rows.assign(c="x"))
    assert not hasattr(scaler, "scale_")
    assert not hasattr(pca, "components_")
    got = union.fit_transform(rows).compute()
    np.testing.assert_allclose(scaler.mean_, frame[["b", "c"]].mean())
    np.testing.assert_allclose(pca.n_features_in_, 2)
    np.testing.assert_allclose(got[:, :2], scaler.transform(rows).compute())
    parts = dict(union.transformer_list)
    assert parts["inner"] is inner
    assert parts["steps"] is steps
    assert steps[-1] is pca
    assert not hasattr(stock, "scale_")  # of scikit-learn's class, which ours replaces
    union.set_params(steps__pca__n_components=2)
    assert union.fit_transform(rows).compute().shape == (60, 8)


def test_rows_to_transform_may_have_other_columns(frame):
    rows = as_dask(frame, "empty middle")
    model = compose.ColumnTransformer(parts()[:2]).fit(rows)
    want = model.transform(frame)
    np.testing.assert_allclose(model.transform(rows.assign(z="x")[list("dcbaz")]).compute(), want)
    with pytest.raises(ValueError, match=r"columns are missing: \{'c'\}"):
        model.transform(rows[["a", "b"]])


def test_errors_come_before_work(frame):
    rows = as_dask(frame, "empty middle")
    with counting() as counts:
        with pytest.raises(ValueError, match="'z'"):
            compose.ColumnTransformer([("s", ours.StandardScaler(), ["a", "z"])]).fit(rows)
        with pytest.raises(ValueError, match=r"could not convert string to float.*'t'"):
            compose.ColumnTransformer([("s", ours.StandardScaler(), ["t"])]).fit(rows.assign(t="x"))
        with pytest.raises(ValueError, match="metadata routing"):
            compose.ColumnTransformer(parts()).fit(rows, sample_weight=rows["b"])
    assert counts.tasks == 0


def test_a_failed_fit_changes_nothing(frame):
    rows = as_dask(frame, "empty middle")
    model = compose.ColumnTransformer(parts()).fit(rows)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="could not convert"):
        model.fit(rows.assign(a="x"))
    assert vars(model) == before


def test_weights_are_routed(frame):
    weight = np.abs(frame["b"].to_numpy())
    rows = as_dask(frame, "empty middle")
    with config_context(enable_metadata_routing=True):
        weighted = ours.StandardScaler().set_fit_request(sample_weight=True)
        plain = preprocessing.StandardScaler().set_fit_request(sample_weight=False)
        model = compose.ColumnTransformer([("w", weighted, ["a"]), ("s", plain, ["a"])])
        model.fit(rows, sample_weight=as_dask(weight, "empty middle"))
    weighted = preprocessing.StandardScaler().fit(frame[["a"]], sample_weight=weight)
    plain = preprocessing.StandardScaler().fit(frame[["a"]])
    np.testing.assert_allclose(model.named_transformers_["w"].mean_, weighted.mean_)
    np.testing.assert_allclose(model.named_transformers_["s"].mean_, plain.mean_)


@pytest.mark.parametrize("method", ["fit", "transform"])
def test_metadata_that_is_not_cut_like_rows_is_refused(method, frame):
    rows = as_dask(frame, "empty middle")
    scaler = ours.StandardScaler()
    for model in (
        compose.ColumnTransformer([("s", scaler, ["b"])]),
        compose.FeatureUnion([("s", scaler)]),
    ):
        model.fit(rows)
        with pytest.raises(ValueError, match=r"metadata routing|sample_weight alone"):
            getattr(model, method)(rows, groups=1)
        with config_context(enable_metadata_routing=True):
            with pytest.raises(TypeError, match=r"unexpected argument.*groups"):
                getattr(model, method)(rows, groups=1)
            taker = WithGroups().set_fit_request(groups=True).set_transform_request(groups=True)
            own = clone(model).set_params(s=taker)
            with pytest.raises(ValueError, match=r"must get (no metadata|sample_weight alone)"):
                getattr(own.fit(rows), method)(rows, groups=1)


class WithGroups(TransformerMixin, BaseEstimator):
    """Learns nothing, and takes metadata."""

    def fit(self, X, y=None, groups=None):
        return self

    def transform(self, X, groups=None):
        return X

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


def test_sparse_rows_are_passed_through(frame):
    X = frame[["b", "c"]].to_numpy() * (frame[["b", "c"]].to_numpy() > 1)
    columns = [("kept", "passthrough", [0])]
    for remainder in ("passthrough", ours.MaxAbsScaler()):
        for threshold in (0.1, 0.9):
            model = compose.ColumnTransformer(
                columns, remainder=remainder, sparse_threshold=threshold
            )
            like = reference.ColumnTransformer(
                columns, remainder=remainder, sparse_threshold=threshold
            )
            check_like_reference(model, like, X, partition="empty middle", container="csr")


def test_what_is_passed_through_is_printed_too(frame, capsys):
    rows, scaler = as_dask(frame, "empty middle"), preprocessing.StandardScaler()
    steps = [("s", scaler, ["a"]), ("p", "passthrough", ["b"]), ("d", "drop", ["c"])]
    union = [("s", scaler), ("p", "passthrough"), ("d", "drop")]
    for cls, parts in (("ColumnTransformer", steps), ("FeatureUnion", union)):
        printed = []
        for module, X in ((reference, frame), (compose, rows)):
            module = pipeline if (cls, module) == ("FeatureUnion", reference) else module
            params = {"remainder": "passthrough"} if cls == "ColumnTransformer" else {}
            getattr(module, cls)(parts, verbose=True, **params).fit(X)
            lines = capsys.readouterr().out.splitlines()
            printed.append([line.partition("total=")[0].replace(".", "") for line in lines])
        assert printed[0] == printed[1] != []


def test_factories(frame):
    rows = as_dask(frame, "empty middle")
    columns = compose.make_column_selector(dtype_include=float)
    model = compose.make_column_transformer((preprocessing.StandardScaler(), columns)).fit(rows)
    want = preprocessing.StandardScaler().fit_transform(frame)
    np.testing.assert_allclose(model.transform(rows).compute(), want)
    union = compose.make_union(preprocessing.StandardScaler()).fit(rows)
    np.testing.assert_allclose(union.transform(rows).compute(), want)


TARGETS = {
    "scaler": {"transformer": preprocessing.StandardScaler()},
    "functions": {"func": np.log, "inverse_func": np.exp},
    "nothing": {},
}


@pytest.mark.parametrize("case", TARGETS)
def test_transformed_target(case, frame):
    X = frame.fillna(0)
    y = np.exp(X["b"] - X["c"]).rename("y")
    want = reference.TransformedTargetRegressor(linear_model.Ridge(), **TARGETS[case]).fit(X, y)
    rows = dd.from_pandas(X.assign(y=y), npartitions=3)
    model = compose.TransformedTargetRegressor(Ridge(), **TARGETS[case])
    model.fit(rows[list("abcd")], rows["y"])
    predicted = model.predict(rows[list("abcd")])
    np.testing.assert_allclose(predicted.compute(), want.predict(X), rtol=1e-6)
    assert model.score(rows[list("abcd")], rows["y"]) == pytest.approx(want.score(X, y))
    assert list(model.feature_names_in_) == list("abcd")


def test_transformed_target_checks_its_functions(frame):
    X = as_dask(frame.fillna(0), "empty middle")
    model = compose.TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.sqrt)
    with pytest.warns(UserWarning, match="not strictly inverse"):
        model.fit(X, X["b"] ** 2 + 1)
    for params in ({"func": np.log}, {"inverse_func": np.log}):
        with pytest.raises(ValueError, match="must also be provided"):
            clone(model).set_params(**{"func": None, "inverse_func": None} | params).fit(X, X["b"])
    with pytest.raises(ValueError, match="cannot both be set"):
        clone(model).set_params(transformer=preprocessing.StandardScaler()).fit(X, X["b"])


def with_target_encoders(room, union):
    """A TargetEncoder by itself, in front of another step, and in compositions of compositions."""

    def encoder():
        return preprocessing.TargetEncoder(cv=KFold(3, shuffle=True, random_state=0))

    steps = pipeline.make_pipeline(encoder(), preprocessing.StandardScaler())
    inner = room.ColumnTransformer([("e", encoder(), ["c"])])
    return room.ColumnTransformer(
        [
            ("encoder", encoder(), ["a"]),
            ("scaler", preprocessing.StandardScaler(), ["b"]),
            ("steps", steps, ["c", "a"]),
            ("inner", inner, ["c"]),
            ("union", union([("u", encoder())]), ["a"]),
        ]
    )


@pytest.mark.parametrize("container", ["default", "pandas"])
@pytest.mark.parametrize("n_partitions", [1, 4])
def test_targets_are_cross_fitted(n_partitions, container):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.choice(list("uvw"), 90), "b": rng.normal(size=90), "c": rng.choice([1, 2], 90)}
    )
    y = pd.Series(rng.normal(size=90) + (frame["a"] == "u"), name="y")
    rows = dd.from_pandas(frame.assign(y=y), npartitions=n_partitions)
    X, target = rows[["a", "b", "c"]], rows["y"]
    want = with_target_encoders(reference, pipeline.FeatureUnion)
    expected = want.set_output(transform=container).fit_transform(frame, y)
    model = with_target_encoders(compose, compose.FeatureUnion).set_output(transform=container)
    with counting() as counts:
        got = model.fit_transform(X, target)
    assert counts.passes == 3
    np.testing.assert_allclose(got.compute(), expected, rtol=1e-10, atol=1e-12)
    if container == "pandas":
        pd.testing.assert_frame_equal(got.compute(), expected)
    again = clone(model).fit(X, target).transform(X)
    np.testing.assert_allclose(again.compute(), want.transform(frame), rtol=1e-10, atol=1e-12)
    steps = pipeline.make_pipeline(preprocessing.TargetEncoder(), PCA(1))
    with pytest.raises(TypeError, match="Put the estimator behind the composition"):
        compose.ColumnTransformer([("s", steps, ["a", "c"])]).fit(X, target)


def test_blocks_in_memory_are_not_changed(frame):
    in_place = [impute.SimpleImputer(copy=False), preprocessing.StandardScaler(copy=False)]
    X = frame.to_numpy()
    rows = da.from_array(X.copy(), chunks=(20, 4)).persist(scheduler="synchronous")
    union = compose.FeatureUnion([("steps", pipeline.make_pipeline(*in_place))]).fit(rows)
    columns = compose.ColumnTransformer([("s", in_place[1], slice(1, 4))]).fit(rows)
    for model in (union, columns):
        model.transform(rows).compute()
        np.testing.assert_array_equal(rows.compute(), X)
    assert not columns.named_transformers_["s"].copy
