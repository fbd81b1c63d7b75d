"""Vectorizers of text and of dicts on Dask rows, as scikit-learn's on the rows together."""

import pickle
import warnings
from collections import OrderedDict

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from row_partitions import PARTITIONS, as_dask, check_like_reference, same_values
from scipy import sparse
from sklearn import compose, feature_extraction, feature_selection
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import text
from sklearn.feature_selection import chi2
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.engine import counting
from skfleet.estimators import feature_extraction as ours
from skfleet.estimators import feature_selection as own_selection
from skfleet.estimators.compose import ColumnTransformer

TEXT_PARTITIONS = [p for p in PARTITIONS if p not in ("sorted by y", "other categories")]


@pytest.fixture
def documents():
    """Documents of which two are empty, with terms that are equally frequent."""
    rng = np.random.default_rng(0)
    words = np.array([*(f"word{i}" for i in range(60)), "The", "naïve", "of"])
    frequency = 1 / np.arange(1, len(words) + 1)
    lengths = [0, 0, *rng.integers(1, 12, 38)]
    drawn = [rng.choice(words, n, p=frequency / frequency.sum()) for n in lengths]
    return np.array([" ".join(document) for document in drawn], dtype=object)


def split_at_spaces(document):
    return document.split(" ")


def without_change(document):
    return document


COUNTS = {
    "all": {},
    "between": {"min_df": 2, "max_df": 0.3},
    "share": {"min_df": 0.06, "max_df": 9},
    "top": {"max_features": 11},
    "top of rare": {"max_features": 7, "max_df": 3, "binary": True},
    "stop words": {"stop_words": "english", "lowercase": False},
    "pairs": {"ngram_range": (1, 2), "min_df": 2, "dtype": np.float32},
    "letters": {"analyzer": "char_wb", "ngram_range": (2, 3), "strip_accents": "unicode"},
    "vocabulary": {"vocabulary": ["word1", "absent", "word0"]},
    "functions": {"tokenizer": split_at_spaces, "token_pattern": None},
}
TFIDF = {
    **{case: COUNTS[case] for case in ("all", "between", "top", "vocabulary", "pairs")},
    "without idf": {"use_idf": False, "norm": "l1"},
    "vocabulary without idf": {"use_idf": False, "vocabulary": {"word1": 1, "word2": 0}},
    "not smooth": {"smooth_idf": False, "sublinear_tf": True, "norm": None},
}


@pytest.mark.parametrize("partition", TEXT_PARTITIONS)
@pytest.mark.parametrize("case", COUNTS)
def test_counts(case, partition, documents):
    params = COUNTS[case]
    vectorizer, reference, _, _ = check_like_reference(
        ours.text.CountVectorizer(**params),
        text.CountVectorizer(**params),
        documents,
        partition=partition,
    )
    assert list(vectorizer.vocabulary_.items()) == list(reference.vocabulary_.items())


@pytest.mark.parametrize("partition", ["a row a block", "sorted by a column", "unknown lengths"])
@pytest.mark.parametrize("case", TFIDF)
def test_tfidf(case, partition, documents):
    vectorizer, reference, _, _ = check_like_reference(
        ours.text.TfidfVectorizer(**TFIDF[case]),
        text.TfidfVectorizer(**TFIDF[case]),
        documents,
        partition=partition,
    )
    assert hasattr(vectorizer, "idf_") == hasattr(reference, "idf_")
    if hasattr(reference, "idf_"):
        np.testing.assert_array_equal(vectorizer.idf_, reference.idf_)
        assert vectorizer.idf_.dtype == reference.idf_.dtype


@pytest.mark.parametrize("partition", TEXT_PARTITIONS)
def test_hashes(partition, documents):
    params = {"n_features": 2**7, "ngram_range": (1, 2)}
    pair = ours.text.HashingVectorizer(**params), text.HashingVectorizer(**params)
    *_, lazy, local = check_like_reference(*pair, documents, partition=partition)
    same = pair[0].partial_fit(lazy).transform(lazy)
    same_values(same.compute(), pair[1].transform(local))


def collections_of(items):
    """Return items as a bag, as Series of objects and, of text, of Arrow's."""
    series = pd.Series(items, index=range(5, 5 + len(items)), dtype=object)
    yield db.from_sequence(list(items), npartitions=4)
    with dask.config.set({"dataframe.convert-string": False}):
        yield dd.from_pandas(series, npartitions=3)
    if isinstance(items[0], str):
        yield dd.from_pandas(series.astype("str"), npartitions=3)
        yield da.from_array(np.array(items, dtype=str), chunks=9)


@pytest.mark.parametrize("name", ["CountVectorizer", "TfidfVectorizer", "HashingVectorizer"])
def test_collections(name, documents):
    params = {"n_features": 2**6} if name == "HashingVectorizer" else {}
    expected = getattr(text, name)(**params).fit(documents).transform(documents)
    for lazy in collections_of(documents):
        transformed = getattr(ours.text, name)(**params).fit_transform(lazy)
        assert isinstance(transformed, da.Array)
        computed = transformed.compute(scheduler="synchronous")
        assert type(computed) is type(expected) is type(transformed._meta)
        assert computed.dtype == expected.dtype == transformed.dtype
        same_values(computed, expected)


def test_tokens_need_no_text(documents):
    tokens = [document.split() for document in documents]
    params = {"analyzer": without_change, "max_features": 9}
    reference = text.TfidfVectorizer(**params).fit(tokens)
    for lazy in collections_of(tokens):
        vectorizer = ours.text.TfidfVectorizer(**params).fit(lazy)
        assert vectorizer.vocabulary_ == reference.vocabulary_
        same_values(vectorizer.transform(lazy).compute(), reference.transform(tokens))


def unavailable():
    raise RuntimeError("loaded")


def test_transform_loads_nothing_before_it_is_computed(documents):
    bag = db.from_delayed([dask.delayed(unavailable)()])
    lazy = db.from_sequence(documents, npartitions=3)
    fitted = [
        ours.text.CountVectorizer(analyzer=len_of_words).fit(lazy),
        ours.text.CountVectorizer(vocabulary=["a"]),
        ours.text.TfidfVectorizer(tokenizer=split_at_spaces, token_pattern=None).fit(lazy),
        ours.text.HashingVectorizer(input="filename"),
        ours.FeatureHasher(),
        ours.FeatureHasher(input_type="pair"),
        ours.DictVectorizer(sparse=False).fit(db.from_sequence([{"a": 1}])),
    ]
    for vectorizer in fitted:
        transformed = vectorizer.transform(bag)
        with pytest.raises(RuntimeError, match="loaded"):
            transformed.compute(scheduler="synchronous")


def len_of_words(document):
    return [len(word) for word in document.split()]


def test_passes(documents):
    lazy, y = as_dask(documents, "unknown lengths"), np.zeros(len(documents))
    passes = {}
    for vectorizer in (
        ours.text.CountVectorizer(max_features=3),
        ours.text.CountVectorizer(vocabulary=["a"]),
        ours.text.TfidfVectorizer(),
        ours.text.TfidfVectorizer(vocabulary=["a"]),
        ours.text.TfidfVectorizer(vocabulary=["a"], use_idf=False),
        ours.text.HashingVectorizer(),
    ):
        with counting() as counts:
            vectorizer.fit(lazy, y)
        passes[str(vectorizer)] = counts.passes
    assert list(passes.values()) == [1, 0, 1, 1, 0, 0]


def dense(block):
    return block.toarray()


def test_inverse_transform(documents):
    lazy = db.from_sequence(documents, npartitions=3)
    vectorizer, reference = ours.text.CountVectorizer(), text.CountVectorizer()
    counts = vectorizer.fit_transform(lazy)
    expected = reference.inverse_transform(reference.fit_transform(documents))
    for rows in (counts, counts.map_blocks(dense, dtype=counts.dtype)):
        terms = vectorizer.inverse_transform(rows).compute()
        assert len(terms) == len(expected)
        for a, b in zip(terms, expected, strict=True):
            assert sorted(a) == sorted(b)


@pytest.mark.parametrize("name", ["CountVectorizer", "TfidfVectorizer"])
def test_inverse_transform_by_a_vocabulary_alone(name):
    rows = da.from_array(sparse.csr_array([[1, 0], [0, 2], [3, 1]]), chunks=(1, 2), asarray=False)
    model = getattr(ours.text, name)(vocabulary=["one", "two"])
    found = model.inverse_transform(rows).compute()
    assert [list(terms) for terms in found] == [["one"], ["two"], ["one", "two"]]
    assert model.vocabulary_ == {"one": 0, "two": 1}
    with pytest.raises(NotFittedError, match="not fitted or provided"):
        getattr(ours.text, name)().inverse_transform(rows)


@pytest.mark.parametrize("container", ["array", "csr"])
@pytest.mark.parametrize("partition", TEXT_PARTITIONS)
@pytest.mark.parametrize("params", [{}, {"smooth_idf": False, "norm": "l1"}, {"use_idf": False}])
def test_tfidf_transformer(params, partition, container):
    X = np.random.default_rng(0).poisson(0.7, (30, 5)) * 1.0
    X[:, 4] = 1
    if partition == "a block without values":
        X[10:15], partition = 0, "empty middle"
    for dtype in (np.float64, np.float32, np.int64):
        check_like_reference(
            ours.text.TfidfTransformer(**params),
            text.TfidfTransformer(**params),
            X.astype(dtype),
            partition=partition,
            container=container,
        )


def test_tfidf_transformer_of_a_frame_and_of_counts(documents):
    X = pd.DataFrame(np.random.default_rng(0).poisson(0.7, (30, 3)), columns=list("abc"))
    fitted = ours.text.TfidfTransformer().fit(as_dask(X, "empty last"))
    reference = text.TfidfTransformer().fit(X)
    np.testing.assert_array_equal(fitted.idf_, reference.idf_)
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    own = make_pipeline(ours.text.CountVectorizer(), ours.text.TfidfTransformer())
    stock = make_pipeline(text.CountVectorizer(), text.TfidfTransformer())
    lazy = own.fit_transform(db.from_sequence(documents))
    same_values(lazy.compute(), stock.fit_transform(documents))


@pytest.fixture
def dicts():
    rng = np.random.default_rng(0)
    return [
        {}
        if i % 7 == 0
        else {
            f"n{rng.integers(5)}": rng.normal(),
            "city": f"c{rng.integers(4)}",
            "tags": ["x", f"t{rng.integers(3)}"],
        }
        for i in range(31)
    ]


@pytest.mark.parametrize("params", [{}, {"sort": False, "separator": ":"}, {"dtype": np.float32}])
@pytest.mark.parametrize("sparse", [True, False])
def test_dict_vectorizer(params, sparse, dicts):
    reference = feature_extraction.DictVectorizer(sparse=sparse, **params).fit(dicts)
    expected = reference.transform(dicts)
    for lazy in collections_of(dicts):
        vectorizer = ours.DictVectorizer(sparse=sparse, **params).fit(lazy)
        assert vectorizer.feature_names_ == reference.feature_names_
        assert vectorizer.vocabulary_ == reference.vocabulary_
        transformed = vectorizer.transform(lazy)
        computed = transformed.compute(scheduler="synchronous")
        assert type(computed) is type(expected) is type(transformed._meta)
        same_values(computed, expected)
        back = vectorizer.inverse_transform(transformed, dict_type=OrderedDict).compute()
        assert [type(row) for row in back] == [OrderedDict] * len(dicts)
        assert [dict(row) for row in back] == reference.inverse_transform(expected)


def test_dicts_as_a_frame_with_gaps(dicts):
    dicts[3]["n1"] = None
    lazy = next(lazy for lazy in collections_of(dicts) if hasattr(lazy, "index"))
    stock = feature_extraction.DictVectorizer(sparse=False).set_output(transform="pandas")
    expected = stock.fit_transform(lazy.compute())
    vectorizer = ours.DictVectorizer(sparse=False).set_output(transform="pandas")
    frame = vectorizer.fit_transform(lazy)
    assert isinstance(frame, dd.DataFrame)
    pd.testing.assert_frame_equal(frame.compute(), expected)


@pytest.mark.parametrize("input_type", ["dict", "pair", "string"])
def test_feature_hasher(input_type, dicts):
    items = [{k: v for k, v in row.items() if k != "tags"} for row in dicts]
    items = {
        "dict": items,
        "pair": [[(name, 2) for name in row] for row in items],
        "string": [list(row) for row in items],
    }[input_type]
    params = {"n_features": 16, "input_type": input_type, "dtype": np.float32}
    expected = feature_extraction.FeatureHasher(**params).transform(items)
    for lazy in collections_of(items):
        for hasher in (ours.FeatureHasher(**params), ours.FeatureHasher(**params).fit(lazy)):
            transformed = hasher.transform(lazy)
            assert transformed.dtype == np.float32
            same_values(transformed.compute(scheduler="synchronous"), expected)


def message_of(call):
    with pytest.raises((ValueError, AttributeError)) as caught:
        call()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("name", "params", "rows"),
    [
        ("CountVectorizer", {}, ["", "a"]),
        ("TfidfVectorizer", {"min_df": 2}, ["one two", "three"]),
        ("CountVectorizer", {"min_df": 3, "max_df": 2}, ["one two", "three"]),
        ("CountVectorizer", {"min_df": -1}, ["one two", "three"]),
        ("CountVectorizer", {"ngram_range": (2, 1)}, ["one two", "three"]),
        ("TfidfVectorizer", {"vocabulary": []}, ["one two", "three"]),
        ("TfidfVectorizer", {"vocabulary": ["a", "a"]}, ["one two", "three"]),
        ("HashingVectorizer", {"norm": "l3"}, ["one two", "three"]),
        ("HashingVectorizer", {"ngram_range": (2, 1)}, ["one two", "three"]),
        ("CountVectorizer", {}, ["one two", np.nan]),
        ("CountVectorizer", {}, ["one two", 3]),
    ],
)
def test_errors_of_fit(name, params, rows):
    expected = message_of(lambda: getattr(text, name)(**params).fit(rows))
    vectorizer = getattr(ours.text, name)(**params)
    lazy = db.from_sequence(rows, npartitions=2)
    assert message_of(lambda: vectorizer.fit(lazy)) == expected
    assert vars(vectorizer) == vars(getattr(text, name)(**params))


def test_errors_of_transform(documents):
    lazy = db.from_sequence(documents)
    with pytest.raises(NotFittedError, match="Vocabulary not fitted or provided"):
        ours.text.CountVectorizer().transform(lazy)
    with pytest.raises(NotFittedError, match="The TF-IDF vectorizer is not fitted"):
        ours.text.TfidfVectorizer(vocabulary=["a"]).transform(lazy)
    with pytest.raises(ValueError, match="Iterable over raw text documents expected"):
        ours.text.CountVectorizer().fit("text")
    with pytest.raises(AttributeError, match="no attribute 'lower'"):
        ours.text.HashingVectorizer().transform(da.ones(3))
    frame = dd.from_pandas(pd.DataFrame({"text": documents}), npartitions=2)
    for vectorizer in (ours.text.HashingVectorizer(), ours.DictVectorizer(), ours.FeatureHasher()):
        with pytest.raises(ValueError, match=r"one column of items.*X\['text'\]"):
            vectorizer.fit(frame)
    with pytest.raises(ValueError, match="Samples can not be a single string"):
        ours.FeatureHasher(input_type="string").transform(frame["text"])
    with pytest.raises(TypeError, match="sample_weight"):
        ours.text.CountVectorizer().fit(lazy, sample_weight=np.ones(len(documents)))


def test_parameters_that_are_not_used_are_warned_of_once(documents):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        params = {"analyzer": "char", "tokenizer": split_at_spaces}
        ours.text.CountVectorizer(**params).fit(db.from_sequence(documents, npartitions=5))
    messages = [str(w.message) for w in caught if "will not be used" in str(w.message)]
    assert len(messages) == len(set(messages)) == 2


def test_persisted_bag(cluster_client, documents):
    reference = text.TfidfVectorizer(max_features=20).fit(documents)
    with cluster_client.as_current():
        bag = db.from_sequence(documents, npartitions=4).persist()
        vectorizer = ours.text.TfidfVectorizer(max_features=20).fit(bag)
        assert list(vectorizer.vocabulary_.items()) == list(reference.vocabulary_.items())
        for transformed in (vectorizer.transform(bag), vectorizer.transform(bag).persist()):
            same_values(transformed.compute(), reference.transform(documents))


@parametrize_with_checks([ours.text.TfidfTransformer()])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("room", ["text", "dicts"])
def test_rows_of_this_process_are_scikit_learns(room, documents, dicts):
    names = ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")
    if room == "dicts":
        names = ("DictVectorizer", "FeatureHasher")
    for name in names:
        own, stock = (
            getattr(module, name)()
            for module in ((ours.text, text) if room == "text" else (ours, feature_extraction))
        )
        rows = documents if room == "text" else [{"a": 1.5}, {"b": "c"}]
        expected = stock.fit_transform(rows)
        assert (own.fit_transform(rows) != expected).nnz == 0
        copy = pickle.loads(pickle.dumps(clone(own).fit(rows)))
        assert (copy.transform(rows) != stock.transform(rows)).nnz == 0
        assert isinstance(own, type(stock))


def transformers_of(texts, extraction, selection):
    counts = make_pipeline(texts.CountVectorizer(), selection.SelectKBest(chi2, k=4))
    return [
        ("tfidf", texts.TfidfVectorizer(min_df=3), "text"),
        ("split", texts.CountVectorizer(analyzer=split_at_spaces, max_features=5), "text"),
        ("hash", texts.HashingVectorizer(n_features=8), "text"),
        ("tokens", extraction.FeatureHasher(4, input_type="string"), "tokens"),
        ("number", selection.SelectKBest(k=1), ["a", "b"]),
        ("counts", counts, "text"),
    ]


def test_column_transformer_of_text(documents):
    rng = np.random.default_rng(0)
    y = pd.Series(rng.integers(0, 2, len(documents)))
    tokens = pd.Series([document.split() for document in documents], dtype=object)
    X = pd.DataFrame(
        {"text": documents, "tokens": tokens, "a": y + rng.random(len(y)), "b": rng.random(len(y))}
    )
    with dask.config.set({"dataframe.convert-string": False}):
        lazy, lazy_y = (dd.from_pandas(rows, npartitions=4) for rows in (X, y))
    transformers = transformers_of(ours.text, ours, own_selection)
    with counting() as counts:
        fitted = ColumnTransformer(transformers).fit(lazy, lazy_y)
    assert counts.passes == 2  # the second one is that of the pipeline's second step
    reference = compose.ColumnTransformer(
        transformers_of(text, feature_extraction, feature_selection)
    ).fit(X, y)
    same_values(fitted.transform(lazy).compute(), reference.transform(X))
