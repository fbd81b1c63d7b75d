"""Measure how many columns a hashed model of text needs: sentences of pandas or of SciPy?"""

import re

import dask.bag as db
import matplotlib.pyplot as plt
import numpy as np
import pandas
import scipy.signal
import scipy.stats
from _drawing import BLUE, ORANGE
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import CountVectorizer, HashingVectorizer, MultinomialNB

N_SENTENCES, COLUMNS = 4_000, [2**power for power in range(6, 19, 2)]


def sentences(*modules):
    """Return sentences of docstrings, shuffled."""
    found = set()
    for value in (getattr(module, name) for module in modules for name in dir(module)):
        for part in re.split(r"\n\s*\n|\.\s", getattr(value, "__doc__", None) or ""):
            if len(part.split()) > 5:
                found.add(" ".join(part.split()))
    return np.random.default_rng(0).permutation(sorted(found))[: N_SENTENCES // 2].tolist()


texts = [sentences(pandas, pandas.DataFrame), sentences(scipy.stats, scipy.signal)]
labels = np.repeat(["pandas", "SciPy"], [len(part) for part in texts])
texts = np.concatenate(texts)
order = np.random.default_rng(0).permutation(len(texts))
train, test = np.split(order, [2 * len(order) // 3])


def accuracy(vectorizer):
    """Return the share of right answers on sentences that the model has not seen."""
    model = make_pipeline(vectorizer, MultinomialNB())
    model.fit(db.from_sequence(texts[train].tolist(), npartitions=2), labels[train])
    return np.mean(model.predict(texts[test].tolist()) == labels[test])


with Fleet(n_workers=2, processes=False):
    hashed = [
        accuracy(HashingVectorizer(n_features=n, alternate_sign=False, norm=None)) for n in COLUMNS
    ]
    counted = CountVectorizer()
    exact, n_words = accuracy(counted), len(counted.vocabulary_)

plt.rcParams["font.size"] = 10
figure, axes = plt.subplots()
axes.axhline(exact, color=ORANGE, linestyle="--", label=f"CountVectorizer: {n_words:,} words")
axes.plot(COLUMNS, hashed, "o-", color=BLUE, label="HashingVectorizer")
axes.set_xscale("log", base=2)
axes.set_xlabel("columns")
axes.set_ylabel("accuracy on other sentences")
axes.legend(loc="lower right")
