"""Naive Bayes classifiers on rows of any container."""

from skfleet.estimators.naive_bayes._discrete import (
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    MultinomialNB,
)
from skfleet.estimators.naive_bayes._gaussian import GaussianNB

__all__ = ["BernoulliNB", "CategoricalNB", "ComplementNB", "GaussianNB", "MultinomialNB"]
