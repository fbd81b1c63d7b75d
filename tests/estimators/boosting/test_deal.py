"""The deal of rows to ranks: all of them, in order, about as many for each thread."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skfleet.estimators.boosting._row_survey import deal_rows


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    threads=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    has_queries=st.booleans(),
    data=st.data(),
)
def test_every_row_is_dealt_once(lengths, threads, has_queries, data):
    n_rows, starts = sum(lengths), None
    threads = threads[:n_rows]
    if has_queries:
        n_more = data.draw(st.integers(len(threads) - 1, n_rows - 1))
        rows = data.draw(st.permutations(range(1, n_rows)))
        starts = np.array([0, *sorted(rows[:n_more])])
    deal = deal_rows(lengths, threads, starts)
    offsets = np.cumsum([0, *lengths])
    ranks = [
        [int(offsets[b]) + r for b, low, high in part for r in range(low, high)] for part in deal
    ]
    assert [row for rows in ranks for row in rows] == list(range(n_rows))
    assert all(ranks)
    if starts is not None:
        assert {rows[0] for rows in ranks} <= set(starts.tolist())


def test_ranks_have_rows_by_their_threads():
    deal = deal_rows([1000] * 12, [1, 2, 3])
    assert [sum(high - low for _, low, high in part) for part in deal] == [2000, 4000, 6000]
