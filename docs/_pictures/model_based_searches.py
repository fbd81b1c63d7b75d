"""Scores of the candidates of a random and of a model-based search, and the best so far."""

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from scipy.stats import loguniform, randint
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import BayesSearchCV

plt.rcParams["font.size"] = 10

X, y = load_digits(return_X_y=True)
model = make_pipeline(PCA(random_state=0), SVC())
space = {
    "pca__n_components": randint(1, 65),
    "pca__whiten": [True, False],
    "svc__C": loguniform(1e-4, 1e4),
    "svc__gamma": loguniform(1e-7, 10),
}
figure, panels = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True)
with Fleet(n_workers=2, processes=False):
    for axes, sampler in zip(panels, ("random", "tpe"), strict=True):
        search = BayesSearchCV(
            model, space, n_iter=40, sampler=sampler, cv=3, refit=False, random_state=0
        ).fit(X[:400], y[:400])
        scores = search.cv_results_["mean_test_score"]
        number, best = np.arange(1, len(scores) + 1), np.maximum.accumulate(scores)
        axes.plot(number, scores, "o", color=BLUE, markersize=4, label="a candidate")
        axes.step(number, best, where="post", color=ORANGE, lw=2, label="best so far")
        axes.set(xlabel="number of the candidate", title=f'sampler="{sampler}"')
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
panels[0].set(ylabel="mean accuracy on the test rows", ylim=(0, 1))
panels[0].legend(frameon=False, loc="center right")
panels[1].axvline(10.5, color=GREY, lw=1, ls="--")
panels[1].text(11.5, 0.45, "learns from here on", color=GREY)
figure.tight_layout()
