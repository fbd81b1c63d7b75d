"""
A search that learns from its scores
====================================

A random search draws all candidates beforehand, and learns nothing from their scores. A model-based
search chooses each batch of candidates by the scores of those before. So it spends more of its fits
on good candidates, which counts where fits are slow.

This example searches a support vector machine for handwritten digits, and looks at what the model
has learned.
"""

# %%
# The space
# ---------
#
# Four parameters, with ranges so wide that most candidates are bad. A distribution of SciPy gives a
# range, here on a logarithmic scale or of whole numbers. A list gives single values.
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import loguniform, randint
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import BayesSearchCV

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=400, random_state=0, stratify=y
)
model = make_pipeline(PCA(random_state=0), SVC())
space = {
    "pca__n_components": randint(1, 65),
    "pca__whiten": [True, False],
    "svc__C": loguniform(1e-4, 1e4),
    "svc__gamma": loguniform(1e-7, 10),
}

# %%
# Two searches
# ------------
#
# ``sampler="tpe"`` is the default: Optuna's tree of Parzen estimators, which needs Optuna
# (``pip install "scikit-fleet[optuna]"``). ``sampler="random"`` draws as
# :class:`~skfleet.model_selection.RandomizedSearchCV` does.
#
# A batch has as many candidates as the fleet makes fits at once, here two.
searches = {}
with Fleet(n_workers=2, processes=False):
    for sampler in ("random", "tpe"):
        search = BayesSearchCV(model, space, n_iter=40, sampler=sampler, cv=3, random_state=0)
        searches[sampler] = search.fit(X_train, y_train)

for sampler, search in searches.items():
    scores = search.cv_results_["mean_test_score"]
    print(
        f"{sampler:>6}: {np.sum(scores > 0.9):2} candidates above 0.9, "
        f"best {search.best_score_:.3f}, on the test rows {search.score(X_test, y_test):.3f}"
    )

# %%
# Where the candidates are
# ------------------------
#
# Each point is a candidate, at its values of ``C`` and ``gamma``. Its colour is its score, and a
# ring marks the best one.
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, (sampler, search) in zip(axes, searches.items(), strict=True):
    results = search.cv_results_
    c, gamma = (results[f"param_svc__{name}"].astype(float) for name in ("C", "gamma"))
    points = ax.scatter(c, gamma, c=results["mean_test_score"], cmap="viridis", vmin=0, vmax=1)
    best = search.best_index_
    ax.plot(c[best], gamma[best], "o", ms=13, mfc="none", mec="#f79a3b", mew=2)
    ax.set(xscale="log", yscale="log", xlabel="C", title=f'sampler="{sampler}"')
axes[0].set_ylabel("gamma")
fig.colorbar(points, ax=axes, label="mean accuracy of three splits")
plt.show()

# %%
# What to look at: the random candidates fill the space. Those of the model are crowded where scores
# are high. A few are elsewhere: the first ten are random, and later ones try what is not known yet.
#
# When it begins to learn
# -----------------------
#
# Candidates are in the order in which they were chosen. The lines count those above 0.9 so far.
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (sampler, search), color in zip(searches.items(), ("#5b5b5b", "#3499cd"), strict=True):
    n_good = np.cumsum(search.cv_results_["mean_test_score"] > 0.9)
    ax.step(np.arange(1, len(n_good) + 1), n_good, where="post", color=color, lw=2, label=sampler)
ax.axvline(10.5, color="#f79a3b", ls="--", lw=1, label="first ten")
ax.set(xlabel="candidates so far", ylabel="of these above 0.9")
ax.legend(frameon=False)
plt.show()

# %%
# After the first ten the blue line is steeper. The best scores, printed above, are close all the
# same: with 40 candidates a random search may be as lucky. Change ``random_state`` to see how much
# is chance.
#
# Go on from here
# ---------------
#
# A later search learns from the results of an earlier one, and may begin with its best parameters.
with Fleet(n_workers=2, processes=False):
    later = BayesSearchCV(
        model,
        space,
        n_iter=10,
        past_results=searches["tpe"].cv_results_,
        points_to_evaluate=[searches["tpe"].best_params_],
        cv=3,
        random_state=1,
    ).fit(X_train, y_train)
print(later.cv_results_["mean_test_score"].round(3))

# %%
# There is no random beginning any more, and most of the candidates are good.
#
# When not to use it: if a fit takes milliseconds, as here, simply try more candidates. If all
# parameters have a few values each, a grid shares more fits. With as many workers as candidates
# there is one batch, and nothing to learn from.
#
# .. seealso::
#
#    - :doc:`/guide/model_based_searches` has all samplers, batches, and limits.
#    - :class:`~skfleet.model_selection.BayesSearchCV` lists parameters and attributes.
#    - :doc:`plot_hyperband` stops bad candidates early, also those that a model proposes.
