"""Frequencies of terms, weighted by how few documents have them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.feature_extraction import text
from sklearn.utils import check_array

from skfleet.blocks import Block
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators.feature_extraction.text._vectorizers import VocabularyFit


class DocumentCounts(NamedTuple):
    """Number of documents, and of those with each term, and the float type of the counts."""

    n_documents: int
    by_term: np.ndarray
    dtype: np.dtype


@blockwise
class TfidfTransformer(BlockwiseTransformer, text.TfidfTransformer, auto_wrap_output_keys=None):
    """On Dask rows ``fit`` is one pass, none without ``use_idf``; ``transform`` is lazy."""

    def _fit_passes(self, meta: Any) -> Any:
        if self.use_idf:
            yield from super()._fit_passes(meta)

    def _reduce_block(self, block: Block) -> DocumentCounts:
        accepted = ("csr", "csc")
        X = check_array(block.X, accept_sparse=accepted, estimator=self, input_name="X")
        dtype = X.dtype if X.dtype in (np.float64, np.float32) else np.dtype(np.float64)
        # stored entries count, zeros too, as they do in scikit-learn
        if sparse.issparse(X) and X.format == "csc":
            by_term = np.diff(X.indptr)
        elif sparse.issparse(X):
            by_term = np.bincount(X.indices, minlength=X.shape[1])
        else:
            by_term = np.count_nonzero(X, axis=0)
        return DocumentCounts(X.shape[0], by_term, dtype)

    def _combine(self, a: DocumentCounts, b: DocumentCounts) -> DocumentCounts:
        dtype = np.result_type(a.dtype, b.dtype)
        return DocumentCounts(a.n_documents + b.n_documents, a.by_term + b.by_term, dtype)

    def _set_statistics(self, statistics: DocumentCounts) -> None:
        n_documents, by_term, dtype = statistics
        self.idf_ = inverse_frequencies(n_documents, by_term.astype(dtype), self.smooth_idf)


@blockwise
class TfidfVectorizer(VocabularyFit, text.TfidfVectorizer):
    """On a Dask bag, Series or array of text ``fit`` is one pass, for vocabulary and ``idf_``.

    Each block's terms are counted where it is, and merged in a tree. The terms of all documents
    come to the driver, with two counts and the first position of each, also those that the limits
    exclude; with a ``vocabulary`` only the counts of its terms do, and without ``use_idf`` too
    nothing does, in no pass. ``transform`` is lazy; the vocabulary goes to each worker once.
    """

    def _has_idf(self) -> bool:
        return bool(self.use_idf)

    def _set_idf(self, n_documents: int, document_counts: Any) -> None:
        counts = np.asarray(document_counts).astype(self.idf_.dtype)
        # a shallow copy, since scikit-learn's setter would read an iterator of terms again
        model = self._without_local_params()
        model.idf_ = inverse_frequencies(n_documents, counts, self.smooth_idf)


def inverse_frequencies(n_documents: int, by_term: np.ndarray, is_smooth: bool) -> np.ndarray:
    """Return 1 plus the logarithms of the inverse frequencies, in the float type of the counts."""
    n_with_term = by_term + by_term.dtype.type(is_smooth)
    return np.log(by_term.dtype.type(n_documents + int(is_smooth)) / n_with_term) + 1
