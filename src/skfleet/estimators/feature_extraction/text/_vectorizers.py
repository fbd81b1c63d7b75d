"""Vectorizers of text: by a vocabulary, or by hashes of words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Set
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.feature_extraction import text

from skfleet._validation import is_numeric
from skfleet._warnings import without_warnings
from skfleet.blocks import Block, as_collection, check_rows, meta_of
from skfleet.engine import Passes, add
from skfleet.estimators._blockwise import blockwise, stock_estimator
from skfleet.estimators.feature_extraction._items import ItemTransformer
from skfleet.estimators.feature_extraction._terms import Terms, TermTable, combine_terms
from skfleet.inference import call_transform

# Parameters with which a vectorizer takes any text.
_PLAIN_TEXT: dict[str, Any] = {
    "input": "content",
    "analyzer": "word",
    "preprocessor": None,
    "tokenizer": None,
    "token_pattern": r"\w+",
    "stop_words": None,
    "ngram_range": (1, 1),
    "lowercase": False,
    "strip_accents": None,
}
_COUNT_PARAMS = text.CountVectorizer().get_params()
_ALL_TERMS = {"min_df": 1, "max_df": 1.0, "max_features": None}


class TextVectorizer(ItemTransformer):
    """Base of the vectorizers of documents."""

    analyzer: Any
    input: Any
    preprocessor: Any
    tokenizer: Any

    def _takes_text(self) -> bool:
        """Return whether documents are text for sure, and not what a user's function takes."""
        is_text = self.preprocessor is None and not callable(self.analyzer)
        return is_text and self.input == "content"

    def _example_item(self) -> Any:
        return "" if self._takes_text() and self.tokenizer is None else None

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        super()._check_meta(meta, reset=reset)
        if self._takes_text() and is_numeric(meta.dtype):
            self.build_analyzer()(1)  # raises

    def _transform_on_blocks(self, X: Any) -> Any:
        check_rows(X=X)
        X = as_collection(X)
        self._check_meta(meta_of(X), reset=False)
        # no document is loaded or invented that the user's own functions would have to take
        plain = copy.copy(self).set_params(**_PLAIN_TEXT)
        with without_warnings():
            example = plain.transform([""])
        vars(self).update({k: v for k, v in vars(plain).items() if k.endswith("vocabulary_")})
        return call_transform(self, self._task_model(), "transform", X, None, example)


@blockwise
class HashingVectorizer(TextVectorizer, text.HashingVectorizer):
    """On a Dask bag, Series or array of text ``fit`` takes no pass; ``transform`` is lazy."""

    def _fit_passes(self, meta: Any) -> Passes:
        stock_estimator(self).fit([])  # checks the parameters
        yield from ()


class VocabularyFit(TextVectorizer):
    """Fit of a vocabulary, and of inverse document frequencies by it."""

    max_df: Any
    max_features: Any
    min_df: Any
    vocabulary: Any

    _local_params = ("vocabulary",)

    def _fit_passes(self, meta: Any) -> Passes:
        vocabulary = self.vocabulary
        if vocabulary is not None:
            if not isinstance(vocabulary, Mapping | Set):
                vocabulary = list(vocabulary)  # an iterator is read once
            self._check_text_params(vocabulary)
            n_documents, document_counts = 0, None
            if self._has_idf():
                n_documents, document_counts = yield self._reduction(
                    "_count_documents", vocabulary, combine=add
                )
            self._set_vocabulary(vocabulary)
        else:
            self._check_text_params(None)
            terms = yield self._reduction("_count_terms", combine=combine_terms)
            n_documents = terms.n_documents
            selected, document_counts = self._select_terms(terms)
            self._set_vocabulary(selected)
            self.fixed_vocabulary_ = False
        if self._has_idf():
            self._set_idf(n_documents, document_counts)

    def _inverse_transform_on_blocks(self, X: Any) -> Any:
        if not hasattr(self, "vocabulary_"):
            by_parameter = text.CountVectorizer(vocabulary=self.vocabulary)
            by_parameter.transform([""])  # raises without one
            names = ("vocabulary_", "fixed_vocabulary_")
            vars(self).update({name: getattr(by_parameter, name) for name in names})
        return super()._inverse_transform_on_blocks(X)

    def _has_idf(self) -> bool:
        """Return whether the fit ends with `_set_idf`."""
        return False

    def _set_idf(self, n_documents: int, document_counts: Any) -> None:
        """Set the inverse frequencies of documents with each term."""
        raise NotImplementedError

    def _check_text_params(self, vocabulary: Any) -> None:
        """Raise and warn for parameters as scikit-learn does, by a fit of its own."""
        try:
            stock_estimator(self, vocabulary=vocabulary).fit([])
        except ValueError as error:
            if not _is_of_no_terms(error) and "0 sample" not in str(error):
                raise

    def _counter(self, **changes: Any) -> Any:
        """Return scikit-learn's counter with these parameters and changes.

        It is without the parameters that are not used: of those the driver has warned.
        """
        params = self.get_params(deep=False)
        params = {name: params[name] for name in _COUNT_PARAMS} | changes
        if params["tokenizer"] is not None:
            params["token_pattern"] = None
        if params["analyzer"] != "word":
            for name in ("tokenizer", "stop_words", "token_pattern"):
                params[name] = _COUNT_PARAMS[name]
        if callable(params["analyzer"]):
            for name in ("preprocessor", "ngram_range"):
                params[name] = _COUNT_PARAMS[name]
        return text.CountVectorizer(**params)

    def _count_terms(self, block: Block) -> Terms:
        """Return the terms of a block, the number of documents with each, and of occurrences."""
        counter = self._counter(**_ALL_TERMS)
        try:
            counts = counter.fit_transform(block.X)
        except ValueError as error:
            if not _is_of_no_terms(error):
                raise
            return Terms(block.n_rows, ())
        columns = np.fromiter(counter.vocabulary_.values(), np.intp, counts.shape[1])
        n_occurrences = np.asarray(counts.sum(axis=0)).ravel()[columns]
        table = TermTable.of_block(
            block.number,
            list(counter.vocabulary_),
            _document_counts(counts)[columns],
            n_occurrences,
        )
        return Terms(block.n_rows, (table,))

    def _count_documents(self, block: Block, vocabulary: Any) -> tuple[int, np.ndarray]:
        """Return the number of documents, and of those with each term of the vocabulary."""
        counts = self._counter(vocabulary=vocabulary).transform(block.X)
        return block.n_rows, _document_counts(counts)

    def _select_terms(self, terms: Terms) -> tuple[dict[Any, int], np.ndarray]:
        """Return the columns of terms within the limits, and their numbers of documents."""
        n, low, high, limit = terms.n_documents, self.min_df, self.max_df, self.max_features
        if not any(table.terms for table in terms.tables):
            text.CountVectorizer().fit([""])  # scikit-learn's error of an empty vocabulary
        low, high = (x if isinstance(x, Integral) else x * n for x in (low, high))
        if high < low:
            text.CountVectorizer(min_df=2, max_df=1).fit(["one"])  # scikit-learn's error
        names, _, (n_documents, n_occurrences) = terms.in_one_table()
        is_within = (n_documents >= low) & (n_documents <= high)
        columns = sorted(np.flatnonzero(is_within).tolist(), key=names.__getitem__)
        if not columns:
            text.CountVectorizer(min_df=2).fit(["one", "two"])  # scikit-learn's error
        if limit is not None and len(columns) > limit:
            # among equal counts this sort decides, as scikit-learn's does
            most_frequent = (-n_occurrences[columns]).argsort()[:limit]
            columns = [columns[i] for i in np.sort(most_frequent)]
        column_of = {term: column for column, term in enumerate(columns)}
        vocabulary = {names[term]: column_of[term] for term in sorted(columns)}
        return vocabulary, n_documents[columns]

    def _set_vocabulary(self, vocabulary: Any) -> None:
        """Set the attributes of a fit with this vocabulary, by one of scikit-learn's own."""
        params = self.get_params()
        stock = stock_estimator(self, **{**_PLAIN_TEXT, "vocabulary": vocabulary})
        with without_warnings(), np.errstate(divide="ignore"):
            fitted = vars(stock.fit([""]))
        vars(self).update({name: x for name, x in fitted.items() if name not in params})


@blockwise
class CountVectorizer(VocabularyFit, text.CountVectorizer):
    """On a Dask bag, Series or array of text ``fit`` is one pass, none with a ``vocabulary``.

    Each block's terms are counted where it is, and merged in a tree. The terms of all documents
    come to the driver, with two counts and the first position of each, also those that the limits
    exclude. ``transform`` and ``inverse_transform`` are lazy; the vocabulary goes to each worker
    once.
    """


def _document_counts(counts: Any) -> np.ndarray:
    """Return the number of rows with an entry in each column of a CSR matrix."""
    return np.bincount(counts.indices, minlength=counts.shape[1])


def _is_of_no_terms(error: ValueError) -> bool:
    """Return whether an error is of documents in which there is no term."""
    return str(error).startswith("empty vocabulary; perhaps")
