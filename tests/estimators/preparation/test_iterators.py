"""Parameters that are iterators are read once, and not sent to workers."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import preprocessing
from sklearn.feature_extraction import text
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold

from skfleet import estimators as ours

TERMS = ["aa", "bb"]
DOCUMENTS = ["aa bb", "bb bb", "cc"]
FORMS = {
    "generator": lambda values: (value for value in values),
    "iter": iter,
    "map": lambda values: map(tuple, values),
    "dict view": lambda values: dict(enumerate(values)).values(),
}


@pytest.mark.parametrize("form", ["generator", "iter", "dict view"])
@pytest.mark.parametrize("name", ["CountVectorizer", "TfidfVectorizer"])
def test_terms_of_a_vocabulary(name, form, cluster_client):
    documents = dd.from_pandas(pd.Series(DOCUMENTS), npartitions=2)
    vocabulary = FORMS[form](TERMS)
    want = getattr(text, name)(vocabulary=TERMS).fit_transform(DOCUMENTS).toarray()
    with cluster_client.as_current():
        vectorizer = getattr(ours, name)(vocabulary=vocabulary).fit(documents)
        got = np.vstack([block.toarray() for block in _blocks(vectorizer.transform(documents))])
        np.testing.assert_allclose(got, want)
        assert vectorizer.vocabulary is vocabulary
        if form != "dict view":
            with pytest.raises(ValueError, match="empty vocabulary"):
                vectorizer.fit(documents)


def _blocks(X):
    return [block.compute() for block in X.to_delayed().ravel()]


@pytest.mark.parametrize("form", list(FORMS))
def test_splits_of_a_target_encoder(form, cluster_client):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, (40, 1)), rng.normal(size=40)
    splits = list(KFold(4, shuffle=True, random_state=0).split(X))
    # training rows that are drawn more than once count as often
    splits = [(np.append(train, train[:5]), test) for train, test in splits]
    want = preprocessing.TargetEncoder(cv=splits).fit_transform(X, y)
    with cluster_client.as_current():
        encoder = ours.TargetEncoder(cv=FORMS[form](splits))
        rows = da.from_array(X, chunks=(15, 1)), da.from_array(y, chunks=15)
        np.testing.assert_allclose(encoder.fit_transform(*rows).compute(), want)
        if form != "dict view":
            with pytest.raises(ValueError, match="cv must have splits"):
                encoder.fit_transform(*rows)


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("name", ["GaussianNB", "Incremental"])
def test_classes_must_be_a_list(name, form):
    rng = np.random.default_rng(0)
    X = da.from_array(rng.normal(size=(20, 2)), chunks=(10, 2))
    y = da.from_array(np.arange(20) % 2, chunks=10)
    model = ours.GaussianNB() if name == "GaussianNB" else ours.Incremental(SGDClassifier())
    with pytest.raises(ValueError, match=r"classes must be|Expected array-like"):
        model.partial_fit(X, y, classes=FORMS[form]([(0,), (1,)] if form == "map" else [0, 1]))
