"""An estimator whose scores are known, and a race over them stated once more."""

import numpy as np
from scipy.stats import PermutationMethod, wilcoxon
from sklearn.base import BaseEstimator
from sklearn.model_selection import PredefinedSplit

N_SPLITS = 10
ROWS = np.repeat(np.arange(N_SPLITS), 2)  # their part
X = np.column_stack([ROWS, np.zeros_like(ROWS)]).astype(float)
SPLITS = PredefinedSplit(ROWS)


def random_scores(n_candidates, *, digits=2, seed=0):
    """Return scores by candidate and split: some candidates are clearly worse, some hardly."""
    random = np.random.default_rng(seed)
    quality = np.sort(random.exponential(0.3, n_candidates))[::-1]
    easy = random.normal(0, 0.1, N_SPLITS)
    noise = random.normal(0, 0.05, (n_candidates, N_SPLITS))
    return np.round(random.permutation(1 - quality)[:, None] + easy + noise, digits)


class Scored(BaseEstimator):
    """Its score on a split is in a table; each fit is counted."""

    table = random_scores(12)
    made = []  # candidate and split of each fit

    def __init__(self, p=0, fails=()):
        self.p, self.fails = p, fails

    def fit(self, X, y=None):
        (part,) = set(range(N_SPLITS)) - set(np.asarray(X)[:, 0].astype(int)) or {None}
        if part is not None:  # not the refit
            Scored.made.append((self.p, part))
        if self.p in self.fails:
            raise ValueError("no luck")
        return self

    def __sklearn_is_fitted__(self):
        return True

    def score(self, X, y=None):
        return float(Scored.table[self.p, int(np.asarray(X)[0, 0])])


def significantly_worse(scores, incumbent):
    """Return what SciPy says of it, where it tries all signs."""
    method = PermutationMethod(n_resamples=2**10)
    differences = np.subtract(scores, incumbent)
    test = wilcoxon(differences, alternative="less", zero_method="zsplit", method=method)
    return test.pvalue < 0.1


def below_worst(scores, incumbent):
    return np.mean(scores) < np.min(incumbent)


def raced(table, is_worse, n_first):
    """Return for each candidate on how many splits of a table of scores it is left in a race."""
    n_candidates, n_splits = table.shape
    n_left = np.full(n_candidates, n_splits)
    for n in range(n_first, n_splits):
        means = table[:, :n].mean(axis=1)
        means[n_left < n_splits] = np.nan
        if np.isnan(means).all():
            continue
        best = np.nanargmax(means)
        for candidate in np.flatnonzero(n_left == n_splits):
            is_lost = np.isnan(means[candidate]) or is_worse(table[candidate, :n], table[best, :n])
            if candidate != best and is_lost:
                n_left[candidate] = n
    return n_left
