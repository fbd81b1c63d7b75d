"""Texts that the docstrings of generators share."""

from skfleet._docstrings import compose_docstring

document = compose_docstring(
    {
        "random_state": """\
random_state : int, RandomState instance or None, default=None
    Seed of the values, which do not depend on `chunks`. None draws one.""",
        "chunks": """\
chunks : int, str or tuple, default="auto"
    Number of rows of a block, a size like "64MiB", "auto" for Dask's default size, or chunks as
    :func:`dask.array.from_array` takes them. Columns are not cut.""",
        "as_frame": """\
as_frame : bool, default=False
    If True, X is a Dask DataFrame of columns "x0", "x1", ..., and y a Series "target" or a
    DataFrame of "target0", "target1", ..., both with the number of the row as index.""",
        "X": """\
X : Dask array or DataFrame of shape (n_samples, n_features)
    The rows, float64.""",
        "errors": """\
ValueError
    If a parameter is not one of scikit-learn's values, or `chunks` cut the columns.""",
        "cells": """\
Nothing is drawn before a block is computed, and its task draws no other block. Values depend on
the seed and on the global number of the row, to the last bit, whatever the partition, the engine
and the number of workers. The construction is scikit-learn's, but the generator is not: values
differ from scikit-learn's for the same seed. Equal calls with an integer seed return collections
with equal names.""",
    }
)
