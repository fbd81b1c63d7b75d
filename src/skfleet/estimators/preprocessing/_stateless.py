"""Transformers of rows by themselves, which learn nothing but the columns."""

from __future__ import annotations

from sklearn import preprocessing

from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise


@blockwise
class Normalizer(BlockwiseTransformer, preprocessing.Normalizer):
    """On Dask rows ``fit`` takes no pass."""


@blockwise
class Binarizer(BlockwiseTransformer, preprocessing.Binarizer):
    """On Dask rows ``fit`` takes no pass."""
