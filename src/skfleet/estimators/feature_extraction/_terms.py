"""Distinct terms of documents with their counts, merged from block to block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

# Bits of a position for a term's rank in its block; the number of the block has the others.
_RANK_BITS = 32


class TermTable(NamedTuple):
    """Distinct terms, the position at which each occurs first, and counts of each."""

    terms: list[Any]
    first: np.ndarray
    counts: tuple[np.ndarray, ...] = ()

    @classmethod
    def of_block(cls, number: int, terms: list[Any], *counts: np.ndarray) -> TermTable:
        """Return the terms of a block, which are in the order in which they occur."""
        return cls(terms, (number << _RANK_BITS) + np.arange(len(terms)), counts)


class Terms(NamedTuple):
    """Number of documents, and their terms, in tables that may have terms in common."""

    n_documents: int
    tables: tuple[TermTable, ...]

    def in_one_table(self) -> TermTable:
        """Return all terms, in the order in which they occur first."""
        table = _unite(self.tables)
        order = np.argsort(table.first)
        counts = tuple(values[order] for values in table.counts)
        return TermTable([table.terms[i] for i in order], table.first[order], counts)


def combine_terms(a: Terms, b: Terms) -> Terms:
    """Return the terms of two parts of the documents.

    Tables are united when the small ones together are as long as the longest: so each term is
    copied a few times, however many parts are added one by one.
    """
    tables = sorted((*a.tables, *b.tables), key=lambda table: -len(table.terms))
    lengths = [len(table.terms) for table in tables]
    if lengths and sum(lengths[1:]) >= lengths[0]:
        tables = [_unite(tables)]
    return Terms(a.n_documents + b.n_documents, tuple(tables))


def _unite(tables: Sequence[TermTable]) -> TermTable:
    """Return the terms of several tables in one."""
    if len(tables) == 1:
        return tables[0]
    terms = list(chain.from_iterable(table.terms for table in tables))
    index = {term: i for i, term in enumerate(dict.fromkeys(terms))}
    codes = np.fromiter(map(index.__getitem__, terms), np.intp, len(terms))
    first = np.full(len(index), np.iinfo(np.int64).max)
    np.minimum.at(first, codes, np.concatenate([table.first for table in tables] or [first]))
    counts = tuple(
        np.bincount(codes, np.concatenate(parts), len(index)).astype(parts[0].dtype)
        for parts in zip(*(table.counts for table in tables), strict=True)
    )
    return TermTable(list(index), first, counts)
