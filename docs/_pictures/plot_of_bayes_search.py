"""What ``plot()`` draws of a model-based search."""

from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import BayesSearchCV

X, y = load_digits(return_X_y=True)
space = {"gamma": loguniform(1e-6, 1), "C": loguniform(0.1, 100), "shrinking": [True, False]}
search = BayesSearchCV(SVC(), space, n_iter=40, cv=3, random_state=0)
with Fleet(n_workers=2, threads_per_worker=1, processes=False):
    search.fit(X[:600], y[:600])

search.plot()
