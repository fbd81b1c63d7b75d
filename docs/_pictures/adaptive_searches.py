"""Learning curves of the candidates of a search by successive halving."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from skfleet import Fleet
from skfleet.model_selection import SuccessiveHalvingSearchCV

plt.rcParams["font.size"] = 10

X, y = load_digits(return_X_y=True)
search = SuccessiveHalvingSearchCV(
    MLPClassifier((16,), batch_size=64, random_state=0),
    {"learning_rate_init": loguniform(1e-5, 1e-1), "alpha": loguniform(1e-6, 1e-1)},
    n_initial_parameters=27,
    random_state=0,
)
with Fleet(n_workers=2, processes=False):
    search.fit(X / 16, y)

figure, axes = plt.subplots(figsize=(7, 3.6))
best = search.cv_results_["candidate"][search.best_index_]
for candidate, curve in search.history_.groupby("candidate"):
    is_best = candidate == best
    axes.plot(
        curve.partial_fit_calls,
        curve.test_score,
        marker="o",
        markersize=4,
        color=ORANGE if is_best else BLUE if len(curve) > 1 else GREY,
        lw=2 if is_best else 1,
        zorder=3 if is_best else 2,
    )
axes.set_xscale("log", base=3)
rungs = search.metadata_["brackets"][0]["rungs"]
ticks = [f"{calls}\n{n_models} trained" for n_models, calls in rungs]
axes.set_xticks([calls for _, calls in rungs], ticks)
axes.minorticks_off()
for colour, label in (
    (ORANGE, "the best candidate"),
    (BLUE, "among the best third at least once"),
    (GREY, "stopped after the first call"),
):
    axes.plot([], [], marker="o", markersize=4, color=colour, label=label)
axes.legend(frameon=False, loc="lower right")
axes.set(xlabel="calls of partial_fit", ylabel="score on held-out rows", xlim=(0.8, 34))
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
