"""Race of candidates over the splits of a search: decisions only, without I/O or a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

_P_VALUE = 0.1


def is_significantly_worse(scores: Sequence[float], incumbent: Sequence[float]) -> bool:
    """Return whether scores are worse than others on the same splits, by Wilcoxon's test.

    The signed-rank test is paired, one-sided and exact. Its p-value is that of
    ``scipy.stats.wilcoxon(zero_method="zsplit", method=PermutationMethod())``, which takes a tenth
    of a second where differences are tied, as those of accuracies are.
    """
    differences = np.nan_to_num(np.subtract(scores, incumbent), nan=0.0)
    ranks = np.rint(2 * rankdata(np.abs(differences))).astype(int)  # those of ties are halves
    rank_sum = int(ranks[differences > 0].sum())
    return _p_value(tuple(sorted(ranks[differences != 0].tolist())), rank_sum) < _P_VALUE


@lru_cache(maxsize=10_000)
def _p_value(ranks: tuple[int, ...], rank_sum: int) -> float:
    """Return the probability that ranks with random signs have at most this positive sum."""
    counts = np.ones(1)
    for rank in ranks:
        counts = np.pad(counts, (0, rank)) + np.pad(counts, (rank, 0))
    return float(counts[: rank_sum + 1].sum() / 2.0 ** len(ranks))


def is_below_worst(scores: Sequence[float], incumbent: Sequence[float]) -> bool:
    """Return whether the mean of scores is below the worst of others on the same splits."""
    return sum(scores) / len(scores) < min(incumbent)


# Rules by name, with the splits that a candidate has before the first decision on it.
RULES = {"wilcoxon": (is_significantly_worse, 4), "mean": (is_below_worst, 3)}


class RaceResult(NamedTuple):
    """Result of a race: for each candidate its splits that count, and whether it may be the best.

    Candidates that were dropped may not, nor those that have fewer splits than others.
    """

    n_splits: np.ndarray
    is_eligible: np.ndarray
    is_dropped: np.ndarray


class Race:
    """Race of candidates that are scored split by split.

    After each split those in the race are compared on all splits so far with the incumbent, the one
    with the best mean, and dropped where a rule says that they are worse. A decision waits for the
    scores of all of them on its splits. So it depends on scores alone, and not on the order in
    which these arrive; scores on further splits that a dropped candidate has do not count.

    Candidates are numbered in the order in which they are added. Those of an earlier call that are
    complete remain incumbents, and are not dropped any more.
    """

    def __init__(self, rule: str, n_splits: int) -> None:
        self._is_worse, self._min_splits = RULES[rule]
        self.n_splits = n_splits
        self.drops: dict[int, int] = {}  # by candidate the number of splits that count
        self._scores: list[dict[int, float]] = []  # by split, of each candidate
        self._means: list[list[float]] = []  # on the first 1, 2, ... splits, of each candidate
        self._runners: list[int] = []
        self._earlier: list[int] = []
        self._safe: set[int] = set()
        self._n_decided = 0  # splits of the current call
        self._n_missing: list[int] = []  # of each split, scores of runners
        self._losses: dict[tuple[int, int, int], bool] = {}

    @property
    def n_candidates(self) -> int:
        """Number of the candidates added so far."""
        return len(self._scores)

    def add(self, n_candidates: int) -> None:
        """Add the candidates of a further call."""
        self._earlier += [n for n in self._runners if len(self._means[n]) == self.n_splits]
        self._runners = list(range(self.n_candidates, self.n_candidates + n_candidates))
        self._scores += [{} for _ in self._runners]
        self._means += [[] for _ in self._runners]
        self._n_decided, self._n_missing = 0, [n_candidates] * self.n_splits
        self._losses.clear()

    def spare(self, candidate: int) -> None:
        """Drop a candidate in no case: its scores need no fits."""
        self._safe.add(candidate)

    def record(self, candidate: int, split: int, score: float) -> None:
        """Record the score of a candidate on a split, and decide what can be decided."""
        scores = self._scores[candidate]
        if split in scores:
            return
        scores[split] = score
        means = self._means[candidate]
        while (n := len(means)) in scores:
            means.append(sum(self._first(candidate, n + 1)) / (n + 1))
        if candidate in self.drops:
            return
        self._n_missing[split] -= 1
        while self._n_decided < self.n_splits and not self._n_missing[self._n_decided]:
            self._n_decided += 1
            if self._min_splits <= self._n_decided < self.n_splits:
                self._decide(self._n_decided)

    def _decide(self, n_splits: int) -> None:
        """Drop the candidates that are worse than the incumbent on the first splits."""
        incumbent = self._incumbent(n_splits)
        losers = [n for n in self._runners if self._loses(n, incumbent, n_splits)]
        self.drops |= dict.fromkeys(losers, n_splits)
        self._runners = [n for n in self._runners if n not in self.drops]
        for loser in losers:
            for split in range(n_splits, self.n_splits):
                self._n_missing[split] -= split not in self._scores[loser]

    def doubtful(self) -> set[int]:
        """Return the candidates that would be dropped by the scores that are known so far."""
        doubtful: set[int] = set()
        for n_splits in range(max(self._min_splits, self._n_decided + 1), self.n_splits):
            incumbent = self._incumbent(n_splits)
            scored = [n for n in self._runners if len(self._means[n]) >= n_splits]
            doubtful.update(n for n in scored if self._loses(n, incumbent, n_splits))
        return doubtful

    def _first(self, candidate: int, n_splits: int) -> list[float]:
        return [self._scores[candidate][split] for split in range(n_splits)]

    def _incumbent(self, n_splits: int) -> int | None:
        """Return the candidate with the best mean on the first splits; None without any mean."""
        best, best_mean = None, -math.inf
        for candidate in (*self._earlier, *self._runners):
            means = self._means[candidate]
            if len(means) >= n_splits and means[n_splits - 1] > best_mean:
                best, best_mean = candidate, means[n_splits - 1]
        return best

    def _loses(self, candidate: int, incumbent: int | None, n_splits: int) -> bool:
        """Return whether a candidate is worse than the incumbent, or has no mean."""
        if incumbent is None or candidate == incumbent or candidate in self._safe:
            return False
        key = candidate, incumbent, n_splits
        if key not in self._losses:
            scores, best = self._first(candidate, n_splits), self._first(incumbent, n_splits)
            has_mean = math.isfinite(self._means[candidate][n_splits - 1])
            self._losses[key] = not has_mean or self._is_worse(scores, best)
        return self._losses[key]

    def result(self) -> RaceResult:
        """Return what counts of each candidate.

        Where the search has ended before any was complete, that is the splits on which all that
        were not dropped have been compared.
        """
        numbers = range(self.n_candidates)
        n_splits = np.array([self.drops.get(n, len(self._means[n])) for n in numbers])
        is_dropped = np.array([n in self.drops for n in numbers], dtype=bool)
        is_eligible = ~is_dropped & (n_splits == self.n_splits)
        if self._n_decided and not is_eligible.any():
            is_eligible[self._runners] = True
            n_splits[self._runners] = self._n_decided
        return RaceResult(n_splits, is_eligible, is_dropped)
