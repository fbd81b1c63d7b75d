"""Linear models behind a ColumnTransformer with sparse outputs, which their tasks do not join."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfleet._linalg import HStackedParts, affine, all_finite
from skfleet._validation import check_finite
from skfleet.estimators import (
    ColumnTransformer,
    KMeans,
    Lasso,
    LogisticRegression,
    MaxAbsScaler,
    OneHotEncoder,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SimpleImputer,
    StandardScaler,
)

NUMBERS = ["a", "b"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=NUMBERS)
    frame["town"] = rng.integers(0, 40, 300).astype(str)
    frame["y"] = (frame["a"] + rng.normal(size=300) > 0).astype(int)
    frame.loc[::7, "b"] = np.nan
    return frame


@pytest.fixture
def joined(monkeypatch):
    """Count the outputs that are joined to one matrix."""
    from skfleet.estimators.compose import _column_transformer

    calls, hstack = [], _column_transformer.hstack
    monkeypatch.setattr(
        _column_transformer, "hstack", lambda parts: calls.append(len(parts)) or hstack(parts)
    )
    return calls


def prepared(*steps):
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    towns = OneHotEncoder(handle_unknown="ignore")
    parts = [("numbers", numbers, NUMBERS), ("towns", towns, ["town"])]
    return make_pipeline(ColumnTransformer(parts), *steps)


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        (LogisticRegression(), ["predict", "predict_proba", "decision_function"]),
        (SGDClassifier(loss="log_loss", random_state=0), ["predict", "predict_log_proba"]),
        (RidgeClassifier(), ["predict"]),
        (Ridge(), ["predict"]),
        (Lasso(0.01), ["predict"]),
        (PoissonRegressor(), ["predict"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tasks_of_linear_models_join_no_columns(model, methods, frame, joined):
    model = prepared(model).fit(frame, frame["y"])
    rows = dd.from_pandas(frame, npartitions=3)
    for method in methods:
        want, answers = getattr(model, method)(frame), getattr(model, method)(rows)
        joined.clear()
        np.testing.assert_allclose(answers.compute(scheduler="sync"), want, rtol=1e-9, atol=1e-12)
        assert not joined


@pytest.mark.parametrize(
    "steps", [(KMeans(2, random_state=0),), (MaxAbsScaler(), LogisticRegression())], ids=str
)
def test_other_steps_take_a_matrix(steps, frame, joined):
    model = prepared(*steps).fit(frame, frame["y"])
    want, answers = model.predict(frame), model.predict(dd.from_pandas(frame, npartitions=3))
    joined.clear()
    np.testing.assert_array_equal(answers.compute(scheduler="sync"), want)
    assert joined == [2] * 3


def test_transformed_rows_are_a_matrix_also_beside_predictions(frame):
    model = prepared(LogisticRegression()).fit(frame, frame["y"])
    rows = model[0].transform(dd.from_pandas(frame, npartitions=3))
    before = rows.blocks[0].compute()
    model[-1].predict(rows).compute()
    after = rows.blocks[0].compute()
    assert sparse.issparse(before)
    assert sparse.issparse(after)
    assert sparse.issparse(model[0].transform(frame))


def test_values_that_are_not_finite_in_a_part_are_refused(frame):
    parts = [
        ("numbers", FunctionTransformer(), NUMBERS),
        ("towns", OneHotEncoder(handle_unknown="ignore"), ["town"]),
    ]
    complete = frame.fillna(0.0)
    model = make_pipeline(ColumnTransformer(parts), LogisticRegression())
    model.fit(complete, complete["y"])
    answers = model.predict(dd.from_pandas(frame, npartitions=3))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        answers.compute(scheduler="sync")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_products_are_those_of_the_joined_columns(dtype, width, is_sparse):
    rng = np.random.default_rng(0)
    D = rng.normal(size=(20, 2)).astype(dtype) + 1000
    S = sparse.random(20, 5, 0.4, format="csr", dtype=dtype, random_state=0)
    parts = HStackedParts([S, D, S])
    whole = np.hstack([S.toarray(), D, S.toarray()])
    assert parts.shape == whole.shape
    assert parts.dtype == dtype
    B = rng.normal(size=(12,) if width is None else (12, width))
    offset = np.zeros(width or 1) - 1e3
    want = whole.astype(np.float64) @ B + offset
    operand = sparse.csc_array(B) if is_sparse and width else B
    got = affine(parts, operand, offset)
    np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == np.float32 else 1e-12)


def test_one_part_that_is_not_finite():
    S, D = sparse.eye_array(3, format="csr"), np.array([[1.0], [2.0], [np.inf]])
    assert all_finite(HStackedParts([S, D[:2].repeat(2, axis=0)[:3]]))
    assert not all_finite(HStackedParts([S, D]))
    with pytest.raises(ValueError, match="X contains infinity"):
        check_finite("X", HStackedParts([S, D]))
