"""
Words that tell topics apart
============================

Messages reach a company all day, and somebody has to pass each one to the right desk. This example
trains a model that does it. The messages are a Dask Series, so they may be more than one machine
holds. They are never collected: each worker counts the words of its own messages.

A linear model of words has another virtue. You can look at the words that it goes by, and see
whether they make sense. That is the picture at the end.
"""

# %%
# The messages
# ------------
#
# The messages are made up, so that this script needs no download. Each of them is for one of three
# desks. Most of its words are common to all messages, some are those of its desk, and a few are
# those of any desk. So no single word decides.
#
# :func:`dask.dataframe.from_map` calls the function once for each partition, on the workers and
# when the rows are needed. In your work it would be a function that reads one file.
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import SGDClassifier, TfidfVectorizer
from skfleet.metrics import confusion_matrix
from skfleet.model_selection import train_test_split

COMMON = """a about again all am an and another any are as at been but can could do for from had has
have hello help how i if in is it just last long me monday month my need no not now of on one please
since still than thank that the then there this to today try two very was we week what when why will
with would yesterday you your"""
DESKS = {
    "billing": """account amount bank bill card charge cost discount fee invoice money paid payment
    price refund subscription tax total transfer twice""",
    "delivery": """address arrived box broken courier damaged delayed door driver late missing
    neighbour order package parcel sent shipping street tracking waiting""",
    "support": """app battery button connect crash device error install login manual network
    password reset screen settings slow software start update version""",
}


def make_messages(seed, n_messages=1_000):
    """Return made messages and the desks that they are for."""
    rng = np.random.default_rng(seed)
    common = np.array(COMMON.split())
    of_desk = {desk: np.array(words.split()) for desk, words in DESKS.items()}
    of_any_desk = np.concatenate(list(of_desk.values()))
    desks = rng.choice(list(DESKS), n_messages)
    messages = []
    for desk in desks:
        n_common, n_of_desk, n_of_any_desk = rng.integers([8, 1, 0], [25, 5, 4])
        words = [
            *common[rng.integers(len(common), size=n_common)],
            *of_desk[desk][rng.integers(len(of_desk[desk]), size=n_of_desk)],
            *of_any_desk[rng.integers(len(of_any_desk), size=n_of_any_desk)],
        ]
        messages.append(" ".join(rng.permutation(words)))
    return pd.DataFrame({"message": messages, "desk": desks})


table = dd.from_map(make_messages, range(6))
print(*make_messages(0)["message"].head(3), sep="\n")

# %%
# Train
# -----
#
# :class:`~skfleet.estimators.TfidfVectorizer` makes a column for each word. The value of a word
# grows with its count in the message. It is smaller the more messages have the word, as words like
# *the* tell little. ``fit`` reads the messages once, which is a *pass*, and brings the vocabulary
# together. The blocks of the matrix are sparse, and stay on the workers.
#
# :class:`~skfleet.estimators.SGDClassifier` then reads its rows once for each epoch. With
# ``loss="log_loss"`` it is logistic regression, and ``average=True`` smooths the last steps.
with Fleet(n_workers=2, processes=False):
    X_train, X_test, y_train, y_test = train_test_split(
        table["message"], table["desk"], test_size=0.25, stratify=table["desk"], random_state=0
    )
    model = make_pipeline(
        TfidfVectorizer(min_df=5),
        SGDClassifier(loss="log_loss", alpha=1e-4, average=True, random_state=0),
    ).fit(X_train, y_train)

    confusion = confusion_matrix(y_test, model.predict(X_test))

vectorizer, classifier = model
print(f"{len(vectorizer.vocabulary_)} words")
print(f"accuracy on test messages: {np.trace(confusion) / confusion.sum():.3f}")
print(pd.DataFrame(confusion, index=classifier.classes_, columns=classifier.classes_))

# %%
# The predictions are a Dask Series, and the metric takes it as it is. In the table each row is the
# right desk, and each column the predicted one. The accuracy follows from it, so the messages need
# not be read again.
#
# The most telling words
# ----------------------
#
# ``coef_`` has a row of coefficients for each desk. A large one speaks for the desk, a large
# negative one against it. We draw the ten words with the largest coefficients of each desk, and for
# comparison five words that are common.
#
# Check whether the words make sense for their desk, and look for some that should not be there: a
# name, a date, or the footer of a mail program. Such words hold for the messages of the training,
# and not for those of next year. Here the bars of the common words are short, as they should be.
words = vectorizer.get_feature_names_out()
common = np.flatnonzero(np.isin(words, ["hello", "please", "the", "week", "you"]))

fig, axes = plt.subplots(1, 3, figsize=(9, 4.4), sharex=True, layout="constrained")
for ax, desk, coefficients in zip(axes, classifier.classes_, classifier.coef_, strict=True):
    shown = np.append(np.argsort(-coefficients)[:10], common)
    colors = ["#3499cd"] * 10 + ["#5b5b5b"] * len(common)
    ax.barh(np.arange(len(shown)), coefficients[shown], color=colors)
    ax.set_yticks(np.arange(len(shown)), words[shown])
    ax.invert_yaxis()
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_title(desk, fontsize=10)
axes[1].set_xlabel("coefficient")
plt.show()

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/text`: vectorizers for Dask rows, and which one to choose.
# * :class:`~skfleet.estimators.TfidfVectorizer` and :class:`~skfleet.estimators.SGDClassifier` in
#   the reference.
