"""What ``plot()`` draws of a search by Hyperband."""

from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from skfleet import Fleet
from skfleet.model_selection import HyperbandSearchCV

X, y = load_digits(return_X_y=True)
parameters = {"alpha": loguniform(1e-6, 1), "eta0": loguniform(1e-4, 1e-1)}
model = SGDClassifier(learning_rate="constant", random_state=0)
search = HyperbandSearchCV(model, parameters, max_iter=27, batch_size=100, random_state=1)
with Fleet(n_workers=2, threads_per_worker=1, processes=False):
    search.fit(X / 16, y)

search.plot()
