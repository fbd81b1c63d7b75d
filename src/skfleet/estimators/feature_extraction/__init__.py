"""Features of text, tokens and dicts."""

from skfleet.estimators.feature_extraction import text
from skfleet.estimators.feature_extraction._dicts import DictVectorizer, FeatureHasher

__all__ = ["DictVectorizer", "FeatureHasher", "text"]
