"""What ``plot()`` draws of a halving search."""

from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import HalvingRandomSearchCV

X, y = load_digits(return_X_y=True)
search = HalvingRandomSearchCV(
    SVC(),
    {"gamma": loguniform(1e-5, 1e-1)},
    n_candidates=12,
    min_resources=120,
    cv=3,
    random_state=0,
)
with Fleet(n_workers=2, threads_per_worker=1, processes=False):
    search.fit(X, y)

_, times = search.plot()
times.set_yticks([0, 1], ["worker 1", "worker 2"])  # in place of their addresses
