"""
Telling words of texts
======================

Which words make a review a good one? This example learns it from many short texts that are spread
over partitions. :class:`~skfleet.estimators.TfidfVectorizer` turns each text into a row of weights,
one for each word, and :class:`~skfleet.estimators.SGDClassifier` learns which words speak for
which answer. The coefficients of the model then name the words.
"""

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import SGDClassifier, TfidfVectorizer
from skfleet.model_selection import train_test_split

BLUE, ORANGE = "#3499cd", "#f79a3b"

# %%
# The reviews
# -----------
#
# The reviews are made of words drawn at random. Most words say nothing about the answer. Some are
# more frequent in good reviews, some in poor ones. In one of ten reviews the answer is the wrong
# one, as it is in real data. Negations do not occur: *not good* would need pairs of words, which
# ``ngram_range=(1, 2)`` gives.

WORDS = {
    "neutral": "the a and we it was in on room hotel breakfast morning evening city station street "
    "bed window night staff coffee lift garden pool week family price floor door view",
    "good": "friendly quiet clean lovely comfortable generous bright helpful fresh charming",
    "poor": "noisy dirty rude broken cold tiny stained slow stale dark",
}


def make_reviews(n_rows=12_000):
    """Return made reviews of 12 to 30 words, with their answers."""
    rng = np.random.default_rng(0)
    neutral, good, poor = (words.split() for words in WORDS.values())
    words = np.array(neutral + good + poor)
    # Of the good and the poor words the first ones are frequent, the last ones rare.
    usual = np.r_[np.ones(len(neutral)), np.linspace(0.5, 0.15, 10), np.linspace(0.5, 0.15, 10)]
    tilts = {
        True: np.r_[np.ones(len(neutral)), np.full(10, 3), np.full(10, 0.5)],
        False: np.r_[np.ones(len(neutral)), np.full(10, 0.5), np.full(10, 3)],
    }
    is_good = rng.random(n_rows) < 0.5
    texts = []
    for answer in is_good:
        weights = usual * tilts[bool(answer)]
        drawn = rng.choice(words, rng.integers(12, 31), p=weights / weights.sum())
        texts.append(" ".join(drawn))
    is_wrong = rng.random(n_rows) < 0.1
    return pd.DataFrame({"text": texts, "answer": np.where(is_good ^ is_wrong, "good", "poor")})


reviews = dd.from_pandas(make_reviews(), npartitions=6)
print(reviews["text"].head(2).to_list())

# %%
# Vectorise and learn
# -------------------
#
# The vectoriser must know all words before it can give any of them a column. It finds them, and in
# how many texts each occurs, in one *pass*: it reads all texts once. The words of all partitions
# then make one vocabulary, which is the same for every partitioning. The weights stay sparse.
#
# ``partial_fit`` of plain scikit-learn learns batch by batch, too, but somebody must loop over the
# batches. Here ``fit`` does so. It makes a pass to find the two answers, and one for each *epoch*.
# The log loss makes it give probabilities, and the mean of the weights over all steps is steadier
# than the last ones.

fleet = Fleet(n_workers=2, processes=False)
X_train, X_test, y_train, y_test = train_test_split(
    reviews["text"], reviews["answer"], random_state=0
)
vectorizer = TfidfVectorizer(min_df=5)
classifier = SGDClassifier(loss="log_loss", average=True, max_iter=5, tol=None, random_state=0)
with counting() as counts:
    model = make_pipeline(vectorizer, classifier).fit(X_train, y_train)
accuracy = model.score(X_test, y_test)
fleet.close()
print(f"{len(vectorizer.vocabulary_)} words, {counts.passes} passes, accuracy {accuracy:.2f}")

# %%
# One answer in ten is wrong, so no model can be right much more often than nine times in ten.
#
# The words that tell most
# ------------------------
#
# A coefficient is what a word adds to the score for the second class, which is *poor*. With the
# sign turned, bars to the right speak for a good review. Look at which words have long bars, and
# check them against the two lists above. Rare words have shorter bars, since the model has seen
# less of them.

names = vectorizer.get_feature_names_out()
weights = -classifier.coef_[0]
order = np.argsort(weights)
shown = np.r_[order[:10], order[-10:]]
colors = np.where(weights[shown] > 0, BLUE, ORANGE)

figure, axes = plt.subplots(figsize=(6.5, 5), layout="constrained")
axes.barh(names[shown], weights[shown], color=colors)
axes.axvline(0, color="black", linewidth=0.8)
axes.set(xlabel="weight for a good review", ylim=(-0.7, 19.7))
plt.show()

# %%
# Ask the model
# -------------
#
# A fitted pipeline takes texts of this process as well, and answers at once.

texts = ["friendly staff and a bright room", "the lift was broken and the coffee cold"]
for text, answer in zip(texts, model.predict(pd.Series(texts)), strict=True):
    print(f"{answer}: {text}")

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/text`: vectorisers for texts of any size, and when to use hashing.
# * :doc:`/guide/incremental_learning`: more about learning batch by batch.
# * :class:`~skfleet.estimators.TfidfVectorizer` and :class:`~skfleet.estimators.SGDClassifier` in
#   the reference.
