"""What ``plot()`` draws of a grid search."""

from sklearn.datasets import load_digits
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

X, y = load_digits(return_X_y=True)
grid = {"gamma": [0.0001, 0.0003, 0.001, 0.003, 0.01], "C": [0.3, 1, 10]}
search = GridSearchCV(SVC(), grid, cv=3)
with Fleet(n_workers=2, threads_per_worker=1, processes=False):
    search.fit(X[:600], y[:600])

_, times = search.plot()
times.set_yticks([0, 1], ["worker 1", "worker 2"])  # in place of their addresses
