"""Counts, frequencies and hashes of the words of documents."""

from skfleet.estimators.feature_extraction.text._tfidf import TfidfTransformer, TfidfVectorizer
from skfleet.estimators.feature_extraction.text._vectorizers import (
    CountVectorizer,
    HashingVectorizer,
)

__all__ = ["CountVectorizer", "HashingVectorizer", "TfidfTransformer", "TfidfVectorizer"]
