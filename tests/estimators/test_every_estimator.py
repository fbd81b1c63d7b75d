"""What ParallelPostFit announces is what comes, for every estimator of scikit-learn."""

import inspect
import warnings
from functools import cache
from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import is_regressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import all_estimators

from random_examples import n_examples
from skfleet.estimators import ParallelPostFit

METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "transform",
    "inverse_transform",
    "score_samples",
    "kneighbors",
)

N = 48
_rng = np.random.default_rng(0)
NUMBERS = np.abs(_rng.normal(size=(N, 5))) + 0.1
LABELS = np.array(["no", "yes", "perhaps"])[(3 * NUMBERS[:, 0]).astype(int) % 3]
TARGET = NUMBERS[:, 0] + 0.1 * NUMBERS[:, 1]
WORDS = np.array([f"a{i % 5} b{i % 3} c" for i in range(N)], dtype=object)
DICTS = np.array([{"a": i % 5, f"b{i % 3}": 1.0} for i in range(N)], dtype=object)

# Arguments for those that cannot do without, or do nothing at their defaults on this data.
_steps = [("scale", StandardScaler()), ("same", FunctionTransformer())]
_classifiers = [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))]
_regressors = [("a", Ridge()), ("b", Ridge(10.0))]
ARGUMENTS = {
    "CCA": {"n_components": 1},
    "ColumnTransformer": {"transformers": [("scale", StandardScaler(), [0, 2])]},
    "FeatureUnion": {"transformer_list": _steps},
    "GaussianRandomProjection": {"n_components": 3},
    "GridSearchCV": {"param_grid": {"C": [1.0]}},
    "HalvingGridSearchCV": {"param_grid": {"C": [1.0]}},
    "HalvingRandomSearchCV": {"param_distributions": {"C": [1.0]}},
    "KernelPCA": {"fit_inverse_transform": True},
    "MissingIndicator": {"features": "all"},
    "PLSCanonical": {"n_components": 1},
    "PLSSVD": {"n_components": 1},
    "Pipeline": {"steps": _steps},
    **{key: {"n_features": 2**10} for key in ("FeatureHasher", "HashingVectorizer")},
    "RFE": {"estimator": Ridge()},
    "RFECV": {"estimator": Ridge()},
    "RandomizedSearchCV": {"param_distributions": {"C": [1.0]}, "n_iter": 1},
    "RegressorChain": {"estimator": Ridge()},
    **{key: {"alpha": 0.99} for key in ("SelectFdr", "SelectFpr", "SelectFwe")},
    "SelfTrainingClassifier": {"estimator": LogisticRegression()},
    "SimpleImputer": {"add_indicator": True},
    "MultiOutputRegressor": {"estimator": Ridge()},
    "SparseRandomProjection": {"n_components": 3},
    "StackingClassifier": {"estimators": _classifiers},
    "StackingRegressor": {"estimators": _regressors},
    "VotingClassifier": {"estimators": _classifiers},
    "VotingRegressor": {"estimators": _regressors},
}
ROWS = {
    "CountVectorizer": WORDS,
    "DictVectorizer": DICTS,
    "FeatureHasher": DICTS,
    "HashingVectorizer": WORDS,
    "IsotonicRegression": NUMBERS[:, 0],
    "TfidfVectorizer": WORDS,
}
TARGETS = {
    "PLSSVD": TARGET,
    "SelfTrainingClassifier": LABELS.astype(object),
    **dict.fromkeys(("FixedThresholdClassifier", "TunedThresholdClassifierCV"), TARGET > 1),
    **dict.fromkeys(("ClassifierChain", "MultiOutputClassifier"), NUMBERS[:, :2] > 0.8),
    **dict.fromkeys(
        ["RegressorChain", "MultiOutputRegressor"]
        + ["MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV"],
        NUMBERS[:, :2],
    ),
}

NOT_FOR_ROWS = {
    "FrozenEstimator": "has nothing of its own",
    "KernelCenterer": "takes rows of a square kernel",
    "LabelBinarizer": "transforms targets",
    "LabelEncoder": "transforms targets",
    "MultiLabelBinarizer": "transforms targets",
    "PatchExtractor": "takes images",
    "SparseCoder": "is given its dictionary, and never fitted",
}
ANOTHER_ANSWER = {
    ("BernoulliRBM", "score_samples"): "draws at random in every call",
    ("MiniBatchNMF", "transform"): "iterates until all rows together have converged",
    ("NMF", "transform"): "iterates until all rows together have converged",
    ("MiniBatchSparsePCA", "transform"): "answers a single row in one dimension",
    ("SparsePCA", "transform"): "answers a single row in one dimension",
}
ROUGH = {
    # square roots of what should be zero: of the rounding of a difference of large numbers
    ("Birch", "transform"): 1e-7,
    ("KMeans", "transform"): 1e-7,
    ("BisectingKMeans", "transform"): 1e-7,
    ("MiniBatchKMeans", "transform"): 1e-7,
    # at its defaults it interpolates, with coefficients of large numbers
    ("GaussianProcessRegressor", "predict"): 1e-6,
}


@cache
def _fitted(name):
    """Fit the estimator of that name; also return what it was fitted on."""
    cls = CLASSES[name]
    arguments = dict(ARGUMENTS.get(name, {}))
    parameters = inspect.signature(cls).parameters
    if "estimator" in parameters and parameters["estimator"].default is inspect.Parameter.empty:
        arguments.setdefault("estimator", LogisticRegression())
    if "random_state" in parameters:
        arguments["random_state"] = 0
    model = cls(**arguments)
    X = ROWS.get(name, NUMBERS)
    y = TARGETS.get(name, TARGET if is_regressor(model) or name.startswith("RFE") else LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y), X


CLASSES = dict(all_estimators())
NAMES = [name for name in CLASSES if name not in NOT_FOR_ROWS]
NAMES = [name for name in NAMES if any(hasattr(CLASSES[name], m) for m in METHODS)]


def _lazy(values, cuts, container):
    """Cut rows, some blocks of them empty."""
    lengths = tuple(np.diff([0, *sorted(cuts), N]).tolist())
    if container == "frame":
        ends = np.cumsum([0, *lengths])
        frame = pd.DataFrame(values) if values.ndim == 2 else pd.Series(values)
        parts = [frame.iloc[a:b] for a, b in pairwise(ends)]
        meta = frame.iloc[:0]
        # Dask would make text of objects.
        with dask.config.set({"dataframe.convert-string": False}):
            return dd.from_map(lambda i: parts[i], range(len(parts)), meta=meta)
    columns = values.shape[1:]
    if container == "rows and columns" and columns > (2,):
        columns = ((2, columns[0] - 2),)
    return da.from_array(values, chunks=(lengths, *columns))


def _check(announced, want, rows, atol):
    """The kind, type, shape, names, index and chunks announced, and the values wanted, come."""
    got = announced.compute(scheduler="synchronous")
    values = want.toarray() if sparse.issparse(want) else want
    if isinstance(want, list):  # an array per row
        values = np.empty(len(want), dtype=object)
        values[:] = want
    if isinstance(announced, da.Array):
        assert announced.dtype == got.dtype
        assert announced.ndim == got.ndim
        assert announced.shape[1:] == got.shape[1:]
        assert sparse.issparse(announced._meta) == sparse.issparse(got) == sparse.issparse(want)
        if isinstance(rows, da.Array):
            assert announced.chunks[0] == rows.chunks[0]
            for block, length in zip(announced.blocks, rows.chunks[0], strict=True):
                assert block.compute(scheduler="synchronous").shape[0] == length
    else:
        pd.testing.assert_index_equal(got.index, rows.index.compute(scheduler="synchronous"))
        assert type(announced._meta) is type(got)
        if got.ndim == 2:
            assert list(announced.columns) == list(got.columns)
            assert list(announced.dtypes) == list(got.dtypes)
        else:
            assert announced.dtype == got.dtype
    got, values = (np.asarray(v.toarray() if sparse.issparse(v) else v) for v in (got, values))
    assert got.shape == values.shape
    if values.dtype.kind == "f" and values.size:
        scale = np.max(np.abs(values), where=np.isfinite(values), initial=1.0)
        np.testing.assert_allclose(got, values, rtol=0, atol=atol * scale)
    elif isinstance(want, list):
        for one, wanted in zip(got, values, strict=True):
            np.testing.assert_array_equal(one, wanted)
    else:
        np.testing.assert_array_equal(got, values)


@pytest.mark.sampled(34)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=n_examples(1, 4),
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    cuts=st.lists(st.integers(0, N), min_size=1, max_size=3),
    container=st.sampled_from(["rows and columns", "whole rows", "frame"]),
    single=st.booleans(),
)
def test_what_is_announced_is_what_comes(name, cuts, container, single):
    model, X = _fitted(name)
    wrapper = ParallelPostFit(model)
    for method in METHODS:
        if not hasattr(wrapper, method) or (name, method) in ANOTHER_ANSWER:
            continue
        values = X
        if method == "inverse_transform":
            values = model.transform(X)
            values = values.toarray() if sparse.issparse(values) else np.asarray(values)
        if single and values.dtype == np.float64:
            values = values.astype(np.float32)
        try:
            frame = pd.DataFrame(values) if values.ndim == 2 else pd.Series(values)
            want = getattr(model, method)(frame if container == "frame" else values)
        except Exception:
            if container == "frame" or single:
                continue  # it takes none
            raise
        rows = _lazy(values, cuts, container)
        got = getattr(wrapper, method)(rows)
        exact = 1e-12 if not single else 1e-5
        atol = max(exact, ROUGH.get((name, method), 0))
        several = isinstance(got, list | tuple)
        assert type(got) is type(want) or not several
        for one, wanted in zip(*((got, want) if several else ([got], [want])), strict=True):
            _check(one, wanted, rows, atol)


def test_the_exceptions_are_what_they_are_said_to_be():
    assert NOT_FOR_ROWS.keys() | {name for name, _ in ANOTHER_ANSWER} <= CLASSES.keys()
    assert len(NOT_FOR_ROWS) + len(ANOTHER_ANSWER) < 0.08 * len(CLASSES)
